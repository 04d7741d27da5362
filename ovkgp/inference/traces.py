"""tr(P̂⁻¹ ∂C) in closed form: the part of the gradient of log det C that needs no probes.

With H = N⁻¹ F L_S⁻ᵀ, P̂⁻¹ = N⁻¹ − H Hᵀ is contracted with K_q ⊗ Γ_q and with N. What probes must still estimate is
tr((C⁻¹ − P̂⁻¹) ∂C), which vanishes as P̂ approaches C: the closer the preconditioner, the surer the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.inference.preconditioner import Preconditioner


class PreconditionerTraces:
    """Derivatives of tr(P̂⁻¹ C) in the parts of C, P̂ held fixed.

    Args:
        preconditioner: P̂, with R columns in its F.

    Cost: O(n p R²) for H and its O(n p R) memory; a Gram matrix then takes O(n² R) for each column of its Γ's root.
    """

    def __init__(self, preconditioner: Preconditioner):
        self.preconditioner, self.noise = preconditioner, preconditioner.covariance.noise
        columns = torch.cat([self.noise.solve(V).transpose(0, 1) for V in preconditioner.columns()])  # (R, n, p)
        solved = torch.linalg.solve_triangular(preconditioner.chol, columns.flatten(1), upper=False)
        self.H = solved.view(columns.shape)  # Hᵀ, in fact

    def by_gram(self, index: int) -> Tensor:
        """Σ_ab Γ_ab P̂⁻¹_{(i,a),(j,b)} (n, n)."""
        covariance = self.preconditioner.covariance
        blocks = self.noise.inverse_blocks(covariance.seen)  # (n, p, p)
        total = torch.diag(torch.einsum("iab,ab->i", blocks, covariance.output_matrices[index]))
        for column in self.preconditioner.roots[index].mT:
            total -= gram(self.H @ column)
        return total

    def by_output(self, index: int) -> Tensor:
        """Σ_ij (L Lᵀ)_ij P̂⁻¹_{(i,a),(j,b)} (p, p), with the factor L of the preconditioner for K: O(n p r R)."""
        L = self.preconditioner.factors[index]
        blocks = self.noise.inverse_blocks(self.preconditioner.covariance.seen)
        own = torch.einsum("iab,i->ab", blocks, L.square().sum(1))
        products = (L.mT @ self.H).flatten(0, 1)  # (R·r, p)
        return own - products.mT @ products

    def by_noise(self) -> Tensor:
        """The blocks of P̂⁻¹ at each point (n, p, p)."""
        blocks = self.noise.inverse_blocks(self.preconditioner.covariance.seen)
        points = self.H.permute(1, 2, 0)  # (n, p, R)
        return blocks - points @ points.mT


def gram(matrix: Tensor) -> Tensor:
    """AᵀA (n, n) of A (r, n). On the processor it is NumPy's, which calls SYRK: half a product."""
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.numpy()
    return torch.from_numpy(array.T @ array)
