"""The Gibbs posterior of quantile curves, ∝ exp(−J/(λT)), and the nearest Gaussian to it (LT §6.0, ID-15).

    min over q of  E_q J − λT · entropy(q),      q(U) = Π N(m_kl, v_kl),      U = Pᵀ W Q

in the coordinates of a `Sandwich`, in which the entries of U are nearly independent. Its mode is the fit at every temperature T; T is not
in the loss, since m sampled levels repeat each y m times (a composite likelihood). It is chosen so that the mean variance of the curves at the data
is that of the sandwich. E ρ_θ(y − h) for h ~ N(μ, σ²) is closed: E max(r, 0) − (1 − θ) E r.
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

MATCHES, CLOSE = 12, 0.01
"""How often the temperature is changed at most, and the relative error at which it is right."""
STEPS, MEMORY = 300, 20


@dataclass(frozen=True)
class GibbsPosterior:
    """q.

    Args:
        input_vectors, task_vectors: P (r, r) and Q (q, q).
        mean, variances: m and v (r, q), of the entries of U.
        temperature: T.
        bound: −(E_q J − λT · entropy(q))/(λT), the evidence lower bound but for the normaliser of the loss.

    Cost: O(r q) a point and level.

    Example:
        See `gibbs_posterior`.
    """

    input_vectors: Tensor
    task_vectors: Tensor
    mean: Tensor
    variances: Tensor
    temperature: float
    bound: float

    @property
    def weights(self) -> Tensor:
        """E W (r, q): not the fit, which is the mode; the loss is not quadratic."""
        return self.input_vectors @ self.mean @ self.task_vectors.T

    def variance(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Var[φᵀ W ψ] (k, l), for rows φ (k, r) and ψ (l, q)."""
        F, G = inputs @ self.input_vectors, tasks @ self.task_vectors
        return F.square() @ self.variances @ G.square().T

    def sample(self, num_samples: int, random_state=None) -> Tensor:
        """Draws of W, (num_samples, r, q)."""
        generator = torch.Generator().manual_seed(as_seed(random_state))
        noise = torch.randn((num_samples, *self.mean.shape), dtype=torch.float64, generator=generator)
        return self.input_vectors @ (self.mean + self.variances.sqrt() * noise) @ self.task_vectors.T


def expected_pinball(targets: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E ρ_θ(y − h) for h ~ N(mean, variance), and its derivatives in the two; all like mean (n, m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.gibbs import expected_pinball
        >>> one = torch.ones(1, 1).double()
        >>> expected_pinball(one, one, one, torch.tensor([0.5]).double())[0].item()  # ½ E|z| = 1/√(2π)
        0.3989422804014327
    """
    std = variance.sqrt()
    gap = targets - mean
    z = gap / std
    value = expected_positive_part(gap, std) - (1 - levels) * gap
    return value, normal_cdf(-z) - levels, normal_density(z) / (2 * std)


class _Found(NamedTuple):
    value: float
    mean: Tensor
    variances: Tensor


class _FreeEnergy:
    """E_q J − λT · entropy(q) and its gradient, in coordinates in which it bends alike everywhere."""

    def __init__(self, parts: Callable[[], Iterable[TaskProblem]], cov: Sandwich, temperature: float):
        self.parts, self.cov, self.temperature = parts, cov, temperature
        self.scale = (cov.lam + cov.curvature).rsqrt()
        self.typical = cov.lam * temperature * self.scale.square()

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        moved, bends = torch.from_numpy(x.copy()).view(2, *self.scale.shape)
        mean, variances = self.scale * moved, self.typical * bends.exp()
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

    def least(self, start: _Found | None, weights: Tensor) -> _Found:
        """The minimiser, from one at another temperature or from the fit W."""
        if start is None:
            first = [self.cov.input_vectors.T @ weights @ self.cov.task_vectors / self.scale, torch.zeros_like(weights)]
        else:
            first = [start.mean / self.scale, (start.variances / self.typical).log()]
        x = torch.stack(first).flatten().numpy()
        options = {"maxiter": STEPS, "maxfun": 10 * STEPS, "maxcor": MEMORY, "ftol": 1e-12, "gtol": 0.0}
        done = minimize(self, x, jac=True, method="L-BFGS-B", options=options)
        moved, bends = torch.from_numpy(done.x).view(2, *self.scale.shape)
        return _Found(float(done.fun), self.scale * moved, self.typical * bends.exp())


def gibbs_posterior(
    parts: Callable[[], Iterable[TaskProblem]],
    weights: Tensor,
    cov: Sandwich,
    *,
    temperature: float | None = None,
) -> GibbsPosterior:
    """The Gaussian nearest to the Gibbs posterior of a quantile problem.

    Args:
        parts: gives J in one piece or a few rows at a time, as for `sandwich`; the loss is the pinball loss.
        weights: W (r, q), its minimiser.
        cov: the sandwich at W, whose coordinates are used.
        temperature: T > 0; None for the one at which the mean variance of the curves at the rows is that of the sandwich, to 1 %.

    Cost: some hundred passes, each O(n q (r + m)), for each of about four temperatures.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.gibbs import gibbs_posterior
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.inference.tasks.sandwich import sandwich
        >>> from ovkgp.losses import IntegralLoss, Pinball, grid
        >>> y = torch.randn(400, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> one = torch.ones(400, 1).double()
        >>> problem = TaskProblem(one, one[:1], y, IntegralLoss(Pinball(), grid([0.5])), lam=1e-4)
        >>> median = y.median().view(1, 1)
        >>> cov = sandwich(lambda: [problem], median, torch.zeros(1).double(), count=400)
        >>> q = gibbs_posterior(lambda: [problem], median, cov)
        >>> bool((q.variance(one[:1], one[:1]) / cov.variance(one[:1], one[:1]) - 1).abs() < 0.02)
        True
    """
    first = next(iter(parts()))
    if not (isinstance(first.loss, IntegralLoss) and type(first.loss.loss) is Pinball):
        raise OptionError(f"the Gibbs posterior is that of the pinball loss, got {first.loss!r}.")
    if temperature is not None:
        return _posterior(cov, _FreeEnergy(parts, cov, temperature).least(None, weights), temperature)
    wanted, found, temperature = _mean_variance(first, cov), None, cov.temperature
    for _ in range(MATCHES):
        found = _FreeEnergy(parts, cov, temperature).least(found, weights)
        ratio = wanted / _mean_variance(first, posterior := _posterior(cov, found, temperature))
        if abs(ratio - 1) <= CLOSE:
            break
        temperature *= ratio
    return posterior


def _posterior(cov: Sandwich, found: _Found, temperature: float) -> GibbsPosterior:
    entropy = found.variances.numel() * (1 + np.log(2 * np.pi)) / 2
    bound = entropy - found.value / (cov.lam * temperature)
    return GibbsPosterior(cov.input_vectors, cov.task_vectors, found.mean, found.variances, temperature, bound)


def _mean_variance(part: TaskProblem, distribution: Sandwich | GibbsPosterior) -> float:
    """The mean variance of the curves at (some of) the rows."""
    variance = distribution.variance(part.inputs, part.tasks)
    return float((part.entry_weights * variance).sum() / part.entry_weights.sum())
