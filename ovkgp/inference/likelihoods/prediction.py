"""Quantiles of a predictive mixture from its distribution function, for many entries at once.

Continuous laws: Ridders' method on the normal score Φ⁻¹(F(y)), in which a law that is nearly normal is
nearly a straight line. Counts: bisection over the integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from torch import Tensor

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.posteriors.posterior import of_form
from ovkgp.inference.posteriors.prediction import Prediction


class LikelihoodPrediction(Prediction):
    """E[y], Var[y], quantiles and distribution function of new observations at m points.

    Args:
        latent: the prediction of f, with variances (cov="diag" or more), and with covariances between the outputs
            (cov="output" or "full") where `likelihood.predicts_from` says so; without either only the means of real outputs.
        likelihood: p(y | f).

    Where y = f + noise (Gaussian, Student-t, Laplace, Huber, …) `cov` has the form of the latent one. Counts, labels and classes have
    variances only.

    Cost: `mean` and `std` are computed once; a quantile is found on `cdf`, in 10 to 30 evaluations.

    Example:
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
                super().__init__(self._mean_alone())
            else:
                super().__init__(*self._described())

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The q-quantile of each entry, (m, p); for several q, (len(q), m, p). For counts and labels the smallest value with
        P(Y ≤ value) ≥ q."""
        levels, parts = self._levels(q), self._latent_parts()
        found = [self.likelihood.quantile(level, *parts) for level in levels.flatten().tolist()]
        return torch.stack(found).reshape(*levels.shape, *self.mean.shape)

    def cdf(self, y) -> Tensor:
        """P(Y ≤ y), (m, p), for y that broadcasts to (m, p); leading axes are kept."""
        return self.likelihood.cdf(self._thresholds(y), *self._latent_parts())

    def log_density(self, y) -> Tensor:
        """log p(y) of each entry by itself, (m, p), for y that broadcasts to (m, p); NaN where y is NaN. A row of classes is
        one-hot, and its entries sum to the log probability of the class."""
        return self.likelihood.log_predictive(self._thresholds(y), *self._latent_parts())

    @property
    def cov(self) -> Tensor:
        if self.form == "diag" and self.latent.form != "diag":
            raise OptionError(
                f"observations of a {self.likelihood.name} likelihood are not f plus noise, so that only their variances are known: "
                "read `variance`, or take the covariance of draws."
            )
        return super().cov

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        raise OptionError(
            f"an observation of a {self.likelihood.name} likelihood is described by its mean, quantiles and cdf; the latent "
            "function has a normal distribution: predict(X, noise=False)."
        )

    def _mean_alone(self) -> Tensor:
        if not bool(self.likelihood.is_real.all()):
            raise OptionError(
                f"the mean of a {self.likelihood.name} observation depends on the latent variance: ask for it with "
                f'predict(X, cov="{self.likelihood.predicts_from}").'
            )
        return self.likelihood.moments(self.latent.mean, torch.zeros_like(self.latent.mean))[0]

    def _described(self) -> tuple[Tensor, Tensor, str]:
        mean, variance = self.likelihood.moments(*self._latent_parts())
        noise = self.likelihood.noise_covariance()
        if noise is None or self.latent.form == "diag":
            return mean, variance, "diag"
        noise = noise if self.latent.form == "output" else torch.block_diag(*[noise] * len(mean))
        return mean, self.latent.cov.double() + noise.to(mean.device), self.latent.form

    def _latent_parts(self) -> tuple[Tensor, Tensor]:
        """Mean (m, p) and variances (m, p), or covariances (m, p, p) where the likelihood needs them."""
        latent = self.latent
        if self.likelihood.predicts_from == "diag":
            return latent.mean, latent.variance
        return latent.mean, of_form(latent.cov, latent.mean.shape[1], "output") if latent.form == "full" else latent.cov

    def __repr__(self) -> str:
        return f"LikelihoodPrediction(mean={tuple(self.mean.shape)}, likelihood={self.likelihood.name!r})"


MAX_STEPS = 200
"""Of widening or of halving a bracket."""
LARGEST_COUNT = 2.0**50
"""Beyond it whole numbers in float64 are no longer safe."""
TOLERANCE = 1e-12
"""Of a quantile, relative to the standard deviation of its law plus its own size."""


def check_level(q: float) -> float:
    """A level strictly between 0 and 1."""
    if not 0 < q < 1:
        raise OptionError(f"quantile levels lie strictly between 0 and 1, got {q}.")
    return float(q)


@torch.no_grad()
def continuous_quantile(cdf: Callable[[Tensor], Tensor], q: float, centre: Tensor, spread: Tensor) -> Tensor:
    """y (m, p) with cdf(y) = q.

    Args:
        cdf: an increasing function of (m, p) for each entry.
        q: the level.
        centre, spread: about where the law lies and how wide it is, (m, p).

    Cost: about 10 to 20 calls of `cdf`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.prediction import continuous_quantile
        >>> centre, spread = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
        >>> round(continuous_quantile(torch.special.ndtr, 0.975, centre, spread).item(), 9)
        1.959963985
    """
    target = torch.special.ndtri(torch.tensor(check_level(q), dtype=torch.float64)).item()

    def score(y: Tensor) -> Tensor:
        level = cdf(y).clamp(1e-300, 1 - 2**-53)
        return torch.special.ndtri(level) - target

    low, high = _bracket(score, centre, spread)
    return _ridders(score, low, high, spread)


def _bracket(score: Callable[[Tensor], Tensor], centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    low, high, width = centre - spread, centre + spread, spread.clone()
    for _ in range(MAX_STEPS):
        below, above = score(low) <= 0, score(high) >= 0
        if bool((below & above).all()):
            return low, high
        width = 2 * width
        low, high = torch.where(below, low, centre - width), torch.where(above, high, centre + width)
    raise FactorizationError(
        "no interval holds the quantile: the predictive law is too wide, or its moments are not finite."
    )


def _ridders(score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, spread: Tensor) -> Tensor:
    """Ridders' method: the bracket is at least halved at every step, and the root found quadratically."""
    at_low, at_high, root = score(low), score(high), low
    for _ in range(MAX_STEPS):
        middle = (low + high) / 2
        at_middle = score(middle)
        bend = (at_middle.square() - at_low * at_high).sqrt()
        last, root = root, middle - (middle - low) * torch.where(bend > 0, at_middle / bend, 0.0)
        if bool(((root - last).abs() <= TOLERANCE * (spread + root.abs())).all()):
            break
        at_root = score(root)
        for point, value in ((middle, at_middle), (root, at_root)):
            inside, left = (point >= low) & (point <= high), value <= 0
            low, at_low = torch.where(inside & left, point, low), torch.where(inside & left, value, at_low)
            high, at_high = torch.where(inside & ~left, point, high), torch.where(inside & ~left, value, at_high)
    return root


@torch.no_grad()
def count_quantile(cdf: Callable[[Tensor], Tensor], q: float, guess: Tensor) -> Tensor:
    """The smallest whole number k (m, p) with cdf(k) ≥ q.

    Args:
        cdf: an increasing function of (m, p) for each entry.
        q: the level.
        guess: about how large a count may be, (m, p).

    Cost: about 2 log₂(1 + k) calls of `cdf`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.prediction import count_quantile
        >>> halving = lambda k: 1 - 0.5 ** (k + 1)  # a geometric distribution
        >>> count_quantile(halving, 0.9, torch.ones(1, 1).double()).item()
        3.0
    """
    q = check_level(q)
    low, high = torch.full_like(guess, -1.0), guess.clamp(1.0, LARGEST_COUNT).ceil()
    while bool((short := cdf(high) < q).any()):
        if bool((high[short] >= LARGEST_COUNT).any()):
            raise FactorizationError(
                f"a quantile is above {LARGEST_COUNT:g} counts: the latent mean or variance is too large to be a log-mean."
            )
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        enough = cdf(middle) >= q
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
