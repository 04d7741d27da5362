"""A new observation y under any likelihood: the mixture ∫ p(y | f) N(f; m, v) df at every point and output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.prediction import Prediction
from ovkgp.inference.processes import of_form


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
