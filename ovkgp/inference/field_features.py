"""Random features of one part of a field, and of the scalar function whose derivatives that part is (ID-11).

A part's features are B_j cos⟨ω_j, x⟩ θ_j + B_j sin⟨ω_j, x⟩ θ'_j with B_j = b_j ω_j where it is curl-free, and b_j times ω_j
turned by a right angle where it is divergence-free in two dimensions. The scalar with the same weights is

    b_j sin⟨ω_j, x⟩ θ_j − b_j cos⟨ω_j, x⟩ θ'_j :      its derivatives are the field, term by term.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF, FeatureMap, SpectralPair, spectral_pair
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.kernels import HelmholtzKernel


def field_terms(kernel: Kernel) -> list[Kernel]:
    """The two parts of a Helmholtz kernel; any other is its own only part."""
    return list(kernel.kernels) if isinstance(kernel, HelmholtzKernel) else [kernel]


def quarter_turn(vectors: Tensor) -> Tensor:
    """(v₁, v₂) ↦ (v₂, −v₁)."""
    return torch.stack([vectors[..., 1], -vectors[..., 0]], -1)


def require_waves(feature_map: FeatureMap) -> None:
    """Refuse maps that are not made of waves, whose parts and primitives nobody knows."""
    if not isinstance(feature_map, ORFF):
        raise OptionError(
            f"the parts and the potentials of a field need random Fourier features or none, and this model has "
            f"{type(feature_map).__name__}: use features=ORFF(kernel), or features=None for the exact kernel."
        )


def part_features(feature_map: FeatureMap, X: Tensor, index: int) -> LinearOperator:
    """Those of part `index` of the field at X (m, d), beside zeros for the weights of the other: (m·p) × r. O(m D d)."""
    pieces, mine = _pieces(feature_map, X), _places(feature_map, index)
    return _among(pieces, mine, pieces[mine.start].num_outputs)


def scalar_features(feature_map: FeatureMap, X: Tensor, index: int, columns: Tensor, turned: bool) -> LinearOperator:
    """Those of the scalar behind part `index` of the field, m × r.

    Args:
        feature_map: the map of the whole field, with r features.
        X: (m, d).
        index: which part.
        columns: the columns of X that are the coordinates of the field.
        turned: whether the field is (∂₂ψ, −∂₁ψ) and not ∇g.

    Cost: O(m D d).
    """
    pieces, mine = _pieces(feature_map, X), _places(feature_map, index)
    terms, frequencies = feature_map.pair.terms, feature_map.frequencies
    frequencies = frequencies if isinstance(frequencies, list) else [frequencies]
    for i in mine:
        lengths = _lengths(terms[i], frequencies[i], X.shape[-1], columns, turned)
        cos, sin = pieces[i].features.chunk(2, -1)
        pieces[i] = FeatureOperator(torch.cat([sin, -cos], -1), lengths, num_outputs=1)
    return _among(pieces, mine, 1)


def _lengths(term: SpectralPair, frequencies: Tensor, num_dims: int, columns: Tensor, turned: bool) -> Tensor:
    """b_j / √D as a column (D, 1)."""
    waves = _along_x(term, frequencies, num_dims)[:, columns]
    # At ω = 0, which periodic kernels have, B = 0 hides b. The factors of such laws do not depend on ω: look elsewhere.
    at = torch.where((waves == 0).all(-1, keepdim=True), frequencies + 1, frequencies)
    waves = _along_x(term, at, num_dims)[:, columns]
    direction = quarter_turn(waves) if turned else waves
    products = (term.factor(at).squeeze(-1) * direction).sum(-1, keepdim=True)
    return products / direction.square().sum(-1, keepdim=True) / math.sqrt(len(frequencies))


def _along_x(term: SpectralPair, frequencies: Tensor, num_dims: int) -> Tensor:
    """The frequencies (D, d) of x itself: the warps of field kernels select and repeat columns, and are linear."""
    eye = torch.eye(num_dims, dtype=frequencies.dtype, device=frequencies.device)
    return frequencies if term.warp is None else frequencies @ term.warp(eye).mT


def _pieces(feature_map: FeatureMap, X: Tensor) -> list[LinearOperator]:
    require_waves(feature_map)
    features = feature_map(X)
    return list(features.parts) if isinstance(features, StackedFeatures) else [features]


def _places(feature_map: ORFF, index: int) -> range:
    """Which spectral terms belong to part `index`: several where its base kernel is a sum."""
    options = {"num_dims": feature_map.num_dims, "bounded": feature_map.bounded}
    counts = [len(spectral_pair(part, **options).terms) for part in field_terms(feature_map.kernel)]
    return range(sum(counts[:index]), sum(counts[: index + 1]))


def _among(pieces: list[LinearOperator], mine: range, num_outputs: int) -> LinearOperator:
    """The pieces of one part beside zeros for the weights of the others."""
    if len(pieces) == 1:
        return pieces[0]
    return StackedFeatures(*(p if i in mine else _nothing(p, num_outputs) for i, p in enumerate(pieces)))


def _nothing(piece: LinearOperator, num_outputs: int) -> FeatureOperator:
    points, like = piece.shape[-2] // piece.num_outputs, piece.features
    zeros, ones = like.new_zeros(points, piece.num_columns), like.new_ones(num_outputs, 1)
    return FeatureOperator(zeros, ones, num_outputs=num_outputs)
