"""Hyperparameter section of a report: draws with intervals, or point values, with Laplace intervals for few data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ovkgp.estimators.common.descriptions import describe_training_goal
from ovkgp.estimators.common.formatting import format_number
from ovkgp.estimators.common.scaling import named_structure, values_in_units
from ovkgp.estimators.common.summary import (
    MAX_CORRELATED_OUTPUTS,
    ColumnNames,
    Hyperparameter,
    list_hyperparameters,
    pluralize,
)
from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.diagnostics import MAX_PARETO_K, MIN_DRAWS_PER_CHAIN, effective_size, rhat
from ovkgp.inference.sampling.sampling import sample_hyperparameters
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


def make_parameter_table(estimator) -> ParameterTable:
    """Make the table of the hyperparameters of a fitted estimator, in original units."""
    if not estimator.has_trained_hyperparameters:
        rows = [_make_row(entry) for entry in estimator.list_parameters()]
        return _make_table(estimator, estimator.parameter_note if rows else "No hyperparameters are listed.", rows)
    if (draws := estimator.hyperparameter_draws) is not None:
        return _make_table_of_draws(estimator, draws["posterior"])
    return _make_table_of_points(estimator)


def _make_table(estimator, sentence: str, rows: list[Parameter], value_name="value", notes=()) -> ParameterTable:
    if estimator.has_trained_hyperparameters and estimator.n_outputs_ > MAX_CORRELATED_OUTPUTS:
        notes = (*notes, "Correlations between outputs are shown only in the figure of the fit.")
    if len(rows) > MAX_ROWS:
        notes = (*notes, f"The table shows the first {MAX_ROWS} of {len(rows)} values.")
    return ParameterTable(sentence, tuple(rows[:MAX_ROWS]), value_name, estimator.parameter_units, notes)


def _make_table_of_draws(estimator, group) -> ParameterTable:
    sizes, attrs = group.sizes, group.attrs
    rows = [_make_row(entry, is_chain=attrs["method"] == "nuts") for entry in estimator.list_parameters()]
    sentence = (
        f"Sampled from their posterior by {METHODS[attrs['method']]}: {pluralize(sizes['chain'], 'chain')} of "
        f"{pluralize(sizes['draw'], 'draw')}. Predictions average over {len(estimator.posterior_)} of them."
    )
    return _make_table(estimator, sentence, rows, "mean")


def _make_table_of_points(estimator) -> ParameterTable:
    laplace = sample_laplace(estimator)
    rows = [_make_row(entry) for entry in estimator.list_parameters()]
    origin = "the values of the given kernel"
    if estimator.hyperparameters != "fixed":
        origin = f"point estimates, the values of {describe_training_goal(estimator)}"
    is_mixture = named_structure(estimator) == "auto"
    if is_mixture:
        first = next(iter(estimator.candidates_))
        origin = f"those of the candidate {first}, the values of {describe_training_goal(estimator)}"
    if laplace is None:
        return _make_table(estimator, f"These are {origin}. Their uncertainty is unknown.", rows)
    rows, notes = _add_intervals(rows, estimator, laplace), laplace.notes
    if laplace.values and any(row.low is None for row in rows):
        notes = (
            *notes,
            "No interval is given for values outside of the interval of the Laplace approximation, which adds priors where training has none and uses another scale.",
        )
    use = "predictions average over all candidates" if is_mixture else "predictions use only these"
    is_averaged = not is_mixture and estimator.averages_draws
    if is_averaged:
        use = f"predictions average over {len(estimator.posterior_)} draws around them"
    advice = "" if is_mixture or is_averaged else ' Use hyperparameters="nuts" to average over the posterior.'
    sentence = f"These are {origin}; {use}. The intervals are from a Laplace approximation at the mode, made for this report.{advice}"
    return _make_table(estimator, sentence, rows, notes=notes)


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
    """Sample the Laplace approximation of a trained `GPRegressor`; None if it is expensive or not applicable."""
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
    if estimator.hyperparameters not in ("auto", "evidence") or estimator.approximation_ != "exact":
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
