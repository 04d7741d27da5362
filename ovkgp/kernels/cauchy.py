"""The Cauchy kernel in product form, k(x, z) = Π_k 1 / (1 + (x_k − z_k)² / ℓ_k²).

The product form is the one whose spectral law is a product, of Laplace laws of scale 1/ℓ_k; in one
dimension it is BO-05. It is smooth, and its tails are heavier than any Gaussian's.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.kernels.protocol import BatchIndexMixin


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
