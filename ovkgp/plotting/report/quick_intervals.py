"""Intervals of hyperparameters that were trained by evidence: a Laplace approximation at the mode, where it is cheap.

It needs the rows, so that only exact models have it, and a hundred evaluations of the evidence, so that only small ones do.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from ovkgp.criticism.rows import kept_observations
from ovkgp.estimators.arviz_export import values_in_units
from ovkgp.exceptions import FactorisationError, FitWarning
from ovkgp.inference.sampler_checks import MOST_KHAT
from ovkgp.inference.sampling import sample_hyperparameters
from ovkgp.plotting.report.numbers import show

MOST_ENTRIES, MOST_PARAMETERS = 500, 40
"""Observed entries and trained numbers up to which the approximation is made."""
DRAWS = 200


class LocalDraws(NamedTuple):
    """Draws by name, (1, draws, *shape), in the user's units, and how far to trust them."""

    values: dict[str, np.ndarray]
    notes: tuple[str, ...]


def local_draws(estimator) -> LocalDraws | None:
    """Draws from the Laplace approximation of a trained `GPRegressor`; None where it would be dear, or makes no sense.

    Cost: some tens of gradients of the evidence, two for each parameter, and one evaluation for each of 200 draws.
    """
    if not _is_cheap(estimator):
        return None
    data = kept_observations(estimator)
    options = {
        "draws": DRAWS,
        "prior_draws": 0,
        "log_likelihood": False,
        "posterior_predictive": False,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # k̂ and flat directions are said in the notes
        try:
            found = sample_hyperparameters(estimator.gp_, data.X, data.Y, "laplace", noise=data.noise, **options)
        except FactorisationError as error:
            return LocalDraws({}, (f"No intervals: the Laplace approximation failed ({error}).",))
    group = found["posterior"]
    return LocalDraws(values_in_units(estimator, group), _notes(group.attrs))


def _is_cheap(estimator) -> bool:
    if estimator.hyperparameters != "evidence" or estimator.approximation_ != "exact":
        return False
    trained = sum(parameter.numel() for parameter in estimator.gp_.parameters() if parameter.requires_grad)
    return (
        bool(estimator._num_seen.sum() <= MOST_ENTRIES and 0 < trained <= MOST_PARAMETERS)
        and kept_observations(estimator) is not None
    )


def _notes(attrs: dict) -> tuple[str, ...]:
    notes = []
    if attrs.get("khat", 0) > MOST_KHAT:
        notes.append(
            f"The Laplace approximation is rough here (Pareto k̂ = {show(attrs['khat'], 3)}, above {MOST_KHAT}): read these intervals as "
            "orders of magnitude."
        )
    if attrs.get("num_flat", 0):
        notes.append(
            "The data leave some directions of the hyperparameters open; their intervals come from the prior alone."
        )
    return tuple(notes)
