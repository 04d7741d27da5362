"""The evidence lower bound of q(w) = N(μ, S) for f(x) = m(x) + Φ(x) w + residual and any likelihood,

    ELBO = Σ_i E log p(y_i | f_i) − KL(q ‖ N(0, I)),     f_i ~ N(m_i + Φ_i μ, Φ_i S Φ_iᵀ + residual_i),

summed over chunks of rows. It never exceeds log p(Y), and for a Gaussian likelihood without residual it equals log p(Y)
at the best full q (ID-4). The sum over a random batch of b rows, scaled by n/b, is an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ovkgp.features import FeatureMap
from ovkgp.inference.likelihoods import Gaussian, Likelihood
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.rows import Basis, Rows, entries_per_row, make_rows

MAX_CACHED_ENTRIES = 20 * CHUNK_ENTRIES
"""Maximum number of feature values (160 MB) cached between natural steps; more are computed at every pass."""


@dataclass(frozen=True, eq=False)
class RowChunk:
    """Some rows of data."""

    rows: Rows  # features Φ
    prior: Tensor  # prior means m(X) (n, p)
    residual: Tensor | None  # (n, p) or (n, p, p); None if Φ w is the whole process
    Y: Tensor  # outputs (n, p), NaN where missing
    noise: Tensor | None  # known noise variances (n, p)

    def detach(self) -> RowChunk:
        """Return a copy without a graph."""
        residual = None if self.residual is None else self.residual.detach()
        return replace(self, rows=self.rows.detach(), prior=self.prior.detach(), residual=residual)

    def rotate(self, basis: Basis) -> RowChunk:
        """Return a copy with Φ in another basis of the weights."""
        return replace(self, rows=self.rows.rotate(basis))

    def marginals(self, q: WeightGaussian, form: str) -> tuple[Tensor, Tensor]:
        """Compute the mean (n, p) and covariance of f, in the form "diag" or "output"; Φ is in the basis of q."""
        mean, covariance = q.marginals(self.rows, form)
        return self.prior + mean, covariance if self.residual is None else covariance + self.residual


class RowChunks:
    """All rows in chunks, in the basis of the map; cached up to `MAX_CACHED_ENTRIES`, else computed at every pass."""

    def __init__(self, bound: VariationalBound, single_chunk: RowChunk | None = None):
        self.bound, self.cached = bound, None
        if single_chunk is not None:
            self.cached = [single_chunk.detach()]
        elif entries_per_row(bound.probe()) * bound.data.num_rows <= MAX_CACHED_ENTRIES:
            self.cached = list(bound.make_chunks())

    def rotate(self, basis: Basis) -> Iterable[RowChunk]:
        """Return the chunks in another basis, as an iterable for any number of passes."""
        if self.cached is None:
            return _Stream(self.bound, basis)
        return [chunk.rotate(basis) for chunk in self.cached] if basis else self.cached


class _Stream:
    def __init__(self, bound: VariationalBound, basis: Basis):
        self.bound, self.basis = bound, basis

    def __iter__(self) -> Iterator[RowChunk]:
        with torch.no_grad():
            for chunk in self.bound.make_chunks():
                yield chunk.rotate(self.basis)


class VariationalBound:
    """The bound of a model (features Φ, with a residual if `InducingPoints`; mean m; likelihood) and its data."""

    def __init__(self, features: FeatureMap, mean: OutputMean, likelihood: Likelihood, data: Observations):
        self.features, self.mean, self.likelihood, self.data = features, mean, likelihood, data
        self.form = "output" if likelihood.couples_outputs else "diag"
        self.is_conjugate = isinstance(likelihood, Gaussian)
        # the covariances between outputs of one row take one product with its scalar features per output
        per_row = entries_per_row(self.probe()) * (data.num_outputs if likelihood.couples_outputs else 1)
        self.chunk_rows = max(CHUNK_ENTRIES // per_row, 1)

    @torch.no_grad()
    def probe(self) -> Rows:
        """Compute Φ at the first row."""
        return make_rows(self.features(self.data.X[:1]), self.data.num_outputs)

    def make_chunk(self, rows: Observations) -> RowChunk:
        """Compute the chunk of some rows, with a graph if gradients are enabled."""
        if isinstance(self.features, InducingPoints):
            Phi, residual = self.features.with_residual(rows.X, self.form)
        else:
            Phi, residual = self.features(rows.X), None
        return RowChunk(make_rows(Phi, rows.num_outputs), self.mean(rows.X), residual, rows.Y, rows.noise)

    @torch.no_grad()
    def make_chunks(self) -> Iterator[RowChunk]:
        """Yield all rows, one chunk at a time, without a graph."""
        for rows in self.data.chunks(self.chunk_rows):
            yield self.make_chunk(rows)

    def expected(self, chunk: RowChunk, q: WeightGaussian) -> Tensor:
        """Compute Σ E log p(y_i | f_i) over one chunk in the basis of q."""
        return self.likelihood.expected(chunk.Y, *chunk.marginals(q, self.form), chunk.noise).sum()

    def make_single_chunk(self) -> RowChunk | None:
        """Compute all rows as one chunk, with a graph if gradients are enabled; None if they need several chunks."""
        return self.make_chunk(self.data) if self.data.num_rows <= self.chunk_rows else None

    def value(self, q: WeightGaussian, single_chunk: RowChunk | None = None) -> Tensor:
        """Compute the ELBO at this q, differentiable in the hyperparameters; features of `single_chunk` are reused."""
        single_chunk = self.make_single_chunk() if single_chunk is None else single_chunk
        if single_chunk is not None:
            return self.expected(single_chunk.rotate(q.basis), q) - q.divergence
        parameters = self._trained_parameters() if torch.is_grad_enabled() else ()
        total, gradients = 0.0, [torch.zeros_like(parameter) for parameter in parameters]
        for rows in self.data.chunks(self.chunk_rows):
            part = self.expected(self.make_chunk(rows).rotate(q.basis), q)
            total = total + part.detach()
            if parameters and part.requires_grad:  # per chunk: the graphs of all chunks together would not fit
                found = torch.autograd.grad(part, parameters, allow_unused=True)
                for gradient, one in zip(gradients, found, strict=True):
                    gradient.add_(0.0 if one is None else one)
        return WithGradient.apply(total, gradients, *parameters) - q.divergence

    def _trained_parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters of map, mean and likelihood that require a gradient, each once."""
        modules = (self.features, self.mean, self.likelihood)
        found = {id(one): one for module in modules for one in module.parameters() if one.requires_grad}
        return tuple(found.values())


class WithGradient(torch.autograd.Function):
    """A value with a precomputed gradient."""

    @staticmethod
    def forward(ctx, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value: Tensor):
        return None, None, *(by_value * gradient for gradient in ctx.gradients)
