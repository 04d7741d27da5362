"""Warnings in plain words: what a careful colleague would point out about a fitted model and its data.

Each check is a function from an estimator and the rows at hand to sentences; `CHECKS` is all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.criticism.predictive_distributions import as_inputs
from ovkgp.estimators.common.scaling import named_structure
from ovkgp.estimators.common.summary import count
from ovkgp.inference.sampling.diagnostics import MAX_PARETO_K, MAX_RHAT, MIN_ESS_PER_CHAIN
from ovkgp.inference.training.initialization import RELATIVE_NOISE_BOUNDS
from ovkgp.plotting.axes import input_names, output_names
from ovkgp.plotting.report.descriptions import is_gp
from ovkgp.plotting.report.evaluation_data import Rows, called, class_name, kept, kind_of
from ovkgp.plotting.report.numbers import listed, percent, show
from ovkgp.plotting.report.parameters import point_values
from ovkgp.plotting.report.sections import CoverageAssessment
from ovkgp.plotting.slices import input_range

FEW = 10
"""Observations of an output, or rows of a class, below which the model knows little of it."""
MAX_OUTSIDE = 0.05
"""The share of rows outside of the range of the fit that is not worth a word."""


def few_observations(estimator, rows: Rows | None) -> Iterator[str]:
    """Outputs and classes that the fit hardly observed."""
    names, counts = _counts(estimator)
    for name, number in zip(names, counts, strict=True):
        if number < FEW:
            yield f"{called(estimator, name)} has {count(int(number), 'observation')}: its intervals rest on the prior more than on data."
    if kind_of(estimator) == "labels" and (learned := kept(estimator)) is not None:
        for name in estimator.classes_:
            if (number := int((name == learned.Y).sum())) < FEW:
                yield f"Class '{name}' has {count(number, 'row')}: little is known of it."


def few_rows(estimator, rows: Rows | None) -> Iterator[str]:
    """Few rows for the number of inputs."""
    d = estimator.n_features_in_
    if kind_of(estimator) not in ("table", "target"):
        return
    if rows is not None and not rows.is_given and d > 1 and len(rows.X) < 2 * d:
        yield f"There are {count(len(rows.X), 'row')} for {d} inputs: few to tell which inputs matter."


def constant_columns(estimator, rows: Rows | None) -> Iterator[str]:
    """Columns that do not vary in the rows of the fit; those given may well be a few of one kind."""
    learned = kept(estimator)
    if learned is None or len(learned.X) < 2:
        return
    flat = [name for name, column in zip(input_names(estimator), learned.inputs.T, strict=True) if np.ptp(column) == 0]
    if flat:
        one = len(flat) == 1
        yield f"{'Input' if one else 'Inputs'} {listed(flat)} never {'varies' if one else 'vary'}: nothing can be learned from {'it' if one else 'them'}."
    if kind_of(estimator) not in ("table", "target"):
        return
    for name, column in zip(output_names(estimator), learned.Y.T, strict=True):
        observed = column[np.isfinite(column)]
        if len(observed) > 1 and np.ptp(observed) == 0:
            yield f"{called(estimator, name)} is constant ({show(float(observed[0]))}): there is nothing to explain."


def unobserved_outputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Outputs of which the rows given say nothing."""
    if rows is None or not rows.is_given or kind_of(estimator) not in ("table", "target"):
        return
    unobserved = [
        name for name, column in zip(output_names(estimator), rows.Y.T, strict=True) if not np.isfinite(column).any()
    ]
    if unobserved:
        yield f"Nobody observed {listed(unobserved)} in the rows given: of {'it' if len(unobserved) == 1 else 'them'} nothing can be judged."


def extrapolation(estimator, rows: Rows | None) -> Iterator[str]:
    """Rows outside of the range in which the model has learned."""
    if rows is None or not rows.is_given or (learned := kept(estimator)) is None:
        return
    low, high = learned.inputs.min(0), learned.inputs.max(0)
    slack = 1e-9 * np.maximum(np.abs(low), np.abs(high))
    outside = (rows.inputs < low - slack) | (rows.inputs > high + slack)
    share = outside.any(1).mean()
    if share > MAX_OUTSIDE:
        names = [name for name, any_outside in zip(input_names(estimator), outside.any(0), strict=True) if any_outside]
        yield f"{percent(share)} of the rows given lie outside of the range of the fit (in {listed(names)}): there the model extrapolates."


def _counts(estimator) -> tuple[list[str], np.ndarray]:
    """Names of outputs and how often the fit saw each, where that is known."""
    if kind_of(estimator) not in ("table", "target"):
        return [], np.array([])
    if hasattr(estimator, "_num_observed"):
        return output_names(estimator), estimator._num_observed
    learned = kept(estimator)
    return ([], np.array([])) if learned is None else (output_names(estimator), np.isfinite(learned.Y).sum(0))


POINTS = 15
"""Along an input."""


def changes(estimator, X: np.ndarray | None, spread: np.ndarray | float = 1.0) -> np.ndarray:
    """The range of the predicted mean along each input (d,), of the output that changes most, in units of `spread` (p,).

    Args:
        estimator: a fitted regressor.
        X: rows (n, d) that say over which range; where None, what the model knows of its inputs.
        spread: of the outputs; zero is one that does not count.

    Cost: 15 predictions for each input.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.fit_warnings import changes
        >>> X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
        >>> int(changes(ovkgp.OVKRidge(lam=1e-3).fit(X, X[:, 1]), X).argmax())
        1
    """
    low, middle, high = input_range(estimator, X)
    d = len(middle)
    points = np.tile(middle, (d, POINTS, 1))
    for i in range(d):
        points[i, :, i] = np.linspace(low[i], high[i], POINTS)
    mean = np.reshape(estimator.predict(as_inputs(estimator, points.reshape(-1, d))), (d, POINTS, -1))
    spread = np.where(np.asarray(spread) > 0, spread, np.inf)
    return np.max(np.ptp(mean, axis=1) / spread, axis=1)


NEAR_FLOOR = 100 * RELATIVE_NOISE_BOUNDS[0]
"""Noise below this part of the variance of an output is as small as training lets it be."""
ALL_NOISE = 0.9
"""Noise above this part of the variance leaves nothing to explain."""
NEGLIGIBLE_CHANGE_FRACTION = 0.1
"""A change of the prediction, in standard deviations of the output, that is hardly one."""


def idle_inputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Inputs whose lengthscale is longer than the range of the data, and along which predictions do not change."""
    learned = kept(estimator) if is_gp(estimator) else None
    if learned is None or estimator.n_features_in_ < 2 or (lengthscales := _lengthscales(estimator)) is None:
        return
    reach = np.ptp(learned.inputs, axis=0)
    is_idle = (lengthscales > reach) & (reach > 0)
    if is_idle.any():
        is_idle &= changes(estimator, learned.inputs, np.nanstd(learned.Y, axis=0)) < NEGLIGIBLE_CHANGE_FRACTION
    idle = [name for name, is_so in zip(input_names(estimator), is_idle, strict=True) if is_so]
    if idle:
        one = len(idle) == 1
        yield (
            f"{'Input' if one else 'Inputs'} {listed(idle)} hardly {'matters' if one else 'matter'}: {'its lengthscale is' if one else 'their lengthscales are'} "
            f"longer than the range of the data, and predictions change by less than {percent(NEGLIGIBLE_CHANGE_FRACTION)} of the spread of the outputs along {'it' if one else 'them'}."
        )


def noise_levels(estimator, rows: Rows | None) -> Iterator[str]:
    """Trained noise at its floor, or as large as the output itself."""
    learned = kept(estimator) if is_gp(estimator) and estimator.noise_ is not None else None
    if learned is None or not isinstance(estimator.noise, str) or estimator.hyperparameters == "fixed":
        return
    for name, variance, column in zip(output_names(estimator), np.diag(estimator.noise_), learned.Y.T, strict=True):
        observed = column[np.isfinite(column)]
        if len(observed) < 2 or not (spread := observed.var()) > 0:
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
    if not attrs.get("rhat_max", 1.0) <= MAX_RHAT:
        yield (
            f"The chains have not mixed (R̂ = {show(attrs['rhat_max'])} for {attrs['rhat_worst']}, above {MAX_RHAT}): take more "
            "draws before quoting intervals of hyperparameters."
        )
    if not attrs.get("ess_min", np.inf) >= MIN_ESS_PER_CHAIN * chains:
        yield f"The draws are worth only {attrs['ess_min']:.0f} independent ones for {attrs['ess_worst']}: take more before quoting quantiles."
    if attrs.get("khat", 0.0) > MAX_PARETO_K:
        yield (
            f"The {attrs['method']} approximation of the hyperparameters is poor (Pareto k̂ = {show(attrs['khat'], 3)}, above "
            f'{MAX_PARETO_K}): use hyperparameters="nuts" to be sure.'
        )


def poor_intervals(judgements: tuple[CoverageAssessment, ...]) -> tuple[str, ...]:
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
