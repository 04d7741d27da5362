"""Features of some rows of data, and the products that variational inference needs.

With Φ_i (p, r) the features of row i, S a covariance of the weights and W_i a weight between its outputs,

    mean_i = Φ_i μ,     covariance_i = Φ_i S Φ_iᵀ,     gradient = Σ_i Φ_iᵀ g_i,     Gram = Σ_i Φ_iᵀ W_i Φ_i.

`KroneckerRows` never forms Φ = φ ⊗ B (BT-76), `BlockRows` stores one block per independent output, `DenseRows` holds Φ.
All can be rotated into another basis of the weights.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference.algebra.dense import gram

Basis = tuple[Tensor, ...]
"""Orthogonal basis of the weights: () that of the feature map, (R,) the columns of R (r, r), (U, V) those of U ⊗ V."""


class KroneckerRows:
    """Φ = φ ⊗ B with scalar features φ (n, M) and a factor B (p, q); weights are (M, q) matrices, read row by row."""

    def __init__(self, scalar_features: Tensor, factor: Tensor):
        self.scalar_features, self.factor = scalar_features, factor

    @property
    def num_weights(self) -> int:
        """Number of weights r = M q."""
        return self.scalar_features.shape[1] * self.factor.shape[1]

    def detach(self) -> KroneckerRows:
        """Return a copy without a graph."""
        return KroneckerRows(self.scalar_features.detach(), self.factor.detach())

    def rotate(self, basis: Basis) -> Rows:
        """Rotate the rows to another basis of the weights, () being this one; (U, V) keeps Kronecker rows."""
        if not basis:
            return self
        if len(basis) == 1:
            return DenseRows(self.dense()).rotate(basis)
        U, V = basis
        return KroneckerRows(self.scalar_features @ U, self.factor @ V)

    def times(self, weights: Tensor) -> Tensor:
        """Compute Φ w (n, p) of weights (r,), or (n, p, k) of k columns (r, k)."""
        columns = weights.unflatten(0, (-1, self.factor.shape[1]))
        if weights.dim() == 1:
            return (self.scalar_features @ columns) @ self.factor.mT
        return self.factor @ (self.scalar_features @ columns.flatten(1)).unflatten(1, columns.shape[1:])

    def adjoint(self, values: Tensor) -> Tensor:
        """Compute Φᵀ v (r,) of values (n, p), or (r, k) of (n, p, k)."""
        if values.dim() == 2:
            return ((values @ self.factor).mT @ self.scalar_features).mT.flatten()
        mixed = self.factor.mT @ values  # (n, q, k)
        return (self.scalar_features.mT @ mixed.flatten(1)).unflatten(1, mixed.shape[1:]).flatten(0, 1)

    def gram(self, weight: Tensor) -> Tensor:
        """Compute Σ Φ_iᵀ W_i Φ_i (r, r) for W (n, p) or (n, p, p)."""
        if weight.dim() == 2 and bool((weight == weight[:1]).all()):
            right = self.factor.mT * weight[0] @ self.factor
            return torch.kron(gram(self.scalar_features).contiguous(), right.contiguous())
        scalar_features = self.scalar_features
        if weight.dim() == 2 and weight.shape[1] <= self.factor.shape[1] * (self.factor.shape[1] + 1) // 2:
            left = torch.stack([_weighted_gram(scalar_features, column) for column in weight.mT])  # (p, M, M)
            return torch.einsum("amn,ab,ac->mbnc", left, self.factor, self.factor).flatten(2).flatten(0, 1)
        if weight.dim() == 2:
            weight = torch.einsum("np,pb,pc->nbc", weight, self.factor, self.factor)  # Bᵀ W_i B (n, q, q)
        else:
            weight = self.factor.mT @ weight @ self.factor
        q = weight.shape[-1]
        blocks = {(b, c): _weighted_gram(scalar_features, weight[:, b, c]) for b in range(q) for c in range(b, q)}
        whole = [torch.stack([blocks[min(b, c), max(b, c)] for c in range(q)], -1) for b in range(q)]  # (M, M, q)
        return torch.stack(whole, 1).flatten(2).flatten(0, 1)

    def diagonal_gram(self, weight: Tensor) -> Tensor:
        """Compute the diagonal (r,) of `gram`."""
        if weight.dim() == 2:
            on_columns = weight @ self.factor.square()
        else:
            on_columns = torch.einsum("npa,pb,ab->nb", weight, self.factor, self.factor)
        return (on_columns.mT @ self.scalar_features.square()).mT.flatten()

    def quadratic(self, covariance: Tensor, form: str) -> Tensor:
        """Compute Φ_i S Φ_iᵀ for S (r, r): its diagonal (n, p) for "diag", all of it (n, p, p) for "output"."""
        M, (p, q) = self.scalar_features.shape[1], self.factor.shape
        blocks = covariance.reshape(M, q, M, q).permute(1, 3, 0, 2).reshape(q * q, M * M)  # between columns of B
        if form == "diag":
            return self._quadratics(self.factor, self.factor, blocks)
        mixed = [self._quadratics(self.factor[[a]].expand(a + 1, -1), self.factor[: a + 1], blocks) for a in range(p)]
        lower = torch.stack([torch.nn.functional.pad(row, (0, p - row.shape[1])) for row in mixed], 1)
        return lower + lower.tril(-1).mT

    def _quadratics(self, left: Tensor, right: Tensor, blocks: Tensor) -> Tensor:
        """Compute φ_i (l_kᵀ S r_k) φ_iᵀ (n, K) for K pairs of rows l, r (K, q) of B."""
        M = self.scalar_features.shape[1]
        mixed = ((left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(1) @ blocks).unflatten(-1, (M, M))  # (K, M, M)
        return ((self.scalar_features @ mixed) * self.scalar_features).sum(-1).mT

    def diagonal_quadratic(self, variances: Tensor, form: str) -> Tensor:
        """Compute `quadratic` for S = diag(variances (r,))."""
        energy = self.scalar_features.square() @ variances.unflatten(0, (-1, self.factor.shape[1]))  # (n, q)
        if form == "diag":
            return energy @ self.factor.square().mT
        return torch.einsum("nb,pb,ab->npa", energy, self.factor, self.factor)

    def dense(self) -> Tensor:
        """Return Φ (n, p, r)."""
        return torch.einsum("nm,pb->npmb", self.scalar_features, self.factor).flatten(-2)

    def compute_eigenbasis(self, weight: Tensor, scalar_features_gram: Tensor) -> Basis:
        """Compute (U, V): the eigenvectors of the sum of `basis_gram` (given) and of Bᵀ W B for one W (p, p)."""
        return torch.linalg.eigh(scalar_features_gram)[1], torch.linalg.eigh(self.factor.mT @ weight @ self.factor)[1]

    def basis_gram(self, weight: Tensor) -> Tensor:
        """Compute Σ tr(Bᵀ W_i B) φ_iᵀ φ_i (M, M) for `compute_eigenbasis`, to be summed over chunks (BT-76)."""
        between = self.factor @ self.factor.mT
        by_row = weight @ between.diagonal() if weight.dim() == 2 else (weight * between).sum((-2, -1))
        return _weighted_gram(self.scalar_features, by_row)


class DenseRows:
    """Dense Φ (n, p, r), with the methods of `KroneckerRows`; a basis of the weights is () or (R,)."""

    def __init__(self, features: Tensor):
        self.features = features

    @property
    def num_weights(self) -> int:
        return self.features.shape[-1]

    def detach(self) -> DenseRows:
        return DenseRows(self.features.detach())

    def rotate(self, basis: Basis) -> DenseRows:
        return DenseRows(self.features @ basis[0]) if basis else self

    def times(self, weights: Tensor) -> Tensor:
        return self.features @ weights

    def adjoint(self, values: Tensor) -> Tensor:
        return self.features.flatten(0, 1).mT @ values.flatten(0, 1)

    def gram(self, weight: Tensor) -> Tensor:
        flat = self.features.flatten(0, 1)
        if weight.dim() == 2:
            return _weighted_gram(flat, weight.flatten())
        return flat.mT @ (weight @ self.features).flatten(0, 1)

    def diagonal_gram(self, weight: Tensor) -> Tensor:
        weighted = weight.unsqueeze(-1) * self.features if weight.dim() == 2 else weight @ self.features
        return (weighted * self.features).sum((0, 1))

    def quadratic(self, covariance: Tensor, form: str) -> Tensor:
        half = self.features @ covariance
        return (half * self.features).sum(-1) if form == "diag" else half @ self.features.mT

    def diagonal_quadratic(self, variances: Tensor, form: str) -> Tensor:
        half = self.features * variances
        return (half * self.features).sum(-1) if form == "diag" else half @ self.features.mT

    def dense(self) -> Tensor:
        return self.features

    def compute_eigenbasis(self, weight: Tensor, features_gram: Tensor) -> Basis:
        """Compute (R,): the eigenvectors of Σ Φ_iᵀ W_i Φ_i (given)."""
        return (torch.linalg.eigh(features_gram)[1],)

    def basis_gram(self, weight: Tensor) -> Tensor:
        return self.gram(weight)


class BlockRows(DenseRows):
    """Φ of independent outputs with separate weights: blocks (p, n, M) of features φ_a; dense in another basis."""

    def __init__(self, blocks: Tensor):
        self.blocks = blocks

    @property
    def features(self) -> Tensor:
        """Return Φ (n, p, r)."""
        return torch.diag_embed(self.blocks.permute(1, 2, 0)).permute(0, 3, 2, 1).flatten(-2)

    @property
    def num_weights(self) -> int:
        return len(self.blocks) * self.blocks.shape[-1]

    def detach(self) -> BlockRows:
        return BlockRows(self.blocks.detach())

    def rotate(self, basis: Basis) -> DenseRows:
        return super().rotate(basis) if basis else self

    def times(self, weights: Tensor) -> Tensor:
        return torch.einsum("anm,am...->na...", self.blocks, self._split(weights))

    def adjoint(self, values: Tensor) -> Tensor:
        return torch.einsum("anm,na...->am...", self.blocks, values).flatten(0, 1)

    def gram(self, weight: Tensor) -> Tensor:
        if weight.dim() == 2:
            return torch.block_diag(*(_weighted_gram(*pair) for pair in zip(self.blocks, weight.mT, strict=True)))
        outputs = range(len(self.blocks))
        rows = [[self.blocks[a].mT @ (weight[:, a, b, None] * self.blocks[b]) for b in outputs] for a in outputs]
        return torch.cat([torch.cat(row, 1) for row in rows])

    def diagonal_gram(self, weight: Tensor) -> Tensor:
        own = weight if weight.dim() == 2 else weight.diagonal(dim1=-2, dim2=-1)
        return torch.einsum("anm,na->am", self.blocks.square(), own).flatten()

    def quadratic(self, covariance: Tensor, form: str) -> Tensor:
        p, M = len(self.blocks), self.blocks.shape[-1]
        split = covariance.reshape(p, M, p, M)
        if form == "diag":
            own = torch.stack([split[a, :, a] for a in range(p)])
            return ((self.blocks @ own) * self.blocks).sum(-1).mT
        half = torch.einsum("anm,ambk->abnk", self.blocks, split)
        return torch.einsum("abnk,bnk->nab", half, self.blocks)

    def diagonal_quadratic(self, variances: Tensor, form: str) -> Tensor:
        own = torch.einsum("anm,am->na", self.blocks.square(), self._split(variances))
        return own if form == "diag" else torch.diag_embed(own)

    def _split(self, weights: Tensor) -> Tensor:
        return weights.unflatten(0, (len(self.blocks), -1))


Rows = KroneckerRows | DenseRows


def make_rows(Phi: LinearOperator, num_outputs: int) -> Rows:
    """Make rows of p outputs from the Φ (n·p) × r of a feature map."""
    if isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == num_outputs:
        return KroneckerRows(Phi.features, Phi.factor)
    blocks = _blocks(Phi, num_outputs)
    return DenseRows(to_dense(Phi).unflatten(0, (-1, num_outputs))) if blocks is None else BlockRows(blocks)


def _blocks(Phi: LinearOperator, num_outputs: int) -> Tensor | None:
    """Return φ_a (p, n, M) if output a depends on the a-th of p stacked features only, else None."""
    parts = Phi.parts if isinstance(Phi, StackedFeatures) else ()
    if len(parts) != num_outputs or not all(isinstance(part, FeatureOperator) and part.is_separable for part in parts):
        return None
    if any(part.factor.shape != (num_outputs, 1) for part in parts) or len({part.features.shape for part in parts}) > 1:
        return None
    factor = torch.cat([part.factor for part in parts], 1)
    scale = factor.diagonal()
    if bool((factor != torch.diag(scale)).any()):
        return None
    return torch.stack([part.features for part in parts]) * scale[:, None, None]


def entries_per_row(rows: Rows) -> int:
    """Return the number of values per row of data, for the size of chunks."""
    if isinstance(rows, KroneckerRows):
        return rows.scalar_features.shape[1] + rows.factor.numel()
    return rows.num_weights if isinstance(rows, BlockRows) else rows.features[0].numel()


def _weighted_gram(matrix: Tensor, weight: Tensor) -> Tensor:
    """Compute Aᵀ diag(w) A; half a product if no weight is negative."""
    if bool((weight >= 0).all()):
        return gram(matrix * weight.sqrt().unsqueeze(-1))
    return matrix.mT @ (matrix * weight.unsqueeze(-1))
