"""The evidence lower bound of q(w) = N(μ, S) for f(x) = m(x) + Φ(x) w + residual and any likelihood,

    ELBO = Σ_i E log p(y_i | f_i) − KL(q ‖ N(0, I)),     f_i ~ N(m_i + Φ_i μ, Φ_i S Φ_iᵀ + residual_i),

summed over chunks of rows. It never exceeds log p(Y), and for a Gaussian likelihood without residual it is log p(Y) at the
best full q (ID-4). A part of the rows, scaled by n over their number, gives an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
from ovkgp.inference.variational.rows import Basis, Rows, entries_per_row, rows_of

KEPT_ENTRIES = 20 * CHUNK_ENTRIES
"""Features of all rows are kept between natural steps up to so many numbers (160 MB), and made anew beyond."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of data as the bound sees them.

    Args:
        rows: Φ.
        prior: m(X) (n, p).
        residual: (n, p) or (n, p, p), or None where Φ w is the whole process.
        Y: (n, p), NaN where missing.
        noise: known variances (n, p), or None.
    """

    rows: Rows
    prior: Tensor
    residual: Tensor | None
    Y: Tensor
    noise: Tensor | None

    def detach(self) -> Piece:
        """The same without a graph."""
        residual = None if self.residual is None else self.residual.detach()
        return Piece(self.rows.detach(), self.prior.detach(), residual, self.Y, self.noise)

    def rotated(self, basis: Basis) -> Piece:
        """The same with Φ in another basis of the weights."""
        return Piece(self.rows.rotated(basis), self.prior, self.residual, self.Y, self.noise)

    def marginals(self, q: WeightGaussian, form: str) -> tuple[Tensor, Tensor]:
        """Mean (n, p) and covariance of f, in the form "diag" or "output"; Φ is in the basis of q."""
        mean, covariance = q.marginals(self.rows, form)
        return self.prior + mean, covariance if self.residual is None else covariance + self.residual


class RowChunks:
    """All rows in chunks, in the basis of the map; kept where they are few, and made anew at every pass where they are not."""

    def __init__(self, bound: VariationalBound, whole: Piece | None = None):
        self.bound, self.kept = bound, None
        if whole is not None:
            self.kept = [whole.detach()]
        elif entries_per_row(bound.probe()) * bound.data.num_rows <= KEPT_ENTRIES:
            self.kept = list(bound.pieces())

    def rotated(self, basis: Basis) -> Iterable[Piece]:
        """The pieces in a basis, to be gone through any number of times."""
        if self.kept is None:
            return _Stream(self.bound, basis)
        return [piece.rotated(basis) for piece in self.kept] if basis else self.kept


class _Stream:
    def __init__(self, bound: VariationalBound, basis: Basis):
        self.bound, self.basis = bound, basis

    def __iter__(self) -> Iterator[Piece]:
        with torch.no_grad():
            for piece in self.bound.pieces():
                yield piece.rotated(self.basis)


class VariationalBound:
    """The bound of a model and its data.

    Args:
        features: the map Φ; `InducingPoints` have a residual.
        mean: m.
        likelihood: p(y | f).
        data: what was observed, in float64.

    Cost of a value: O(n M r) for the marginals of a full q and Kronecker rows, O(n M q) for mean field, with the likelihood's
    own cost for each entry; memory for one chunk, gradients included: with several chunks they are taken with the value.
    """

    def __init__(self, features: FeatureMap, mean: OutputMean, likelihood: Likelihood, data: Observations):
        self.features, self.mean, self.likelihood, self.data = features, mean, likelihood, data
        self.form = "output" if likelihood.couples_outputs else "diag"
        self.is_conjugate = isinstance(likelihood, Gaussian)
        # the covariances between outputs of one row come from as many products with its waves as there are outputs
        per_row = entries_per_row(self.probe()) * (data.num_outputs if likelihood.couples_outputs else 1)
        self.chunk_rows = max(CHUNK_ENTRIES // per_row, 1)

    @torch.no_grad()
    def probe(self) -> Rows:
        """Φ at the first row."""
        return rows_of(self.features(self.data.X[:1]), self.data.num_outputs)

    def piece(self, chunk: Observations) -> Piece:
        """Some rows, with a graph where gradients are enabled."""
        if isinstance(self.features, InducingPoints):
            Phi, residual = self.features.with_residual(chunk.X, self.form)
        else:
            Phi, residual = self.features(chunk.X), None
        return Piece(rows_of(Phi, chunk.num_outputs), self.mean(chunk.X), residual, chunk.Y, chunk.noise)

    @torch.no_grad()
    def pieces(self) -> Iterator[Piece]:
        """All rows, a chunk at a time, without a graph."""
        for chunk in self.data.chunks(self.chunk_rows):
            yield self.piece(chunk)

    def expected(self, piece: Piece, q: WeightGaussian) -> Tensor:
        """Σ E log p(y_i | f_i) over one piece in the basis of q."""
        return self.likelihood.expected(piece.Y, *piece.marginals(q, self.form), piece.noise).sum()

    def whole(self) -> Piece | None:
        """All rows as one piece, with a graph where gradients are enabled; None where they need several chunks."""
        return self.piece(self.data) if self.data.num_rows <= self.chunk_rows else None

    def value(self, q: WeightGaussian, whole: Piece | None = None) -> Tensor:
        """The ELBO, differentiable in the hyperparameters at this q; `whole` saves making the features again."""
        whole = self.whole() if whole is None else whole
        if whole is not None:
            return self.expected(whole.rotated(q.basis), q) - q.divergence
        parameters = self._trained() if torch.is_grad_enabled() else ()
        total, gradients = 0.0, [torch.zeros_like(parameter) for parameter in parameters]
        for chunk in self.data.chunks(self.chunk_rows):
            part = self.expected(self.piece(chunk).rotated(q.basis), q)
            total = total + part.detach()
            if parameters and part.requires_grad:  # at once: the graphs of all chunks together would not fit
                found = torch.autograd.grad(part, parameters, allow_unused=True)
                for gradient, one in zip(gradients, found, strict=True):
                    gradient.add_(0.0 if one is None else one)
        return _WithGradient.apply(total, gradients, *parameters) - q.divergence

    def _trained(self) -> tuple[Tensor, ...]:
        """The parameters of map, mean and likelihood that require a gradient, each once."""
        parts = (self.features, self.mean, self.likelihood)
        found = {id(one): one for part in parts for one in part.parameters() if one.requires_grad}
        return tuple(found.values())


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is known already."""

    @staticmethod
    def forward(ctx, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value: Tensor):
        return None, None, *(by_value * gradient for gradient in ctx.gradients)
