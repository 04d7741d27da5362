"""Warnings in plain words: what a careful colleague would point out about a fitted model and its data.

Each check is a function from what is known to sentences; `CHECKS` is all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.inference.sampler_checks import LEAST_ESS, MOST_KHAT, MOST_RHAT
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.kinds import kind_of
from ovkgp.plotting.report.numbers import count, listed, show
from ovkgp.plotting.report.rows import Rows

FEW = 10
"""Observations of an output below which intervals are guesses."""


def cautions(estimator, rows: Rows | None) -> tuple[str, ...]:
    """All warnings about a fitted estimator, most pressing first."""
    return tuple(sentence for check in CHECKS for sentence in check(estimator, rows))


# --- training and draws -----------------------------------------------------------------------------------------------


def training(estimator, rows: Rows | None) -> Iterator[str]:
    """Training that was cut short."""
    report = getattr(estimator, "fit_report_", None)
    if report is None:
        return
    if report.interrupted:
        yield "Training was interrupted; the model has the best values found until then. Fit again to let it finish."
    elif not report.converged:
        yield f"Training did not converge ({report.message}); other values may fit better. Fit again with more iterations, or scale the data."


def draws(estimator, rows: Rows | None) -> Iterator[str]:
    """Draws of hyperparameters that should not be trusted."""
    if not hasattr(estimator, "draws_"):
        return
    group = estimator.draws_["posterior"]
    attrs, chains = group.attrs, group.sizes["chain"]
    if attrs.get("interrupted"):
        yield "Drawing the hyperparameters was interrupted; only the draws until then are used."
    if attrs.get("num_divergences", 0):
        yield f"{count(int(attrs['num_divergences']), 'transition')} of the sampler diverged: a corner of the posterior may be missing. Raise target_accept."
    if not attrs.get("rhat_max", 1.0) <= MOST_RHAT:
        yield f"The chains have not mixed (R̂ = {show(attrs['rhat_max'])} for {attrs['rhat_worst']}, above {MOST_RHAT}): take more draws before quoting intervals."
    if not attrs.get("ess_min", np.inf) >= LEAST_ESS * chains:
        yield f"The draws are worth only {attrs['ess_min']:.0f} independent ones for {attrs['ess_worst']}: take more before quoting quantiles."
    if attrs.get("khat", 0.0) > MOST_KHAT:
        yield f"The {attrs['method']} approximation of the hyperparameters is poor (Pareto k̂ = {show(attrs['khat'], 3)}, above {MOST_KHAT}): use NUTS to be sure."


# --- data ------------------------------------------------------------------------------------------------------------


def few_observations(estimator, rows: Rows | None) -> Iterator[str]:
    """Outputs that were hardly observed."""
    for name, number in zip(*_counts(estimator, rows), strict=True):
        if number < FEW:
            yield f"Output '{name}' has {count(int(number), 'observation')}: its intervals rest on the prior more than on data."


def few_rows(estimator, rows: Rows | None) -> Iterator[str]:
    """Few rows for the number of inputs."""
    d = estimator.n_features_in_
    if rows is not None and not rows.is_given and d > 1 and len(rows.X) < 2 * d:
        yield f"There are {count(len(rows.X), 'row')} for {d} inputs: few to tell which inputs matter."


def constant_columns(estimator, rows: Rows | None) -> Iterator[str]:
    """Columns that do not vary."""
    if rows is None:
        return
    flat = [
        name
        for name, column in zip(input_names(estimator), rows.inputs.T, strict=True)
        if len(column) > 1 and np.ptp(column) == 0
    ]
    if flat:
        yield f"The {'input' if len(flat) == 1 else 'inputs'} {listed(flat)} never {'varies' if len(flat) == 1 else 'vary'}: nothing can be learned from {'it' if len(flat) == 1 else 'them'}."
    if kind_of(estimator) not in ("table", "target"):
        return
    for name, column in zip(output_names(estimator), rows.Y.T, strict=True):
        seen = column[np.isfinite(column)]
        if len(seen) > 1 and np.ptp(seen) == 0:
            yield f"Output '{name}' is constant ({show(float(seen[0]))}): there is nothing to explain, and its noise is not known."


def _counts(estimator, rows: Rows | None) -> tuple[list[str], np.ndarray]:
    """Names of outputs and how often the fit saw each, where that is known."""
    if kind_of(estimator) not in ("table", "target"):
        return [], np.array([])
    names = output_names(estimator)
    if hasattr(estimator, "_num_seen"):
        return names, estimator._num_seen
    if rows is None or rows.is_given:
        return [], np.array([])
    return names, np.isfinite(rows.Y).sum(0)


CHECKS = (training, draws, few_observations, few_rows, constant_columns)
"""In the order in which the page shows them."""
