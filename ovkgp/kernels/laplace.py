"""The ℓ1 Laplace kernel, k(x, z) = exp(−Σ_k |x_k − z_k| / ℓ_k).

It is the product over coordinates of exponential kernels, so its spectral law is a product of
Cauchy laws (BT-06); it is *not* GPyTorch's Matérn-1/2, which takes the Euclidean distance.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

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
