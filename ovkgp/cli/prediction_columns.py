"""Predictions of a fitted model as named columns of a table.

regressors           NAME_mean, NAME_std, NAME_q05, … per output; NAME_low and NAME_high if a level is given
quantile regressors  NAME_q05, …, and NAME_low, NAME_high, an interval calibrated by cross-validation
classifiers          NAME_class, and NAME_decision or the probability NAME_p_LABEL of each class
level sets           inlier, and the largest level whose set contains the row
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from ovkgp.exceptions import OptionError

PredictionColumns = dict[str, np.ndarray]
DEFAULT_QUANTILES = (0.05, 0.5, 0.95)
DEFAULT_INTERVAL_LEVEL = 0.9


@dataclass(frozen=True)
class PredictionRequest:
    """Options of a prediction: quantile levels in (0, 1), level of the central interval, latent function, costs."""

    quantiles: tuple[float, ...] | None = None
    level: float | None = None
    latent: bool = False
    costs: tuple[float, ...] | None = None

    def reject_options(self, kind: str, *names: str) -> None:
        """Raise if one of the named options is set, which models of this kind do not support."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise OptionError(f"--{name} is not supported by {kind}. Remove the option.")


def predict_columns(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Predict for inputs X (m, d), a data frame or an array, and return the columns in their order."""
    return COLUMN_BUILDERS.get(type(estimator).__name__, columns_from_posterior)(estimator, X, request)


def columns_from_posterior(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of a regressor with a posterior, from one prediction."""
    request.reject_options("a regressor", "costs")
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(np.asarray(X)), "diag", noise=not request.latent)
    levels = _quantile_levels(request)
    quantiles = scaling.mean(prediction.quantile(levels)) if levels else np.empty((0, *prediction.mean.shape))
    return _regressor_columns(estimator, scaling.mean(prediction.mean), scaling.std(prediction.std), quantiles, request)


def columns_from_vector_tasks(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of a `VectorTaskRegressor`, whose predictions are Gaussian."""
    request.reject_options("a regressor", "costs")
    found = estimator.predict(X, return_std=True, noise=not request.latent)
    mean, std = (values.reshape(len(values), -1) for values in found)
    deviates = norm.ppf(_quantile_levels(request)).reshape(-1, 1, 1)
    return _regressor_columns(estimator, mean, std, mean + deviates * std, request)


def columns_from_quantiles(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of a quantile regressor."""
    request.reject_options("a quantile regressor", "latent", "costs")
    name, is_finite = _output_name(estimator), estimator.coupling != "infinite"
    default = tuple(np.unique(estimator.measure_.nodes).tolist()) if is_finite else DEFAULT_QUANTILES
    levels = default if request.quantiles is None else request.quantiles
    curves = estimator.predict(X, quantiles=list(levels))
    found = {f"{name}_{quantile_suffix(level)}": curves[:, j] for j, level in enumerate(levels)}
    if is_finite and request.level is None:
        return found
    lower, upper = estimator.predict_interval(X, request.level or DEFAULT_INTERVAL_LEVEL)
    return found | {f"{name}_low": lower, f"{name}_high": upper}


def columns_from_cost_classifier(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of a cost-sensitive classifier, at the requested costs or at equal costs."""
    request.reject_options("a classifier", "quantiles", "level", "latent")
    name = _output_name(estimator)
    found = {}
    for cost, suffix in [(None, "")] if request.costs is None else [(c, f"_at_{c:g}") for c in request.costs]:
        found[f"{name}_class{suffix}"] = estimator.predict(X, cost)
        found[f"{name}_decision{suffix}"] = estimator.decision_function(X, cost)
    return found


def columns_from_classifier(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of a classifier with probabilities."""
    request.reject_options("this classifier", "quantiles", "level", "latent", "costs")
    name, probabilities = _output_name(estimator), estimator.predict_proba(X)
    found = {f"{name}_class": estimator.predict(X)}
    return found | {f"{name}_p_{label}": probabilities[:, k] for k, label in enumerate(estimator.classes_)}


def columns_from_level_sets(estimator, X, request: PredictionRequest) -> PredictionColumns:
    """Make the columns of level sets: a row is inside the set of every ν up to its level."""
    request.reject_options("level sets", "quantiles", "level", "latent", "costs")
    level = estimator.level_score(X)
    return {"inlier": estimator.predict(X) == 1, "level": level}


COLUMN_BUILDERS: dict[str, Callable] = {
    "InfiniteCostSensitiveClassifier": columns_from_cost_classifier,
    "InfiniteOneClassSVM": columns_from_level_sets,
    "InfiniteQuantileRegressor": columns_from_quantiles,
    "SimplexClassifier": columns_from_classifier,
    "VectorTaskRegressor": columns_from_vector_tasks,
}
"""Functions by name of the estimator; all other estimators have a posterior."""


def quantile_suffix(level: float) -> str:
    """Return the suffix of the column of a quantile: q05, q50, q02.5."""
    percent, dot, decimals = f"{round(100 * level, 10):.10f}".rstrip("0").rstrip(".").partition(".")
    return f"q{percent.zfill(2)}{dot}{decimals}"


def _output_name(estimator) -> str:
    return estimator.output_names_[0]


def _quantile_levels(request: PredictionRequest) -> list[float]:
    """Return the quantile levels, followed by both ends of the interval if there is one."""
    levels = list(DEFAULT_QUANTILES if request.quantiles is None else request.quantiles)
    return levels if request.level is None else [*levels, (1 - request.level) / 2, (1 + request.level) / 2]


def _regressor_columns(
    estimator, mean: np.ndarray, std: np.ndarray, quantiles: np.ndarray, request: PredictionRequest
) -> PredictionColumns:
    """Name mean and standard deviation (m, p) and quantiles (q, m, p), output by output."""
    levels = DEFAULT_QUANTILES if request.quantiles is None else request.quantiles
    suffixes = [quantile_suffix(level) for level in levels] + ([] if request.level is None else ["low", "high"])
    found = {}
    for j, output in enumerate(estimator.output_names_):
        found |= {f"{output}_mean": mean[:, j], f"{output}_std": std[:, j]}
        found |= {f"{output}_{suffix}": quantiles[k, :, j] for k, suffix in enumerate(suffixes)}
    return found
