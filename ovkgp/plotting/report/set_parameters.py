"""Hyperparameters that nobody trained by evidence: λ, lengthscales and scales of ridge regressions and task estimators."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.ridge import RidgeEstimator
from ovkgp.inference.log_posterior import named_values
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.kinds import class_name
from ovkgp.plotting.report.model_words import structure_of
from ovkgp.plotting.report.parameter_names import Names, entries
from ovkgp.plotting.report.sections import Parameter

SCALARS = {
    "lam_": "penalty λ",
    "lam": "penalty λ",
    "lam_manifold": "penalty on the manifold λ_M",
    "scale_": "scale of prior and noise s²",
    "residual_scale_": "residual scale",
    "radius": "radius M of the weights",
    "weight_radius_": "radius of each frequency",
    "nu": "level ν of predict",
    "offset_": "threshold at that level",
    "kappa": "width of the smoothing κ",
    "task_lengthscale": "lengthscale of the tasks",
    "threshold_lengthscale": "lengthscale of the thresholds",
}
"""Attributes that are single numbers, by what they are called."""
MOST_OUTPUTS = 30
"""Entries of more outputs are not listed."""


def set_parameters(estimator) -> list[Parameter]:
    """The numbers that an estimator was fitted with, in the user's units."""
    fitted = getattr(estimator, "ridge_", estimator)  # that of a classifier
    kernel = _kernel(fitted)
    if fitted is not estimator:  # outputs of the regression are codes, which nobody knows
        kernel = [one for one in kernel if one.name == "lengthscale"]
    elif structure_of(estimator) == "identity":
        kernel = [one for one in kernel if one.name != "signal correlation"]
    return [*_scalars(estimator), *_noise(fitted), *kernel, *_lengthscale(estimator)]


def _scalars(estimator) -> list[Parameter]:
    found = ((words, getattr(estimator, name, None)) for name, words in SCALARS.items())
    known = {words: float(value) for words, value in reversed([*found]) if isinstance(value, float | int)}
    return [Parameter(words, "", known[words]) for words in dict.fromkeys(SCALARS.values()) if words in known]


def _noise(estimator) -> list[Parameter]:
    """σ, of an observation."""
    if isinstance(estimator, RidgeEstimator):
        return [Parameter("noise standard deviation", "", float(np.sqrt(estimator._noise_now)))]
    if class_name(estimator) == "VectorTaskRegressor":
        return [Parameter("noise standard deviation", "", float(np.sqrt(estimator.noise_ * estimator.scale_)))]
    return (
        [Parameter("noise standard deviation", "", float(np.sqrt(estimator.noise_)))]
        if hasattr(estimator, "noise_")
        else []
    )


def _kernel(estimator) -> list[Parameter]:
    if not hasattr(estimator, "gp_"):
        return []
    outputs = output_names(estimator)
    names = Names(input_names(estimator), outputs, getattr(estimator, "kernel_", None))
    values = {name: v for name, v in named_values(estimator.gp_).items() if not _is_left_out(name, v, len(outputs))}
    found = (entry for name, value in values.items() for entry in entries(name, value[None, None], names))
    return [Parameter(entry.name, entry.of, float(entry.draws.item())) for entry in found]


def _is_left_out(name: str, value: np.ndarray, num_outputs: int) -> bool:
    """Matrices that are large, or not between the columns of Y."""
    is_matrix = name.rpartition(".")[2] == "output_matrix"
    return is_matrix and (len(value) != num_outputs or num_outputs > MOST_OUTPUTS)


def _lengthscale(estimator) -> list[Parameter]:
    """Of an estimator that has scaled its inputs: given in their standard deviations, shown in their units."""
    factor = getattr(getattr(estimator, "function_", None), "inputs", None)
    while hasattr(factor, "factor"):  # beside an intercept or a trend
        factor = factor.factor
    kernel = getattr(getattr(factor, "features", factor), "kernel", None)
    if (lengthscale := getattr(kernel, "lengthscale", None)) is None:
        return []
    values = np.broadcast_to(lengthscale.detach().numpy().reshape(-1), estimator.n_features_in_)
    values, names = values * estimator.scaling_.input_scale, input_names(estimator)
    return [Parameter("lengthscale", name, float(value)) for name, value in zip(names, values, strict=True)]
