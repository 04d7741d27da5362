"""The rows of which weight space keeps Gram matrices, for one chunk of the data and for each of the three layouts.

Where every part of Φ is made of waves φ and factors for all p outputs, the rows are [φ, h, Y] and have nothing of the
factors, the noise or the mean's coefficients in them. Otherwise they are N^{-½} [Φ, h ⊗ I, y], with the Cholesky factor
of the noise between the seen outputs of each row. A mean without a basis is subtracted from Y.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference.data import Observations
from ovkgp.inference.row_grams import BlockGram, grams_by_output, row_groups, seen_patterns

ROWS_AT_ONCE = 1 << 16
"""Rows whose patterns of missing outputs are counted together."""


def wave_parts(Phi: LinearOperator, num_outputs: int) -> list[FeatureOperator] | None:
    """The parts of Φ, where all of them are made of waves and factors for p outputs; else None."""
    parts = Phi.parts if isinstance(Phi, StackedFeatures) else (Phi,)
    fits = all(isinstance(part, FeatureOperator) and part.num_outputs == num_outputs for part in parts)
    return list(parts) if fits else None


def choose_layout(template: LinearOperator, noise, data: Observations) -> str:
    """The smallest layout of `Statistics` that the features, the noise and the data allow.

    Args:
        template: Φ at one point, p × r.
        noise: a module with `is_diagonal`.
        data: the observations.
    """
    if template.shape[-2] != data.num_outputs:
        raise InputError(
            f"the feature map has {template.shape[-2]} rows for one point, but Y has {data.num_outputs} columns: they must agree."
        )
    if wave_parts(template, data.num_outputs) is None:
        return "whitened"
    if data.noise is None and data.is_complete:
        return "shared"
    return "by_output" if data.noise is not None or noise.is_diagonal else "whitened"


class Rows(torch.nn.Module):
    """The Gram matrix of the rows of a chunk, as a function of the parameters of feature map and mean.

    Args:
        feature_map: X ↦ Φ(X).
        mean: the prior mean.
        layout: "shared", "by_output" or "whitened".
    """

    def __init__(self, feature_map: torch.nn.Module, mean: torch.nn.Module, layout: str):
        super().__init__()
        self.feature_map, self.mean, self.layout = feature_map, mean, layout

    def forward(self, chunk: Observations, noise: Tensor | None = None, only_gradient: bool = False) -> Tensor:
        """The Gram matrix of a chunk; `noise` is Σ (p, p), which only the whitened layout looks at."""
        Phi = self.feature_map(chunk.X)
        basis, Y = self._targets(chunk)
        if self.layout == "whitened":
            return BlockGram.apply(only_gradient, *_whitened(Phi, basis, Y, whitening(chunk, noise)))
        waves = [part.features for part in wave_parts(Phi, chunk.num_outputs)]
        if self.layout == "shared":
            return BlockGram.apply(only_gradient, *waves, torch.cat([basis, Y], 1))
        return grams_by_output(waves, basis, Y, row_groups(chunk), only_gradient)

    def _targets(self, chunk: Observations) -> tuple[Tensor, Tensor]:
        """h (n, b) and Y (n, p), zero where missing; no columns of h, and residuals, for a mean without a basis."""
        Y = chunk.Y if chunk.is_complete else torch.where(chunk.seen, chunk.Y, 0.0)
        basis = self.mean.basis(chunk.X)
        if basis is not None:
            return basis, Y
        return Y.new_zeros(len(Y), 0), Y - torch.where(chunk.seen, self.mean(chunk.X), 0.0)

    @property
    def num_basis(self) -> int:
        """b; 0 for a mean without a basis."""
        return len(self.mean.coefficients)


def _whitened(Phi: LinearOperator, basis: Tensor, Y: Tensor, root: Tensor) -> list[Tensor]:
    """N^{-½} Φ (n·p, r) and N^{-½} [h ⊗ I, y] (n·p, b·p + 1), from N^{-½} as (n, p, p)."""
    p = Y.shape[1]
    features = root @ to_dense(Phi).unflatten(0, (-1, p))  # (n, p, r)
    targets = torch.einsum("nk,npa->npka", basis, root.expand(len(Y), p, p)).flatten(-2)
    targets = torch.cat([targets, root @ Y.unsqueeze(-1)], -1)
    return [features.flatten(0, 1), targets.flatten(0, 1)]


def whitening(chunk: Observations, noise: Tensor | None) -> Tensor:
    """N^{-½} of each row, (n, p, p) or (1, p, p) where all are alike: zero in the rows and columns of missing outputs."""
    if chunk.noise is not None:
        return torch.diag_embed(torch.where(chunk.seen, chunk.noise.rsqrt(), 0.0))
    patterns, which = chunk.seen[:1], None
    if not chunk.is_complete:
        patterns, which, _ = seen_patterns(chunk.seen)
    chol = _pattern_chol(patterns, noise)
    eye = torch.diag_embed(patterns.to(chol))
    root = torch.linalg.solve_triangular(chol, eye, upper=False)
    return root if which is None else root[which]


def whitened_log_noise(data: Observations, noise: Tensor | None) -> Tensor:
    """log det N over the observed entries, differentiable in Σ."""
    if data.noise is not None:
        return sum(part.noise.log()[part.seen].sum() for part in data.chunks(ROWS_AT_ONCE))
    total = noise.new_zeros(())
    for seen in data.seen.split(ROWS_AT_ONCE):
        patterns, _, counts = seen_patterns(seen)
        total = total + 2 * counts.to(noise) @ _pattern_chol(patterns, noise).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return total


def _pattern_chol(patterns: Tensor, noise: Tensor) -> Tensor:
    """The Cholesky factor of Σ between the seen outputs of each pattern (k, p), and of the identity elsewhere."""
    both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
    eye = torch.eye(len(noise), dtype=noise.dtype, device=noise.device)
    return torch.linalg.cholesky(torch.where(both, noise, eye))
