"""Warnings about what was learned: inputs that hardly matter, noise that vanishes or explains everything, features that starve."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.estimators.user_units import named_structure
from ovkgp.inference.fitting import NOISE_BOX
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.changes import changes
from ovkgp.plotting.report.kinds import called, class_name
from ovkgp.plotting.report.model_facts import is_gp
from ovkgp.plotting.report.numbers import listed, percent
from ovkgp.plotting.report.parameters import point_values
from ovkgp.plotting.report.rows import Rows, kept

NEAR_FLOOR = 100 * NOISE_BOX[0]
"""Noise below this part of the variance of an output is as small as training lets it be."""
ALL_NOISE = 0.9
"""Noise above this part of the variance leaves nothing to explain."""
HARDLY = 0.1
"""A change of the prediction, in standard deviations of the output, that is hardly one."""


def idle_inputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Inputs whose lengthscale is longer than the range of the data, and along which predictions do not change."""
    learned = kept(estimator) if is_gp(estimator) else None
    if learned is None or estimator.n_features_in_ < 2 or (lengthscales := _lengthscales(estimator)) is None:
        return
    reach = np.ptp(learned.inputs, axis=0)
    is_idle = (lengthscales > reach) & (reach > 0)
    if is_idle.any():
        is_idle &= changes(estimator, learned.inputs, np.nanstd(learned.Y, axis=0)) < HARDLY
    idle = [name for name, is_so in zip(input_names(estimator), is_idle, strict=True) if is_so]
    if idle:
        one = len(idle) == 1
        yield (
            f"{'Input' if one else 'Inputs'} {listed(idle)} hardly {'matters' if one else 'matter'}: {'its lengthscale is' if one else 'their lengthscales are'} "
            f"longer than the range of the data, and predictions change by less than {percent(HARDLY)} of the spread of the outputs along {'it' if one else 'them'}."
        )


def noise_levels(estimator, rows: Rows | None) -> Iterator[str]:
    """Trained noise at its floor, or as large as the output itself."""
    learned = kept(estimator) if is_gp(estimator) and estimator.noise_ is not None else None
    if learned is None or not isinstance(estimator.noise, str) or estimator.hyperparameters == "fixed":
        return
    for name, variance, column in zip(output_names(estimator), np.diag(estimator.noise_), learned.Y.T, strict=True):
        seen = column[np.isfinite(column)]
        if len(seen) < 2 or not (spread := seen.var()) > 0:
            continue
        if variance < NEAR_FLOOR * spread:
            yield f"{called(estimator, name)}: the noise is at its floor, and the model passes through every observation. Was it computed, not measured?"
        elif variance > ALL_NOISE * spread:
            yield f"{called(estimator, name)}: nearly all of its variation is taken for noise, so that the inputs say little about it."


def starving_features(estimator, rows: Rows | None) -> Iterator[str]:
    """Random features without a guard."""
    uses = getattr(estimator, "approximation_", None) in ("orff", "nystrom") or class_name(estimator) == "ORFFRidge"
    if uses and getattr(estimator, "variance", None) == "features":
        yield (
            'The variance is that of finitely many features (variance="features"): far from the data it is too small. '
            'Use variance="guarded" where that matters.'
        )


def wide_errors(estimator, rows: Rows | None) -> Iterator[str]:
    """What the online learner lost by its budget."""
    if class_name(estimator) == "ONORMA" and estimator.truncation_error_ > 0:
        yield "The budget of the online learner was full, and some of what it learned was dropped: raise budget to keep more."


def _lengthscales(estimator) -> np.ndarray | None:
    """The shortest lengthscale of each input (d,) over all parts of a kernel by name, in the user's units."""
    if named_structure(estimator) == "given":
        return None
    found = [value for name, value in point_values(estimator).items() if name.rpartition(".")[2] == "lengthscale"]
    d = estimator.n_features_in_
    return np.min([np.broadcast_to(value.reshape(-1), d) for value in found], axis=0) if found else None
