"""Plots of classifiers and level sets in a report; those of regressors are in `ovkgp.plotting`."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from sklearn.metrics import confusion_matrix

from ovkgp.estimators.common.validation import as_inputs
from ovkgp.plotting.axes import (
    BAND_COLOR,
    GUIDE_COLOR,
    INK_COLOR,
    LINE_COLOR,
    LINE_STYLES,
    MIDTONE_COLOR,
    format_label,
    get_line_style,
)
from ovkgp.plotting.report.evaluation_data import Rows
from ovkgp.plotting.slices import get_input_range

FIGURE_INCHES = (5.6, 4.4)
NUM_GRID_POINTS, MARGIN_FRACTION = 80, 0.08  # points along a side of a map, and its margin relative to the range
SET_LEVELS = (0.05, 0.25, 0.5, 0.75)  # fractions ν outside of the level sets that are drawn


def draw_roc(estimator, rows: Rows) -> Axes:
    """Draw the ROC curve over all costs of an `InfiniteCostSensitiveClassifier`."""
    curve, axes = estimator.roc_curve(rows.X, rows.Y), make_axes()
    axes.plot([0, 1], [0, 1], color=GUIDE_COLOR, linewidth=1, linestyle=":", label="chance")
    axes.plot(1 - curve.specificity, curve.sensitivity, color=LINE_COLOR, linewidth=2, label="all costs")
    for (color, _, marker), i in zip(LINE_STYLES[1:], _select_three(curve.cost), strict=False):
        style = {"color": color, "markersize": 8, "label": f"cost {curve.cost[i]:.2g}"}
        axes.plot(1 - curve.specificity[i], curve.sensitivity[i], marker, **style)
    ylabel = format_label(f"true positive rate (class {estimator.classes_[1]})")
    axes.set(xlabel="false positive rate", ylabel=ylabel, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.legend(loc="lower right", frameon=False)
    return axes


def draw_cost_map(estimator, rows: Rows) -> Axes:
    """Draw the decision boundaries of an `InfiniteCostSensitiveClassifier` with two inputs at three costs."""
    axes, inputs, grid = _start_map(estimator, rows)
    all_costs = estimator._curve_costs()
    costs = all_costs[_select_three(all_costs)]
    scores = estimator.decision_function(inputs, costs)
    for (color, dash, _), cost, score in zip(LINE_STYLES, costs, scores.T, strict=False):
        _draw_boundary(axes, grid, score, colors=[color], linestyles=[dash], linewidths=1.8)
        axes.plot([], [], color=color, linestyle=dash, label=f"cost {cost:.2g}")
    _draw_classes(axes, estimator, rows)
    return _add_legend(axes)


def draw_class_map(estimator, rows: Rows) -> Axes:
    """Draw decision boundaries and class probabilities of a `SimplexClassifier` with two inputs."""
    axes, inputs, grid = _start_map(estimator, rows)
    probabilities = estimator.predict_proba(inputs)
    largest = probabilities.max(1).reshape(grid[0].shape)
    filled = axes.contourf(*grid, largest, levels=np.linspace(0, 1, 11), cmap="Greys", alpha=0.5)
    axes.figure.colorbar(filled, ax=axes, label="probability of the predicted class")
    for k in range(len(estimator.classes_)):
        others = np.delete(probabilities, k, axis=1).max(1)
        _draw_boundary(axes, grid, probabilities[:, k] - others, colors=[INK_COLOR], linewidths=1)
    _draw_classes(axes, estimator, rows)
    return _add_legend(axes)


def draw_confusion(estimator, rows: Rows) -> Axes:
    """Draw the confusion matrix, in numbers of rows."""
    classes, axes = list(estimator.classes_), make_axes()
    counts = confusion_matrix(rows.Y, estimator.predict(rows.X), labels=classes)
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(counts.shape):
        color = "white" if fractions[i, j] > 0.6 else INK_COLOR
        axes.text(j, i, str(counts[i, j]), ha="center", va="center", color=color)
    names = [format_label(str(name), 12) for name in classes]
    axes.set_xticks(range(len(classes)), names)
    axes.set_yticks(range(len(classes)), names)
    axes.set(xlabel="predicted class", ylabel="observed class")
    return axes


def draw_level_sets(estimator, rows: Rows) -> Axes:
    """Draw level sets of an `InfiniteOneClassSVM` with two inputs over the rows."""
    axes, inputs, grid = _start_map(estimator, rows)
    scores = estimator.level_score(inputs).reshape(grid[0].shape)
    levels = [level for level in SET_LEVELS if level > estimator.min_nu]
    axes.contourf(*grid, scores, levels=[*levels, 1.01], cmap="Blues", alpha=0.6)
    lines = axes.contour(*grid, scores, levels=levels, colors=[LINE_COLOR], linewidths=1)
    axes.clabel(lines, fmt={level: f"{100 * level:g} %" for level in levels}, fontsize="small")
    axes.plot(*rows.inputs.T, "o", color=INK_COLOR, markersize=3, label="rows")
    return _add_legend(axes)


def draw_level_scores(estimator, rows: Rows) -> Axes:
    """Draw a histogram of the level scores of the rows, which is uniform if the levels are calibrated."""
    axes, scores = make_axes(), estimator.level_score(rows.X)
    counts, edges = np.histogram(scores, bins=10, range=(0, 1))
    style = {"align": "edge", "color": BAND_COLOR, "edgecolor": MIDTONE_COLOR, "label": "rows"}
    axes.bar(edges[:-1], counts / len(scores), width=0.1, **style)
    axes.axhline(0.1, color=INK_COLOR, linestyle="--", linewidth=1, label="uniform")
    axes.set(xlabel="level score (fraction of the data that is less typical)", ylabel="fraction of rows", xlim=(0, 1))
    axes.legend(frameon=False)
    return axes


def make_axes() -> Axes:
    """Make Axes in a new figure of the size of the report."""
    return plt.subplots(figsize=FIGURE_INCHES, layout="constrained")[1]


def _select_three(costs: np.ndarray) -> list[int]:
    """Return the indices of a low, a medium and a high cost."""
    last = len(costs) - 1
    return sorted({round(fraction * last) for fraction in (0.1, 0.5, 0.9)})


def _start_map(estimator, rows: Rows):
    """Return Axes with labels, the inputs (m, 2) of a grid over the rows, and the coordinates of that grid."""
    axes = make_axes()
    xlabel, ylabel = (format_label(name) for name in estimator.input_labels())
    axes.set(xlabel=xlabel, ylabel=ylabel)
    low, _, high = get_input_range(estimator, rows.inputs)
    margin = MARGIN_FRACTION * (high - low)
    (left, bottom), (right, top) = low - margin, high + margin
    grid = np.meshgrid(np.linspace(left, right, NUM_GRID_POINTS), np.linspace(bottom, top, NUM_GRID_POINTS))
    return axes, as_inputs(estimator, np.column_stack([part.ravel() for part in grid])), grid


def _draw_boundary(axes: Axes, grid, values: np.ndarray, **style) -> None:
    """Draw the zero contour of values, if they change their sign."""
    if values.min() < 0 < values.max():
        axes.contour(*grid, values.reshape(grid[0].shape), levels=[0.0], **style)


def _draw_classes(axes: Axes, estimator, rows: Rows) -> None:
    for k, name in enumerate(estimator.classes_):
        points, style = rows.inputs[name == rows.Y], get_line_style(k) | {"linestyle": ""}
        axes.plot(*points.T, **style, markersize=4, alpha=0.8, label=format_label(f"class {name}"))


def _add_legend(axes: Axes) -> Axes:
    axes.figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return axes
