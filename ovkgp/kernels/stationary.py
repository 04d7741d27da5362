"""Kernels whose reproducing norm is a Sobolev norm (BO-04), as products over coordinates.

On R, with Δ = (x − z) / ℓ: ½e^{−|Δ|} has the norm ∫v² + ∫v'² and (√3/3) e^{−√3|Δ|/2} sin(|Δ|/2 + π/6) has
∫v² + ∫v'² + ∫v''². On the circle [0, 1): 1 + (−1)^{s−1} B_{2s}({x − z}) / (2s)! with the Bernoulli polynomial
B_{2s} has (∫v)² + ∫(v^{(s)})² (BO-E-09: and not ∫v² + ∫(v^{(s)})², as printed).
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels.protocol import BatchIndexMixin


class LaplaceKernel(BatchIndexMixin, Kernel):
    """The ℓ1 Laplace kernel: k(x, z) = exp(−Σ_k |x_k − z_k| / ℓ_k).

    The matrix at x (..., n, d) and z (..., m, d) is (..., n, m), in O(n·m·d) operations and O(n·m)
    memory, gradients included; its diagonal costs O(n·d). At coincident points the gradient in x is
    the subgradient 0.

    Args:
        ard_num_dims: the number d of lengthscales, one a coordinate; None is one for all.
        batch_shape, active_dims, lengthscale_prior, lengthscale_constraint: as in any GPyTorch kernel.

    Example:
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
    """Σ_k |x_k − z_k| between all rows of x1 (..., n, d) and x2 (..., m, d), or between rows of equal index."""
    return (x1 - x2).abs().sum(-1) if diag else torch.cdist(x1, x2, p=1)


class CauchyKernel(BatchIndexMixin, Kernel):
    """The product Cauchy kernel: k(x, z) = Π_k 1 / (1 + (x_k − z_k)² / ℓ_k²).

    The matrix at x (..., n, d) and z (..., m, d) is (..., n, m). Coordinates are visited one after
    another: O(n·m·d) operations and O(n·m) memory (O(n·m·d) while autograd records); its diagonal
    costs O(n·d).

    Args:
        ard_num_dims: the number d of lengthscales, one a coordinate; None is one for all.
        batch_shape, active_dims, lengthscale_prior, lengthscale_constraint: as in any GPyTorch kernel.

    Example:
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
    """Σ_k term(x_k, z_k), one coordinate at a time, so that no (n, m, d) tensor is made.

    Args:
        term: a function of two tensors that broadcast.
        x1, x2: (..., n, d) and (..., m, d).
        diag: only the pairs of rows with equal index, all coordinates at once.

    Returns:
        (..., n, m), or (..., n) for the diagonal.
    """
    if diag:
        return term(x1, x2).sum(-1)
    total = 0
    for x, z in zip(x1.unbind(-1), x2.unbind(-1), strict=True):
        total = total + term(x.unsqueeze(-1), z.unsqueeze(-2))
    return total


class SobolevKernel(BatchIndexMixin, Kernel):
    """The reproducing kernel of a Sobolev space, multiplied over the coordinates.

    The matrix at x (..., n, d) and z (..., m, d) is (..., n, m), in O(n·m·d) operations. Order 1 on R needs
    O(n·m) memory, gradients included; the others O(n·m), and O(n·m·d) while autograd records. The diagonal costs
    O(n·d). The kernel is *not* normalised: k(x, x) is `value_at_zero` to the power d, as the norm demands.

    Args:
        order: the number s of derivatives in the norm: 1 or 2 on R; 1, 2 or 3 on the circle.
        periodic: the functions on [0, 1] whose derivatives up to s − 1 agree at the ends; there is no lengthscale then.
        ard_num_dims: the number d of lengthscales, one a coordinate; None is one for all.
        batch_shape, active_dims, lengthscale_prior, lengthscale_constraint: as in any GPyTorch kernel.

    Example:
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
            where = "on the circle" if periodic else "on R"
            raise OptionError(f"a Sobolev kernel {where} has order {', '.join(map(str, allowed))}; got {order}.")
        self.has_lengthscale = not periodic  # the parent's constructor reads it
        super().__init__(**kwargs)
        self.order = order
        self.periodic = periodic

    @property
    def is_stationary(self) -> bool:
        return True

    @property
    def value_at_zero(self) -> float:
        """k(x, x) in one dimension."""
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
        """The one-dimensional kernel at |Δ|, except order 1 on R."""
        if self.periodic:
            return 1 + _scaled_bernoulli(distance, self.order)
        decay = (distance * (-math.sqrt(3) / 2)).exp()
        return decay * (distance / 2 + math.pi / 6).sin() * (math.sqrt(3) / 3)


def _scaled_bernoulli(distance: Tensor, order: int) -> Tensor:
    """(−1)^{s−1} B_{2s}({t}) / (2s)!, written in t(1 − t): the symmetry t → 1 − t is exact."""
    fraction = distance - distance.floor()
    w = fraction * (1 - fraction)
    if order == 1:
        return (1 / 6 - w) / 2
    if order == 2:
        return (1 / 30 - w.square()) / 24
    return (1 / 42 - w.square() * (w + 0.5)) / 720
