"""The hyperparameters of a report: draws with their intervals where there are draws, point values where there are none.

A Gaussian-process regressor that was trained by evidence on few data gets intervals as well, from a Laplace approximation at its
mode; they say how well the data know each value, and the predictions do not use them.
"""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.arviz_export import units_of, values_in_units
from ovkgp.estimators.summary import count
from ovkgp.estimators.user_units import in_user_units, named_structure
from ovkgp.inference.log_posterior import named_values
from ovkgp.inference.sampler_checks import FEWEST, effective_size, rhat
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.model_facts import is_gp, training_goal
from ovkgp.plotting.report.parameter_names import MOST_OUTPUTS, Names, entries
from ovkgp.plotting.report.quick_intervals import LocalDraws, local_draws
from ovkgp.plotting.report.sections import Parameter, ParameterTable
from ovkgp.plotting.report.set_parameters import set_parameters

LEVEL = 0.9
"""Of the intervals."""
MOST_ROWS = 60
"""A table is no longer than this."""


def parameter_table(estimator) -> ParameterTable:
    """The hyperparameters of a fitted estimator, in the user's units."""
    if not is_gp(estimator):
        rows = set_parameters(estimator)
        return _table(
            estimator, "They were given or chosen, not trained: there is no interval to state.", rows, "value", ()
        )
    if hasattr(estimator, "draws_"):
        return _drawn(estimator)
    return _point(estimator)


def _drawn(estimator) -> ParameterTable:
    group = estimator.draws_["posterior"]
    values, sizes, attrs = values_in_units(estimator, group), group.sizes, group.attrs
    is_chain = attrs["method"] == "nuts"
    rows = [row for name, draws in values.items() for row in _rows(name, draws, _names(estimator), is_chain)]
    sentence = (
        f"Drawn from their posterior by {METHODS[attrs['method']]}: {count(sizes['chain'], 'chain')} of "
        f"{count(sizes['draw'], 'draw')}. Predictions average over {len(estimator.posterior_)} of them."
    )
    return _table(estimator, sentence, rows, "mean", _notes(estimator, ()))


METHODS = {
    "nuts": "Hamiltonian Monte Carlo (NUTS)",
    "svi": "variational inference (SVI)",
    "laplace": "a Laplace approximation",
}


def _point(estimator) -> ParameterTable:
    values, found = point_values(estimator), local_draws(estimator)
    rows = [row for name, value in values.items() for row in _rows(name, value[None, None], _names(estimator), False)]
    how = (
        "given with the kernel"
        if estimator.hyperparameters == "fixed"
        else f"point values: those of {training_goal(estimator)}"
    )
    if found is None:
        return _table(
            estimator, f"These are {how}. How uncertain they are is not known.", rows, "value", _notes(estimator, ())
        )
    rows, notes = _with_intervals(rows, estimator, found), found.notes
    if found.values and any(row.low is None for row in rows):
        notes = (
            *notes,
            "No interval is stated where the approximation, which adds priors where training has none and works on another scale, is "
            "centred on another value.",
        )
    sentence = (
        f"These are {how}, and predictions use them alone. The intervals are from a Laplace approximation at the mode, made for this "
        'report; hyperparameters="nuts" would average over them.'
    )
    return _table(estimator, sentence, rows, "value", _notes(estimator, notes))


def point_values(estimator) -> dict[str, np.ndarray]:
    """The hyperparameters of a trained `GPRegressor` by name, in the user's units."""
    structure, scaling = named_structure(estimator), estimator.scaling_
    values = {name: in_user_units(name, v, structure, scaling) for name, v in named_values(estimator.gp_).items()}
    if "noise" not in values and estimator.noise_ is not None:  # given, not trained
        values["noise"] = np.diag(estimator.noise_)
    return values


def _rows(name: str, draws: np.ndarray, names: Names, is_chain: bool) -> list[Parameter]:
    return [_row(entry.name, entry.of, entry.draws, is_chain) for entry in entries(name, draws, names)]


def _row(name: str, of: str, draws: np.ndarray, is_chain: bool) -> Parameter:
    value = float(draws.mean())
    if draws.size == 1 or not np.ptp(draws) > 0:
        return Parameter(name, of, value)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    known = is_chain and draws.shape[1] >= 2 * FEWEST
    checks = (rhat(draws), effective_size(draws)) if known else (None, None)
    return Parameter(name, of, value, float(draws.std()), float(low), float(high), *checks)


def _with_intervals(rows: list[Parameter], estimator, found: LocalDraws) -> list[Parameter]:
    """Point values with the spread of draws around them."""
    drawn = [row for name, draws in found.values.items() for row in _rows(name, draws, _names(estimator), False)]
    spread = {(row.name, row.of): row for row in drawn}
    known = [spread.get((row.name, row.of), row) for row in rows]
    return [
        Parameter(row.name, row.of, row.value, near.sd, near.low, near.high) if _holds(near, row.value) else row
        for row, near in zip(rows, known, strict=True)
    ]


def _holds(near: Parameter, value: float) -> bool:
    """Whether an interval is about the value.

    The approximation is made for the density of the raw parameters, with priors on those that training leaves without one, so that
    its mode may be elsewhere.
    """
    return near.low is not None and near.low <= value <= near.high


def _names(estimator) -> Names:
    return Names(input_names(estimator), output_names(estimator), named_structure(estimator))


def _notes(estimator, notes: tuple[str, ...]) -> tuple[str, ...]:
    if units_of(estimator) != "of the data":
        words = "Noise and mean are in the units of the data; of the kernel only its author knows which numbers carry units."
        notes = (words, *notes)
    if estimator.n_outputs_ > MOST_OUTPUTS:
        notes = (*notes, "Correlations between outputs are left to the picture of the fit.")
    return notes


def _table(estimator, sentence: str, rows: list[Parameter], value_name: str, notes: tuple[str, ...]) -> ParameterTable:
    if len(rows) > MOST_ROWS:
        notes = (*notes, f"The table shows the first {MOST_ROWS} of {len(rows)} values.")
    units = units_of(estimator) if is_gp(estimator) else "of the data"
    return ParameterTable(sentence, tuple(rows[:MOST_ROWS]), value_name, units, notes)
