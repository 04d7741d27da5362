"""Warnings in plain words: what a careful colleague would point out about a fitted model and its data.

Each check is a function from an estimator and the rows at hand to sentences; `CHECKS` is all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.estimators.summary import count
from ovkgp.inference.sampler_checks import LEAST_ESS, MOST_KHAT, MOST_RHAT
from ovkgp.plotting.report.data_cautions import (
    constant_columns,
    extrapolation,
    few_observations,
    few_rows,
    unobserved_outputs,
)
from ovkgp.plotting.report.model_cautions import idle_inputs, noise_levels, starving_features, wide_errors
from ovkgp.plotting.report.numbers import listed, show
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.report.sections import Judgement


def cautions(estimator, rows: Rows | None) -> tuple[str, ...]:
    """All warnings about a fitted estimator, most pressing first."""
    return tuple(sentence for check in CHECKS for sentence in check(estimator, rows))


def training(estimator, rows: Rows | None) -> Iterator[str]:
    """Training that was cut short."""
    report = getattr(estimator, "fit_report_", None)
    if report is None:
        return
    if report.interrupted:
        yield "Training was interrupted; the model has the best values found until then. Fit again to let it finish."
    elif not report.converged:
        why = report.message.partition(";")[0]
        yield f"Training did not converge ({why}): other values may fit better. Fit again with more iterations."


def draws(estimator, rows: Rows | None) -> Iterator[str]:
    """Draws of hyperparameters that should not be trusted."""
    if not hasattr(estimator, "draws_"):
        return
    group = estimator.draws_["posterior"]
    attrs, chains = group.attrs, group.sizes["chain"]
    if attrs.get("interrupted"):
        yield "Drawing the hyperparameters was interrupted; only the draws until then are used."
    if number := int(attrs.get("num_divergences", 0)):
        yield f"{count(number, 'transition')} of the sampler diverged: draws may be missing from a corner of the posterior. Raise target_accept."
    if not attrs.get("rhat_max", 1.0) <= MOST_RHAT:
        yield (
            f"The chains have not mixed (R̂ = {show(attrs['rhat_max'])} for {attrs['rhat_worst']}, above {MOST_RHAT}): take more "
            "draws before quoting intervals of hyperparameters."
        )
    if not attrs.get("ess_min", np.inf) >= LEAST_ESS * chains:
        yield f"The draws are worth only {attrs['ess_min']:.0f} independent ones for {attrs['ess_worst']}: take more before quoting quantiles."
    if attrs.get("khat", 0.0) > MOST_KHAT:
        yield (
            f"The {attrs['method']} approximation of the hyperparameters is poor (Pareto k̂ = {show(attrs['khat'], 3)}, above "
            f'{MOST_KHAT}): use hyperparameters="nuts" to be sure.'
        )


def poor_intervals(judgements: tuple[Judgement, ...]) -> tuple[str, ...]:
    """Intervals that do not hold what they promise; that of all outputs together, and those of single ones."""
    poor = [one for one in judgements if one.is_good is False]
    if not poor:
        return ()
    whole = [one.sentence for one in poor if not one.name]
    named = [one.name for one in poor if one.name]
    return (
        *whole,
        *([f"The intervals of {listed(named)} do not hold what they promise: see Calibration."] if named else []),
    )


CHECKS = (
    training,
    draws,
    few_observations,
    few_rows,
    constant_columns,
    unobserved_outputs,
    extrapolation,
    noise_levels,
    idle_inputs,
    starving_features,
    wide_errors,
)
"""In the order in which the page shows them."""
