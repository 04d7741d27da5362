"""Figures of a report on curves: examples with bands, residuals and coverage along the domain, basis, outliers, weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ovkgp.plotting.axes import (
    ACCENT_COLOR,
    BAND_COLOR,
    GUIDE_COLOR,
    INK_COLOR,
    LINE_COLOR,
    MIDTONE_COLOR,
    PANEL_INCHES,
    Panels,
    add_colorbar,
    format_label,
)
from ovkgp.plotting.curves import add_opaque_legend, draw_functions
from ovkgp.plotting.report.curve_data import LEVELS, CurveEntries, CurveRows, plot_points
from ovkgp.plotting.report.figures import render_plot
from ovkgp.plotting.report.sections import ReportFigure

BAND_LEVEL = 0.9
NUM_EXAMPLES = 6  # number of panels of example curves
NUM_SURFACES = 2  # number of example functions on a plane
MAX_FUNCTIONS, MAX_COMPONENTS = 12, 4  # basis functions and principal components of a figure
MAX_BINS = 60  # bins of the domain of residuals and coverage
OUTLIER_SCORE = 0.5  # curves with a larger score are highlighted
MIN_LISTED_WEIGHT = 0.005

Figures = Iterator[ReportFigure]


def make_curve_figures(estimator, rows: CurveRows | None, entries: CurveEntries | None) -> Figures:
    """Make all figures of the fit of an estimator of curves."""
    is_planar = len(estimator.domain_) == 2
    if rows is not None and entries is not None:
        yield _make_example_figure(estimator, rows, entries)
        if len(estimator.domain_) <= 2:
            yield _make_residual_figure(rows, entries, is_planar)
    if (basis := estimator.basis_functions()) is not None and basis.points.shape[1] <= 2:
        count, limit = basis.values.shape[1], MAX_COMPONENTS if "component" in basis.name else MAX_FUNCTIONS
        first = f"The first {limit} of {count}" if count > limit else f"The {count}"
        yield render_plot(
            partial(draw_functions, basis.points, basis.values[:, :limit]),
            f"The {basis.name} against the domain.",
            f"{first} {basis.name} in which curves are expanded.",
        )
    if len(weights := estimator.model_weights()) > 1:
        yield render_plot(
            partial(_draw_weights, weights),
            "Bars of the weights of the models in the mixture.",
            "Weights of the models in the mixture, by the density of held-out curves.",
        )
    if (scores := estimator.outlier_scores()) is not None and (stored := estimator.training_curves()) is not None:
        yield _make_outlier_figure(stored[1], scores)


def _make_example_figure(estimator, rows: CurveRows, entries: CurveEntries) -> ReportFigure:
    chosen = _choose_examples(
        entries, NUM_EXAMPLES if rows.data.num_dims == 1 else NUM_SURFACES, rows.data.num_channels
    )
    which = "given curves" if rows.is_given else "curves of the fit"
    order = (
        f"{len(chosen)} {which}, from the smallest to the largest residuals" if len(chosen) > 1 else f"A {which[:-1]}"
    )
    if rows.data.num_dims == 1:
        bands = f" with pointwise and simultaneous {BAND_LEVEL:.0%} bands".replace("%", " %") * estimator.has_predictive
        bands += " of new curves at the same inputs" * estimator.has_predictive
        return render_plot(
            partial(_draw_examples, estimator, rows, chosen),
            f"Panels of {which} with the predicted curve{bands}.",
            f"{order}: observations (dots) and predicted curve (line){bands}.",
        )
    return render_plot(
        partial(_draw_surfaces, estimator, rows, chosen),
        f"Maps of {which}: observed values, predicted values and their standard deviation.",
        f"{order}: observed values, prediction{' and its standard deviation' * estimator.has_predictive}.",
    )


def _choose_examples(entries: CurveEntries, count: int, num_channels: int) -> np.ndarray:
    """Return the indices of curves at equidistant ranks of the mean squared residual."""
    count = max(count // num_channels, 1)
    curves = np.unique(entries.curve)
    sums, counts = (np.bincount(entries.curve, weights=w) for w in (entries.residual**2, np.ones(len(entries.y))))
    order = curves[np.argsort((sums[curves] / counts[curves]), kind="stable")]
    return order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))]


def _draw_examples(estimator, rows: CurveRows, chosen: np.ndarray) -> np.ndarray:
    some, points, q = rows.select(chosen), plot_points(estimator)[:, 0], rows.data.num_channels
    shape = (len(chosen), len(points), q)
    mean = estimator.predict(some.X, grid=points).reshape(shape)
    bands = []
    if estimator.has_predictive:
        for name, color, options in (
            ("simultaneous", BAND_COLOR, {"simultaneous": True}),
            ("pointwise", MIDTONE_COLOR, {"simultaneous": False}),
        ):
            ends = estimator.predict_interval(some.X, BAND_LEVEL, grid=points, **options)
            bands.append((name, color, *(end.reshape(shape) for end in ends)))
    panels = Panels.create(None, len(chosen) * q, columns=min(2, len(chosen) * q), size=PANEL_INCHES)
    for i, (at, values) in enumerate(some.data.curves()):
        for c in range(q):
            axes = panels.axes[i * q + c]
            for name, color, lower, upper in bands:
                label = f"{name} {100 * BAND_LEVEL:g} % band"
                axes.fill_between(points, lower[i, :, c], upper[i, :, c], color=color, linewidth=0, label=label)
            axes.plot(points, mean[i, :, c], color=LINE_COLOR, linewidth=1.6, label="prediction")
            axes.plot(at[:, 0], values[:, c], ".", color=INK_COLOR, markersize=3.5, label="observations")
            channel = "" if q == 1 else f", {_channel_name(rows, c)}"
            axes.set(xlabel="t", title=f"row {chosen[i]}{channel}")
            axes.margins(x=0.01)
    panels.legend()
    return panels.result


def _channel_name(rows: CurveRows, c: int) -> str:
    names = rows.data.channel_names
    return f"channel {c}" if names is None else format_label(names[c])


def _draw_surfaces(estimator, rows: CurveRows, chosen: np.ndarray) -> np.ndarray:
    some, names = rows.select(chosen), ["observed", "predicted"] + ["standard deviation"] * estimator.has_predictive
    panels = Panels.create(None, len(chosen) * len(names), columns=len(names), size=(3.6, 3.0))
    for i, (at, values) in enumerate(some.data.curves()):
        found = estimator.predict(some.select(np.array([i])).X, grid=at, return_std=estimator.has_predictive)
        found = [np.reshape(one, (len(at), -1))[:, 0] for one in (found if estimator.has_predictive else [found])]
        limits = {"vmin": min(values[:, 0].min(), found[0].min()), "vmax": max(values[:, 0].max(), found[0].max())}
        for j, (name, column) in enumerate(zip(names, [values[:, 0], *found], strict=True)):
            axes = panels.axes[i * len(names) + j]
            options = limits if j < 2 else {"vmin": 0.0, "cmap": "Blues"}
            image = _draw_map(axes, at, column, **options)
            add_colorbar(axes, image, "")
            axes.set(title=f"row {chosen[i]}, {name}")
    return panels.result


def _draw_map(axes: Axes, points: np.ndarray, values: np.ndarray, **options):
    """Draw values (m,) at points (m, 2): as an image on a grid, else as dots."""
    x, y = (np.unique(points[:, k]) for k in (0, 1))
    axes.set(xlabel="$t_1$", ylabel="$t_2$")
    if len(x) * len(y) == len(points):
        image = np.empty((len(y), len(x)))
        image[np.searchsorted(y, points[:, 1]), np.searchsorted(x, points[:, 0])] = values
        return axes.pcolormesh(x, y, image, shading="nearest", rasterized=True, **options)
    return axes.scatter(points[:, 0], points[:, 1], c=values, s=8, rasterized=True, **options)


def _make_residual_figure(rows: CurveRows, entries: CurveEntries, is_planar: bool) -> ReportFigure:
    where = (
        "the given curves"
        if rows.is_given and not rows.is_training.any()
        else "the curves of the fit, which are smaller than those of new curves"
    )
    if rows.is_given and rows.is_training.any() and not rows.is_training.all():
        where = "the given curves, some of which are curves of the fit"
    if is_planar:
        return render_plot(
            partial(_draw_residual_map, entries),
            "Map of the root mean squared residual over the domain.",
            f"Root mean squared residuals of {where}.",
        )
    expected = (
        " Dashed: the central 90 % that the model expects of new observations." if entries.std is not None else ""
    )
    return render_plot(
        partial(_draw_residuals, rows, entries),
        "Quantiles of the residuals along the domain.",
        f"Residuals (observation − prediction) of {where}, along the domain: median and central 50 % and 90 %.{expected}",
    )


def _draw_residuals(rows: CurveRows, entries: CurveEntries) -> Axes | np.ndarray:
    panels = Panels.create(None, rows.data.num_channels)
    for c, axes in enumerate(panels.axes):
        own = entries.channel == c
        bins = _Bins(entries.point[own, 0])
        quantiles = bins.apply(lambda values: np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]), entries.residual[own])
        centers, (low, quarter, median, upper, high) = bins.centers, quantiles.T
        axes.fill_between(centers, low, high, color=BAND_COLOR, linewidth=0, label="central 90 %")
        axes.fill_between(centers, quarter, upper, color=MIDTONE_COLOR, linewidth=0, label="central 50 %")
        axes.plot(centers, median, color=LINE_COLOR, label="median")
        axes.axhline(0, color=GUIDE_COLOR, linewidth=0.8)
        if entries.std is not None:
            std = bins.apply(lambda values: np.sqrt(np.mean(values**2)), entries.std[own])
            for sign, label in ((1.645, "expected 90 %"), (-1.645, None)):
                axes.plot(centers, sign * std, "--", color=ACCENT_COLOR, linewidth=1, label=label)
        axes.set(xlabel="t", ylabel="residual", title="" if rows.data.num_channels == 1 else _channel_name(rows, c))
        axes.margins(x=0.01)
    panels.legend()
    return panels.result


def _draw_residual_map(entries: CurveEntries) -> Axes:
    axes = Panels.create(None, 1).axes[0]
    points, index = np.unique(entries.point, axis=0, return_inverse=True)
    index = index.ravel()
    rms = np.sqrt(np.bincount(index, entries.residual**2) / np.bincount(index))
    add_colorbar(axes, _draw_map(axes, points, rms, vmin=0.0, cmap="Blues"), "root mean squared residual")
    return axes


class _Bins:
    """Bins of positions (N,): the distinct positions if there are few, else 20 intervals with equally many values."""

    def __init__(self, positions: np.ndarray):
        distinct = np.unique(positions)
        self.centers = distinct
        self.index = np.searchsorted(distinct, positions)
        if len(distinct) > MAX_BINS and len(positions) < 20 * len(distinct):
            edges = np.unique(np.quantile(positions, np.linspace(0, 1, 21)))
            self.index = np.clip(np.searchsorted(edges, positions, side="right") - 1, 0, max(len(edges) - 2, 0))
            self.centers = self.apply(np.mean, positions)

    def apply(self, function, values: np.ndarray) -> np.ndarray:
        """Return a statistic of the values (N,) of each bin."""
        order = np.argsort(self.index, kind="stable")
        parts = np.split(values[order], np.flatnonzero(np.diff(self.index[order])) + 1)
        return np.array([function(part) for part in parts])


def make_coverage_figure(estimator, entries: CurveEntries, shown: np.ndarray) -> Figures:
    """Make the figure of the coverage of pointwise bands along a one-dimensional domain."""
    if entries.point.shape[1] > 1:
        return
    yield render_plot(
        partial(_draw_coverage, entries, shown),
        "Fractions of the curves inside of pointwise bands along the domain.",
        "Fraction of the curves inside of their pointwise bands along the domain. Dashed: the nominal levels. The fewer curves, the more fractions of a calibrated model vary.",
    )


def _draw_coverage(entries: CurveEntries, shown: np.ndarray) -> Axes:
    axes = Panels.create(None, 1).axes[0]
    bins = _Bins(entries.point[shown, 0])
    for level, inside, color in zip(LEVELS, entries.inside, (MIDTONE_COLOR, LINE_COLOR), strict=True):
        fraction = bins.apply(np.mean, inside[shown].astype(float))
        axes.axhline(level, color=color, linestyle="--", linewidth=0.9)
        axes.plot(bins.centers, fraction, color=color, linewidth=1.6, label=f"{100 * level:g} % band")
    axes.set(xlabel="t", ylabel="fraction inside", ylim=(-0.02, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.margins(x=0.01)
    Panels([axes], True).legend()
    return axes


def _draw_weights(weights: dict[str, float]) -> Axes:
    listed = sorted(((v, k) for k, v in weights.items() if v >= MIN_LISTED_WEIGHT), reverse=True)
    height = max(1.6, 0.8 + 0.42 * len(listed))
    axes = Panels.create(None, 1, size=(6.4, height)).axes[0]
    positions = np.arange(len(listed))[::-1]
    bars = axes.barh(positions, [value for value, _ in listed], color=MIDTONE_COLOR, height=0.62)
    axes.bar_label(bars, [f"{100 * value:.0f} %" for value, _ in listed], padding=4, color=INK_COLOR, fontsize="small")
    axes.set_yticks(positions, [format_label(name, 42) for _, name in listed], fontsize="small")
    axes.set(xlabel="weight", xlim=(0, 1.12 * max(value for value, _ in listed)))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _make_outlier_figure(data, scores: np.ndarray) -> ReportFigure:
    number = int((scores > OUTLIER_SCORE).sum())
    curves = "curve has" if number == 1 else "curves have"
    return render_plot(
        partial(_draw_outliers, data, scores),
        "The curves of the fit, those with large outlier scores highlighted, and the scores of all curves.",
        f"Outlier scores: the fraction of the residual of each curve that the loss disregards. {number} {curves} a score above {OUTLIER_SCORE:g} (orange, dashed).",
    )


def _draw_outliers(data, scores: np.ndarray) -> np.ndarray:
    panels = Panels.create(None, 2 if data.num_dims == 1 else 1)
    is_outlier = scores > OUTLIER_SCORE
    if data.num_dims == 1:
        opacity = max(0.15, min(1.0, 8 / len(data)))
        for i, (points, values) in enumerate(data.curves()):
            style = {"color": INK_COLOR, "alpha": opacity, "linewidth": 0.8, "label": "curves"}
            if is_outlier[i]:
                style = {
                    "color": ACCENT_COLOR,
                    "linewidth": 1.2,
                    "linestyle": "--",
                    "label": "score above 0.5",
                    "zorder": 3,
                }
            panels.axes[0].plot(points[:, 0], values[:, 0], **style)
        panels.axes[0].set(xlabel="t", ylabel="y")
    axes, index = panels.axes[-1], np.arange(len(scores))
    axes.plot(index[~is_outlier], scores[~is_outlier], "o", color=LINE_COLOR, markersize=3.5)
    axes.plot(index[is_outlier], scores[is_outlier], "s", color=ACCENT_COLOR, markersize=4.5)
    axes.axhline(OUTLIER_SCORE, color=GUIDE_COLOR, linewidth=0.8, linestyle="--")
    axes.set(xlabel="row", ylabel="outlier score", ylim=(-0.03, 1.03))
    if data.num_dims == 1:
        add_opaque_legend(panels)
    return panels.result
