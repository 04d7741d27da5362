"""The feature matrix Φ as a linear operator, never formed as an (n, p, D) tensor (BT-74..77).

Rows are data-major, (i, a) for output a of point i. With scalar features φ (n, M), here cosines then sines, and factors
B_j (p, r), the column (m, b) of Φ is φ_m B_m[:, b], and

    Φ θ  = φ · [B_m θ_m]_m          one matrix product of size n × M × pk,
    Φᵀ y = [B_mᵀ (φᵀ y)_m]_m        likewise,
    Φᵀ (I ⊗ W) Φ = (φᵀφ) ∘ [B_mᵀ W B_m']      without an np-sized object.

A factor shared by all frequencies makes Φ the Kronecker product φ ⊗ B, and is applied after the product.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

FEATURE_CHUNK_ENTRIES = 4_000_000  # approximate number of values of features in one chunk of rows (32 MB)
MAX_NARROW_COLUMNS = 64
"""Number of columns up to which (yᵀφ)ᵀ is faster than φᵀy; beyond, the second is as fast and contiguous."""


class FeatureOperator(LinearOperator):
    """Φ of size (n·p) × (M·r) from scalar features φ (*batch, n, M) and stacked factors B_j (*batch, J·p, r).

    J is M, D if cosines and sines share a factor, or 1 for one factor. O(n M p k) for a product with k columns.
    """

    def __init__(self, features: Tensor, factor: Tensor, num_outputs: int, transposed: bool = False):
        features, factor = broadcast_batch(features, factor)
        super().__init__(features, factor, num_outputs=num_outputs, transposed=transposed)
        self.features, self.factor = features, factor
        self.num_outputs, self.transposed = num_outputs, transposed

    @property
    def num_columns(self) -> int:
        """Number of columns of Φ."""
        return self.features.shape[-1] * self.factor.shape[-1]

    @property
    def blocks(self) -> Tensor:
        """Factors (*batch, J, p, r)."""
        return self.factor.unflatten(-2, (-1, self.num_outputs))

    @property
    def is_separable(self) -> bool:
        """Whether Φ = φ ⊗ B."""
        return self.factor.shape[-2] == self.num_outputs

    def _size(self) -> torch.Size:
        rows, columns = self.features.shape[-2] * self.num_outputs, self.num_columns
        shape = (columns, rows) if self.transposed else (rows, columns)
        return torch.Size((*self.features.shape[:-2], *shape))

    def _transpose_nonbatch(self) -> FeatureOperator:
        return self.__class__(*self._args, **{**self._kwargs, "transposed": not self.transposed})

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self._on_columns(rhs, self._adjoint if self.transposed else self._forward)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._on_columns(rhs, self._forward if self.transposed else self._adjoint)

    @staticmethod
    def _on_columns(rhs: Tensor, product) -> Tensor:
        return product(rhs.unsqueeze(-1)).squeeze(-1) if rhs.dim() == 1 else product(rhs)

    def _forward(self, weights: Tensor) -> Tensor:
        """Return Φ θ, from (..., M·r, k) to (..., n·p, k)."""
        weights = weights.unflatten(-2, (self.features.shape[-1], -1))  # (..., M, r, k)
        if self.is_separable:
            mixed = _times(self.features, weights)  # (..., n, r, k)
            return _blockwise(self.factor, mixed).flatten(-3, -2)
        return _times(self.features, self._expand(weights)).flatten(-3, -2)

    def _adjoint(self, values: Tensor) -> Tensor:
        """Return Φᵀ y, from (..., n·p, k) to (..., M·r, k)."""
        values = values.unflatten(-2, (-1, self.num_outputs))  # (..., n, p, k)
        if self.is_separable:
            return _adjoint_times(self.features, _blockwise(self.factor.mT, values)).flatten(-3, -2)
        return self._contract(_adjoint_times(self.features, values)).flatten(-3, -2)

    def _expand(self, weights: Tensor) -> Tensor:
        """Return [B_m θ_m]_m: (..., M, r, k) → (..., M, p, k)."""
        return self._per_frequency(self.blocks, weights)

    def _contract(self, values: Tensor) -> Tensor:
        """Return [B_mᵀ v_m]_m: (..., M, p, k) → (..., M, r, k)."""
        return self._per_frequency(self.blocks.mT, values)

    def _per_frequency(self, blocks: Tensor, stacked: Tensor) -> Tensor:
        halves = stacked.unflatten(-3, (-1, blocks.shape[-3]))  # (..., M / J, J, ·, k)
        return (blocks.unsqueeze(-4) @ halves).flatten(-4, -3)

    def _mul_constant(self, other: float | Tensor) -> FeatureOperator:
        features = self.features * (other[..., None, None] if torch.is_tensor(other) and other.dim() else other)
        return self.__class__(features, *self._args[1:], **self._kwargs)

    def squared_rows(self, other: FeatureOperator | None = None) -> Tensor:
        """Return the diagonal (..., n·p) of Φ Φ'ᵀ; if `other` is None, Φ' = Φ. Complexity: O(n M p)."""
        other = self if other is None else other
        energy = (self.blocks * other.blocks).sum(-1)  # (..., J, p)
        products = (self.features * other.features).unflatten(-1, (-1, energy.shape[-2])).sum(-2)  # (..., n, J)
        return (products @ energy).flatten(-2)

    def scalar_gram(self) -> Tensor:
        """Return φᵀφ (..., M, M)."""
        return SelfGram.apply(self.features)

    def cross_gram(self, other: FeatureOperator, weight: Tensor) -> Tensor:
        """Return Φᵀ (I_n ⊗ W) Φ' for W (..., p, p), dense (..., M r, M' r'). Complexity: O(n M M' + J J' p r r')."""
        same = other.features is self.features
        scalar_gram = self.scalar_gram() if same else self.features.mT @ other.features  # (..., M, M')
        return self.gram_from_scalar_features(other, scalar_gram, weight)

    def gram_from_scalar_features(self, other: FeatureOperator, scalar_gram: Tensor, weight: Tensor) -> Tensor:
        """Return Φᵀ (I_n ⊗ W) Φ' from the product φᵀφ' (..., M, M') alone, for any n."""
        if isinstance(other, ComplexFeatureOperator):
            return other.gram_from_scalar_features(self, scalar_gram.mT, weight.mT).mT
        left = self.blocks.mT @ weight.unsqueeze(-3)  # (..., J, r, p)
        inner = torch.einsum("...jbp,...kpc->...jbkc", left, other.blocks)
        j, k = inner.shape[-4], inner.shape[-2]
        grid = scalar_gram.unflatten(-1, (-1, k)).unflatten(-3, (-1, j))  # (..., M / J, J, M' / J', J')
        gram = grid[..., None, :, :, None] * inner[..., None, :, :, None, :, :]  # (..., M / J, J, r, M' / J', J', r')
        return gram.flatten(-3).flatten(-4, -2)

    def adjoint_from_scalar_features(self, projections: Tensor) -> Tensor:
        """Return Φᵀ y (..., M·r, k) from φᵀ y (..., M, p, k) alone."""
        return self._contract(projections).flatten(-3, -2)

    def output(self, index: int) -> FeatureOperator:
        """Return the rows of one output: features of a scalar process, n × (M·r)."""
        return FeatureOperator(self.features, self.blocks[..., index, :], num_outputs=1)

    def to_dense(self) -> Tensor:
        blocks = self.blocks  # (..., J, p, r)
        features = self.features.unflatten(-1, (-1, blocks.shape[-3]))  # (..., n, M / J, J)
        dense = torch.einsum("...nhj,...jpr->...nphjr", features, blocks).flatten(-3).flatten(-3, -2)
        return dense.mT if self.transposed else dense


class ComplexFeatureOperator(FeatureOperator):
    """Φ of a complex factor B: the blocks [Re, Im] of e^{−i⟨ω, h(x)⟩} B, for signatures that are not even (BT-39).

    `features` is [cos⟨ω_j, h(x)⟩, sin⟨ω_j, h(x)⟩]_j, (*batch, n, 2D); `factor` and `imaginary` are the parts of B,
    (*batch, D·p, r). Column (e, j, b) holds cos · Re B + sin · Im B for e = 0 and cos · Im B − sin · Re B for e = 1.
    """

    def __init__(self, features: Tensor, factor: Tensor, imaginary: Tensor, num_outputs: int, transposed: bool = False):
        features, factor, imaginary = broadcast_batch(features, factor, imaginary)
        LinearOperator.__init__(self, features, factor, imaginary, num_outputs=num_outputs, transposed=transposed)
        self.features, self.factor, self.imaginary = features, factor, imaginary
        self.num_outputs, self.transposed = num_outputs, transposed

    @property
    def is_separable(self) -> bool:
        return False

    @property
    def full_factor(self) -> Tensor:
        """Factor F (..., 2, D, p, 2, r): cos and sin rows, [Re, Im] columns."""
        real, imaginary = (t.unflatten(-2, (-1, self.num_outputs)) for t in (self.factor, self.imaginary))
        rows = torch.stack([real, imaginary], -2), torch.stack([imaginary, -real], -2)
        return torch.stack(rows, -5)

    def _expand(self, weights: Tensor) -> Tensor:
        halves = weights.unflatten(-3, (2, -1))  # (..., 2, D, r, k)
        return torch.einsum("...hjper,...ejrk->...hjpk", self.full_factor, halves).flatten(-4, -3)

    def _contract(self, values: Tensor) -> Tensor:
        halves = values.unflatten(-3, (2, -1))
        return torch.einsum("...hjper,...hjpk->...ejrk", self.full_factor, halves).flatten(-4, -3)

    def squared_rows(self, other: FeatureOperator | None = None) -> Tensor:
        left = self.to_dense()
        return (left * (left if other is None else other.to_dense())).sum(-1)

    def gram_from_scalar_features(self, other: FeatureOperator, scalar_gram: Tensor, weight: Tensor) -> Tensor:
        eye = torch.eye(other.num_columns, dtype=scalar_gram.dtype, device=scalar_gram.device)
        weights = eye.unflatten(0, (other.features.shape[-1], -1)).expand(*scalar_gram.shape[:-2], -1, -1, -1)
        expanded = weight.unsqueeze(-3) @ other._expand(weights)  # (..., M', p, M' r')
        return self.adjoint_from_scalar_features(_times(scalar_gram, expanded))

    def output(self, index: int) -> ComplexFeatureOperator:
        parts = (t.unflatten(-2, (-1, self.num_outputs))[..., index, :] for t in (self.factor, self.imaginary))
        return ComplexFeatureOperator(self.features, *parts, num_outputs=1)

    def to_dense(self) -> Tensor:
        features = self.features.unflatten(-1, (2, -1))
        dense = torch.einsum("...nhj,...hjper->...npejr", features, self.full_factor)
        dense = dense.flatten(-3).flatten(-3, -2)
        return dense.mT if self.transposed else dense


class ReflectedFeatureOperator(FeatureOperator):
    """Φ whose factors are the columns 2, …, p of scaled reflections, s_j (I − 2 v_j v_jᵀ/‖v_j‖²): divergence-free maps.

    `factor` holds the Householder vectors v, (*batch, D, p), and `lengths` the scales s, (*batch, D, 1).
    """

    def __init__(self, features: Tensor, factor: Tensor, lengths: Tensor, num_outputs: int, transposed: bool = False):
        features, factor, lengths = broadcast_batch(features, factor, lengths)
        LinearOperator.__init__(self, features, factor, lengths, num_outputs=num_outputs, transposed=transposed)
        self.features, self.factor, self.lengths = features, factor, lengths
        self.num_outputs, self.transposed = num_outputs, transposed

    @property
    def num_columns(self) -> int:
        return self.features.shape[-1] * (self.num_outputs - 1)

    @property
    def blocks(self) -> Tensor:
        return reflection_columns(self.factor, self.lengths)

    @property
    def is_separable(self) -> bool:
        return False

    @property
    def _direction(self) -> Tensor:
        """Columns √2 v/‖v‖, (..., 1, D, p, 1)."""
        return (self.factor * (2 / self.factor.square().sum(-1, keepdim=True)).sqrt()).unsqueeze(-1).unsqueeze(-4)

    def _expand(self, weights: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(weights, (0, 0, 1, 0)).unflatten(-3, (2, -1))  # (..., 2, D, p, k)
        return (self._reflect(padded) * self.lengths.unsqueeze(-1).unsqueeze(-4)).flatten(-4, -3)

    def _contract(self, values: Tensor) -> Tensor:
        values = values.unflatten(-3, (2, -1)) * self.lengths.unsqueeze(-1).unsqueeze(-4)
        return self._reflect(values)[..., 1:, :].flatten(-4, -3)

    def _reflect(self, columns: Tensor) -> Tensor:
        direction = self._direction
        return columns - direction * (direction * columns).sum(-2, keepdim=True)


class StackedFeatures(LinearOperator):
    """[Φ₁, …, Φ_c] side by side: the features of a sum of kernels."""

    def __init__(self, *parts: LinearOperator, transposed: bool = False):
        parts = broadcast_batch(*parts)
        super().__init__(*parts, transposed=transposed)
        self.parts, self.transposed = parts, transposed

    @property
    def num_outputs(self) -> int:
        """Common p of all parts; 1 if they differ, as maps with one row per output have p = 1."""
        counts = {part.num_outputs for part in self.parts}
        return counts.pop() if len(counts) == 1 else 1

    @property
    def num_columns(self) -> int:
        return sum(part.num_columns for part in self.parts)

    def _size(self) -> torch.Size:
        rows = self.parts[0].shape[-2]
        shape = (self.num_columns, rows) if self.transposed else (rows, self.num_columns)
        return torch.Size((*self.parts[0].batch_shape, *shape))

    def _transpose_nonbatch(self) -> StackedFeatures:
        return self.__class__(*self.parts, transposed=not self.transposed)

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self._adjoint(rhs) if self.transposed else self._forward(rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._forward(rhs) if self.transposed else self._adjoint(rhs)

    def _forward(self, weights: Tensor) -> Tensor:
        dim = -1 if weights.dim() == 1 else -2
        blocks = weights.split([part.num_columns for part in self.parts], dim)
        first, *rest = (part._matmul(block) for part, block in zip(self.parts, blocks, strict=True))
        return sum(rest, first)

    def _adjoint(self, values: Tensor) -> Tensor:
        return torch.cat([part._t_matmul(values) for part in self.parts], -1 if values.dim() == 1 else -2)

    def _mul_constant(self, other: float | Tensor) -> StackedFeatures:
        return self.__class__(*(part._mul_constant(other) for part in self.parts), transposed=self.transposed)

    def squared_rows(self, other: StackedFeatures | None = None) -> Tensor:
        others = self.parts if other is None else other.parts
        first, *rest = (a.squared_rows(b) for a, b in zip(self.parts, others, strict=True))
        return sum(rest, first)

    def cross_gram(self, other: StackedFeatures, weight: Tensor) -> Tensor:
        if any(part.num_outputs != weight.shape[-1] for part in self.parts):
            return weight * (self.to_dense().mT @ other.to_dense())  # unlike parts and one weight
        rows = [torch.cat([a.cross_gram(b, weight) for b in other.parts], -1) for a in self.parts]
        return torch.cat(rows, -2)

    def gram_from_scalar_features(self, other: StackedFeatures, scalar_gram: Tensor, weight: Tensor) -> Tensor:
        """Return Φᵀ (I_n ⊗ W) Φ' from the product φᵀφ' of all scalar features, for parts of p outputs each."""
        rows = []
        for a, row in zip(self.parts, scalar_gram.split(self._num_scalar_features, -2), strict=True):
            blocks = zip(other.parts, row.split(other._num_scalar_features, -1), strict=True)
            rows.append(torch.cat([a.gram_from_scalar_features(b, block, weight) for b, block in blocks], -1))
        return torch.cat(rows, -2)

    def adjoint_from_scalar_features(self, projections: Tensor) -> Tensor:
        blocks = zip(self.parts, projections.split(self._num_scalar_features, -3), strict=True)
        return torch.cat([part.adjoint_from_scalar_features(block) for part, block in blocks], -2)

    @property
    def _num_scalar_features(self) -> list[int]:
        return [part.features.shape[-1] for part in self.parts]

    def output(self, index: int) -> StackedFeatures:
        return self.__class__(*(part.output(index) for part in self.parts))

    def to_dense(self) -> Tensor:
        dense = torch.cat([part.to_dense() for part in self.parts], -1)
        return dense.mT if self.transposed else dense


def stack_features(*parts: LinearOperator) -> LinearOperator:
    """Stack features of a sum: stacks are flattened, and a single part is returned unchanged."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, StackedFeatures) else (part,))]
    return flat[0] if len(flat) == 1 else StackedFeatures(*flat)


def broadcast_batch(*parts: Tensor | LinearOperator) -> tuple:
    """Expand the parts to one batch shape; those that have it stay the same objects, as a representation is a leaf."""
    batch_shape = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
    return tuple(p if p.shape[:-2] == batch_shape else p.expand(*batch_shape, *p.shape[-2:]) for p in parts)


def reflection_columns(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Return s (I − 2vvᵀ/‖v‖²) without its first column, (..., D, p, p − 1), from v (..., D, p) and s (..., D, 1)."""
    scaled = vectors * (2 / vectors.square().sum(-1, keepdim=True))
    eye = torch.eye(vectors.shape[-1], dtype=vectors.dtype, device=vectors.device)[:, 1:]
    return lengths.unsqueeze(-1) * (eye - scaled.unsqueeze(-1) * vectors[..., 1:].unsqueeze(-2))


class CosSinFeatures(torch.autograd.Function):
    """[cos t, sin t] side by side, with one tensor stored for the gradient and no copy."""

    @staticmethod
    def forward(ctx, angles: Tensor) -> Tensor:
        D = angles.shape[-1]
        scalar_features = angles.new_empty(*angles.shape[:-1], 2 * D)
        torch.cos(angles, out=scalar_features[..., :D])
        torch.sin(angles, out=scalar_features[..., D:])
        ctx.save_for_backward(scalar_features)
        return scalar_features

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (scalar_features,) = ctx.saved_tensors
        (cos, sin), (by_cos, by_sin) = scalar_features.chunk(2, -1), gradient.chunk(2, -1)
        return (by_sin * cos).addcmul_(by_cos, sin, value=-1)


class SelfGram(torch.autograd.Function):
    """φᵀφ, by NumPy's SYRK on the CPU, half the work of a product; its gradient is one product instead of two."""

    @staticmethod
    def forward(ctx, features: Tensor) -> Tensor:
        ctx.save_for_backward(features)
        if features.dim() != 2 or features.device.type != "cpu":
            return features.mT @ features
        array = features.detach().numpy()
        return torch.from_numpy(array.T @ array)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return features @ (gradient + gradient.mT)


def _times(matrix: Tensor, stacked: Tensor) -> Tensor:
    """Multiply (..., a, b) with (..., b, q, k) over b, as one matrix product."""
    return (matrix @ stacked.flatten(-2)).unflatten(-1, stacked.shape[-2:])


def _adjoint_times(features: Tensor, stacked: Tensor) -> Tensor:
    """Multiply φᵀ (..., M, n) with (..., n, q, k) over n, as one matrix product."""
    flat = stacked.flatten(-2)
    product = (flat.mT @ features).mT if flat.shape[-1] <= MAX_NARROW_COLUMNS else features.mT @ flat
    return product.unflatten(-1, stacked.shape[-2:])


def _blockwise(matrix: Tensor, stacked: Tensor) -> Tensor:
    """Apply (..., p, q) to each block of (..., n, q, k)."""
    if matrix.shape[-2:] == (1, 1):
        return matrix.unsqueeze(-3) * stacked
    if stacked.shape[-1] == 1:
        return (stacked.squeeze(-1) @ matrix.mT).unsqueeze(-1)
    return matrix.unsqueeze(-3) @ stacked
