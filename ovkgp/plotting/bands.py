"""What a model predicts along a cut: its mean, the interval around it, and random functions.

A new label is 0 or 1 and has no interval worth drawing; the band of a label or a class is that of its probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovkgp.criticism.rows import as_inputs
from ovkgp.estimators.posterior_regressor import PosteriorRegressor
from ovkgp.exceptions import OptionError
from ovkgp.kernels.checks import whole_number
from ovkgp.plotting.responses import output_kinds, responses

CLASS_DRAWS = 500
"""Random functions from which the interval of a class probability is read: it has no closed form."""
PROBABILITIES = ("label", "class")


@dataclass(frozen=True)
class Bands:
    """Mean, lower and upper ends (m, p), draws (k, m, p), and what each output is, (p,)."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    draws: np.ndarray
    kinds: list[str]

    @classmethod
    def of(cls, estimator, points: np.ndarray, level: float, noise: bool, num_draws: int) -> Bands:
        """At points (m, d) in the user's units; see `plot_prediction` for the options."""
        kinds = output_kinds(estimator, estimator.n_outputs_)
        X, shape = as_inputs(estimator, points), (len(points), estimator.n_outputs_)
        mean = estimator.predict(X, noise=noise).reshape(shape)
        lower, upper = _ends(estimator, X, level, noise, kinds, shape)
        draws = np.empty((0, *shape))
        if whole_number("num_draws", num_draws, least=0):
            draws = estimator.sample_functions(num_draws, random_state=0)(points).reshape(-1, *shape)
            draws = responses(estimator, draws) if noise else draws
        return cls(mean, lower, upper, draws, kinds)


def require_posterior(estimator, plot: str) -> None:
    """Refuse an estimator that does not predict distributions of several outputs."""
    if not isinstance(estimator, PosteriorRegressor):
        raise OptionError(
            f"{plot} draws the posterior of a GPRegressor or of a ridge; got {type(estimator).__name__}. An "
            "InfiniteQuantileRegressor is drawn by plot_quantiles; write_report draws every estimator."
        )


def _ends(estimator, X, level: float, noise: bool, kinds: list[str], shape) -> tuple[np.ndarray, np.ndarray]:
    is_probability = np.array([noise and kind in PROBABILITIES for kind in kinds])
    if not is_probability.any():
        return tuple(end.reshape(shape) for end in estimator.predict_interval(X, level, noise=noise))
    if "class" in kinds:
        draws = estimator.sample_functions(CLASS_DRAWS, random_state=0)(X).reshape(-1, *shape)
        return tuple(np.quantile(responses(estimator, draws), [(1 - level) / 2, (1 + level) / 2], axis=0))
    latent = [end.reshape(shape) for end in estimator.predict_interval(X, level, noise=False)]
    ends = [end.reshape(shape) for end in estimator.predict_interval(X, level, noise=True)]
    return tuple(np.where(is_probability, responses(estimator, f), y) for f, y in zip(latent, ends, strict=True))
