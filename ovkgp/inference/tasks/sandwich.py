"""Sandwich covariance of the minimizer of a quantile problem, from its score and the curvature of the risk.

    Cov[W] = H⁻¹ (V + λ² T I) H⁻¹,     H = λ I + S,
    S = (1/n) Σ_i s_i a_i φ_iφ_iᵀ ⊗ Σ_j η_j g_j ψ_jψ_jᵀ,     V = (1/nN) Σ_i s_i φ_iφ_iᵀ ⊗ Ω

Ω = Σ_jk η_jη_k (min(θ_j, θ_k) − θ_jθ_k) ψ_jψ_kᵀ is the variance τ(1 − τ) of the score of one row, and g_j a_i the
density of y at its quantile, estimated from the residuals (`ResidualDensity`) times 1 − freedom/N; both are independent
of the smoothing of the loss. λ² T I is the squared bias of the penalty for W drawn from the prior N(0, T I), with T
from V ≈ λ T S, for which H⁻¹ (V + λ² T I) H⁻¹ ≈ λ T H⁻¹ is a posterior covariance (LT §6.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import MATRIX_CHUNK_ENTRIES, gram
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.tasks.problem import TaskProblem

MIN_CURVATURE_RATIO = 1e-4
"""Directions in which S is below this fraction of λ keep the prior variance, as the data carry no information there."""
MIN_RESIDUAL_FRACTION = 0.1  # lower limit of 1 − freedom/N, for fits with about as many degrees of freedom as rows
MIN_ROW_SCALE = 0.1  # minimum scale of a row, as a fraction of the mean, against curves that are narrow by chance
SILVERMAN = 0.9


@dataclass(frozen=True)
class Sandwich:
    """Cov[W] in the coordinates U = Pᵀ W Q, in which H is diagonal.

    curvature (r, q) is the diagonal of S. row_root L (k, r') and task_root C (q, q') give V = L Lᵀ ⊗ C Cᵀ on the last k
    directions of P, where the data carry information. lam is λ, temperature T, and freedom Σ_i ∂h(x_i)/∂y_i, the
    degrees of freedom of a curve, averaged over the levels. Complexity: O(r³ + q³) once; O(k² q') per point and level.
    """

    input_vectors: Tensor
    task_vectors: Tensor
    curvature: Tensor
    row_root: Tensor
    task_root: Tensor
    lam: float
    temperature: float
    freedom: float

    def variance(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return Var[φᵀ W ψ] (k, l), for rows φ (k, r) and ψ (l, q)."""
        F, G = inputs @ self.input_vectors, tasks @ self.task_vectors
        # the penalty contributes in all directions, the score only where the data carry information
        penalty = F.square() @ (self.lam / (self.lam + self.curvature)).square() @ G.square().T
        return self.temperature * penalty + self.score_variance(F, G)

    def score_variance(self, F: Tensor, G: Tensor) -> Tensor:
        """Return the contribution of V, (k, l), for F = φᵀP (k, r) and G = ψᵀQ (l, q)."""
        observed = len(self.row_root)
        F, inverse = F[:, -observed:], 1 / (self.lam + self.curvature[-observed:])
        variance = F.new_empty(len(F), len(G))
        chunk_size = max(1, MATRIX_CHUNK_ENTRIES // max(1, observed * self.task_root.shape[1]))
        for column, g in enumerate(G):
            factor = ((inverse * g) @ self.task_root).T  # (q', k)
            parts = [(part[:, None] * factor) @ self.row_root for part in F.split(chunk_size)]
            variance[:, column] = torch.cat([part.square().sum((-1, -2)) for part in parts])
        return variance


def sandwich(parts: Callable[[], Iterable[TaskProblem]], weights: Tensor, offset: Tensor, count: float) -> Sandwich:
    """Compute the covariance of the solution W (r, q) of a quantile problem.

    `parts`, called twice, yields J in one or several parts of rows (`StreamedProblem.chunks`), which share nodes and
    weights. `offset` is b at the nodes (m,), which was subtracted from the targets. `count` is the number N of
    observations that the rows represent, the sum of their original weights. Complexity: O(n r² + r³ + q³), with one
    chunk of rows in memory.
    """
    rows = RowResiduals.from_parts(parts(), weights, offset)
    num_rows, score, curvature, first = len(rows.scale), 0.0, 0.0, 0
    for part in parts():
        scale = rows.scale[first : first + part.num_rows]
        score = score + gram(part.row_weights.sqrt()[:, None] * part.inputs)
        curvature = curvature + gram((part.row_weights / scale).sqrt()[:, None] * part.inputs)
        first += part.num_rows
    density = ResidualDensity(rows.residuals / rows.scale, rows.weights, count)(part.loss.nodes)
    return _sandwich(score / (num_rows * count), curvature / num_rows, part, density, count)


def _sandwich(score: Tensor, curvature: Tensor, part: TaskProblem, density: Tensor, count: float) -> Sandwich:
    """Build the sandwich from the input factors (r, r) of V and S, and the residual density (m,) at the nodes."""
    loss, tasks, lam = part.loss, part.tasks, part.lam
    input_values, P = eigh(curvature)
    task_values, Q = eigh(gram((loss.weights * density).sqrt()[:, None] * tasks))
    curvatures = input_values[:, None] * task_values
    # the fit follows its own rows, so residuals are too small and their density too high by this fraction
    sides = (loss.weights @ tasks @ Q) * ((loss.weights * density) @ tasks @ Q)
    freedom = float((input_values[:, None] / (lam + curvatures) @ sides).sum())
    curvatures = curvatures * max(1 - freedom / count, MIN_RESIDUAL_FRACTION)
    weighted = loss.weights[:, None] * tasks @ Q
    rows, columns = P.T @ score @ P, weighted.T @ score_covariance(loss.nodes) @ weighted
    temperature = rows.trace() * columns.trace() / (lam * curvatures.sum())
    informative = curvatures.amax(-1) > MIN_CURVATURE_RATIO * lam  # the last ones, as eigenvalues increase
    observed = max(1, int(informative.sum()))
    roots = _root(rows[-observed:, -observed:]), _root(columns)
    return Sandwich(P, Q, curvatures, *roots, lam, float(temperature), freedom)


def score_covariance(levels: Tensor) -> Tensor:
    """Return min(θ_j, θ_k) − θ_j θ_k (m, m), the covariance of 1(y ≤ q(θ_j)), with τ(1 − τ) on the diagonal."""
    return torch.minimum(levels[:, None], levels) - levels[:, None] * levels


def _root(matrix: Tensor) -> Tensor:
    """Return R (k, k') with R Rᵀ = matrix, which is positive semi-definite up to rounding."""
    values, vectors = eigh(matrix)
    keep = values > 1e-12 * values[-1].clamp_min(1e-300)
    return vectors[:, keep] * values[keep].sqrt()


@dataclass(frozen=True)
class RowResiduals:
    """Widths, residuals and weights s of the rows, each (n,).

    A width is the mean distance of the curve of a row from its middle, in the units of y; a residual is y_i −
    h(x_i)(θ_0), with θ_0 the node nearest to ½.
    """

    widths: Tensor
    residuals: Tensor
    weights: Tensor

    @classmethod
    def from_parts(cls, parts: Iterable[TaskProblem], weights: Tensor, offset: Tensor) -> RowResiduals:
        """Collect the rows of a problem given in parts, at W (r, q), with targets y − b(θ_j) and offset b (m,)."""
        columns = [_residuals(part, weights, offset) for part in parts]
        return cls(*(torch.cat(parts) for parts in zip(*columns, strict=True)))

    @property
    def scale(self) -> Tensor:
        """Scale of each row (n,): its width, at least a tenth of the mean; 1 for a single level, where widths are 0."""
        mean = float(self.widths @ self.weights / self.weights.sum())
        return self.widths.clamp_min(MIN_ROW_SCALE * mean) if mean > 0 else torch.ones_like(self.widths)


def _residuals(part: TaskProblem, weights: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    H, middle = part.values(weights), int((part.loss.nodes - 0.5).abs().argmin())
    curves = H + offset
    widths = (curves - curves[:, [middle]]).abs() @ part.loss.weights
    return widths, part.targets.expand_as(H)[:, middle] - H[:, middle], part.row_weights


class ResidualDensity:
    """θ ↦ g(θ), a Gaussian kernel density estimate of scaled residuals (n,) at their θ-quantile (Silverman).

    `count` is the number N of observations that the rows represent, the sum of the weights if None. O(n m) for m
    levels.
    """

    def __init__(self, residuals: Tensor, weights: Tensor, count: float | None = None):
        order = residuals.argsort()
        self.residuals, self.weights = residuals[order], weights[order] / weights.sum()
        self.bandwidth = self._bandwidth(float(weights.sum()) if count is None else count)

    def __call__(self, levels: Tensor) -> Tensor:
        """Return g (m,) at levels (m,)."""
        quantiles = self.quantile(levels)
        density = torch.empty_like(quantiles)
        chunk_size = max(1, MATRIX_CHUNK_ENTRIES // len(self.residuals))
        for block in torch.arange(len(quantiles)).split(chunk_size):
            lags = (quantiles[block, None] - self.residuals) / self.bandwidth
            density[block] = torch.exp(-lags.square() / 2) @ self.weights
        return density / (self.bandwidth * (2 * torch.pi) ** 0.5)

    def quantile(self, levels: Tensor) -> Tensor:
        """Return the smallest residual with a fraction of at least θ of the rows at or below it, (m,)."""
        indices = torch.searchsorted(self.weights.cumsum(0), levels.contiguous() - 1e-12)
        return self.residuals[indices.clamp_max(len(self.residuals) - 1)]

    def _bandwidth(self, count: float) -> float:
        """Return 0.9 min(sd, IQR/1.34) N^(−1/5), or 1 if all residuals are equal."""
        mean = self.weights @ self.residuals
        deviation = float((self.weights @ (self.residuals - mean).square()).sqrt())
        low, high = self.quantile(self.residuals.new_tensor([0.25, 0.75])).tolist()
        scale = min(deviation, (high - low) / 1.34) or deviation
        return SILVERMAN * scale * count**-0.2 or 1.0
