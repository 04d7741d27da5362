"""Gaussian approximation of the Gibbs posterior of quantile curves, ∝ exp(−J/(λT)) (LT §6.0, ID-15).

    min over q of  E_q J − λT · entropy(q),      q(U) = Π N(m_kl, v_kl),      U = Pᵀ W Q

in the coordinates of a `Sandwich`, in which the entries of U are nearly independent. The mode is the fit at every
temperature T. The loss does not determine T, since m sampled levels repeat each y m times (a composite likelihood); T
is chosen such that the mean variance of the curves at the data is that of the sandwich. For h ~ N(μ, σ²), E ρ_θ(y − h)
= E max(r, 0) − (1 − θ) E r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods.quadrature import expected_positive_part, normal_cdf, normal_density
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.sandwich import Sandwich
from ovkgp.losses import IntegralLoss, Pinball

MAX_TEMPERATURE_UPDATES, TEMPERATURE_TOLERANCE = 12, 0.01
"""Maximum number of updates of the temperature, and relative error of the variance at which they stop."""
MAX_ITERATIONS, LBFGS_MEMORY = 300, 20


@dataclass(frozen=True)
class GibbsPosterior:
    """The Gaussian q, with P (r, r), Q (q, q), mean and variances (r, q) of the entries of U, and the temperature T.

    `bound` is −(E_q J − λT · entropy(q))/(λT), the evidence lower bound up to the normalizer of the loss. O(r q) per
    point and level.
    """

    input_vectors: Tensor
    task_vectors: Tensor
    mean: Tensor
    variances: Tensor
    temperature: float
    bound: float

    @property
    def weights(self) -> Tensor:
        """E W (r, q), which differs from the fit (the mode), as the loss is not quadratic."""
        return self.input_vectors @ self.mean @ self.task_vectors.T

    def variance(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return Var[φᵀ W ψ] (k, l), for rows φ (k, r) and ψ (l, q)."""
        F, G = inputs @ self.input_vectors, tasks @ self.task_vectors
        return F.square() @ self.variances @ G.square().T

    def sample(self, num_samples: int, random_state=None) -> Tensor:
        """Draw W, (num_samples, r, q)."""
        generator = torch.Generator().manual_seed(as_seed(random_state))
        noise = torch.randn((num_samples, *self.mean.shape), dtype=torch.float64, generator=generator)
        return self.input_vectors @ (self.mean + self.variances.sqrt() * noise) @ self.task_vectors.T


def fit_gibbs_posterior(
    parts: Callable[[], Iterable[TaskProblem]], weights: Tensor, cov: Sandwich, *, temperature: float | None = None
) -> GibbsPosterior:
    """Compute the Gaussian closest to the Gibbs posterior of a quantile problem with the pinball loss.

    `parts` yields J in one or several parts of rows, as for `sandwich`; `weights` W (r, q) minimize it, and `cov` is
    the sandwich at W, whose coordinates are used. If `temperature` is None, it is chosen such that the mean variance of
    the curves at the rows equals that of the sandwich, to 1 %. Complexity: some hundred passes at O(n q (r + m)), for
    each of about four temperatures.
    """
    first = next(iter(parts()))
    if not (isinstance(first.loss, IntegralLoss) and type(first.loss.loss) is Pinball):
        raise OptionError(f"The Gibbs posterior requires the pinball loss, got {first.loss!r}.")
    if temperature is not None:
        return _make_posterior(cov, _FreeEnergy(parts, cov, temperature).minimize(None, weights), temperature)
    target, minimum, temperature = _mean_variance(first, cov), None, cov.temperature
    for _ in range(MAX_TEMPERATURE_UPDATES):
        minimum = _FreeEnergy(parts, cov, temperature).minimize(minimum, weights)
        ratio = target / _mean_variance(first, posterior := _make_posterior(cov, minimum, temperature))
        if abs(ratio - 1) <= TEMPERATURE_TOLERANCE:
            break
        temperature *= ratio
    return posterior


class _Minimum(NamedTuple):
    value: float
    mean: Tensor
    variances: Tensor


class _FreeEnergy:
    """E_q J − λT · entropy(q) and its gradient, in coordinates with similar curvature everywhere."""

    def __init__(self, parts: Callable[[], Iterable[TaskProblem]], cov: Sandwich, temperature: float):
        self.parts, self.cov, self.temperature = parts, cov, temperature
        self.scale = (cov.lam + cov.curvature).rsqrt()
        self.typical = cov.lam * temperature * self.scale.square()

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled_mean, log_ratios = torch.from_numpy(x.copy()).view(2, *self.scale.shape)
        mean, variances = self.scale * scaled_mean, self.typical * log_ratios.exp()
        lam, heat = self.cov.lam, self.cov.lam * self.temperature
        value, first, second = self._risk(mean, variances)
        value += lam / 2 * float(mean.square().sum() + variances.sum()) - heat / 2 * float(variances.log().sum())
        first = self.scale * (first + lam * mean)
        second = variances * (second + lam / 2) - heat / 2
        return value, torch.stack([first, second]).flatten().numpy()

    def _risk(self, mean: Tensor, variances: Tensor) -> tuple[float, Tensor, Tensor]:
        total, rows, sums = 0.0, 0, [torch.zeros_like(mean), torch.zeros_like(mean)]
        for part in self.parts():
            F, G = part.inputs @ self.cov.input_vectors, part.tasks @ self.cov.task_vectors
            at = F @ mean @ G.T, F.square() @ variances @ G.square().T
            value, first, second = expected_pinball(part.targets, *at, part.loss.nodes)
            total, rows = total + float((part.entry_weights * value).sum()), rows + part.num_rows
            sums[0] += F.T @ (part.entry_weights * first) @ G
            sums[1] += F.square().T @ (part.entry_weights * second) @ G.square()
        return total / rows, sums[0] / rows, sums[1] / rows

    def minimize(self, initial: _Minimum | None, weights: Tensor) -> _Minimum:
        """Return the minimizer, starting from the minimizer at another temperature or from the fit W."""
        if initial is None:
            first = [self.cov.input_vectors.T @ weights @ self.cov.task_vectors / self.scale, torch.zeros_like(weights)]
        else:
            first = [initial.mean / self.scale, (initial.variances / self.typical).log()]
        x = torch.stack(first).flatten().numpy()
        limits = {"maxiter": MAX_ITERATIONS, "maxfun": 10 * MAX_ITERATIONS, "maxcor": LBFGS_MEMORY}
        options = {**limits, "ftol": 1e-12, "gtol": 0.0}
        result = minimize(self, x, jac=True, method="L-BFGS-B", options=options)
        scaled_mean, log_ratios = torch.from_numpy(result.x).view(2, *self.scale.shape)
        return _Minimum(float(result.fun), self.scale * scaled_mean, self.typical * log_ratios.exp())


def expected_pinball(targets: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E ρ_θ(y − h) for h ~ N(mean, variance) and its derivatives in mean and variance, each (n, m)."""
    std = variance.sqrt()
    gap = targets - mean
    z = gap / std
    value = expected_positive_part(gap, std) - (1 - levels) * gap
    return value, normal_cdf(-z) - levels, normal_density(z) / (2 * std)


def _make_posterior(cov: Sandwich, minimum: _Minimum, temperature: float) -> GibbsPosterior:
    entropy = minimum.variances.numel() * (1 + np.log(2 * np.pi)) / 2
    bound = entropy - minimum.value / (cov.lam * temperature)
    return GibbsPosterior(cov.input_vectors, cov.task_vectors, minimum.mean, minimum.variances, temperature, bound)


def _mean_variance(part: TaskProblem, distribution: Sandwich | GibbsPosterior) -> float:
    """Return the mean variance of the curves at (some of) the rows."""
    variance = distribution.variance(part.inputs, part.tasks)
    return float((part.entry_weights * variance).sum() / part.entry_weights.sum())
