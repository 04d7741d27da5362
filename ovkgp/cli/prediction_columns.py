"""What a fitted model says of new inputs, as columns of a table.

regressors           NAME_mean, NAME_sd, NAME_q05, … for each output; NAME_low and NAME_high with a level
quantile regressors  NAME_q05, …, and NAME_low, NAME_high, an interval that was calibrated on rows left out
classifiers          NAME_class, and NAME_decision or the probability NAME_p_LABEL of each class
level sets           inlier, and the level up to which a row is one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from ovkgp.exceptions import OptionError

PredictionColumns = dict[str, np.ndarray]
QUANTILES = (0.05, 0.5, 0.95)
"""Levels where none are asked for."""
LEVEL = 0.9
"""Of the interval of a quantile regressor, where none is asked for."""


@dataclass(frozen=True)
class PredictionRequest:
    """What is asked of a model.

    Args:
        quantiles: levels in (0, 1); None for the usual ones.
        level: of the central interval, or None.
        latent: whether the function behind the observations is meant, without their noise.
        costs: of mistakes, for a classifier of all costs, or None.
    """

    quantiles: tuple[float, ...] | None = None
    level: float | None = None
    latent: bool = False
    costs: tuple[float, ...] | None = None

    def refuse(self, kind: str, *names: str) -> None:
        """Refuse options that mean nothing to a model of some kind."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise OptionError(f"--{name} means nothing to {kind}: leave it out.")


def answers(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """The columns that a model fills for inputs X (m, d), a data frame or an array, in their order.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 20)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.hstack([np.sin(X), np.cos(X)]))
        >>> list(answers(model, X, PredictionRequest(quantiles=(0.025,))))
        ['y0_mean', 'y0_sd', 'y0_q02.5', 'y1_mean', 'y1_sd', 'y1_q02.5']
    """
    return ANSWERS.get(type(estimator).__name__, of_posterior)(estimator, X, question)


def quantile_name(level: float) -> str:
    """How the quantile of a level is called.

    Example:
        >>> [quantile_name(level) for level in (0.05, 0.5, 0.025, 0.999)]
        ['q05', 'q50', 'q02.5', 'q99.9']
    """
    whole, dot, rest = f"{round(100 * level, 10):.10f}".rstrip("0").rstrip(".").partition(".")
    return f"q{whole.zfill(2)}{dot}{rest}"


def of_posterior(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """A regressor with a posterior: all from one look at it."""
    question.refuse("a regressor", "costs")
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(np.asarray(X)), "diag", noise=not question.latent)
    levels = _levels(question)
    found = scaling.mean(prediction.quantile(levels)) if levels else np.empty((0, *prediction.mean.shape))
    return _columns(estimator, scaling.mean(prediction.mean), scaling.std(prediction.std), found, question)


def of_vectors(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """A regressor of vectors at tasks, whose predictions are Gaussian."""
    question.refuse("a regressor", "costs")
    found = estimator.predict(X, return_std=True, noise=not question.latent)
    mean, std = (values.reshape(len(values), -1) for values in found)
    deviates = norm.ppf(_levels(question)).reshape(-1, 1, 1)
    return _columns(estimator, mean, std, mean + deviates * std, question)


def of_quantiles(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """A quantile regressor."""
    question.refuse("a quantile regressor", "latent", "costs")
    name, is_finite = _name(estimator), estimator.coupling != "infinite"
    learned = tuple(np.unique(estimator.measure_.nodes).tolist()) if is_finite else QUANTILES
    levels = learned if question.quantiles is None else question.quantiles
    curves = estimator.predict(X, quantiles=list(levels))
    found = {f"{name}_{quantile_name(level)}": curves[:, place] for place, level in enumerate(levels)}
    if is_finite and question.level is None:
        return found
    lower, upper = estimator.predict_interval(X, question.level or LEVEL)
    return found | {f"{name}_low": lower, f"{name}_high": upper}


def of_costs(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """A classifier for all costs of mistakes, at some of them, or at equal prices."""
    question.refuse("a classifier", "quantiles", "level", "latent")
    name = _name(estimator)
    found = {}
    for cost, ending in [(None, "")] if question.costs is None else [(c, f"_at_{c:g}") for c in question.costs]:
        found[f"{name}_class{ending}"] = estimator.predict(X, cost)
        found[f"{name}_decision{ending}"] = estimator.decision_function(X, cost)
    return found


def of_classes(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """A classifier with probabilities."""
    question.refuse("this classifier", "quantiles", "level", "latent", "costs")
    name, probabilities = _name(estimator), estimator.predict_proba(X)
    found = {f"{name}_class": estimator.predict(X)}
    return found | {f"{name}_p_{label}": probabilities[:, k] for k, label in enumerate(estimator.classes_)}


def of_level_sets(estimator, X, question: PredictionRequest) -> PredictionColumns:
    """Level sets: a row is inside the set of every ν up to its level."""
    question.refuse("level sets", "quantiles", "level", "latent", "costs")
    level = estimator.level_score(X)
    return {"inlier": estimator.predict(X) == 1, "level": level}


ANSWERS: dict[str, Callable] = {
    "InfiniteCostSensitiveClassifier": of_costs,
    "InfiniteOneClassSVM": of_level_sets,
    "InfiniteQuantileRegressor": of_quantiles,
    "SimplexClassifier": of_classes,
    "VectorTaskRegressor": of_vectors,
}
"""By the name of the estimator, what it says; all others have a posterior."""


def _name(estimator) -> str:
    """The one output."""
    return estimator.output_names_[0]


def _levels(question: PredictionRequest) -> list[float]:
    """Levels of quantiles, and the two ends of the interval."""
    levels = list(QUANTILES if question.quantiles is None else question.quantiles)
    return levels if question.level is None else [*levels, (1 - question.level) / 2, (1 + question.level) / 2]


def _columns(
    estimator, mean: np.ndarray, std: np.ndarray, quantiles: np.ndarray, question: PredictionRequest
) -> PredictionColumns:
    """Mean and standard deviation (m, p) and quantiles (q, m, p), output by output."""
    names = [quantile_name(level) for level in QUANTILES if question.quantiles is None]
    names = names or [quantile_name(level) for level in question.quantiles]
    names += [] if question.level is None else ["low", "high"]
    found = {}
    for place, output in enumerate(estimator.output_names_):
        found |= {f"{output}_mean": mean[:, place], f"{output}_sd": std[:, place]}
        found |= {f"{output}_{name}": quantiles[k, :, place] for k, name in enumerate(names)}
    return found
