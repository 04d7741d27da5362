"""Stationary scalar kernels that GPyTorch lacks, all products over coordinates: Laplace, Cauchy and Sobolev."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels.protocol import BatchIndexMixin


class LaplaceKernel(BatchIndexMixin, Kernel):
    """ℓ1 Laplace kernel, k(x, z) = exp(−Σ_k |x_k − z_k| / ℓ_k).

    At coincident points the gradient in x is the subgradient 0.

    Parameters
    ----------
    ard_num_dims : int or None, default=None
        Number d of lengthscales, one per column. If None, all columns share one lengthscale.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `batch_shape`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    Complexity: O(n m d) operations and O(n m) memory, including gradients; O(n d) for the diagonal.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import LaplaceKernel
    >>> kernel = LaplaceKernel(ard_num_dims=2)
    >>> kernel.lengthscale = torch.tensor([1.0, 2.0])
    >>> kernel(torch.zeros(1, 2), torch.ones(1, 2)).to_dense().log().item()
    -1.5
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        return l1_distance(x1, x2, diag=diag).neg().exp()


def l1_distance(x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Return Σ_k |x_k − z_k| between all rows of x1 (..., n, d) and x2 (..., m, d), or between rows of equal index."""
    return (x1 - x2).abs().sum(-1) if diag else torch.cdist(x1, x2, p=1)


class CauchyKernel(BatchIndexMixin, Kernel):
    """Product Cauchy kernel, k(x, z) = Π_k 1 / (1 + (x_k − z_k)² / ℓ_k²).

    Parameters
    ----------
    ard_num_dims : int or None, default=None
        Number d of lengthscales, one per column. If None, all columns share one lengthscale.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `batch_shape`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients); O(n d) for the diagonal.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import CauchyKernel
    >>> kernel = CauchyKernel()
    >>> kernel.lengthscale = 1.0
    >>> round(kernel(torch.zeros(1, 2), torch.ones(1, 2)).to_dense().item(), 6)
    0.25
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        # sums of logarithms: a product of many large terms would overflow in single precision
        return sum_over_coordinates(_log_term, x1, x2, diag=diag).neg().exp()


def _log_term(x: Tensor, z: Tensor) -> Tensor:
    return torch.log1p((x - z).square())


def sum_over_coordinates(term, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Return Σ_k term(x_k, z_k), (..., n, m), or (..., n) if diag, without a tensor of shape (n, m, d)."""
    if diag:
        return term(x1, x2).sum(-1)
    total = 0
    for x, z in zip(x1.unbind(-1), x2.unbind(-1), strict=True):
        total = total + term(x.unsqueeze(-1), z.unsqueeze(-2))
    return total


class SobolevKernel(BatchIndexMixin, Kernel):
    """Reproducing kernel of a Sobolev space, as a product over coordinates.

    The kernel is *not* normalized: k(x, x) is `value_at_zero` to the power d.

    Parameters
    ----------
    order : int, default=1
        Number s of derivatives in the norm: 1 or 2 on R; 1, 2 or 3 on the circle.
    periodic : bool, default=False
        Whether functions live on the circle [0, 1), with equal derivatives up to s − 1 at both ends. There is no
        lengthscale then.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `ard_num_dims`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    On R, with Δ = (x − z) / ℓ: ½ e^{−|Δ|} has the norm ∫v² + ∫v'², and (√3/3) e^{−√3|Δ|/2} sin(|Δ|/2 + π/6) has
    ∫v² + ∫v'² + ∫v''². On the circle: 1 + (−1)^{s−1} B_{2s}({x − z}) / (2s)!, with the Bernoulli polynomial B_{2s}, has
    (∫v)² + ∫(v^{(s)})².
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients, except order 1 on R).

    References
    ----------
    BO-04; BO-E-09 for the norm on the circle

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import SobolevKernel
    >>> SobolevKernel(order=1)(torch.zeros(1, 1)).to_dense().item()
    0.5
    >>> kernel = SobolevKernel(order=2, periodic=True)
    >>> torch.allclose(kernel(torch.zeros(1, 1), torch.ones(1, 1)).to_dense(), kernel(torch.zeros(1, 1)).to_dense())
    True
    """

    def __init__(self, order: int = 1, periodic: bool = False, **kwargs):
        allowed = (1, 2, 3) if periodic else (1, 2)
        if order not in allowed:
            raise OptionError(f"order must be one of {allowed} if periodic={periodic}, got {order!r}.")
        self.has_lengthscale = not periodic  # read by the parent's constructor
        super().__init__(**kwargs)
        self.order = order
        self.periodic = periodic

    @property
    def is_stationary(self) -> bool:
        return True

    @property
    def value_at_zero(self) -> float:
        """Value k(x, x) in one dimension."""
        if self.periodic:
            return 1 + {1: 1 / 12, 2: 1 / 720, 3: 1 / 30240}[self.order]
        return {1: 0.5, 2: math.sqrt(3) / 6}[self.order]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        if not self.periodic:
            x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        if self.order == 1 and not self.periodic:
            return 0.5 ** x1.shape[-1] * l1_distance(x1, x2, diag=diag).neg().exp()
        if diag:
            return self._profile((x1 - x2).abs()).prod(-1)
        product = 1
        for x, z in zip(x1.unbind(-1), x2.unbind(-1), strict=True):
            product = product * self._profile((x.unsqueeze(-1) - z.unsqueeze(-2)).abs())
        return product

    def _profile(self, distance: Tensor) -> Tensor:
        """Return the one-dimensional kernel at |Δ|, except for order 1 on R."""
        if self.periodic:
            return 1 + _scaled_bernoulli(distance, self.order)
        decay = (distance * (-math.sqrt(3) / 2)).exp()
        return decay * (distance / 2 + math.pi / 6).sin() * (math.sqrt(3) / 3)


def _scaled_bernoulli(distance: Tensor, order: int) -> Tensor:
    """Return (−1)^{s−1} B_{2s}({t}) / (2s)! as a function of t(1 − t), which makes the symmetry t → 1 − t exact."""
    fraction = distance - distance.floor()
    w = fraction * (1 - fraction)
    if order == 1:
        return (1 / 6 - w) / 2
    if order == 2:
        return (1 / 30 - w.square()) / 24
    return (1 / 42 - w.square() * (w + 0.5)) / 720
