"""Vector fields in the plane: arrows of the mean over their standard deviation, potential or stream function."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_integer
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.plotting.axes import ACCENT_COLOR, INK_COLOR, LINE_COLOR, Panels, add_colorbar, format_label
from ovkgp.plotting.slices import PlotData, check_posterior_regressor, get_input_range

FIELD_SCALARS = {  # scalar functions that fields derive from, by kernel
    "curl_free": ("potential",),
    "divergence_free": ("stream_function",),
    "helmholtz": ("potential", "stream_function"),
}
BACKGROUND_LABELS = {
    "std": "standard deviation of the field",
    "potential": "potential",
    "stream_function": "stream function",
}
NUM_BACKGROUND_POINTS = 50  # points of the background along the longer side
LIGHT_GRAYS = ListedColormap([(level, level, level) for level in np.linspace(1.0, 0.55, 256)], "light grays")
"""From white at standard deviation 0 to a gray on which black is still visible."""
LIGHT_CIVIDIS = ListedColormap(colormaps["cividis"](np.linspace(0.5, 1.0, 128)), "light cividis")
"""Lighter half of a perceptually uniform map, on which dark arrows are visible."""
MIN_OPACITY = 0.12  # opacity of the most uncertain arrows
MARGIN_FRACTION = 0.05  # margin of the default extent, relative to the range of the data
FIGURE_INCHES = (6.4, 5.2)
LEGEND_OFFSET_POINTS, LEGEND_LINE_POINTS = 34, 13  # from the axes to a legend below, and per further line of the label

Extent = tuple[float, float, float, float]  # left, right, bottom, top


class FieldValues(NamedTuple):
    """Mean of the field (m, 2), and root of the mean variance of its two components (m,)."""

    mean: np.ndarray
    std: np.ndarray


def plot_field(
    estimator,
    X=None,
    Y=None,
    *,
    extent=None,
    num_arrows: int = 15,
    background: str | None = "std",
    truth: Callable[[np.ndarray], np.ndarray] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot a vector field with two inputs and two outputs as arrows of its posterior mean.

    Arrows fade as the standard deviation grows: their opacity is one half where it equals the root mean square of the
    field. All arrows have the same scale.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge or ORFFRidge
        Fitted estimator with two inputs and two outputs.
    X, Y : array-like of shape (n, 2), default=None
        Data to show as arrows, NaN in Y where a component is missing; such arrows show the other component. If only X
        is given, it sets the extent. If both are None, the stored training data are shown.
    extent : tuple of float, default=None
        (left, right, bottom, top). If None, the range of the data with a margin.
    num_arrows : int, default=15
        Number of arrows along the longer side. Must be at least 2.
    background : {"std", "potential", "stream_function"} or None, default="std"
        Quantity behind the arrows: the root of the mean variance of both components, or the scalar that the field
        derives from, up to a constant (it is zero at the center). If None, there is no background.
    truth : callable, default=None
        Ground truth, a function from points (m, 2) to vectors (m, 2), drawn as outlined arrows.
    ax : Axes, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Raises
    ------
    OptionError
        If the model does not have two inputs and two outputs, or its kernel has no such `background`.

    Notes
    -----
    Complexity: a prediction at about 2500 points.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    >>> model = ovkgp.OVKRidge("divergence_free", lam=1e-2).fit(X, np.stack([-X[:, 1], X[:, 0]], 1))
    >>> ax = ovkgp.plotting.plot_field(model, background="stream_function", ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.child_axes[0].get_ylabel()
    ('input 0', 'stream function')
    """
    check_is_fitted(estimator)
    check_posterior_regressor(estimator, "plot_field")
    if (estimator.n_features_in_, estimator.n_outputs_) != (2, 2):
        raise OptionError(
            f"estimator must have two inputs and two outputs for plot_field, got {estimator.n_features_in_} and {estimator.n_outputs_}. Use plot_prediction."
        )
    if background is not None and background not in BACKGROUND_LABELS:
        known = ", ".join(map(repr, BACKGROUND_LABELS))
        raise OptionError(f"background must be one of {known} or None, got {background!r}.")
    data = PlotData.resolve(estimator, X, Y)
    extent = _resolve_extent(estimator, data, extent)
    num_arrows = check_integer("num_arrows", num_arrows, minimum=2)
    points = make_grid(extent, num_arrows, inside=True)[0]
    values = predict_field(estimator, points)
    shading = None if background is None else _compute_background(estimator, extent, background)
    vectors = None if truth is None else evaluate_truth(points, truth)
    panels = Panels.create(ax, 1, "one for the field", size=_figure_size(extent))  # last: errors leave no empty figure
    (axes,) = panels.axes
    if background is not None:
        _draw_background(axes, shading, extent, background)
    scale = _arrow_scale(values.mean, extent, num_arrows)
    handles = draw_arrows(axes, points, values, scale)
    handles += [] if vectors is None else draw_truth(axes, points, vectors, scale)
    handles += [] if data.Y is None else draw_data(axes, data, scale)
    xlabel, ylabel = (format_label(name) for name in estimator.input_labels())
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=extent[:2], ylim=extent[2:], aspect="equal")
    _add_legend(panels, handles)
    return axes


def _resolve_extent(estimator, data: PlotData, extent) -> Extent:
    if extent is None:
        low, _, high = get_input_range(estimator, data.X)
        margin = MARGIN_FRACTION * (high - low)
        return low[0] - margin[0], high[0] + margin[0], low[1] - margin[1], high[1] + margin[1]
    try:
        left, right, bottom, top = map(float, extent)
    except (TypeError, ValueError) as error:
        raise InputError(f"extent must be four numbers (left, right, bottom, top), got {extent!r}.") from error
    if not (np.isfinite([left, right, bottom, top]).all() and left < right and bottom < top):
        expected = "(left, right, bottom, top) with left < right and bottom < top"
        raise InputError(f"extent must be {expected}, got {extent!r}.")
    return left, right, bottom, top


def _figure_size(extent: Extent) -> tuple[float, float]:
    """Return a figure size with about the aspect of the field."""
    ratio = (extent[3] - extent[2]) / (extent[1] - extent[0])
    return FIGURE_INCHES[0], float(np.clip(FIGURE_INCHES[1] * ratio, 3.4, 9.0))


def _arrow_scale(mean: np.ndarray, extent: Extent, num_arrows: int) -> float:
    """Return field units per unit of length such that a long arrow (95 % quantile) fills its cell."""
    longest = np.quantile(np.hypot(*mean.T), 0.95)
    cell = max(extent[1] - extent[0], extent[3] - extent[2]) / num_arrows
    return float(longest / cell) if longest > 0 else 1.0


def _add_legend(panels: Panels, handles: list[Line2D]) -> None:
    """Add a legend above a new figure, or below given axes, where it covers neither arrows nor a title."""
    (axes,) = panels.axes
    if panels.is_new:
        axes.figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize="small")
        return
    points = LEGEND_OFFSET_POINTS + LEGEND_LINE_POINTS * axes.get_xlabel().count("\n")
    below = axes.transAxes + ScaledTranslation(0, -points / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        **{"handles": handles, "loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below},
        **{"ncols": 2, "frameon": False, "fontsize": "x-small", "handlelength": 1.4, "columnspacing": 0.8},
    )


def make_grid(extent: Extent, num_points: int, *, inside: bool) -> tuple[np.ndarray, tuple[int, int]]:
    """Return points (m, 2) of a grid with square cells, row by row from the bottom, and its shape (rows, columns).

    The longer side has `num_points` points; they are cell centers if `inside`, else they reach the edges.
    """
    width, height = extent[1] - extent[0], extent[3] - extent[2]
    counts = [max(2, round(num_points * side / max(width, height))) for side in (width, height)]
    axes = []
    for (low, high), count in zip((extent[:2], extent[2:]), counts, strict=True):
        half = (high - low) / count / 2 if inside else 0.0
        axes.append(np.linspace(low + half, high - half, count))
    first, second = np.meshgrid(*axes)
    return np.column_stack([first.ravel(), second.ravel()]), first.shape


def predict_field(estimator, points: np.ndarray) -> FieldValues:
    """Predict the latent field at points (m, 2)."""
    mean, std = estimator.predict(as_inputs(estimator, points), return_std=True, noise=False)
    return FieldValues(mean, np.sqrt(np.mean(std**2, axis=1)))


def predict_scalar(estimator, points: np.ndarray, kind: str, reference: np.ndarray) -> np.ndarray:
    """Predict the mean (m,) of the "potential" or "stream_function" at points (m, 2), zero at `reference` (2,)."""
    try:
        return getattr(estimator, kind)(as_inputs(estimator, points), reference)
    except KernelTypeError as error:
        kernels = " or ".join(f'kernel="{name}"' for name, scalars in FIELD_SCALARS.items() if kind in scalars)
        raise OptionError(f"background={kind!r} requires {kernels}: {error}") from error


def evaluate_truth(points: np.ndarray, truth: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Evaluate the true field (m, 2) at points (m, 2) and check its shape."""
    field = np.asarray(truth(points), dtype=np.float64)
    if field.shape != points.shape:
        raise InputError(f"truth must map points {points.shape} to vectors {points.shape}, got shape {field.shape}.")
    return field


def compute_opacity(values: FieldValues) -> np.ndarray:
    """Return the opacity 1 / (1 + σ²/τ²) (m,), at least 0.12, with τ the root mean square of the field."""
    mean_square = np.mean(np.sum(values.mean**2, axis=1))
    if mean_square == 0:
        return np.full(len(values.std), MIN_OPACITY)
    return np.maximum(1 / (1 + values.std**2 / mean_square), MIN_OPACITY)


def _compute_background(estimator, extent: Extent, background: str) -> np.ndarray:
    """Compute the background (rows, columns) of a field, from the bottom."""
    points, shape = make_grid(extent, NUM_BACKGROUND_POINTS, inside=False)
    if background == "std":
        return predict_field(estimator, points).std.reshape(shape)
    center = np.array([(extent[0] + extent[1]) / 2, (extent[2] + extent[3]) / 2])
    return predict_scalar(estimator, points, background, center).reshape(shape)


def _draw_background(axes: Axes, values: np.ndarray, extent: Extent, background: str) -> None:
    """Draw a background with its colorbar: grays for "std", contours for the others."""
    if background == "std":
        options = {"extent": extent, "origin": "lower", "interpolation": "bilinear"}
        drawn = axes.imshow(values, LIGHT_GRAYS, vmin=0.0, vmax=values.max() or 1.0, **options)
    else:
        levels = MaxNLocator(nbins=12).tick_values(values.min(), values.max())
        sides = zip((extent[:2], extent[2:]), values.shape[::-1], strict=True)
        coordinates = [np.linspace(*ends, count) for ends, count in sides]
        drawn = axes.contourf(*coordinates, values, levels, cmap=LIGHT_CIVIDIS)
        axes.contour(*coordinates, values, levels, colors="0.35", linewidths=0.5, linestyles="solid")
    add_colorbar(axes, drawn, BACKGROUND_LABELS[background])


def draw_arrows(axes: Axes, points: np.ndarray, values: FieldValues, scale: float) -> list[Line2D]:
    """Draw the posterior mean (m, 2), with opacity by its standard deviation."""
    colors = np.tile(to_rgba(LINE_COLOR), (len(points), 1))
    colors[:, 3] = compute_opacity(values)
    _draw_quiver(axes, points, values.mean, scale, width=0.0045, headwidth=3.5, color=colors, zorder=3)
    longest = np.hypot(*values.mean.T).max()
    return [Line2D([], [], label=f"mean (longest: {longest:.3g})", color=LINE_COLOR, linewidth=2.5)]


def draw_truth(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float) -> list[Line2D]:
    """Draw the true field as outlines, which arrows of the mean fill if both agree."""
    style = {"facecolor": "none", "edgecolor": INK_COLOR, "linewidth": 0.5, "zorder": 4}
    _draw_quiver(axes, points, vectors, scale, width=0.0065, headwidth=3.2, **style)
    marker = {"marker": ">", "markerfacecolor": "none", "markeredgewidth": 0.5}
    return [Line2D([], [], label="ground truth", color=INK_COLOR, linewidth=0.5, **marker)]


def draw_data(axes: Axes, data: PlotData, scale: float) -> list[Line2D]:
    """Draw observed vectors with a dot at their foot, or a square if only one component was observed."""
    observed = np.isfinite(data.Y)
    handles = []
    for rows, marker, name in ((observed.all(1), "o", "data"), (observed.sum(1) == 1, "s", "data, one component")):
        if rows.any():
            style = {"color": ACCENT_COLOR, "marker": marker, "markersize": 3.0, "markeredgewidth": 0.6}
            fill = {} if marker == "o" else {"markerfacecolor": "white"}
            axes.plot(*data.X[rows].T, linestyle="none", zorder=2.6, **style, **fill)
            arrows = np.nan_to_num(data.Y[rows])
            _draw_quiver(axes, data.X[rows], arrows, scale, width=0.0028, color=ACCENT_COLOR, headwidth=4, zorder=2.5)
            handles.append(Line2D([], [], label=name, linewidth=1.2, **style, **fill))
    return handles


def _draw_quiver(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float, **style) -> None:
    axes.quiver(*points.T, *vectors.T, angles="xy", scale_units="xy", scale=scale, **style)
