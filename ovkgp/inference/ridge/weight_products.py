"""Products with the whitened features Ψ = N^{-½} Φ over chunks of rows (BT-70, BT-75, BT-77).

    C θ = θ + Σ_chunks Ψ_cᵀ Ψ_c θ,      v = Σ_chunks Ψ_cᵀ z_c,    z = N^{-½} (y − m),      ∇ = C θ − v,

where ∇ is the gradient (6.9) of the ridge objective ½ ‖z − Ψθ‖² + ½ ‖θ‖².
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.features import FeatureMap
from ovkgp.inference.algebra.dense import gram
from ovkgp.inference.model.mean_noise import Model, OutputMean, OutputNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.statistics.accumulation import CHUNK_ROWS, whitening_roots

CHUNK_ENTRIES = 4_000_000  # approximate number of entries of Φ in one chunk of rows (32 MB)

Chunk = tuple[LinearOperator, Tensor, slice]  # Φ_c, N_c^{-½} (n_c or 1, p, p), and the rows of the chunk


class WeightProducts:
    """Products with Ψ, Ψᵀ and C = I + ΨᵀΨ. Values at the rows are (n, p), whitened, and zero where missing.

    `noise` is ignored if the data have known noise variances. If `chunk_rows` is None, a chunk has about
    `CHUNK_ENTRIES` entries. Complexity: O(n M p k) for k columns and M scalar features, which are evaluated again in
    each product unless one chunk holds all rows; memory for one chunk.
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        mean: OutputMean,
        noise: OutputNoise,
        data: Observations,
        chunk_rows: int | None = None,
    ):
        self.feature_map, self.mean, self.noise, self.data = feature_map, mean, noise, data
        self.chunk_rows = chunk_rows or max(CHUNK_ENTRIES // (self.num_features * data.num_outputs), 1)

    @property
    def num_features(self) -> int:
        return self.feature_map.num_features

    @classmethod
    def from_model(cls, model: Model, data: Observations) -> WeightProducts:
        """Build the products of a model with a feature map."""
        return cls(model.features, model.mean, model.noise, data)

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the chunks."""
        if self.data.num_rows <= self.chunk_rows:
            yield self._only_chunk
        else:
            yield from (self._chunk(start) for start in range(0, self.data.num_rows, self.chunk_rows))

    @cached_property
    def _only_chunk(self) -> Chunk:
        return self._chunk(0)

    @torch.no_grad()
    def _chunk(self, start: int) -> Chunk:
        rows = slice(start, min(start + self.chunk_rows, self.data.num_rows))
        chunk = self.data.rows(rows).double()
        return self.feature_map(chunk.X), self._root(chunk), rows

    @torch.no_grad()
    def targets(self) -> Tensor:
        """Return z = N^{-½} (y − m), (n, p)."""
        return torch.cat([self._targets(start) for start in range(0, self.data.num_rows, CHUNK_ROWS)])

    def _targets(self, start: int) -> Tensor:
        chunk = self.data.rows(slice(start, start + CHUNK_ROWS)).double()
        values = torch.where(chunk.observed, chunk.Y - self.mean(chunk.X), 0.0)
        return (self._root(chunk) @ values.unsqueeze(-1)).squeeze(-1)

    def _root(self, chunk: Observations) -> Tensor:
        return whitening_roots(chunk, None if chunk.noise is not None else self.noise.matrix())

    def forward(self, weights: Tensor) -> Tensor:
        """Return Ψ θ as (n, p) for θ (r,); columns (r, k) give (n·p, k)."""
        columns = weights if weights.dim() == 2 else weights.unsqueeze(-1)
        values = torch.cat([_by_row(root, Phi @ columns) for Phi, root, _ in self.chunks()])
        return values if weights.dim() == 2 else values.view(-1, self.data.num_outputs)

    def adjoint(self, values: Tensor) -> Tensor:
        """Return Ψᵀ values (r,), for values (n, p)."""
        return self.adjoint_columns(values.reshape(-1, 1)).squeeze(-1)

    def adjoint_columns(self, values: Tensor) -> Tensor:
        """Return Ψᵀ values (r, k), for values (n·p, k)."""
        p = self.data.num_outputs
        parts = ((Phi, root, values[rows.start * p : rows.stop * p]) for Phi, root, rows in self.chunks())
        return sum(Phi.mT @ _by_row(root.mT, part) for Phi, root, part in parts)

    def moment(self) -> Tensor:
        """Return v = Ψᵀ z, (r, 1)."""
        return self.adjoint_columns(self.targets().reshape(-1, 1))

    def apply(self, weights: Tensor) -> Tensor:
        """Return C θ (r, k), for θ (r, k)."""
        return weights + sum(Phi.mT @ _by_row(root.mT @ root, Phi @ weights) for Phi, root, _ in self.chunks())

    def matrix(self) -> Tensor:
        """Return A = ΨᵀΨ (r, r), accumulated over chunks of Φ (Algorithm 3). O(n p r²)."""
        return sum(gram(rows) for rows in self.whitened_rows())

    @cached_property
    def trace(self) -> float:
        """Return the trace of A, an upper bound of its largest eigenvalue. O(n p r)."""
        return sum(rows.square().sum().item() for rows in self.whitened_rows())

    def whitened_rows(self) -> Iterator[Tensor]:
        """Iterate over the dense rows of Ψ, one chunk at a time."""
        for Phi, root, _ in self.chunks():
            yield (root @ to_dense(Phi).unflatten(0, (-1, root.shape[-1]))).flatten(0, 1)

    def noise_draws(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k vectors (r, k) from N(0, A): Ψᵀ times white noise."""
        total = 0
        for Phi, root, _ in self.chunks():
            scores = torch.randn(Phi.shape[-2], k, generator=generator, dtype=torch.float64).to(root.device)
            total = total + Phi.mT @ _by_row(root.mT, scores)
        return total


def _by_row(blocks: Tensor, columns: Tensor) -> Tensor:
    """Apply blocks (n or 1, p, p) to each row's part of (n·p, k)."""
    return (blocks @ columns.unflatten(0, (-1, blocks.shape[-1]))).flatten(0, 1)
