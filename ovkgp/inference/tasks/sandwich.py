"""How sure are quantile curves? The covariance of the minimiser of J, from the spread of its score and the curvature of the risk.

    Cov[W] = H⁻¹ (V + λ² T I) H⁻¹,     H = λ I + S,     S = (1/n) Σ_i s_i a_i φ_iφ_iᵀ ⊗ Σ_j η_j g_j ψ_jψ_jᵀ,     V = (1/nN) Σ_i s_i φ_iφ_iᵀ ⊗ Ω

Ω = Σ_jk η_jη_k (min(θ_j, θ_k) − θ_jθ_k) ψ_jψ_kᵀ is the variance τ(1 − τ) of the score of one row, and g_j a_i the density of y at its
quantile, that of the residuals (`residual_density`) times 1 − freedom/N: neither knows how a loss was smoothed. λ² T I is the squared pull of the penalty
when W is a draw of the prior N(0, T I), with the T of V ≈ λ T S, for which H⁻¹ (V + λ² T I) H⁻¹ ≈ λ T H⁻¹ is a posterior covariance (LT §6.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import gram
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.tasks.problem import TaskProblem

NARROWEST = 0.1
"""The least scale of a row, as a part of the mean: a curve that is too narrow by chance would be taken for certain."""
SILVERMAN = 0.9
BLOCK = 1 << 22


@dataclass(frozen=True)
class RowResiduals:
    """What rows say about the law of the residuals.

    Args:
        spread: the mean distance of the curve of each row from its middle (n,), in the units of y.
        residuals: y_i − h(x_i)(θ_0) (n,), θ_0 the node nearest to ½.
        weights: s (n,).
    """

    spread: Tensor
    residuals: Tensor
    weights: Tensor

    @classmethod
    def of(cls, parts: Iterable[TaskProblem], weights: Tensor, offset: Tensor) -> RowResiduals:
        """Of the rows of a problem, in pieces, at W (r, q); its targets are y less b(θ_j) = offset (m,)."""
        found = [_residuals(part, weights, offset) for part in parts]
        return cls(*(torch.cat(columns) for columns in zip(*found, strict=True)))

    @property
    def scale(self) -> Tensor:
        """Of each row (n,): its spread, at least a tenth of the mean. One level alone has no spread, and all rows the scale 1."""
        mean = float(self.spread @ self.weights / self.weights.sum())
        return self.spread.clamp_min(NARROWEST * mean) if mean > 0 else torch.ones_like(self.spread)


def _residuals(part: TaskProblem, weights: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    H, middle = part.values(weights), int((part.loss.nodes - 0.5).abs().argmin())
    curves = H + offset
    spread = (curves - curves[:, [middle]]).abs() @ part.loss.weights
    return spread, part.targets.expand_as(H)[:, middle] - H[:, middle], part.row_weights


class ResidualDensity:
    """θ ↦ g(θ), a Gaussian kernel estimate with Silverman's bandwidth.

    Args:
        residuals: in units of the scale of their rows (n,).
        weights: of the rows (n,).
        count: N, the observations that the rows stand for; the sum of the weights where None.

    Cost: O(n m) for m levels.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.sandwich import ResidualDensity
        >>> z = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
        >>> density = ResidualDensity(z, torch.ones_like(z))
        >>> bool((density(torch.tensor([0.1, 0.5]).double()) - torch.tensor([0.175, 0.399])).abs().max() < 0.02)  # of N(0, 1)
        True
    """

    def __init__(self, residuals: Tensor, weights: Tensor, count: float | None = None):
        order = residuals.argsort()
        self.residuals, self.weights = residuals[order], weights[order] / weights.sum()
        self.bandwidth = self._bandwidth(float(weights.sum()) if count is None else count)

    def __call__(self, levels: Tensor) -> Tensor:
        """g (m,) at levels (m,)."""
        places = self.quantile(levels)
        found = torch.empty_like(places)
        at_once = max(1, BLOCK // len(self.residuals))
        for block in torch.arange(len(places)).split(at_once):
            lags = (places[block, None] - self.residuals) / self.bandwidth
            found[block] = torch.exp(-lags.square() / 2) @ self.weights
        return found / (self.bandwidth * (2 * torch.pi) ** 0.5)

    def quantile(self, levels: Tensor) -> Tensor:
        """The least residual with a share of at least θ of the rows at or below it, (m,)."""
        places = torch.searchsorted(self.weights.cumsum(0), levels.contiguous() - 1e-12)
        return self.residuals[places.clamp_max(len(self.residuals) - 1)]

    def _bandwidth(self, count: float) -> float:
        """0.9 min(sd, IQR/1.34) N^(−1/5); 1 where all residuals are the same."""
        mean = self.weights @ self.residuals
        deviation = float((self.weights @ (self.residuals - mean).square()).sqrt())
        low, high = self.quantile(self.residuals.new_tensor([0.25, 0.75])).tolist()
        spread = min(deviation, (high - low) / 1.34) or deviation
        return SILVERMAN * spread * count**-0.2 or 1.0


FLAT = 1e-4
"""Directions in which S is less than this part of λ keep the variance of the prior: data say nothing there."""
MIN_SHARE = 0.1
"""The least that is left of the residuals of a fit with as many degrees of freedom as rows."""
ENTRIES = 1 << 22
"""Numbers that are held at once while variances are computed."""


@dataclass(frozen=True)
class Sandwich:
    """Cov[W] in the coordinates U = Pᵀ W Q, in which H is diagonal.

    Args:
        input_vectors, task_vectors: P (r, r) and Q (q, q).
        curvature: the diagonal of S (r, q).
        row_root, task_root: L (k, r') and C (q, q'), V = L Lᵀ ⊗ C Cᵀ on the k last directions of P, where data say something.
        lam: λ.
        temperature: T.
        freedom: Σ_i ∂h(x_i)/∂y_i, the degrees of freedom of a curve, averaged over the levels.

    Cost: O(r³ + q³) once; O(k² q') a point and level.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.inference.tasks.sandwich import sandwich
        >>> from ovkgp.losses import IntegralLoss, Pinball, grid
        >>> y = torch.randn(400, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> one = torch.ones(400, 1).double()
        >>> problem = TaskProblem(one, one[:1], y, IntegralLoss(Pinball(), grid([0.5])), lam=1e-6)
        >>> found = sandwich(lambda: [problem], y.median().view(1, 1), torch.zeros(1).double(), count=400)
        >>> std = found.variance(one[:1], one[:1]).sqrt().item()  # √(¼/400) / density = 0.0627 for the median of N(0, 1)
        >>> 0.05 < std < 0.075
        True
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
        """Var[φᵀ W ψ] (k, l), for rows φ (k, r) and ψ (l, q)."""
        F, G = inputs @ self.input_vectors, tasks @ self.task_vectors
        # the penalty's part is a sum over all directions; that of the score needs those alone where data speak
        pulled = F.square() @ (self.lam / (self.lam + self.curvature)).square() @ G.square().T
        return self.temperature * pulled + self.score_variance(F, G)

    def score_variance(self, F: Tensor, G: Tensor) -> Tensor:
        """The part of V, (k, l), for F = φᵀP (k, r) and G = ψᵀQ (l, q)."""
        observed = len(self.row_root)
        F, inverse = F[:, -observed:], 1 / (self.lam + self.curvature[-observed:])
        found = F.new_empty(len(F), len(G))
        at_once = max(1, ENTRIES // max(1, observed * self.task_root.shape[1]))
        for column, g in enumerate(G):
            spread = ((inverse * g) @ self.task_root).T  # (q', k)
            parts = [(part[:, None] * spread) @ self.row_root for part in F.split(at_once)]
            found[:, column] = torch.cat([part.square().sum((-1, -2)) for part in parts])
        return found

    def posterior_variance(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """The variance (k, l) of the posterior that H is the precision of, λ T H⁻¹: what V = λ T S would give."""
        F, G = inputs @ self.input_vectors, tasks @ self.task_vectors
        return self.temperature * (F.square() @ (self.lam / (self.lam + self.curvature)) @ G.square().T)


def score_covariance(levels: Tensor) -> Tensor:
    """min(θ_j, θ_k) − θ_j θ_k (m, m), the covariance of 1(y ≤ q(θ_j)): τ(1 − τ) on the diagonal.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.sandwich import score_covariance
        >>> score_covariance(torch.tensor([0.5, 0.8]))
        tensor([[0.2500, 0.1000],
                [0.1000, 0.1600]])
    """
    return torch.minimum(levels[:, None], levels) - levels[:, None] * levels


def sandwich(parts: Callable[[], Iterable[TaskProblem]], weights: Tensor, offset: Tensor, count: float) -> Sandwich:
    """The covariance of the solution of a quantile problem.

    Args:
        parts: called twice, gives J in one piece or a few rows at a time (`StreamedProblem.chunks`); all rows share nodes and weights.
        weights: W (r, q), its minimiser.
        offset: b at the nodes (m,), which was taken off the targets: the spread of y at a row is that of b + h.
        count: N, the observations that the rows stand for: the sum of their own weights, of which s_i are the shares.

    Cost: O(n r² + r³ + q³); of the rows one chunk is held at a time.
    """
    rows = RowResiduals.of(parts(), weights, offset)
    num_rows, plain, bent, first = len(rows.scale), 0.0, 0.0, 0
    for part in parts():
        scale = rows.scale[first : first + part.num_rows]
        plain = plain + gram(part.row_weights.sqrt()[:, None] * part.inputs)
        bent = bent + gram((part.row_weights / scale).sqrt()[:, None] * part.inputs)
        first += part.num_rows
    density = ResidualDensity(rows.residuals / rows.scale, rows.weights, count)(part.loss.nodes)
    return _sandwich(plain / (num_rows * count), bent / num_rows, part, density, count)


def _sandwich(spread: Tensor, curvature: Tensor, part: TaskProblem, density: Tensor, count: float) -> Sandwich:
    """From the input sides (r, r) of V and S, and the density (m,) of the residuals at the nodes."""
    loss, tasks, lam = part.loss, part.tasks, part.lam
    input_values, P = eigh(curvature)
    task_values, Q = eigh(gram((loss.weights * density).sqrt()[:, None] * tasks))
    bends = input_values[:, None] * task_values
    # the fit took part of the residuals away: their density is too high by what each row moves its own curve
    sides = (loss.weights @ tasks @ Q) * ((loss.weights * density) @ tasks @ Q)
    freedom = float((input_values[:, None] / (lam + bends) @ sides).sum())
    bends = bends * max(1 - freedom / count, MIN_SHARE)
    rows, columns = P.T @ spread @ P, Q.T @ _task_spread(loss.nodes, loss.weights, tasks) @ Q
    temperature = rows.trace() * columns.trace() / (lam * bends.sum())
    observed = max(1, int((bends.amax(-1) > FLAT * lam).sum()))  # eigenvalues rise: these are the last
    return Sandwich(P, Q, bends, _root(rows[-observed:, -observed:]), _root(columns), lam, float(temperature), freedom)


def _task_spread(levels: Tensor, weights: Tensor, tasks: Tensor) -> Tensor:
    """Ω (q, q)."""
    weighted = weights[:, None] * tasks
    return weighted.T @ score_covariance(levels) @ weighted


def _root(matrix: Tensor) -> Tensor:
    """R (k, k') with R Rᵀ = matrix, positive semi-definite but for rounding."""
    values, vectors = eigh(matrix)
    keep = values > 1e-12 * values[-1].clamp_min(1e-300)
    return vectors[:, keep] * values[keep].sqrt()
