"""Hyperparameters of the input kernel, learned by maximizing the posterior of a Gaussian process on at most 500 rows:

    y ~ N(0, v (K + 1) + σ² diag(exp(2 X g))),      K = s k_0(X/ℓ) + l XXᵀ/d + q (XXᵀ/d)²,

with log ℓ normal about log 2√d: few rows give one common lengthscale, many rows one per column. The variances v·s, v·l,
v·q and σ² have log-normal priors; that of σ² keeps it from vanishing by chance. The slopes g of the noise are zero
unless the evidence is for them: rows with more noise than others would otherwise be fitted by short lengthscales.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from gpytorch.module import Module
from gpytorch.priors import MultivariateNormalPrior, NormalPrior
from linear_operator import to_dense
from torch import Tensor
from torch.nn import Parameter

from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.estimators.storage.values import storable_record
from ovkgp.functional.factors import Factor
from ovkgp.inference.algebra.dense import dense_log_density
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.initial_grid import make_lengthscale_grid
from ovkgp.inference.training.lbfgs import Mode, find_mode
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.kernels.records import make_scalar_kernel

TRENDS = ("linear", "quadratic")
NOISE_RATIOS = torch.logspace(-8, 3, 89, dtype=torch.float64)
"""Candidates of c = σ²/a², the ratio of noise and signal variance."""
MAX_INITIAL_LAM = 0.1
LOG_NOISE_MEAN, LOG_NOISE_STD = -1.0, 1.5  # prior mean and standard deviation of log σ² for a target of variance one
MAX_ROWS = 500  # maximum number of rows of the Gaussian process
LOG_LENGTHSCALE_COMMON_STD, LOG_LENGTHSCALE_COLUMN_STD = 1.0, 0.5
"""Prior standard deviations of log ℓ: of the part common to all columns, and of the part of each column."""
LOG_VARIANCE_PRIORS = ((LOG_NOISE_MEAN, LOG_NOISE_STD), (0.0, 3.0), (0.0, 3.0), (-2.0, 3.0))
"""Prior means and standard deviations of log σ², log v·s, log v·l and log v·q for a target of variance one."""
MIN_NOISE = 1e-6
MIN_SIGNAL = 1e-3  # lower bound of the signal variance that sets the scale of the intercept
MAX_ITER = 100
TOLERANCE = 1e-6  # relative change of the log density over five iterations at which the training stops
INITIAL_NOISES = (0.3, 0.02)  # σ² of the initial points, for a target of variance one
NOISE_SLOPE_STD = 0.3  # prior standard deviation of x·g over the rows: of the logarithm of the noise of a row
MIN_LOG_ODDS = 5.0 - math.log(LOG_VARIANCE_PRIORS[-1][1] * math.sqrt(2 * math.pi))
"""Increase of the log density required to select a quadratic trend: odds of 150, times the prior density of log v·q at
its mean."""


@dataclass(frozen=True)
class KernelProportions:
    """Proportions s, l, q ≥ 0 of the terms of a kernel, with sum one."""

    stationary: float = 1.0
    linear: float = 0.0
    quadratic: float = 0.0

    @classmethod
    def from_variances(cls, stationary: float, linear: float = 0.0, quadratic: float = 0.0) -> KernelProportions:
        """Normalize variances that are not all zero."""
        total = stationary + linear + quadratic
        return cls(stationary / total, linear / total, quadratic / total)


@dataclass(frozen=True)
class GaussianScales:
    """Signal variance a² and noise variance σ² of a Gaussian process with a given kernel."""

    signal: float
    noise: float

    @property
    def residual_scale(self) -> float:
        """Noise standard deviation s = σ."""
        return math.sqrt(self.noise)

    def lam(self, num_rows: float) -> float:
        """Return λ = 0.3 σ / (n a²), which balances the pinball loss and the prior.

        A squared loss has λ = σ²/(n a²); near its minimizer the pinball loss of Gaussian noise has as curvature its
        density there, about 0.3/σ on average over the levels. At most 0.1: for a standardized target, larger λ leave
        the curves to the prior, whose noise is Gaussian.
        """
        return min(0.3 * math.sqrt(self.noise) / (num_rows * self.signal), MAX_INITIAL_LAM)


@dataclass(frozen=True)
class LearnedKernel:
    """Hyperparameters of an input kernel.

    `lengthscale` is "median", a number or a vector (d,). `scales` is None and `log_density`, up to a constant of the
    rows, is NaN if nothing was learned.
    """

    lengthscale: object
    proportions: KernelProportions = KernelProportions()
    scales: GaussianScales | None = None
    log_density: float = math.nan

    @property
    def intercept(self) -> float:
        """Prior standard deviation of the intercept: that of the target if there is little signal.

        The curves can then be those of non-Gaussian noise even if the inputs are uninformative.
        """
        return 1.0 if self.scales is None else min(max(self.scales.signal, MIN_SIGNAL), 1.0) ** -0.5


def learn_trend(rows: QuantileRows, kernel: str, restarts: int = 1) -> LearnedKernel:
    """Learn a kernel with a linear trend, or a quadratic one for odds above 150. Twice the cost of `learn_kernel`."""
    linear, quadratic = (learn_kernel(rows, kernel, trend, restarts=restarts) for trend in TRENDS)
    return quadratic if quadratic.log_density > linear.log_density + MIN_LOG_ODDS else linear


def learn_kernel(
    rows: QuantileRows, kernel: str, trend: str | None = None, lengthscale=None, restarts: int = 1
) -> LearnedKernel:
    """Learn lengthscales (d,), unless one is given, and proportions from scaled rows with varying y.

    `kernel` is the name of a scalar kernel. The noise is constant, or varies with the inputs if the evidence for it is
    positive. `restarts` runs begin at the best lengthscales of a grid. Complexity: O(n³) for a dozen initial points and each of
    at most 200 steps, n ≤ 500: about a second.
    """
    sample = rows.clip_outliers().sample(MAX_ROWS)
    data = Observations(torch.from_numpy(sample.X), torch.from_numpy(sample.Y))
    density = make_log_density(data, kernel, trend, lengthscale)
    found = _maximize(density, make_initial_points(density, data.X), restarts)
    varying = make_log_density(data, kernel, trend, lengthscale, varying_noise=True)
    other = _maximize(varying, [np.r_[found.u, np.zeros(data.X.shape[1])]])
    gain = other.value - compute_slope_penalty(data.X) - found.value
    if gain > 0:
        density, found = varying, Mode(other.u, found.value + gain, other.converged)
    density.vector.set(found.u)
    noise, *variances = density.gp.log_variances.exp().tolist()
    return LearnedKernel(
        density.gp.log_lengthscale.detach().exp().numpy() if lengthscale is None else lengthscale,
        KernelProportions.from_variances(*variances),
        GaussianScales(sum(variances), noise + MIN_NOISE),
        found.value,
    )


def _maximize(density: LogDensity, points: Sequence[np.ndarray], restarts: int = 1) -> Mode:
    groups = np.array_split(points, max(len(points) // len(INITIAL_NOISES), 1))  # of each lengthscale
    return find_mode(density.vector, density, groups, MAX_ITER, TOLERANCE, restarts)


def make_log_density(
    data: Observations, kernel: str, trend: str | None, lengthscale, varying_noise: bool = False
) -> LogDensity:
    """Make the log posterior density of the log variances, of log ℓ, unless ℓ is given, and of g if the noise varies."""
    covariance = _RowCovariance(data.X, kernel, trend, lengthscale, varying_noise)
    bounds = {"log_lengthscale": (-5.0, 9.0), "log_variances": (-16.0, 9.0), "noise_slopes": (-3.0, 3.0)}
    vector = ParameterVector(covariance, bounds)
    evidence = lambda: dense_log_density(covariance(), data.Y[:, 0])  # noqa: E731
    return LogDensity(covariance, evidence, data, vector, jacobian=False)


def make_initial_points(density: LogDensity, X: Tensor) -> list[np.ndarray]:
    """Return initial vectors: all lengthscales of a grid, each with two noises, and prior means otherwise."""
    covariance, points = density.gp, []
    lengthscales = make_lengthscale_grid(X.numpy()) if covariance.log_lengthscale.requires_grad else [None]
    for lengthscale, noise in product(lengthscales, INITIAL_NOISES):
        with torch.no_grad():
            covariance.log_variances[0] = math.log(noise)
            if lengthscale is not None:
                covariance.log_lengthscale.fill_(math.log(lengthscale))
        points.append(density.vector.get())
    return points


def compute_slope_penalty(X: Tensor) -> float:
    """Compute half the log-determinant of the posterior over the prior precision of g, its expected cost in evidence.

    n Gaussian observations have the information 2 XᵀX of the slopes of the logarithm of their standard deviation.
    """
    d = X.shape[1]
    return float(torch.logdet(torch.eye(d, dtype=torch.float64) + 2 * NOISE_SLOPE_STD**2 / d * X.T @ X)) / 2


class _RowCovariance(Module):
    """Covariance (n, n) of the rows including noise, with priors on its parameters log ℓ (d,), log variances and g."""

    def __init__(self, X: Tensor, kernel: str, trend: str | None, lengthscale, varying_noise: bool):
        super().__init__()
        self.X, self.kernel = X, make_scalar_kernel(kernel).double().requires_grad_(False)
        self.kernel.lengthscale = 1.0
        d, num_trends = X.shape[1], (None, *TRENDS).index(trend)
        self.trends = [(X @ X.T / d) ** power for power in range(1, num_trends + 1)]
        mean, std = torch.tensor(LOG_VARIANCE_PRIORS[: 2 + num_trends], dtype=torch.float64).T
        self.register_parameter("log_variances", Parameter(mean.clone()))
        self.register_prior("variances_prior", NormalPrior(mean, std), "log_variances")
        mean = torch.full((d,), math.log(2 * math.sqrt(d)), dtype=torch.float64)
        covariance = LOG_LENGTHSCALE_COMMON_STD**2 + LOG_LENGTHSCALE_COLUMN_STD**2 * torch.eye(d, dtype=torch.float64)
        initial = mean.clone() if lengthscale is None else torch.as_tensor(lengthscale).double().expand(d).log()
        self.register_parameter("log_lengthscale", Parameter(initial, requires_grad=lengthscale is None))
        self.register_prior("lengthscale_prior", MultivariateNormalPrior(mean, covariance), "log_lengthscale")
        mean = torch.zeros(d, dtype=torch.float64)
        self.register_parameter("noise_slopes", Parameter(mean.clone(), requires_grad=varying_noise))
        self.register_prior("slopes_prior", NormalPrior(mean, NOISE_SLOPE_STD / math.sqrt(d)), "noise_slopes")

    def forward(self) -> Tensor:
        noise, stationary, *variances = self.log_variances.exp()
        K = stationary + sum(variances) + stationary * to_dense(self.kernel(self.X / self.log_lengthscale.exp()))
        for variance, gram in zip(variances, self.trends, strict=True):
            K = K + variance * gram
        return K + torch.diag(noise * (2 * self.X @ self.noise_slopes).exp() + MIN_NOISE)


def estimate_gaussian_scales(inputs: Tensor, y: Tensor, weights: Tensor) -> GaussianScales:
    """Estimate signal and noise of y = a Φ w + σ ε with w ~ N(0, I), from Φ (n, r), y (n,) and weights of rows (n,).

    With ΦᵀNΦ = Q diag(v) Qᵀ, u = QᵀΦᵀN y and c = σ²/a², minus twice the log evidence is, up to a constant,
    N log(a² c) + Σ log(1 + v/c) where a² = (yᵀN y − Σ u²/(c + v)) / (N c); log σ² = log(a² c) has a normal prior.
    Complexity: O(n r² + r³).
    """
    weighted = weights[:, None] * inputs
    values, vectors = torch.linalg.eigh(inputs.T @ weighted)
    values, rotated = values.clamp_min(0.0), vectors.T @ (weighted.T @ y)
    count, square, c = weights.sum(), (weights * y**2).sum(), NOISE_RATIOS[:, None]
    explained = (rotated**2 / (c + values)).sum(-1)
    signals = (square - explained).clamp_min(1e-15 * square) / (count * NOISE_RATIOS)
    logs = (signals * NOISE_RATIOS).log()
    deviances = count * logs + torch.log1p(values / c).sum(-1) + ((logs - LOG_NOISE_MEAN) / LOG_NOISE_STD) ** 2
    best = int(deviances.argmin())
    return GaussianScales(float(signals[best]), float(signals[best] * NOISE_RATIOS[best]))


@storable_record
@dataclass(frozen=True)
class GaussianQuantiles:
    """Prior mean b(θ) = s Φ⁻¹(θ) of scale s ≥ 0."""

    scale: float

    def __call__(self, tasks: Tensor) -> Tensor:
        return self.scale * torch.special.ndtri(tasks)

    def slopes(self, tasks: Tensor) -> Tensor:
        """Return ∂b/∂θ = s √(2π) exp(Φ⁻¹(θ)²/2)."""
        return self.scale * math.sqrt(2 * math.pi) * (torch.special.ndtri(tasks) ** 2 / 2).exp()

    def variance(self, tasks: Tensor, count: float) -> Tensor:
        """Return s²/N (1 + Φ⁻¹(θ)²/2) (m,), the variance due to N observations of Gaussian noise."""
        return self.scale**2 / count * (1 + torch.special.ndtri(tasks) ** 2 / 2)

    def errors(self, tasks: Tensor, count: float, normals: Tensor) -> Tensor:
        """Draw errors (k, m) with this variance from normals (k, 2), for the mean and the standard deviation."""
        directions = torch.stack([torch.ones_like(tasks), torch.special.ndtri(tasks) / math.sqrt(2)])
        return self.scale / math.sqrt(count) * normals @ directions


@storable_record
class TrendFactor:
    """Rows of a factor φ_0 and of a polynomial: φ(x)ᵀφ(z) = s k_0(x, z) + l xᵀz/d + q (xᵀz/d)².

    It has d additional columns if l > 0, and d (d + 1)/2 if q > 0.
    """

    def __init__(self, factor: Factor, proportions: KernelProportions):
        self.factor, self.stationary = factor, proportions.stationary
        self.linear, self.quadratic = proportions.linear, proportions.quadratic

    def __call__(self, points: Tensor) -> Tensor:
        return self._append_polynomial(self.factor(points), points.double())

    def residual_variance(self, points: Tensor) -> Tensor:
        """Return the residual variance (k,) of the other factor, scaled by its proportion."""
        return self.stationary * self.factor.residual_variance(points)

    @property
    def anchor_rows(self) -> Tensor:
        """Rows at the anchors of the other factor, which must be a `KernelFactor`."""
        return self._append_polynomial(self.factor.anchor_rows, self.factor.anchors)

    def _append_polynomial(self, rows: Tensor, points: Tensor) -> Tensor:
        d = points.shape[-1]
        columns = [math.sqrt(self.stationary) * rows]
        if self.linear:
            columns.append(math.sqrt(self.linear / d) * points)
        if self.quadratic:
            columns.append(math.sqrt(self.quadratic) / d * quadratic_monomials(points))
        return torch.cat(columns, -1)


def quadratic_monomials(points: Tensor) -> Tensor:
    """Return columns (k, d (d + 1)/2) with inner product ⟨x, z⟩²: squares, and √2 times mixed products."""
    row, column = torch.triu_indices(points.shape[-1], points.shape[-1])
    scale = torch.full(row.shape, math.sqrt(2.0), dtype=points.dtype).masked_fill(row == column, 1.0)
    return scale * points[:, row] * points[:, column]
