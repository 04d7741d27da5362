"""A trained output matrix without redundancy: Γ = L Lᵀ by its Cholesky factor, one set of numbers for each positive Γ."""

from __future__ import annotations

import torch
from gpytorch.priors import Prior
from torch import Tensor

from ovkgp.kernels.output_matrices import OutputMatrix


class FullMatrix(OutputMatrix):
    """Γ = L Lᵀ with a lower-triangular L (p, p), trained: p(p + 1)/2 numbers, and no two of them give the same Γ.

    The diagonal of L is kept as its logarithm, what is below it as it is. Where Γ itself is to be inferred this is the
    matrix to take: the loadings of a `FreeMatrix` can be rotated without changing Γ.

    Args:
        num_outputs: p.
        batch_shape, prior: as for `OutputMatrix`.

    Cost: O(p³) for Γ, O(p²) for its factor.

    Example:
        >>> from ovkgp.kernels import FullMatrix
        >>> matrix = FullMatrix(num_outputs=3)
        >>> matrix().shape, sum(parameter.numel() for parameter in matrix.parameters())
        (torch.Size([3, 3]), 6)
    """

    def __init__(self, num_outputs: int, batch_shape: torch.Size = torch.Size(), prior: Prior | None = None):
        super().__init__(num_outputs, batch_shape, prior)
        p = self.num_outputs
        self.register_parameter("log_scale", torch.nn.Parameter(torch.zeros(*self.batch_shape, p)))
        self.register_parameter("lower", torch.nn.Parameter(torch.zeros(*self.batch_shape, p * (p - 1) // 2)))

    @property
    def chol(self) -> Tensor:
        """L (..., p, p)."""
        rows, columns = torch.tril_indices(self.num_outputs, self.num_outputs, -1, device=self.lower.device)
        chol = torch.diag_embed(self.log_scale.exp())
        chol[..., rows, columns] = self.lower  # in place of zeros that need no gradient
        return chol

    def forward(self) -> Tensor:
        chol = self.chol
        return chol @ chol.mT

    def factor(self) -> Tensor:
        return self.chol

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}"
