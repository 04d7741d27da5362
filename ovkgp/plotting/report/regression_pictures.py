"""Pictures of a regressor: its field or its bands, its fan of quantiles, what it does with entries left out, and what it has learned of
inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ovkgp import plotting
from ovkgp.estimators.structures import FIELDS
from ovkgp.exceptions import OptionError
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.relevance import relevances
from ovkgp.plotting.report.changes import changes
from ovkgp.plotting.report.class_pictures import draw_observed
from ovkgp.plotting.report.columns import spreads
from ovkgp.plotting.report.model_words import structure_of
from ovkgp.plotting.report.numbers import listed
from ovkgp.plotting.report.pictures import drawn
from ovkgp.plotting.report.predictions_made import Predicted
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.report.sections import Picture

MOST_PANELS = 9
"""Outputs that are drawn."""
SCALARS = {
    "curl_free": ("potential",),
    "divergence_free": ("stream_function",),
    "helmholtz": ("potential", "stream_function"),
}
"""What lies behind the fields."""
APART = ("independent", "identity", "single", *FIELDS)
"""Structures whose outputs have nothing to do with each other at one point."""


def table_pictures(estimator, rows: Rows | None, found: Predicted | None) -> Iterator[Picture]:
    """Of a regressor with a table of outputs."""
    if hasattr(estimator, "posterior_"):
        yield from _surfaces(estimator, rows)
    elif rows is not None:
        yield observed_picture(estimator, rows)
    yield from unseen_pictures(estimator, found)
    if structure_of(estimator) not in APART and hasattr(estimator, "gp_"):
        yield drawn(
            partial(plotting.plot_output_correlations, estimator),
            "A heat map of the correlations between the outputs.",
            "How the outputs vary together at one point, as the kernel has learned it.",
        )
    yield from relevance_pictures(estimator)


def observed_picture(estimator, rows: Rows) -> Picture:
    """Observed against predicted entries of rows, of an estimator that has only means."""
    where = "given" if rows.is_given else "of the fit"
    return drawn(
        partial(draw_observed, estimator, rows),
        f"Observed against predicted entries of the rows {where}, with the line on which they agree.",
        f"Every observed entry of the rows {where} against its prediction.",
    )


def unseen_pictures(estimator, found: Predicted | None) -> Iterator[Picture]:
    """Observations against predictions of them: left out one at a time, or residuals of rows given."""
    if found is None:
        return
    is_left_out = found.rows[0] is None
    if is_left_out:
        alt = "Observations against their predictions from all others, with 90 % bars."
        caption = "Every observed entry against its prediction from all others. Squares are those that their 90 % bar does not hold."
    else:
        alt = f"Standardised residuals of {found.which} against their predictions."
        caption = f"Residuals of {found.which}, in standard deviations of the prediction: a cloud around zero without a shape is right."
    yield panels(
        plotting.plot_leave_one_out if is_left_out else plotting.plot_residuals, estimator, found.rows, alt, caption
    )


def relevance_pictures(estimator) -> Iterator[Picture]:
    """Which inputs matter, where the kernel has a lengthscale for each."""
    if estimator.n_features_in_ < 2:
        return
    try:
        relevances(estimator)
    except OptionError:  # one lengthscale for all inputs, or inputs whose spread is not known
        return
    yield drawn(
        partial(plotting.plot_relevance, estimator),
        "The relevance of each input, its standard deviation over its lengthscale.",
        "The further to the right, the faster the outputs change along that input.",
    )


def panels(plot, estimator, rows: tuple, alt: str, caption: str, **options) -> Picture:
    """A picture with a panel for each output, or for the first nine."""
    names = output_names(estimator)
    if len(names) <= MOST_PANELS:
        return drawn(partial(plot, estimator, *rows, **options), alt, caption)
    return drawn(
        partial(plot, estimator, *rows, output=range(MOST_PANELS), **options),
        alt,
        f"{caption} The first {MOST_PANELS} of {len(names)} outputs.",
    )


def _surfaces(estimator, rows: Rows | None) -> Iterator[Picture]:
    """What the model says over its inputs."""
    is_plane = (estimator.n_features_in_, estimator.n_outputs_) == (2, 2)
    if is_plane:
        yield from _fields(estimator, rows)
    if not (is_plane and getattr(estimator, "kernel_", None) in FIELDS):
        yield _bands(estimator, rows)


def _fields(estimator, rows: Rows | None) -> Iterator[Picture]:
    names, given = listed(output_names(estimator)), _given(rows)
    words = f"the field {names} over {listed(input_names(estimator))}"
    yield drawn(
        partial(plotting.plot_field, estimator, *given),
        f"Arrows of the predicted mean of {words}, shaded by its standard deviation, with the observations.",
        f"The mean of {words}. Arrows fade, and the background darkens, where the model is not sure.",
    )
    for scalar in SCALARS.get(getattr(estimator, "kernel_", None), ()):
        what = scalar.replace("_", " ")
        yield drawn(
            partial(plotting.plot_field, estimator, *given, shade=scalar),
            f"Arrows of the predicted mean of {words} over its {what}.",
            f"The same field over its {what}, up to a constant.",
        )


def _bands(estimator, rows: Rows | None) -> Picture:
    along = most_relevant(estimator, rows)
    where = input_names(estimator)[along]
    return panels(
        plotting.plot_prediction,
        estimator,
        _given(rows),
        f"Predicted mean and 90 % interval of {listed(output_names(estimator)[:MOST_PANELS])} along '{where}', with the observations as dots.",
        f"The line is the predicted mean, the band holds 90 % of new observations, dots are data. {_elsewhere(estimator, where)}".strip(),
        along=along,
    )


def fan_pictures(estimator, rows: Rows | None, found: Predicted | None) -> Iterator[Picture]:
    along = most_relevant(estimator, rows)
    where = input_names(estimator)[along]
    levels = {} if estimator.coupling == "infinite" else {"levels": estimator.function_.tasks.levels.tolist()}
    yield drawn(
        partial(plotting.plot_quantiles, estimator, *_given(rows), along=along, **levels),
        f"Quantile curves along '{where}' as a fan, with the observations as dots.",
        f"Quantiles of a new observation: the darker, the nearer to the median. {_elsewhere(estimator, where)}",
    )
    yield from unseen_pictures(estimator, found)
    yield from relevance_pictures(estimator)


def most_relevant(estimator, rows: Rows | None) -> int:
    """The input along which predictions change most; the first where there is one only."""
    if estimator.n_features_in_ == 1:
        return 0
    spread = 1.0 if rows is None or rows.Y is None else spreads(rows.Y)
    return int(changes(estimator, None if rows is None else rows.inputs, spread).argmax())


def _elsewhere(estimator, where: str) -> str:
    if estimator.n_features_in_ == 1:
        return ""
    return f"Along '{where}', where predictions change most; the other inputs stay at their medians."


def _given(rows: Rows | None) -> tuple:
    return (None, None) if rows is None else (rows.X, rows.Y)
