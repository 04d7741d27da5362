"""Figures of a report: choice of the plots by type of estimator, and their encoding as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ovkgp import plotting
from ovkgp.checks import check_type, wrong_type
from ovkgp.criticism.results import Criticism
from ovkgp.estimators.common.formatting import quote_names
from ovkgp.estimators.common.named_kernels import FIELDS
from ovkgp.exceptions import OptionError
from ovkgp.plotting.axes import GUIDE_COLOR, LINE_COLOR
from ovkgp.plotting.fields import BACKGROUND_LABELS, FIELD_SCALARS
from ovkgp.plotting.relevance import compute_relevance
from ovkgp.plotting.report import class_figures
from ovkgp.plotting.report.evaluation_data import HeldOutPredictions, Rows, column_stds, describe_hold_out
from ovkgp.plotting.report.fit_warnings import compute_input_sensitivity
from ovkgp.plotting.report.sections import ReportFigure
from ovkgp.plotting.slices import PROBABILITY_KINDS, get_output_kinds

FILE_DPI, PAGE_DPI = 110, 80  # pixels per inch of the file, and CSS pixels per inch on the page
NUM_COLORS = 256
MAX_PANELS = 9  # maximum number of outputs in a figure
UNCORRELATED_STRUCTURES = ("independent", "identity", "single", *FIELDS)  # outputs are uncorrelated at one point
NO_FIGURE_NOTE = "The range of the inputs is unknown because the model stores no training rows. Give X and Y (or --data) for figures of the fit."

ReportFigures = Iterator[ReportFigure]


def encode_figure(figure: Figure, alt: str, caption: str) -> ReportFigure:
    """Encode a figure as a PNG data URI; the figure stays open."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=FILE_DPI, facecolor="white", pil_kwargs={"compress_level": 1})
    # 256 colors suffice for lines and shades, at a third of the size
    Image.open(full).convert("RGB").quantize(NUM_COLORS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"
    width, height = (round(inches * PAGE_DPI) for inches in figure.get_size_inches())
    return ReportFigure(source, alt, caption, width, height)


def render_plot(plot: Callable, alt: str, caption: str) -> ReportFigure:
    """Encode the figure of the Axes that `plot()` returns, and close all figures that it opened, even on errors."""
    before = set(plt.get_fignums())
    try:
        return encode_figure(np.ravel(plot())[0].figure, alt, caption)
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def render_panels(plot, estimator, rows: tuple, alt: str, caption: str, **options) -> ReportFigure:
    """Render a plot with one panel per output, of at most nine outputs."""
    num_outputs = len(estimator.output_labels())
    if num_outputs > MAX_PANELS:
        options["output"] = range(MAX_PANELS)
        caption = f"{caption} The first {MAX_PANELS} of {num_outputs} outputs."
    return render_plot(partial(plot, estimator, *rows, **options), alt, caption)


def encode_extra_figures(pairs: Iterable) -> tuple[ReportFigure, ...]:
    """Encode the pairs (caption, Figure) that a user adds."""
    found = []
    for pair in pairs:
        try:
            caption, figure = pair
        except (TypeError, ValueError) as error:
            raise wrong_type("extra_figures", "pairs (caption, matplotlib Figure)", pair) from error
        check_type("extra_figures must hold pairs (caption, Figure); the figure", figure, Figure, "a matplotlib Figure")
        found.append(encode_figure(figure, str(caption), str(caption)))
    return tuple(found)


def make_criticism_figures(table: Criticism, names: list[str]) -> tuple[ReportFigure, ...]:
    """Make the p-values of the tests and the normal quantiles of the residuals."""
    if not any(check.adjusted is not None for check in table):
        return ()
    return (
        render_plot(
            partial(plotting.plot_criticism, table),
            "Adjusted p-values of all tests of the model.",
            "p-values of all tests, corrected for their number. Tests left of the dashed line reject the model.",
        ),
        render_plot(
            partial(plotting.plot_gaussianity, table, names=names),
            "Normal quantile plots of the residuals of each output.",
            "Quantiles of the residuals, which are standard normal if the model is right.",
        ),
    )


def make_trace_figures(estimator) -> tuple[ReportFigure, ...]:
    """Make the traces of hyperparameters that were sampled by NUTS."""
    draws = estimator.hyperparameter_draws
    if draws is None or draws["posterior"].attrs["method"] != "nuts":
        return ()
    alt = "Traces of the draws of each hyperparameter, one line per chain, beside their densities."
    caption = "If the chains have mixed, their traces look like noise around one level and their densities agree."
    return (render_plot(partial(plotting.plot_traces, estimator), alt, caption),)


def make_fit_figures(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> tuple[ReportFigure, ...]:
    """Make all figures of the fit; none if the range of the inputs is unknown."""
    if rows is None and estimator.input_range() is None:
        return ()
    make_figures = _BY_KIND.get(estimator.kind, make_regression_figures)
    return tuple(make_figures(estimator, rows, held_out))


def make_regression_figures(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> ReportFigures:
    """Make the figures of a regressor, of a table of outputs, of vectors at tasks, or of the quantiles of a target."""
    structure = estimator.describe().structure
    if estimator.kind == "target":
        yield _make_quantile_figure(estimator, rows)
    elif estimator.has_posterior:
        is_planar = (estimator.n_features_in_, estimator.n_outputs_) == (2, 2)
        if is_planar:
            yield from _make_field_figures(estimator, rows, FIELD_SCALARS.get(structure, ()))
        if not (is_planar and structure in FIELDS):
            yield _make_prediction_figure(estimator, rows)
    elif rows is not None:
        yield _make_observed_figure(estimator, rows)
    yield from _make_held_out_figures(estimator, held_out)
    if structure not in UNCORRELATED_STRUCTURES and estimator.has_posterior:
        yield render_plot(
            partial(plotting.plot_output_correlations, estimator),
            "A heat map of the correlations between the outputs.",
            "Correlations of the latent outputs at one point under the kernel.",
        )
    yield from _make_relevance_figures(estimator)


def _make_field_figures(estimator, rows: Rows | None, scalars: tuple[str, ...]) -> ReportFigures:
    data = _get_plot_data(rows)
    field = f"the field {quote_names(estimator.output_labels())} over {quote_names(estimator.input_labels())}"
    yield render_plot(
        partial(plotting.plot_field, estimator, *data),
        f"Arrows of the predicted mean of {field}, with its standard deviation as background, and the observations.",
        f"Predicted mean of {field}. Arrows fade and the background darkens as the standard deviation grows.",
    )
    for scalar in scalars:
        name = BACKGROUND_LABELS[scalar]
        yield render_plot(
            partial(plotting.plot_field, estimator, *data, background=scalar),
            f"Arrows of the predicted mean of {field} over its {name}.",
            f"The same field over its {name}, up to a constant.",
        )


def _make_prediction_figure(estimator, rows: Rows | None) -> ReportFigure:
    along = find_most_relevant_input(estimator, rows)
    name, outputs = estimator.input_labels()[along], quote_names(estimator.output_labels()[:MAX_PANELS])
    caption = f"Predicted mean (line), 90 % interval of new observations (band) and {_describe_dots(estimator)} (dots)."
    return render_panels(
        plotting.plot_prediction,
        estimator,
        _get_plot_data(rows),
        f"Predicted mean and 90 % interval of {outputs} along '{name}', with the observations as dots.",
        f"{caption} {_describe_slice(estimator, name)}".strip(),
        along=along,
    )


def _make_quantile_figure(estimator, rows: Rows | None) -> ReportFigure:
    along = find_most_relevant_input(estimator, rows)
    name = estimator.input_labels()[along]
    levels = {} if estimator.learned_levels is None else {"levels": estimator.learned_levels}
    return render_plot(
        partial(plotting.plot_quantiles, estimator, *_get_plot_data(rows), along=along, **levels),
        f"Quantile curves along '{name}' as a fan chart, with the observations as dots.",
        f"Quantiles of a new observation, darker towards the median, and {_describe_dots(estimator)} (dots). {_describe_slice(estimator, name)}".strip(),
    )


def _make_observed_figure(estimator, rows: Rows) -> ReportFigure:
    """Make the figure of an estimator that predicts only means."""
    name = "the given rows" if rows.is_given else "the training rows"
    return render_plot(
        partial(draw_observed, estimator, rows),
        f"Observed against predicted entries of {name}, with the line of equality.",
        f"Observed entries of {name} against their predictions.",
    )


def draw_observed(estimator, rows: Rows) -> Axes:
    """Draw observed against predicted entries of all outputs and tasks."""
    axes, predicted = class_figures.make_axes(), np.reshape(estimator.predict(rows.X), rows.Y.shape)
    observed = np.isfinite(rows.Y)
    ends = [np.min([rows.Y[observed].min(), predicted.min()]), np.max([rows.Y[observed].max(), predicted.max()])]
    axes.plot(ends, ends, color=GUIDE_COLOR, linewidth=1)
    axes.plot(predicted[observed], rows.Y[observed], ".", color=LINE_COLOR, markersize=2, alpha=0.3, rasterized=True)
    axes.set(xlabel="predicted", ylabel="observed")
    return axes


def _make_held_out_figures(estimator, held_out: HeldOutPredictions | None) -> ReportFigures:
    """Make the figure of leave-one-out predictions, or of the residuals of given rows."""
    if held_out is None:
        return
    if held_out.is_leave_one_out:
        plot = plotting.plot_leave_one_out
        alt = "Observations against their leave-one-out predictions, with 90 % intervals."
        caption = f"Observed entries against their leave-one-out predictions ({describe_hold_out(held_out)}). Squares lie outside of their 90 % interval."
    else:
        plot = plotting.plot_residuals
        alt = f"Standardized residuals of {held_out.rows_name} against their predictions."
        caption = f"Residuals of {held_out.rows_name}, in standard deviations of the prediction. Those of a calibrated model scatter around zero without a pattern."
    yield render_panels(plot, estimator, held_out.rows, alt, caption, groups=held_out.groups)


def _make_relevance_figures(estimator) -> ReportFigures:
    """Make the figure of the relevance of the inputs, if the kernel has one lengthscale per input."""
    if estimator.n_features_in_ < 2:
        return
    try:
        compute_relevance(estimator)
    except OptionError:  # one lengthscale for all inputs, or unknown standard deviations
        return
    yield render_plot(
        partial(plotting.plot_relevance, estimator),
        "The relevance of each input, its standard deviation divided by its lengthscale.",
        "Relevance of the inputs: the larger, the faster the outputs change along that input.",
    )


def find_most_relevant_input(estimator, rows: Rows | None) -> int:
    """Find the input along which predictions change most."""
    if estimator.n_features_in_ == 1:
        return 0
    scale = 1.0 if rows is None or rows.Y is None else column_stds(rows.Y)
    return int(compute_input_sensitivity(estimator, None if rows is None else rows.inputs, scale).argmax())


def _describe_slice(estimator, name: str) -> str:
    if estimator.n_features_in_ == 1:
        return ""
    return f"Along '{name}', where predictions change most; the other inputs are at their medians."


def _describe_dots(estimator) -> str:
    """Describe the dots over a slice: observations, or partial residuals if other inputs vary."""
    if estimator.n_features_in_ == 1:
        return "data"
    kinds = ["real"] if estimator.kind == "target" else get_output_kinds(estimator, estimator.n_outputs_)
    is_class = [kind in PROBABILITY_KINDS for kind in kinds]
    near = "the data nearest to the slice"
    if all(is_class):
        return near
    residuals = "partial residuals: observation − prediction at its inputs + prediction on the slice"
    return f"{residuals}; for labels, {near}" if any(is_class) else residuals


def _get_plot_data(rows: Rows | None) -> tuple:
    return (None, None) if rows is None else rows.data


def _make_classifier_figures(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> ReportFigures:
    if rows is None:
        return
    where = "the given rows" if rows.is_given else "the training rows, which is too optimistic"
    if estimator.n_features_in_ == 2:
        draw = class_figures.draw_cost_map if estimator.has_costs else class_figures.draw_class_map
        detail = "at a low, a medium and a high cost of missing the second class"
        detail = detail if estimator.has_costs else "with the probability of the predicted class"
        yield render_plot(
            partial(draw, estimator, rows),
            f"A map of the decision boundaries {detail}.",
            f"Decision boundaries, {detail}.",
        )
    if estimator.has_costs and len(np.unique(rows.Y)) == 2:
        yield render_plot(
            partial(class_figures.draw_roc, estimator, rows),
            "True positive rate against false positive rate, for all costs.",
            f"ROC curve on {where}. Each point is a cost: the higher the cost of a miss, the further to the upper right.",
        )
    if not estimator.has_costs:
        yield render_plot(
            partial(class_figures.draw_confusion, estimator, rows),
            "A table of observed against predicted classes, in numbers of rows.",
            f"Confusion matrix on {where}, in numbers of rows.",
        )


def _make_level_set_figures(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> ReportFigures:
    if estimator.n_features_in_ == 2:
        yield render_plot(
            partial(class_figures.draw_level_sets, estimator, rows),
            "Nested level sets over the rows, each labeled with the fraction of the data outside.",
            "Level sets, labeled with the fraction of the data outside.",
        )
    yield render_plot(
        partial(class_figures.draw_level_scores, estimator, rows),
        "A histogram of the level scores of the rows, with the line of the uniform distribution.",
        "Level scores of the rows. Calibrated scores are p-values: a fraction ν of new rows has a score below ν, and the bars have equal height.",
    )


_BY_KIND = {"labels": _make_classifier_figures, "none": _make_level_set_figures}  # all others are regressors
