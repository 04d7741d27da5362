"""Predictions of new observations under a likelihood, and quantiles of many entries from a distribution function.

Continuous distributions: Ridders' method on the normal score Φ⁻¹(F(y)), which is nearly linear for a nearly normal
distribution. Counts: bisection over the integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from torch import Tensor

from ovkgp.checks import check_probability
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.posteriors.posterior import select_form
from ovkgp.inference.posteriors.prediction import Prediction

MAX_STEPS = 200  # maximum number of steps to widen or to halve a bracket
MAX_COUNT = 2.0**50  # largest count up to which integers are handled exactly in float64
QUANTILE_TOLERANCE = 1e-12
"""Tolerance of a quantile, relative to the scale of its distribution plus its absolute value."""


class LikelihoodPrediction(Prediction):
    """Mean, variance, quantiles and distribution function of new observations at m points.

    Parameters
    ----------
    latent : Prediction
        Prediction of f, with variances (cov="diag" or more), and with covariances between the outputs (cov="output" or
        "full") if `likelihood.predicts_from` is "output". Without variances only the means of real outputs are
        available.
    likelihood : Likelihood
        Distribution p(y | f).

    Notes
    -----
    If y = f + noise (Gaussian, Student-t, Laplace, Huber, …), `cov` has the form of the latent one. Counts, labels and
    classes have variances only. Complexity: `mean` and `std` are computed once; a quantile takes 10 to 30 evaluations
    of `cdf`.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference import Prediction
    >>> from ovkgp.inference.likelihoods import LikelihoodPrediction, Poisson
    >>> latent = Prediction(torch.zeros(1, 1), torch.ones(1, 1), "diag")
    >>> prediction = LikelihoodPrediction(latent, Poisson(num_outputs=1))
    >>> round(prediction.mean.item(), 6), [bound.item() for bound in prediction.interval(0.9)]  # e^½
    (1.648721, [0.0, 6.0])
    """

    def __init__(self, latent: Prediction, likelihood: Likelihood):
        self.latent, self.likelihood = latent, likelihood
        with torch.no_grad():
            if latent.form == "none":
                super().__init__(self._mean_only())
            else:
                super().__init__(*self._mean_and_covariance())

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Compute the q-quantile of each entry, (m, p); for several q, (len(q), m, p).

        For counts and labels this is the smallest value with P(Y ≤ value) ≥ q.
        """
        levels, parts = self._levels(q), self._latent_parts()
        found = [self.likelihood.quantile(level, *parts) for level in levels.flatten().tolist()]
        return torch.stack(found).reshape(*levels.shape, *self.mean.shape)

    def cdf(self, y) -> Tensor:
        """Compute P(Y ≤ y), (m, p), for y that broadcasts to (m, p); leading axes are kept."""
        return self.likelihood.cdf(self._thresholds(y), *self._latent_parts())

    def log_density(self, y) -> Tensor:
        """Compute the marginal log p(y) of each entry, (m, p), for y that broadcasts to (m, p); NaN where y is NaN.

        A row of classes is one-hot, and its entries sum to the log probability of the class.
        """
        return self.likelihood.log_predictive(self._thresholds(y), *self._latent_parts())

    @property
    def cov(self) -> Tensor:
        if self.form == "diag" and self.latent.form != "diag":
            raise OptionError(
                f"cov is not supported with a {self.likelihood.name} likelihood, whose observations are not f plus noise. Use `variance`, or the covariance of draws."
            )
        return super().cov

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        raise OptionError(
            f"distribution is not supported with a {self.likelihood.name} likelihood, whose observations are not normal. Use `mean`, `quantile` and `cdf`, or predict(X, noise=False) for the normal distribution of the latent function."
        )

    def _mean_only(self) -> Tensor:
        if not bool(self.likelihood.is_real.all()):
            raise OptionError(
                f'The mean of a {self.likelihood.name} observation depends on the latent variance. Use predict(X, cov="{self.likelihood.predicts_from}").'
            )
        return self.likelihood.moments(self.latent.mean, torch.zeros_like(self.latent.mean))[0]

    def _mean_and_covariance(self) -> tuple[Tensor, Tensor, str]:
        mean, variance = self.likelihood.moments(*self._latent_parts())
        noise = self.likelihood.noise_covariance()
        if noise is None or self.latent.form == "diag":
            return mean, variance, "diag"
        noise = noise if self.latent.form == "output" else torch.block_diag(*[noise] * len(mean))
        return mean, self.latent.cov.double() + noise.to(mean.device), self.latent.form

    def _latent_parts(self) -> tuple[Tensor, Tensor]:
        """Return the latent mean (m, p) and variances (m, p), or covariances (m, p, p) if the likelihood needs them."""
        latent = self.latent
        if self.likelihood.predicts_from == "diag":
            return latent.mean, latent.variance
        if latent.form == "full":
            return latent.mean, select_form(latent.cov, latent.mean.shape[1], "output")
        return latent.mean, latent.cov

    def __repr__(self) -> str:
        return f"LikelihoodPrediction(mean={tuple(self.mean.shape)}, likelihood={self.likelihood.name!r})"


@torch.no_grad()
def continuous_quantile(cdf: Callable[[Tensor], Tensor], q: float, center: Tensor, scale: Tensor) -> Tensor:
    """Solve cdf(y) = q for y (m, p), in about 10 to 20 calls, from a rough `center` and `scale` (m, p)."""
    target = torch.special.ndtri(torch.tensor(check_probability("q", q), dtype=torch.float64)).item()

    def score(y: Tensor) -> Tensor:
        level = cdf(y).clamp(1e-300, 1 - 2**-53)
        return torch.special.ndtri(level) - target

    low, high = _find_bracket(score, center, scale)
    return _find_root(score, low, high, scale)


def _find_bracket(score: Callable[[Tensor], Tensor], center: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    low, high, width = center - scale, center + scale, scale.clone()
    for _ in range(MAX_STEPS):
        below, above = score(low) <= 0, score(high) >= 0
        if bool((below & above).all()):
            return low, high
        width = 2 * width
        low, high = torch.where(below, low, center - width), torch.where(above, high, center + width)
    raise FactorizationError(
        "No interval contains the quantile: the predictive distribution is too wide, or its moments are not finite."
    )


def _find_root(score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Find a root by Ridders' method: each step at least halves the bracket, and convergence is quadratic."""
    at_low, at_high, root = score(low), score(high), low
    for _ in range(MAX_STEPS):
        middle = (low + high) / 2
        at_middle = score(middle)
        bend = (at_middle.square() - at_low * at_high).sqrt()
        last, root = root, middle - (middle - low) * torch.where(bend > 0, at_middle / bend, 0.0)
        if bool(((root - last).abs() <= QUANTILE_TOLERANCE * (scale + root.abs())).all()):
            break
        at_root = score(root)
        for point, value in ((middle, at_middle), (root, at_root)):
            inside, left = (point >= low) & (point <= high), value <= 0
            low, at_low = torch.where(inside & left, point, low), torch.where(inside & left, value, at_low)
            high, at_high = torch.where(inside & ~left, point, high), torch.where(inside & ~left, value, at_high)
    return root


@torch.no_grad()
def count_quantile(cdf: Callable[[Tensor], Tensor], q: float, guess: Tensor) -> Tensor:
    """Compute the smallest integer k (m, p) with cdf(k) ≥ q, in about 2 log₂(1 + k) calls, from a `guess` (m, p)."""
    q = check_probability("q", q)
    low, high = torch.full_like(guess, -1.0), guess.clamp(1.0, MAX_COUNT).ceil()
    while bool((short := cdf(high) < q).any()):
        if bool((high[short] >= MAX_COUNT).any()):
            raise FactorizationError(
                f"A quantile exceeds {MAX_COUNT:g} counts: the latent mean or variance is too large for a log-mean."
            )
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        enough = cdf(middle) >= q
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
