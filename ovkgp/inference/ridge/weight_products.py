"""Whitened features Ψ = N^{-½} Φ as products over chunks of rows: neither Φ whole nor ΦᵀΦ (BT-70, BT-75, BT-77).

    C θ = θ + Σ_chunks Ψ_cᵀ Ψ_c θ,      v = Σ_chunks Ψ_cᵀ z_c,    z = N^{-½} (y − m),      ∇ = C θ − v,

the gradient (6.9) of the ridge objective ½ ‖z − Ψθ‖² + ½ ‖θ‖². A chunk is forgotten once it was used.
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
from ovkgp.inference.statistics.rows import CHUNK_ROWS, whitening

CHUNK_ENTRIES = 4_000_000
"""About how many entries of Φ one chunk of rows stands for (32 MB)."""

Piece = tuple[LinearOperator, Tensor, slice]
"""Φ_c, N_c^{-½} (n_c or 1, p, p), and which rows these are."""


class WeightProducts:
    """Products with Ψ, Ψᵀ and C = I + ΨᵀΨ. Values at the rows are (n, p), whitened, and zero where missing.

    Args:
        feature_map: X ↦ Φ(X), of size (n·p) × r.
        mean: the prior mean.
        noise: Σ; not looked at where the data have known noise.
        data: the observations, missing outputs and all.
        chunk_rows: rows at a time; as many as make `CHUNK_ENTRIES` where it is None.

    Cost: O(n M p k) time for k columns and M waves, and the waves again at every product unless one chunk holds all rows;
    memory for one chunk.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.model.mean_noise import output_mean
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> from ovkgp.inference.ridge.weight_products import WeightProducts
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> X = torch.linspace(0, 6, 100, dtype=torch.float64).unsqueeze(-1)
        >>> data = observations(X, X.sin(), 1)
        >>> products = WeightProducts(orff, output_mean("zero", 1), OutputNoise(0.01, 1), data, chunk_rows=30)
        >>> products.apply(torch.ones(100, 1, dtype=torch.float64)).shape, products.moment().shape
        (torch.Size([100, 1]), torch.Size([100, 1]))
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
        """r."""
        return self.feature_map.num_features

    @classmethod
    def of(cls, model: Model, data: Observations) -> WeightProducts:
        """Those of a model with a feature map."""
        return cls(model.features, model.mean, model.noise, data)

    def pieces(self) -> Iterator[Piece]:
        """The chunks, one after another."""
        if self.data.num_rows <= self.chunk_rows:
            yield self._only_piece
        else:
            yield from (self._piece(start) for start in range(0, self.data.num_rows, self.chunk_rows))

    @cached_property
    def _only_piece(self) -> Piece:
        return self._piece(0)

    @torch.no_grad()
    def _piece(self, start: int) -> Piece:
        rows = slice(start, min(start + self.chunk_rows, self.data.num_rows))
        chunk = self.data.rows(rows).double()
        return self.feature_map(chunk.X), self._root(chunk), rows

    @torch.no_grad()
    def targets(self) -> Tensor:
        """z = N^{-½} (y − m), (n, p)."""
        return torch.cat([self._targets(start) for start in range(0, self.data.num_rows, CHUNK_ROWS)])

    def _targets(self, start: int) -> Tensor:
        chunk = self.data.rows(slice(start, start + CHUNK_ROWS)).double()
        values = torch.where(chunk.observed, chunk.Y - self.mean(chunk.X), 0.0)
        return (self._root(chunk) @ values.unsqueeze(-1)).squeeze(-1)

    def _root(self, chunk: Observations) -> Tensor:
        return whitening(chunk, None if chunk.noise is not None else self.noise.matrix())

    def forward(self, weights: Tensor) -> Tensor:
        """Ψ θ as (n, p), for θ (r,); columns (r, k) give (n·p, k)."""
        columns = weights if weights.dim() == 2 else weights.unsqueeze(-1)
        values = torch.cat([_by_row(root, Phi @ columns) for Phi, root, _ in self.pieces()])
        return values if weights.dim() == 2 else values.view(-1, self.data.num_outputs)

    def adjoint(self, values: Tensor) -> Tensor:
        """Ψᵀ values (r,), for values (n, p)."""
        return self.adjoint_columns(values.reshape(-1, 1)).squeeze(-1)

    def adjoint_columns(self, values: Tensor) -> Tensor:
        """Ψᵀ values (r, k), for values (n·p, k)."""
        p = self.data.num_outputs
        parts = ((Phi, root, values[rows.start * p : rows.stop * p]) for Phi, root, rows in self.pieces())
        return sum(Phi.mT @ _by_row(root.mT, part) for Phi, root, part in parts)

    def moment(self) -> Tensor:
        """v = Ψᵀ z, (r, 1)."""
        return self.adjoint_columns(self.targets().reshape(-1, 1))

    def apply(self, weights: Tensor) -> Tensor:
        """C θ (r, k), for θ (r, k)."""
        return weights + sum(Phi.mT @ _by_row(root.mT @ root, Phi @ weights) for Phi, root, _ in self.pieces())

    def matrix(self) -> Tensor:
        """A = ΨᵀΨ (r, r), one chunk of Φ at a time (Algorithm 3). O(n p r²)."""
        return sum(gram(rows) for rows in self.whitened_rows())

    @cached_property
    def trace(self) -> float:
        """The trace of A, a bound of its largest eigenvalue. O(n p r)."""
        return sum(rows.square().sum().item() for rows in self.whitened_rows())

    def whitened_rows(self) -> Iterator[Tensor]:
        """The rows of Ψ, dense, one chunk after another."""
        for Phi, root, _ in self.pieces():
            yield (root @ to_dense(Phi).unflatten(0, (-1, root.shape[-1]))).flatten(0, 1)

    def noise_draws(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws (r, k) from N(0, A): Ψᵀ times white noise."""
        total = 0
        for Phi, root, _ in self.pieces():
            scores = torch.randn(Phi.shape[-2], k, generator=generator, dtype=torch.float64).to(root.device)
            total = total + Phi.mT @ _by_row(root.mT, scores)
        return total


def _by_row(blocks: Tensor, columns: Tensor) -> Tensor:
    """Blocks (n or 1, p, p) applied to each row's part of (n·p, k)."""
    return (blocks @ columns.unflatten(0, (-1, blocks.shape[-1]))).flatten(0, 1)
