"""Value, gradient and Hessian of stationary scalar kernels with respect to the lag δ = x − z, in closed form.

For radial kernels κ(s), s = Σ δ_i²/ℓ_i², with Λ = diag(ℓ⁻²): ∇k = 2 κ'(s) Λδ, ∇∇ᵀk = 2 κ'(s) Λ + 4 κ''(s) Λδ(Λδ)ᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from ovkgp.exceptions import SmoothnessError
from ovkgp.kernels.records import KernelDispatcher, KernelRecord, find_record

SMOOTH_ADVICE = "Use gpytorch.kernels.RBFKernel or MaternKernel(nu=2.5)"


class Jet(NamedTuple):
    """Value, gradient and Hessian of a function, which add and multiply like functions.

    Parameters
    ----------
    value : Tensor of shape (...)
        Value k.
    gradient : Tensor of shape (..., d)
        Gradient ∇k.
    hessian : Tensor of shape (..., d, d)
        Hessian ∇∇ᵀk.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import Jet
    >>> linear = Jet(torch.tensor(3.0), torch.tensor([1.0]), torch.zeros(1, 1))  # f(t) = t at t = 3
    >>> (linear * linear).hessian.item()  # of t²
    2.0
    """

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __mul__(self, other):
        """Return the product with another jet, by the product rule."""
        cross = self.gradient.unsqueeze(-1) * other.gradient.unsqueeze(-2)
        return Jet(
            self.value * other.value,
            self.value.unsqueeze(-1) * other.gradient + other.value.unsqueeze(-1) * self.gradient,
            self.value[..., None, None] * other.hessian
            + other.value[..., None, None] * self.hessian
            + cross
            + cross.mT,
        )

    def __add__(self, other):
        return Jet(*(a + b for a, b in zip(self, other, strict=True)))

    def scaled(self, scale: Tensor) -> Jet:
        """Return the jet of s · k for a scale s of shape (...).

        Parameters
        ----------
        scale : Tensor of shape (...)
            s.

        Returns
        -------
        Jet
            Scaled jet.
        """
        return Jet(scale * self.value, scale[..., None] * self.gradient, scale[..., None, None] * self.hessian)


class JetDispatcher(KernelDispatcher):
    """Compute value, gradient and Hessian of a stationary scalar kernel: `lag_jet(kernel, lag)`.

    `lag_jet` supports GPyTorch's RBF, Matérn, RQ, Periodic, Cosine and SpectralMixture kernels, the stationary kernels
    of this package, and scalings, sums and products of them. A stationary, twice differentiable kernel is added by its
    record (see `KernelRecord`), with the `profile` of a radial kernel or a function `jet`, for example made with
    `separable_jet`. Use derivatives in closed form: automatic differentiation through a distance is wrong where two
    points coincide. Combinations of kernels are added with ``@lag_jet.register(MyKernel)`` and a function of the kernel
    and the lags.

    Parameters
    ----------
    kernel : Kernel
        Stationary scalar kernel. Its `active_dims` are ignored.
    lag : Tensor of shape (*batch, n, m, d)
        Lags x − z.

    Returns
    -------
    Jet
        Tensors of shapes (*batch, n, m), (*batch, n, m, d) and (*batch, n, m, d, d).

    Raises
    ------
    SmoothnessError
        If the kernel has no second derivative at zero lag, or is not registered.

    Notes
    -----
    Complexity: O(n m d²).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import lag_jet
    >>> lag_jet(RBFKernel(), torch.zeros(1, 1, 2)).gradient.shape
    torch.Size([1, 1, 2])
    """

    def from_record(self, record: KernelRecord) -> Callable | None:
        """Return the rule for the jet, or for the profile, of a scalar kernel."""
        return record.jet or (None if record.profile is None else _jet_from_profile)

    def __call__(self, kernel: Kernel, lag: Tensor) -> Jet:
        rule, record, name = self.find(kernel), find_record(kernel), type(kernel).__name__
        if record is not None and record.moment_order(kernel) <= 2:
            options = ", ".join(f"{option}={getattr(kernel, option)}" for option in record.options)
            raise SmoothnessError(f"{name}({options}) has no second derivative at zero lag. {SMOOTH_ADVICE}.")
        if rule is None:
            raise SmoothnessError(
                f"Derivatives of {name} are not registered. {SMOOTH_ADVICE}, or register them with ovkgp.kernels.register_kernel if the kernel is stationary and twice differentiable."
            )
        return rule(kernel, lag)


lag_jet = JetDispatcher()


def per_pair(parameter: Tensor) -> Tensor:
    """Reshape a parameter (*batch, 1, d) to broadcast against lags (*batch, n, m, d)."""
    return parameter.unsqueeze(-2)


def radial_jet(lag: Tensor, lengthscale: Tensor, profile: Callable) -> Jet:
    """Compute the jet of a radial kernel k = κ(s), s = Σ δ_i²/ℓ_i², from the derivatives of κ.

    Parameters
    ----------
    lag : Tensor of shape (*batch, n, m, d)
        Lags δ.
    lengthscale : Tensor of shape (*batch, 1, d) or (*batch, 1, 1)
        Lengthscales ℓ, as in GPyTorch's kernels.
    profile : callable
        Function of s (*batch, n, m) that returns κ, κ' and κ'', finite at s = 0. If κ'' diverges there more slowly than
        1/s, it may be set to 0, since it is multiplied by a factor that vanishes.

    Returns
    -------
    Jet
        Value, gradient and Hessian of the kernel.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import radial_jet
    >>> def inverse_quadratic(s):  # κ = 1 / (1 + s)
    ...     k = 1 / (1 + s)
    ...     return k, -(k**2), 2 * k**3
    >>> radial_jet(torch.zeros(1, 1, 2), torch.ones(1, 1), inverse_quadratic).hessian.squeeze()
    tensor([[-2.,  0.],
            [ 0., -2.]])
    """
    lengthscale = per_pair(lengthscale)
    limit = (
        torch.finfo(lag.dtype).max ** 0.25
    )  # beyond it profiles and their derivatives are zero, and squares overflow
    scaled = (lag / lengthscale).clamp(-limit, limit)
    precision, direction = lengthscale.pow(-2), scaled / lengthscale
    value, first, second = profile(scaled.square().sum(-1))
    outer = direction.unsqueeze(-1) * direction.unsqueeze(-2)
    diagonal = (2 * first.unsqueeze(-1) * precision).expand_as(direction)
    hessian = 4 * second[..., None, None] * outer + torch.diag_embed(diagonal)
    return Jet(value, 2 * first.unsqueeze(-1) * direction, hessian)


def separable_jet(value: Tensor, first: Tensor, second: Tensor) -> Jet:
    """Compute the jet of a product over coordinates k = Π_i f_i(δ_i) from the one-dimensional derivatives.

    Parameters
    ----------
    value, first, second : Tensor of shape (..., d)
        f_i, f_i' and f_i'' at δ_i.

    Returns
    -------
    Jet
        Value, gradient and Hessian of the kernel.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import separable_jet
    >>> t = torch.tensor([0.0, 0.5])  # cos δ_1 · cos δ_2
    >>> separable_jet(t.cos(), -t.sin(), -t.cos()).value == t.cos().prod()
    tensor(True)
    """
    axes = torch.eye(value.shape[-1], dtype=value.dtype, device=value.device)
    jets = (
        Jet(value[..., i], first[..., i, None] * axes[i], second[..., i, None, None] * torch.outer(axes[i], axes[i]))
        for i in range(value.shape[-1])
    )
    return reduce(Jet.__mul__, jets)


def _jet_from_profile(kernel: Kernel, lag: Tensor) -> Jet:
    record = find_record(kernel)
    others = [name for name in record.roles if name != "lengthscale"]
    # one value per kernel of a batch, to broadcast against (*batch, n, m)
    parameters = {name: getattr(kernel, name).reshape(*kernel.batch_shape, 1, 1) for name in others}

    def profile(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = record.profile(torch, s, kernel, **parameters)
        return found.value, found.first(), found.second()

    return radial_jet(lag, kernel.lengthscale, profile)


@lag_jet.register(ScaleKernel)
def _(kernel: ScaleKernel, lag: Tensor) -> Jet:
    return lag_jet(kernel.base_kernel, lag).scaled(kernel.outputscale[..., None, None])


@lag_jet.register(AdditiveKernel)
def _(kernel: AdditiveKernel, lag: Tensor) -> Jet:
    return reduce(Jet.__add__, (_child_jet(k, lag) for k in kernel.kernels))


@lag_jet.register(ProductKernel)
def _(kernel: ProductKernel, lag: Tensor) -> Jet:
    return reduce(Jet.__mul__, (_child_jet(k, lag) for k in kernel.kernels))


def _child_jet(kernel: Kernel, lag: Tensor) -> Jet:
    """Return the jet of a term or factor in all coordinates of `lag`, also if its `active_dims` select some."""
    if kernel.active_dims is None:
        return lag_jet(kernel, lag)
    jet = lag_jet(kernel, lag.index_select(-1, kernel.active_dims))
    selection = torch.eye(lag.shape[-1], dtype=jet.value.dtype, device=lag.device)[kernel.active_dims]
    return Jet(jet.value, jet.gradient @ selection, selection.mT @ jet.hessian @ selection)


def laplacian_gradient(kernel: Kernel, lag: Tensor) -> Tensor:
    """Compute ∇Δk (*batch, n, m, d) at the lags (*batch, n, m, d), by automatic differentiation of the Hessian."""
    with torch.enable_grad():
        lag = lag.detach().requires_grad_()
        laplacian = lag_jet(kernel, lag).hessian.diagonal(dim1=-2, dim2=-1).sum(-1)
        return torch.autograd.grad(laplacian.sum(), lag)[0]


def bilaplacian_at_zero(kernel: Kernel, num_dims: int) -> Tensor:
    """Compute Δ²k(0), the variance of the Laplacian of a function with covariance k.

    For a radial kernel κ(s) it is 4 κ''(0) ((tr Λ)² + 2 tr Λ²).
    """
    if isinstance(kernel, ScaleKernel):
        return kernel.outputscale * bilaplacian_at_zero(kernel.base_kernel, num_dims)
    if isinstance(kernel, AdditiveKernel) and all(part.active_dims is None for part in kernel.kernels):
        return sum(bilaplacian_at_zero(part, num_dims) for part in kernel.kernels)
    record = find_record(kernel)
    if record is None or record.profile is None or record.moment_order(kernel) <= 4:
        raise SmoothnessError(
            f"Curl and divergence need a base kernel with four derivatives, got {type(kernel).__name__}. {SMOOTH_ADVICE}."
        )
    others = {name: getattr(kernel, name) for name in record.roles if name != "lengthscale"}
    precision = kernel.lengthscale.pow(-2).expand(1, num_dims)
    second = record.profile(torch, precision.new_zeros(()), kernel, **others).second()
    return 4 * second * (precision.sum() ** 2 + 2 * precision.square().sum())
