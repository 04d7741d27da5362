"""Warnings of a report about a fitted model and its data.

Each check is a function from an estimator and the given or stored rows to sentences; `CHECKS` lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.estimators.common.formatting import format_number, format_percent, quote_names
from ovkgp.estimators.common.scaling import named_structure
from ovkgp.estimators.common.summary import pluralize
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.inference.sampling.diagnostics import MAX_PARETO_K, MAX_RHAT, MIN_ESS_PER_CHAIN
from ovkgp.plotting.report.evaluation_data import Rows, format_output_name, get_training_rows
from ovkgp.plotting.report.sections import CoverageAssessment
from ovkgp.plotting.slices import get_input_range

MIN_OBSERVATIONS = 10  # outputs with fewer observations, and classes with fewer rows, get a warning
MAX_OUTSIDE_FRACTION = 0.05  # fraction of rows outside of the training range that is tolerated
NUM_SENSITIVITY_POINTS = 15  # points along each input of `compute_input_sensitivity`
NEGLIGIBLE_CHANGE_FRACTION = 0.1  # change of the prediction, in standard deviations of the output, that is negligible


def collect_warnings(estimator, rows: Rows | None) -> tuple[str, ...]:
    """Collect all warnings about a fitted estimator, most important first."""
    return tuple(sentence for check in CHECKS for sentence in check(estimator, rows))


def miscalibrated_intervals(assessments: tuple[CoverageAssessment, ...]) -> tuple[str, ...]:
    """Warn if the coverage of all outputs together, or of single ones, is inconsistent with the nominal level."""
    poor = [one for one in assessments if one.is_consistent is False]
    sentences = [one.sentence for one in poor if not one.name]
    if names := [one.name for one in poor if one.name]:
        sentences.append(f"The intervals of {quote_names(names)} are miscalibrated. See Calibration.")
    return tuple(sentences)


def unreliable_draws(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn if diagnostics of the hyperparameter draws are poor."""
    if (draws := estimator.hyperparameter_draws) is None:
        return
    group = draws["posterior"]
    attrs, chains = group.attrs, group.sizes["chain"]
    if attrs.get("interrupted"):
        yield "Sampling of the hyperparameters was interrupted; only the draws so far are used."
    if number := int(attrs.get("num_divergences", 0)):
        transitions = pluralize(number, "transition")
        yield f"{transitions} of the sampler diverged; parts of the posterior may be missing. Increase target_accept."
    if not attrs.get("rhat_max", 1.0) <= MAX_RHAT:
        yield (
            f"The chains have not mixed (R̂ = {format_number(attrs['rhat_max'])} for {attrs['rhat_worst']}, above {MAX_RHAT}). Increase draws before reporting intervals of hyperparameters."
        )
    if not attrs.get("ess_min", np.inf) >= MIN_ESS_PER_CHAIN * chains:
        yield (
            f"The ESS of {attrs['ess_worst']} is {attrs['ess_min']:.0f} (below {MIN_ESS_PER_CHAIN} per chain). Increase draws before reporting quantiles."
        )
    if attrs.get("khat", 0.0) > MAX_PARETO_K:
        yield (
            f"The {attrs['method']} approximation of the hyperparameters is poor (Pareto k̂ = "
            f'{format_number(attrs["khat"], 3)}, above {MAX_PARETO_K}). Use hyperparameters="nuts".'
        )


def few_observations(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn of outputs and classes with few observations."""
    for name, number in zip(*_count_observations(estimator), strict=True):
        if number < MIN_OBSERVATIONS:
            output = format_output_name(estimator, name)
            yield f"{output} has {pluralize(int(number), 'observation')}; its intervals depend mostly on the prior."
    if estimator.kind == "labels" and (stored := get_training_rows(estimator)) is not None:
        for name in estimator.classes_:
            if (number := int((name == stored.Y).sum())) < MIN_OBSERVATIONS:
                yield f"Class '{name}' has {pluralize(number, 'row')}; its predictions are uncertain."


def _count_observations(estimator) -> tuple[list[str], np.ndarray]:
    """Return the names of outputs and their numbers of training observations, if known."""
    if estimator.kind not in ("table", "target"):
        return [], np.array([])
    if (known := estimator.describe().num_observed) is not None:
        return estimator.output_labels(), known
    stored = get_training_rows(estimator)
    return ([], np.array([])) if stored is None else (estimator.output_labels(), np.isfinite(stored.Y).sum(0))


def constant_columns(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn of columns that are constant in the training rows."""
    stored = get_training_rows(estimator)
    if stored is None or len(stored.X) < 2:
        return
    columns = zip(estimator.input_labels(), stored.inputs.T, strict=True)
    if constant := [name for name, column in columns if np.ptp(column) == 0]:
        subject, verb = (
            ("Input", "is constant and carries") if len(constant) == 1 else ("Inputs", "are constant and carry")
        )
        yield f"{subject} {quote_names(constant)} {verb} no information."
    if estimator.kind not in ("table", "target"):
        return
    for name, column in zip(estimator.output_labels(), stored.Y.T, strict=True):
        observed = column[np.isfinite(column)]
        if len(observed) > 1 and np.ptp(observed) == 0:
            value = format_number(float(observed[0]))
            yield f"{format_output_name(estimator, name)} is constant ({value}); there is no variation to explain."


def unobserved_outputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn of outputs without observed values in the given rows."""
    if rows is None or not rows.is_given or estimator.kind not in ("table", "target"):
        return
    columns = zip(estimator.output_labels(), rows.Y.T, strict=True)
    if unobserved := [name for name, column in columns if not np.isfinite(column).any()]:
        pronoun = "it is" if len(unobserved) == 1 else "they are"
        yield f"The given rows have no observed values of {quote_names(unobserved)}, so {pronoun} not assessed."


def extrapolation(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn of given rows outside of the range of the training rows."""
    if rows is None or not rows.is_given or (stored := get_training_rows(estimator)) is None:
        return
    low, high = stored.inputs.min(0), stored.inputs.max(0)
    slack = 1e-9 * np.maximum(np.abs(low), np.abs(high))
    outside = (rows.inputs < low - slack) | (rows.inputs > high + slack)
    fraction = outside.any(1).mean()
    if fraction > MAX_OUTSIDE_FRACTION:
        columns = zip(estimator.input_labels(), outside.any(0), strict=True)
        names = quote_names(name for name, is_outside in columns if is_outside)
        yield (
            f"{format_percent(fraction)} of the given rows lie outside of the range of the training rows (in {names}). Predictions there are extrapolations."
        )


def irrelevant_inputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Warn of inputs with a lengthscale above the range of the data, along which predictions hardly change."""
    stored = get_training_rows(estimator) if estimator.has_trained_hyperparameters else None
    if stored is None or estimator.n_features_in_ < 2 or (lengthscales := _get_lengthscales(estimator)) is None:
        return
    extent = np.ptp(stored.inputs, axis=0)
    is_irrelevant = (lengthscales > extent) & (extent > 0)
    if is_irrelevant.any():
        sensitivity = compute_input_sensitivity(estimator, stored.inputs, np.nanstd(stored.Y, axis=0))
        is_irrelevant &= sensitivity < NEGLIGIBLE_CHANGE_FRACTION
    if names := [name for name, is_so in zip(estimator.input_labels(), is_irrelevant, strict=True) if is_so]:
        change, listed = format_percent(NEGLIGIBLE_CHANGE_FRACTION), quote_names(names)
        if len(names) == 1:
            subject, lengthscale, pronoun = f"Input {listed} is", "its lengthscale exceeds", "it"
        else:
            subject, lengthscale, pronoun = f"Inputs {listed} are", "their lengthscales exceed", "them"
        yield (
            f"{subject} nearly irrelevant: {lengthscale} the range of the data, and predictions change by less than {change} of the standard deviation of the outputs along {pronoun}."
        )


def _get_lengthscales(estimator) -> np.ndarray | None:
    """Return the shortest lengthscale of each input (d,) over all parts of a named kernel, in original units."""
    found = [values.mean(0) * estimator.scaling_.input_scale for values in estimator.lengthscales().values()]
    return np.min(found, axis=0) if found and named_structure(estimator) != "given" else None


def compute_input_sensitivity(estimator, X: np.ndarray | None, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Compute the range of the predicted mean along each input (d,), of the output that changes most.

    Ranges are divided by `scale` (p,); outputs with scale 0 are ignored. Inputs vary over the range of X, or over the
    range derived from the scaling if X is None. Complexity: 15 predictions per input.
    """
    low, median, high = get_input_range(estimator, X)
    d = len(median)
    points = np.tile(median, (d, NUM_SENSITIVITY_POINTS, 1))
    for i in range(d):
        points[i, :, i] = np.linspace(low[i], high[i], NUM_SENSITIVITY_POINTS)
    mean = estimator.predict(as_inputs(estimator, points.reshape(-1, d)))
    mean = np.reshape(mean, (d, NUM_SENSITIVITY_POINTS, -1))
    scale = np.where(np.asarray(scale) > 0, scale, np.inf)
    return np.max(np.ptp(mean, axis=1) / scale, axis=1)


def model_warnings(estimator, rows: Rows | None) -> Iterator[str]:
    """Repeat the warnings of the estimator itself."""
    yield from estimator.describe().warnings


def problems_of_the_fit(estimator, rows: Rows | None) -> Iterator[str]:
    """Repeat the problems that `fit` warned of, and further notes."""
    yield from estimator.list_problems()


CHECKS = (  # checks in the order of the page
    problems_of_the_fit,
    unreliable_draws,
    few_observations,
    constant_columns,
    unobserved_outputs,
    extrapolation,
    irrelevant_inputs,
    model_warnings,
)
