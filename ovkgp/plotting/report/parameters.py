"""Hyperparameter section of a report: draws with intervals, or point values, with Laplace intervals for few data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ovkgp.estimators.common.scaling import in_original_units, named_structure, units_of, values_in_units
from ovkgp.estimators.common.summary import (
    MAX_CORRELATED_OUTPUTS,
    ColumnNames,
    Hyperparameter,
    hyperparameter_table,
    list_hyperparameters,
    pluralize,
)
from ovkgp.estimators.ridge.base import RidgeEstimator
from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.diagnostics import MAX_PARETO_K, MIN_DRAWS_PER_CHAIN, effective_size, rhat
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.plotting.report.descriptions import describe_training_goal, is_gp
from ovkgp.plotting.report.evaluation_data import get_class_name
from ovkgp.plotting.report.numbers import format_number
from ovkgp.plotting.report.sections import Parameter, ParameterTable

INTERVAL_LEVEL = 0.9  # level of the intervals
MAX_ROWS = 60  # maximum number of rows of the table
MAX_LAPLACE_ENTRIES, MAX_LAPLACE_PARAMETERS = 500, 40  # observed entries and parameters of a Laplace approximation
NUM_LAPLACE_DRAWS = 200
METHODS = {  # descriptions of the sampling methods
    "nuts": "Hamiltonian Monte Carlo (NUTS)",
    "svi": "variational inference (SVI)",
    "laplace": "a Laplace approximation",
}
ATTRIBUTES = {  # names of scalar attributes of estimators
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
MAX_MATRIX_OUTPUTS = 30  # output matrices of more outputs are not listed


def make_parameter_table(estimator) -> ParameterTable:
    """Make the table of the hyperparameters of a fitted estimator, in original units."""
    if not is_gp(estimator):
        sentence = "These values were given or selected, not trained, so they have no intervals."
        return _make_table(estimator, sentence, list_fixed_parameters(estimator))
    if hasattr(estimator, "draws_"):
        return _make_table_of_draws(estimator)
    return _make_table_of_points(estimator)


def _make_table(estimator, sentence: str, rows: list[Parameter], value_name="value", notes=()) -> ParameterTable:
    units = units_of(estimator) if is_gp(estimator) else "original units"
    if units != "original units":
        notes = ("Noise and mean are in original units.", *notes)
    if is_gp(estimator) and estimator.n_outputs_ > MAX_CORRELATED_OUTPUTS:
        notes = (*notes, "Correlations between outputs are shown only in the figure of the fit.")
    if len(rows) > MAX_ROWS:
        notes = (*notes, f"The table shows the first {MAX_ROWS} of {len(rows)} values.")
    return ParameterTable(sentence, tuple(rows[:MAX_ROWS]), value_name, units, notes)


def _make_table_of_draws(estimator) -> ParameterTable:
    group = estimator.draws_["posterior"]
    sizes, attrs = group.sizes, group.attrs
    rows = [_make_row(entry, is_chain=attrs["method"] == "nuts") for entry in hyperparameter_table(estimator)]
    sentence = (
        f"Sampled from their posterior by {METHODS[attrs['method']]}: {pluralize(sizes['chain'], 'chain')} of "
        f"{pluralize(sizes['draw'], 'draw')}. Predictions average over {len(estimator.posterior_)} of them."
    )
    return _make_table(estimator, sentence, rows, "mean")


def _make_table_of_points(estimator) -> ParameterTable:
    laplace = sample_laplace(estimator)
    rows = [_make_row(entry) for entry in hyperparameter_table(estimator)]
    origin = "the values of the given kernel"
    if estimator.hyperparameters != "fixed":
        origin = f"point estimates, the values of {describe_training_goal(estimator)}"
    if laplace is None:
        return _make_table(estimator, f"These are {origin}. Their uncertainty is unknown.", rows)
    rows, notes = _add_intervals(rows, estimator, laplace), laplace.notes
    if laplace.values and any(row.low is None for row in rows):
        notes = (
            *notes,
            "No interval is given for values outside of the interval of the Laplace approximation, which adds priors where training has none and uses another scale.",
        )
    sentence = (
        f"These are {origin}; predictions use only these. The intervals are from a Laplace approximation at the mode, "
        'made for this report. Use hyperparameters="nuts" to average over the posterior.'
    )
    return _make_table(estimator, sentence, rows, notes=notes)


def get_point_values(estimator) -> dict[str, np.ndarray]:
    """Return the hyperparameters of a trained `GPRegressor` by name, in original units."""
    structure, scaling = named_structure(estimator), estimator.scaling_
    values = {name: in_original_units(name, v, structure, scaling) for name, v in named_values(estimator.gp_).items()}
    if "noise" not in values and estimator.noise_ is not None:  # given, not trained
        values["noise"] = np.diag(estimator.noise_)
    return values


def _make_row(entry: Hyperparameter, is_chain: bool = False) -> Parameter:
    draws, columns = entry.draws, entry[:3]
    if draws.size == 1 or not np.ptp(draws) > 0:
        return Parameter(*columns, float(draws.mean()))
    low, high = np.quantile(draws, [(1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2])
    has_diagnostics = is_chain and draws.shape[1] >= 2 * MIN_DRAWS_PER_CHAIN
    diagnostics = (rhat(draws), effective_size(draws)) if has_diagnostics else (None, None)
    return Parameter(*columns, float(draws.mean()), float(draws.std()), float(low), float(high), *diagnostics)


class LaplaceDraws(NamedTuple):
    """Draws by name, (1, draws, *shape), in original units, and notes on their reliability."""

    values: dict[str, np.ndarray]
    notes: tuple[str, ...]


def sample_laplace(estimator) -> LaplaceDraws | None:
    """Sample the Laplace approximation of a trained `GPRegressor`; None if it is expensive or not applicable.

    Complexity: some tens of gradients of the evidence, two per parameter, and one evaluation for each of 200 draws.
    """
    if not _is_cheap(estimator):
        return None
    data = estimator.training_observations()
    options = {"draws": NUM_LAPLACE_DRAWS, "prior_draws": 0, "log_likelihood": False, "posterior_predictive": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the notes report k̂ and flat directions
        try:
            found = sample_hyperparameters(
                estimator.gp_, data.X, data.Y, "laplace", noise=data.noise, random_state=0, **options
            )
        except FactorizationError as error:
            return LaplaceDraws({}, (f"No intervals: the Laplace approximation failed ({error}).",))
    group = found["posterior"]
    return LaplaceDraws(values_in_units(estimator, group), _describe_reliability(group.attrs))


def _is_cheap(estimator) -> bool:
    if estimator.hyperparameters != "evidence" or estimator.approximation_ != "exact":
        return False
    num_trained = sum(parameter.numel() for parameter in estimator.gp_.parameters() if parameter.requires_grad)
    is_small = estimator._num_observed.sum() <= MAX_LAPLACE_ENTRIES and 0 < num_trained <= MAX_LAPLACE_PARAMETERS
    return bool(is_small) and estimator.training_observations() is not None


def _describe_reliability(attrs: dict) -> tuple[str, ...]:
    notes = []
    if attrs.get("khat", 0) > MAX_PARETO_K:
        khat = format_number(attrs["khat"], 3)
        notes.append(
            f"The Laplace approximation is rough (Pareto k̂ = {khat}, above {MAX_PARETO_K}), so these intervals are only orders of magnitude."
        )
    if attrs.get("num_flat", 0):
        notes.append(
            "The data do not determine some directions of the hyperparameters; their intervals come from the prior alone."
        )
    return tuple(notes)


def _add_intervals(rows: list[Parameter], estimator, laplace: LaplaceDraws) -> list[Parameter]:
    """Add intervals to point values that lie inside of them; the mode of the approximation may differ."""
    found = map(_make_row, list_hyperparameters(laplace.values, ColumnNames.of(estimator)))
    by_name = {(row.name, row.output, row.input): row for row in found}
    result = []
    for row in rows:
        near = by_name.get((row.name, row.output, row.input), row)
        is_inside = near.low is not None and near.low <= row.value <= near.high
        result.append(replace(row, sd=near.sd, low=near.low, high=near.high) if is_inside else row)
    return result


def list_fixed_parameters(estimator) -> list[Parameter]:
    """List the parameters that an estimator was fitted with, in original units."""
    fitted = getattr(estimator, "ridge_", estimator)  # the regression of a classifier
    kernel = _list_kernel_parameters(fitted)
    if fitted is not estimator:  # outputs of the regression are codes of classes, without names
        kernel = [one for one in kernel if one.name == "lengthscale"]
    return [*_list_attributes(estimator), *_list_noise(fitted), *kernel, *_list_scaled_lengthscales(estimator)]


def _list_attributes(estimator) -> list[Parameter]:
    found = ((name, getattr(estimator, attribute, None)) for attribute, name in ATTRIBUTES.items())
    known = {name: float(value) for name, value in reversed([*found]) if isinstance(value, float | int)}
    return [Parameter(name, "", "", known[name]) for name in dict.fromkeys(ATTRIBUTES.values()) if name in known]


def _list_noise(estimator) -> list[Parameter]:
    """List the standard deviation of the noise of an observation."""
    if isinstance(estimator, RidgeEstimator):
        variance = estimator._noise_now
    elif get_class_name(estimator) == "VectorTaskRegressor":
        variance = estimator.noise_ * estimator.scale_
    elif hasattr(estimator, "noise_"):
        variance = estimator.noise_
    else:
        return []
    return [Parameter("noise std", "", "", float(np.sqrt(variance)))]


def _list_kernel_parameters(estimator) -> list[Parameter]:
    """List the hyperparameters of the kernel, without output matrices that are large or not between columns of Y."""
    if not hasattr(estimator, "gp_"):
        return []
    names = ColumnNames.of(estimator)
    p = len(names.outputs)

    def is_listed(name: str, value: np.ndarray) -> bool:
        return name.rpartition(".")[2] != "output_matrix" or len(value) == p <= MAX_MATRIX_OUTPUTS

    values = {name: value[None, None] for name, value in named_values(estimator.gp_).items() if is_listed(name, value)}
    return [_make_row(entry) for entry in list_hyperparameters(values, names)]


def _list_scaled_lengthscales(estimator) -> list[Parameter]:
    """List the lengthscales of an estimator that standardizes its inputs, in original units."""
    factor = getattr(getattr(estimator, "function_", None), "inputs", None)
    while hasattr(factor, "factor"):  # beside an intercept or a trend
        factor = factor.factor
    kernel = getattr(getattr(factor, "features", factor), "kernel", None)
    if (lengthscale := getattr(kernel, "lengthscale", None)) is None:
        return []
    values = np.broadcast_to(lengthscale.detach().numpy().reshape(-1), estimator.n_features_in_)
    values, names = values * estimator.scaling_.input_scale, ColumnNames.of(estimator).inputs
    return [Parameter("lengthscale", "", name, float(value)) for name, value in zip(names, values, strict=True)]
