"""The pictures of the fit, chosen by the kind of estimator, and the traces of its hyperparameters."""

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
from ovkgp.criticism.predictive_distributions import as_inputs
from ovkgp.estimators.common.named_kernels import FIELDS
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.axes import BAND, GUIDE, INK, LINE, LINES, MIDDLE, input_names, label, line_style, output_names
from ovkgp.plotting.relevance import relevances
from ovkgp.plotting.report import figures as class_pictures
from ovkgp.plotting.report.descriptions import structure_of
from ovkgp.plotting.report.evaluation_data import HeldOutPredictions, Rows, class_name, kind_of, spreads
from ovkgp.plotting.report.fit_warnings import changes
from ovkgp.plotting.report.numbers import listed
from ovkgp.plotting.report.sections import ReportFigure
from ovkgp.plotting.slices import input_range

DOTS, SHOWN = 110, 80
"""Dots an inch in the file, and CSS pixels an inch on the page: sharp, and still small."""
COLOURS = 256


def picture_of(figure: Figure, alt: str, caption: str) -> ReportFigure:
    """A figure as a picture; it stays open.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from ovkgp.plotting.report.figures import picture_of
        >>> picture_of(Figure(figsize=(4, 3)), "nothing", "An empty figure.").source[:30]
        'data:image/png;base64,iVBORw0K'
    """
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=DOTS, facecolor="white", pil_kwargs={"compress_level": 1})
    # 256 colours are enough for lines and shades, and a third of the size
    Image.open(full).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"
    width, height = (round(inches * SHOWN) for inches in figure.get_size_inches())
    return ReportFigure(source, alt, caption, width, height)


def drawn(plot: Callable, alt: str, caption: str) -> ReportFigure:
    """The picture of what `plot()` draws, an Axes or an array of them on a figure of its own, which is closed.

    Where drawing fails or is interrupted, what it has opened is closed too.
    """
    before = set(plt.get_fignums())
    try:
        return picture_of(np.ravel(plot())[0].figure, alt, caption)
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def extra_pictures(pairs: Iterable) -> tuple[ReportFigure, ...]:
    """Pictures of the pairs (caption, Figure) that a user adds.

    Raises:
        InputError: an entry is no such pair.
    """
    found = []
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], Figure)):
            raise InputError(f"extra_figures holds pairs (caption, matplotlib Figure), got {type(pair).__name__}.")
        found.append(picture_of(pair[1], str(pair[0]), str(pair[0])))
    return tuple(found)


SIZE = (5.6, 4.4)
"""Inches."""
POINTS, MARGIN = 80, 0.08
"""Of a map: points along a side, and how far it goes beyond the rows, as a part of their range."""
LEVELS = (0.05, 0.25, 0.5, 0.75)
"""Shares ν outside of the level sets that are drawn."""


def draw_roc(estimator, rows: Rows) -> Axes:
    """Found positives against false alarms at every cost of an `InfiniteCostSensitiveClassifier`."""
    curve, axes = estimator.roc_curve(rows.X, rows.Y), _axes()
    axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle=":", label="guessing")
    axes.plot(1 - curve.specificity, curve.sensitivity, color=LINE, linewidth=2, label="all costs")
    shown = _three(curve.cost)
    for (colour, _, marker), i in zip(LINES[1:], shown, strict=False):
        axes.plot(
            1 - curve.specificity[i],
            curve.sensitivity[i],
            marker,
            color=colour,
            markersize=8,
            label=f"cost {curve.cost[i]:.2g}",
        )
    name = estimator.classes_[1]
    axes.set(xlabel="false alarms", ylabel=label(f"found among class {name}"), xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.legend(loc="lower right", frameon=False)
    return axes


def draw_cost_map(estimator, rows: Rows) -> Axes:
    """Where an `InfiniteCostSensitiveClassifier` with two inputs changes its mind, at three costs."""
    axes = _axes()
    points, shape, axis = _map(estimator, rows)
    every = estimator._curve_costs()
    costs = every[_three(every)]
    scores = estimator.decision_function(as_inputs(estimator, points), costs)
    for (colour, dash, _), cost, score in zip(LINES, costs, scores.T, strict=False):
        _draw_border(axes, axis, score.reshape(shape), colors=[colour], linestyles=[dash], linewidths=1.8)
        axes.plot([], [], color=colour, linestyle=dash, label=f"cost {cost:.2g}")
    _draw_classes(axes, estimator, rows)
    return _finished(axes, estimator)


def draw_class_map(estimator, rows: Rows) -> Axes:
    """How sure a `SimplexClassifier` with two inputs is of its answer, and where that changes."""
    axes = _axes()
    points, shape, axis = _map(estimator, rows)
    shares = estimator.predict_proba(as_inputs(estimator, points))
    drawn = axes.contourf(*axis, shares.max(1).reshape(shape), levels=np.linspace(0, 1, 11), cmap="Greys", alpha=0.5)
    axes.figure.colorbar(drawn, ax=axes, label="probability of the class")
    for k in range(len(estimator.classes_)):
        others = np.delete(shares, k, axis=1).max(1)
        _draw_border(axes, axis, (shares[:, k] - others).reshape(shape), colors=[INK], linewidths=1)
    _draw_classes(axes, estimator, rows)
    return _finished(axes, estimator)


def draw_confusion(estimator, rows: Rows) -> Axes:
    """How often each class was taken for each, in numbers of rows."""
    classes, axes = list(estimator.classes_), _axes()
    places = {name: k for k, name in enumerate(classes)}
    table = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(table, ([places[y] for y in rows.Y], [places[y] for y in estimator.predict(rows.X)]), 1)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(table.shape):
        axes.text(j, i, str(table[i, j]), ha="center", va="center", color="white" if shares[i, j] > 0.6 else INK)
    names = [label(str(name), 12) for name in classes]
    axes.set_xticks(range(len(classes)), names)
    axes.set_yticks(range(len(classes)), names)
    axes.set(xlabel="predicted class", ylabel="observed class")
    return axes


def draw_level_sets(estimator, rows: Rows) -> Axes:
    """The sets of some levels of an `InfiniteOneClassSVM` with two inputs, over the rows."""
    axes = _axes()
    points, shape, axis = _map(estimator, rows)
    scores = estimator.level_score(as_inputs(estimator, points)).reshape(shape)
    levels = [level for level in LEVELS if level > estimator.lowest]
    axes.contourf(*axis, scores, levels=[*levels, 1.01], cmap="Blues", alpha=0.6)
    lines = axes.contour(*axis, scores, levels=levels, colors=[LINE], linewidths=1)
    axes.clabel(lines, fmt={level: f"{100 * level:g} %" for level in levels}, fontsize="small")
    axes.plot(*rows.inputs.T, "o", color=INK, markersize=3, label="rows")
    return _finished(axes, estimator)


def draw_level_scores(estimator, rows: Rows) -> Axes:
    """How the level scores of the rows are spread: evenly, where the levels mean what they say."""
    axes, scores = _axes(), estimator.level_score(rows.X)
    counts, edges = np.histogram(scores, bins=10, range=(0, 1))
    axes.bar(edges[:-1], counts / len(scores), width=0.1, align="edge", color=BAND, edgecolor=MIDDLE, label="rows")
    axes.axhline(0.1, color=INK, linestyle="--", linewidth=1, label="evenly spread")
    axes.set(xlabel="level score (share of the data that is less usual)", ylabel="share of rows", xlim=(0, 1))
    axes.legend(frameon=False)
    return axes


def draw_observed(estimator, rows: Rows) -> Axes:
    """Observed against predicted entries, of all outputs and tasks."""
    axes, predicted = _axes(), np.reshape(estimator.predict(rows.X), rows.Y.shape)
    observed = np.isfinite(rows.Y)
    ends = [np.min([rows.Y[observed].min(), predicted.min()]), np.max([rows.Y[observed].max(), predicted.max()])]
    axes.plot(ends, ends, color=GUIDE, linewidth=1)
    axes.plot(predicted[observed], rows.Y[observed], ".", color=LINE, markersize=2, alpha=0.3, rasterized=True)
    axes.set(xlabel="predicted", ylabel="observed")
    return axes


def _axes() -> Axes:
    return plt.subplots(figsize=SIZE, layout="constrained")[1]


def _three(costs: np.ndarray) -> list[int]:
    """The places of a low, a middle and a high cost."""
    last = len(costs) - 1
    return sorted({round(part * last) for part in (0.1, 0.5, 0.9)})


def _map(estimator, rows: Rows):
    """Points (m, 2) over the rows, the shape of their grid, and its two axes."""
    low, _, high = input_range(estimator, rows.inputs)
    reach = MARGIN * (high - low)
    (left, bottom), (right, top) = low - reach, high + reach
    axis = np.meshgrid(np.linspace(left, right, POINTS), np.linspace(bottom, top, POINTS))
    return np.column_stack([part.ravel() for part in axis]), axis[0].shape, axis


def _draw_border(axes: Axes, axis, values: np.ndarray, **style) -> None:
    """Where values change their sign, if they do."""
    if values.min() < 0 < values.max():
        axes.contour(*axis, values, levels=[0.0], **style)


def _draw_classes(axes: Axes, estimator, rows: Rows) -> None:
    for k, name in enumerate(estimator.classes_):
        mine, style = rows.inputs[name == rows.Y], line_style(k) | {"linestyle": ""}
        axes.plot(*mine.T, **style, markersize=4, alpha=0.8, label=label(f"class {name}"))


def _finished(axes: Axes, estimator) -> Axes:
    x, y = (label(name) for name in input_names(estimator))
    axes.set(xlabel=x, ylabel=y)
    axes.figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return axes


MAX_PANELS = 9
"""Outputs that are drawn."""
SCALARS = {
    "curl_free": ("potential",),
    "divergence_free": ("stream_function",),
    "helmholtz": ("potential", "stream_function"),
}
"""What lies behind the fields."""
APART = ("independent", "identity", "single", *FIELDS)
"""Structures whose outputs have nothing to do with each other at one point."""


def table_pictures(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
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


def observed_picture(estimator, rows: Rows) -> ReportFigure:
    """Observed against predicted entries of rows, of an estimator that has only means."""
    where = "given" if rows.is_given else "of the fit"
    return drawn(
        partial(draw_observed, estimator, rows),
        f"Observed against predicted entries of the rows {where}, with the line on which they agree.",
        f"Every observed entry of the rows {where} against its prediction.",
    )


def unseen_pictures(estimator, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
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


def relevance_pictures(estimator) -> Iterator[ReportFigure]:
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


def panels(plot, estimator, rows: tuple, alt: str, caption: str, **options) -> ReportFigure:
    """A picture with a panel for each output, or for the first nine."""
    names = output_names(estimator)
    if len(names) <= MAX_PANELS:
        return drawn(partial(plot, estimator, *rows, **options), alt, caption)
    return drawn(
        partial(plot, estimator, *rows, output=range(MAX_PANELS), **options),
        alt,
        f"{caption} The first {MAX_PANELS} of {len(names)} outputs.",
    )


def _surfaces(estimator, rows: Rows | None) -> Iterator[ReportFigure]:
    """What the model says over its inputs."""
    is_plane = (estimator.n_features_in_, estimator.n_outputs_) == (2, 2)
    if is_plane:
        yield from _fields(estimator, rows)
    if not (is_plane and getattr(estimator, "kernel_", None) in FIELDS):
        yield _bands(estimator, rows)


def _fields(estimator, rows: Rows | None) -> Iterator[ReportFigure]:
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


def _bands(estimator, rows: Rows | None) -> ReportFigure:
    along = most_relevant(estimator, rows)
    where = input_names(estimator)[along]
    return panels(
        plotting.plot_prediction,
        estimator,
        _given(rows),
        f"Predicted mean and 90 % interval of {listed(output_names(estimator)[:MAX_PANELS])} along '{where}', with the observations as dots.",
        f"The line is the predicted mean, the band holds 90 % of new observations, dots are data. {_elsewhere(estimator, where)}".strip(),
        along=along,
    )


def fan_pictures(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
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


NO_PICTURE = (
    "Nobody says where the inputs lie, as the model keeps no rows: give X and Y (or --data) for pictures of the fit."
)


def fit_pictures(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> tuple[ReportFigure, ...]:
    """All pictures of the fit.

    Args:
        estimator: fitted.
        rows: those given or kept.
        found: predictions of unseen entries, where there are some.

    Cost: predictions on grids of a few thousand points, and what `found` cost once more.
    """
    return tuple(_BY_KIND[kind_of(estimator)](estimator, rows, found)) if knows_inputs(estimator, rows) else ()


def trace_pictures(estimator) -> tuple[ReportFigure, ...]:
    """Traces of the hyperparameters, where chains drew them."""
    if not hasattr(estimator, "draws_") or estimator.draws_["posterior"].attrs["method"] != "nuts":
        return ()
    plot = partial(plotting.plot_traces, estimator)
    alt = "Traces of the draws of each hyperparameter, one line a chain, beside their densities."
    return (
        drawn(plot, alt, "Chains that have mixed look like one band of noise, and their densities lie on each other."),
    )


def knows_inputs(estimator, rows: Rows | None) -> bool:
    """Whether anybody says where the inputs lie: rows, or the scaling of a model that has forgotten them."""
    scaling = getattr(estimator, "scaling_", None)
    return rows is not None or (
        scaling is not None and bool(scaling.input_offset.any() or (scaling.input_scale != 1).any())
    )


def _labels(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
    if rows is None:
        return
    is_cost, is_plane = class_name(estimator) == "InfiniteCostSensitiveClassifier", estimator.n_features_in_ == 2
    where = "the rows given" if rows.is_given else "the rows of the fit, on which it looks better than on others"
    if is_plane:
        draw = class_pictures.draw_cost_map if is_cost else class_pictures.draw_class_map
        words = (
            "at a low, a middle and a high cost of missing the second class"
            if is_cost
            else "with the probability of the class"
        )
        yield drawn(
            partial(draw, estimator, rows),
            f"A map of the borders between the classes {words}.",
            f"Borders between the classes, {words}.",
        )
    if is_cost and len(np.unique(rows.Y)) == 2:
        yield drawn(
            partial(class_pictures.draw_roc, estimator, rows),
            "The share of the second class that is found against the share of false alarms, at every cost.",
            f"Every point of the curve is a cost: the dearer a miss, the further to the upper right. On {where}.",
        )
    if not is_cost:
        yield drawn(
            partial(class_pictures.draw_confusion, estimator, rows),
            "A table of observed against predicted classes, in rows.",
            f"Observed against predicted classes, in numbers of rows. On {where}.",
        )


def _points(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
    if estimator.n_features_in_ == 2:
        yield drawn(
            partial(class_pictures.draw_level_sets, estimator, rows),
            "Nested level sets over the rows, each marked with the share of the data outside.",
            "Each line leaves the share outside that is written on it.",
        )
    yield drawn(
        partial(class_pictures.draw_level_scores, estimator, rows),
        "A histogram of the level scores of the rows, with the line of an even spread.",
        "Level scores of the rows: where they are p-values, a share ν of fresh rows has a score below ν, and the bars are level.",
    )


def _tasks(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Iterator[ReportFigure]:
    if rows is not None:
        yield observed_picture(estimator, rows)


_BY_KIND = {"table": table_pictures, "target": fan_pictures, "labels": _labels, "none": _points, "tasks": _tasks}
