"""tr(P̂⁻¹ ∂C) in closed form: the part of the gradient of log det C that needs no probes.

With H = N⁻¹ F L_S⁻ᵀ, P̂⁻¹ = N⁻¹ − H Hᵀ is contracted with K_q ⊗ Γ_q and with N. What probes must still estimate is
tr((C⁻¹ − P̂⁻¹) ∂C), which vanishes as P̂ approaches C: the closer the preconditioner, the surer the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.inference.dense import gram
from ovkgp.inference.kronecker_sum import times
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
        products = times(L.mT, self.H.transpose(0, 1)).flatten(0, 1)  # (r·R, p)
        return own - products.mT @ products

    def by_noise(self) -> Tensor:
        """The blocks of P̂⁻¹ at each point (n, p, p)."""
        blocks = self.noise.inverse_blocks(self.preconditioner.covariance.seen)
        points = self.H.permute(1, 2, 0)  # (n, p, R)
        return blocks - points @ points.mT


def control_weight(spectrum: Tensor) -> float:
    """c, from the eigenvalues λ ≥ 1 of P̂^{-½} C P̂^{-½} that the solve for the residuals met (and the probes had no part in).

    In the directions of λ and λ', probes estimate a − c instead of a, with a the mean of 1/λ and 1/λ'. That is never the larger
    while c ≤ 2/λ for all λ; so a poor preconditioner does no harm, and a good one has c = 1.
    """
    return min(1.0, 2 / spectrum.max().item())


class DensityDerivatives:
    """α αᵀ − c P̂⁻¹ − Σ_i w_i (x_i − c u_i) u_iᵀ, contracted with the parts of C: twice the derivatives of the log density.

    Args:
        preconditioner: P̂.
        c: weight of the exact part, from `control_weight`.
        alpha: C⁻¹ r (n, 1, p).
        X, U: C⁻¹ z and P̂⁻¹ z of the probes, each (n, k, p).
        weights: w (k, 1).
    """

    def __init__(self, preconditioner: Preconditioner, c: float, alpha: Tensor, X: Tensor, U: Tensor, weights: Tensor):
        self.covariance, self.factors, self.c = preconditioner.covariance, preconditioner.factors, c
        self.traces = PreconditionerTraces(preconditioner)
        self.weighted = U * (c * weights)
        self.left = torch.cat([alpha, self.weighted - X * weights], 1)
        self.plain = torch.cat([alpha, X * -weights], 1)
        self.right = torch.cat([alpha, U], 1)

    def by_gram(self, index: int) -> Tensor:
        """Γ_q contracted away: one matrix product (n, k·p) × (k·p, n) beyond the exact trace."""
        mixed = self.right @ self.covariance.output_matrices[index]
        return _symmetric(self.left.flatten(1) @ mixed.flatten(1).mT).sub_(self.traces.by_gram(index), alpha=self.c)

    def by_output(self, index: int) -> Tensor:
        """K_q contracted away. The exact part is that of L Lᵀ, cheaper than that of K; the probes make up for the difference."""
        product = self.plain.flatten(0, 1).mT @ times(self.covariance.grams[index], self.right).flatten(0, 1)
        L, U = self.factors[index], self.right[:, 1:]
        product += times(L.mT, self.weighted).flatten(0, 1).mT @ times(L.mT, U).flatten(0, 1)
        return _symmetric(product).sub_(self.traces.by_output(index), alpha=self.c)

    def by_noise(self, shape: torch.Size) -> Tensor:
        """The blocks at the points, or their diagonals, added up where points share their noise."""
        blocks = _symmetric(self.left.mT @ self.right).sub_(self.traces.by_noise(), alpha=self.c)  # (n, p, p)
        blocks = blocks if len(shape) == 3 else blocks.diagonal(dim1=-2, dim2=-1)
        return blocks.clone() if len(blocks) == shape[0] else blocks.sum(0, keepdim=True)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT).div_(2)
