"""Kernels between curves sampled on a grid: averages over the grid of a kernel between values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import check_integer, check_one_of, check_positive
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.gpytorch_records import exponential_profile, rbf_profile
from ovkgp.kernels.records import KernelRecord, register_kernel


class _CurveKernel(BatchIndexMixin, Kernel):
    """Σ_l w_l f(‖x(t_l) − z(t_l)‖² / ℓ²) with a profile f."""

    has_lengthscale = True
    profile: Callable

    def __init__(self, num_channels: int = 1, weights: Tensor | None = None, **kwargs):
        super().__init__(**kwargs)
        if weights is not None:
            weights = torch.as_tensor(weights, dtype=torch.get_default_dtype()).clone()
            if weights.dim() != 1 or not bool((weights >= 0).all()):
                raise OptionError("weights must be a vector of nonnegative numbers, one per grid point.")
        self.num_channels = check_integer("num_channels", num_channels)
        self.register_buffer("weights", weights)

    def _grid_weights(self, x: Tensor) -> Tensor:
        num_points, rest = divmod(x.shape[-1], self.num_channels)
        given = num_points if self.weights is None else len(self.weights)
        if rest or num_points != given:
            expected = "a multiple of" if self.weights is None else f"{given} grid points times"
            raise InputError(f"Expected {expected} {self.num_channels} channel(s) as columns, got {x.shape[-1]}.")
        return x.new_full((num_points,), 1 / num_points) if self.weights is None else self.weights.to(x)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        if last_dim_is_batch:
            raise OptionError("last_dim_is_batch is not supported by curve kernels.")
        weights = self._grid_weights(x1)
        x1, x2 = (
            x.unflatten(-1, (len(weights), self.num_channels)) for x in (x1 / self.lengthscale, x2 / self.lengthscale)
        )
        if diag:
            return self.profile(torch, (x1 - x2).square().sum(-1)).value @ weights
        return _GridSum.apply(x1, x2, weights, self.profile)


class GaussianCurveKernel(_CurveKernel):
    """Integrated Gaussian kernel on curves, k(x, z) = Σ_l w_l exp(−‖x(t_l) − z(t_l)‖² / 2ℓ²).

    A row of X is one curve: its values at m grid points and q channels, flattened as (m, q).

    Parameters
    ----------
    num_channels : int, default=1
        Number q of values per grid point.
    weights : Tensor of shape (m,) or None, default=None
        Quadrature weights of the grid. If None, 1/m.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`; `ard_num_dims` is m·q for one lengthscale per column.

    Notes
    -----
    Complexity: O(n n' m q) operations and O(n n' + (n + n') m q) memory with gradients; O(n m q) for the diagonal.

    References
    ----------
    LT-39 with γ = 1/2ℓ², BO-06 with σ² = 2ℓ²

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import GaussianCurveKernel
    >>> curves = torch.randn(5, 20 * 3)  # five curves in R³ at twenty times
    >>> GaussianCurveKernel(num_channels=3)(curves).shape
    torch.Size([5, 5])
    """

    profile = staticmethod(rbf_profile)


class LaplaceCurveKernel(_CurveKernel):
    """Integrated Laplace kernel on curves in R^q, k(x, z) = Σ_l w_l exp(−‖x(t_l) − z(t_l)‖ / ℓ).

    At a grid point where two curves cross, the gradient is the subgradient 0. Shapes and complexity are those of
    `GaussianCurveKernel`.

    Parameters
    ----------
    num_channels, weights, **kwargs
        As for `GaussianCurveKernel`.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import LaplaceCurveKernel
    >>> LaplaceCurveKernel(weights=torch.tensor([0.25, 0.5, 0.25]))(torch.randn(4, 3)).shape
    torch.Size([4, 4])
    """

    profile = staticmethod(exponential_profile)


class AdditiveCurveKernel(BatchIndexMixin, Kernel):
    """Kernel of additive models on curves, k(x, z) = Σ_ls w_l w_s κ(|t_l − t_s|/r) exp(−(x(t_l) − z(t_s))² / 2ℓ²).

    A function ∫ h(t, x(t)) dt of a curve, with a process h of covariance κ(t, t') exp(−(u − u')²/2ℓ²), has this covariance. A row
    of X is one curve: its values at m points.

    Parameters
    ----------
    points : Tensor of shape (m,) or None, default=None
        Points t. If None, equidistant on [0, 1].
    weights : Tensor of shape (m,) or None, default=None
        Quadrature weights. If None, 1/m.
    position_lengthscale : float, default=0.1
        Lengthscale r.
    position_kernel : {"rbf", "laplace"}, default="rbf"
        κ: exp(−d²/2) or exp(−d).
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`.

    Notes
    -----
    Complexity: O(n n' m²) operations and O(n n' m) memory.

    References
    ----------
    BO-07, BO-55 with σ² = 2ℓ²

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels.curves import AdditiveCurveKernel
    >>> AdditiveCurveKernel()(torch.randn(4, 12)).shape
    torch.Size([4, 4])
    """

    has_lengthscale = True

    def __init__(self, points=None, weights=None, position_lengthscale=0.1, position_kernel="rbf", **kwargs):
        super().__init__(**kwargs)
        for name, values in (("points", points), ("weights", weights)):
            values = None if values is None else torch.as_tensor(values, dtype=torch.get_default_dtype()).clone()
            self.register_buffer(name, values)
        self.position_lengthscale = check_positive("position_lengthscale", position_lengthscale)
        self.position_kernel = check_one_of("position_kernel", position_kernel, ("rbf", "laplace"))

    def _position_weights(self, x: Tensor) -> Tensor:
        """Return w_l w_s κ(t_l, t_s), (m, m)."""
        m = x.shape[-1]
        points = torch.linspace(0, 1, m).to(x) if self.points is None else self.points.to(x)
        weights = x.new_full((m,), 1 / m) if self.weights is None else self.weights.to(x)
        if len(points) != m or len(weights) != m:
            raise InputError(f"Expected {len(points)} columns, one per point, got {m}.")
        return weights[:, None] * self._between(points, points) * weights

    def _between(self, t: Tensor, s: Tensor) -> Tensor:
        """Return κ(t, s), (k, m)."""
        distance = (t[:, None] - s).abs() / self.position_lengthscale
        return torch.exp(-distance.square() / 2) if self.position_kernel == "rbf" else torch.exp(-distance)

    def with_surface(self, positions: Tensor, values: Tensor, X: Tensor) -> Tensor:
        """Return the covariances (k, n) of h(t, u), at positions and values (k,), with ∫ h(s, x(s)) ds of curves X (n, m)."""
        points = torch.linspace(0, 1, X.shape[1]).to(X) if self.points is None else self.points.to(X)
        weights = X.new_full((X.shape[1],), 1 / X.shape[1]) if self.weights is None else self.weights.to(X)
        gaps = (values[:, None, None] - X) / self.lengthscale  # (k, n, m)
        return torch.einsum("km,knm->kn", self._between(positions, points) * weights, torch.exp(-gaps.square() / 2))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        if last_dim_is_batch:
            raise OptionError("last_dim_is_batch is not supported by curve kernels.")
        positions = self._position_weights(x1)
        x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        total = 0
        for value, row in zip(x1.unbind(-1), positions, strict=True):  # one point of x1 at a time
            if diag:
                total = total + torch.exp(-(value.unsqueeze(-1) - x2).square() / 2) @ row
            else:
                gaps = value.unsqueeze(-1).unsqueeze(-1) - x2.unsqueeze(-3)  # (n, n', m)
                total = total + torch.exp(-gaps.square() / 2) @ row
        return total


for kernel_class in (GaussianCurveKernel, LaplaceCurveKernel):
    register_kernel(
        KernelRecord(kernel_class, roles={"lengthscale": "curve_lengthscale"}, options=("num_channels", "weights"))
    )


register_kernel(
    KernelRecord(
        AdditiveCurveKernel,
        roles={"lengthscale": "curve_lengthscale"},
        options=("points", "weights", "position_lengthscale", "position_kernel"),
    )
)


class _GridSum(torch.autograd.Function):
    """Σ_l w_l f(‖x_l − z_l‖²) of x (..., n, m, q) and z (..., n', m, q), one grid point at a time in both passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, z: Tensor, weights: Tensor, profile: Callable) -> Tensor:
        total = 0
        for xl, zl, weight in zip(x.unbind(-2), z.unbind(-2), weights.unbind(), strict=True):
            total = total + weight * profile(torch, _squared_distances(xl, zl)).value
        return total

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, z, weights, ctx.profile = inputs
        ctx.save_for_backward(x, z, weights)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, z, weights = ctx.saved_tensors
        grad_x, grad_z = [], []
        for xl, zl, weight in zip(x.unbind(-2), z.unbind(-2), weights.unbind(), strict=True):
            center = xl.mean(-2, keepdim=True)  # avoids cancellation between two large products
            xl, zl = xl - center, zl - center
            # d f(r²) / dx = 2 f'(r²) (x − z), contracted with the incoming gradient
            factor = grad * (2 * weight * ctx.profile(torch, _squared_distances(xl, zl)).first())
            grad_x.append(factor.sum(-1, keepdim=True) * xl - factor @ zl)
            grad_z.append(factor.mT.sum(-1, keepdim=True) * zl - factor.mT @ xl)
        grad_x, grad_z = torch.stack(grad_x, -2), torch.stack(grad_z, -2)
        return grad_x.sum_to_size(x.shape), grad_z.sum_to_size(z.shape), None, None


def _squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Return ‖x_i − z_j‖², (..., n, n'), of (..., n, q) and (..., n', q); exactly 0 for equal points."""
    return sum((a.unsqueeze(-1) - b.unsqueeze(-2)).square() for a, b in zip(x.unbind(-1), z.unbind(-1), strict=True))
