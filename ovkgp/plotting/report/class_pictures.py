"""Pictures of estimators whose answer is no number: classes, the price of mistakes, and level sets.

In the plane they are maps over the rows; in other dimensions what can be counted: rates and shares.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from ovkgp.criticism.rows import as_inputs
from ovkgp.plotting.cuts import input_range
from ovkgp.plotting.names import input_names, label
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.style import BAND, GUIDE, INK, LINE, LINES, MIDDLE, line_style

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
    seen = np.isfinite(rows.Y)
    ends = [np.min([rows.Y[seen].min(), predicted.min()]), np.max([rows.Y[seen].max(), predicted.max()])]
    axes.plot(ends, ends, color=GUIDE, linewidth=1)
    axes.plot(predicted[seen], rows.Y[seen], ".", color=LINE, markersize=2, alpha=0.3, rasterized=True)
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
