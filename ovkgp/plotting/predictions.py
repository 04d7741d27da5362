"""Predictions along one input: mean with interval, or quantile curves as a fan chart."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_probability
from ovkgp.criticism.calibration import check_levels
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.plotting.axes import (
    BAND_COLOR,
    FADED_OPACITY,
    INK_COLOR,
    LINE_COLOR,
    MIDTONE_COLOR,
    format_label,
    plot_outputs,
)
from ovkgp.plotting.slices import (
    OBSERVED,
    PROBABILITY_KINDS,
    Bands,
    Dots,
    InputSlice,
    PlotData,
    check_posterior_regressor,
    get_output_kinds,
)

DEFAULT_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DASHES = (":", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))  # from the outermost quantile curves inwards; the median is solid


def plot_prediction(
    estimator,
    X=None,
    Y=None,
    *,
    output=None,
    along=None,
    level: float = 0.9,
    num_draws: int = 0,
    noise: bool = True,
    num_points: int = 200,
    ax=None,
) -> Axes | np.ndarray:
    """Plot mean and interval of each output along one input, with the other inputs at their medians.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge or ORFFRidge
        Fitted estimator.
    X, Y : array-like of shape (n, d) and (n, p), default=None
        Data to show as dots, NaN in Y where missing. If only X is given, it sets the range. If both are None, the
        stored training data are shown; without stored data, the range is the mean input plus and minus two standard
        deviations.
    output : str, int or list, default=None
        Name or index of one output, or a list of them. If None, every output gets a panel.
    along : str or int, default=None
        Name or index of the input on the horizontal axis. If None, the first.
    level : float, default=0.9
        Level of the interval, strictly between 0 and 1.
    num_draws : int, default=0
        Number of latent functions to sample and draw.
    noise : bool, default=True
        Whether the interval is that of a new observation or of the latent function. For a label or class, it is the
        interval of its probability.
    num_points : int, default=200
        Number of points of the curves. Must be at least 2.
    ax : Axes or array of Axes, default=None
        Axes to draw on, one per output. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Notes
    -----
    If there are several inputs, rows far from the slice say nothing of the curve. The dots are then partial residuals: the
    observation minus the prediction at its inputs plus the prediction on the slice. Labels and classes are shown for the tenth
    of the rows that is nearest to the slice.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.hstack([np.sin(X), np.cos(X)]))
    >>> ax = ovkgp.plotting.plot_prediction(model, output=1, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('input 0', 'output 1')
    """
    check_is_fitted(estimator)
    check_posterior_regressor(estimator, "plot_prediction")
    level = check_probability("level", level)
    data = PlotData.resolve(estimator, X, Y)
    input_slice = InputSlice.create(estimator, data, along, num_points)
    bands = Bands.predict(estimator, input_slice.points, level, bool(noise), num_draws)
    x, band_label = input_slice.axis, f"{100 * level:g} % interval" + ("" if noise else " of the function")
    dots = None
    if data.Y is not None:
        shape = (-1, estimator.n_outputs_)
        dots = Dots.create(
            *(input_slice, data, bands.kinds), lambda X: estimator.predict(as_inputs(estimator, X)).reshape(shape)
        )

    def draw(axes: Axes, a: int, name: str) -> None:
        axes.fill_between(x, bands.lower[:, a], bands.upper[:, a], color=BAND_COLOR, linewidth=0, label=band_label)
        for i, values in enumerate(bands.draws):
            axes.plot(x, values[:, a], color=MIDTONE_COLOR, linewidth=0.8, label=None if i else "function draws")
        axes.plot(x, bands.mean[:, a], color=LINE_COLOR, linewidth=1.8, label="mean")
        if dots is not None and (noise or bands.kinds[a] == "real"):
            _draw_dots(axes, dots, a)
        axes.set(xlabel=input_slice.name, ylabel=_format_output(name, bands.kinds[a], bool(noise)))
        axes.margins(x=0.01)

    return plot_outputs(estimator, output, ax, draw)


def _draw_dots(axes: Axes, dots: Dots, output: int) -> None:
    """Draw the dots of one output, faint if they are not observations on the slice."""
    observed, name = np.isfinite(dots.values[:, output]), dots.names[output]
    alpha = {} if name == OBSERVED else {"alpha": FADED_OPACITY}
    axes.plot(
        *(dots.x[observed], dots.values[observed, output]),
        **{"linestyle": "none", "marker": "o", "markersize": 3.5, "markerfacecolor": "none", "markeredgewidth": 0.8},
        **{"markeredgecolor": INK_COLOR, "label": name, "zorder": 2.5, **alpha},
    )


def _format_output(name: str, kind: str, noise: bool) -> str:
    if kind in PROBABILITY_KINDS:
        return format_label(f"probability of {name}" if noise else f"log-odds of {name}")
    if kind == "count" and not noise:
        return format_label(f"log of expected {name}")
    return format_label(name)


def plot_quantiles(
    estimator, X=None, y=None, *, levels=DEFAULT_LEVELS, along=None, output=None, num_points: int = 200, ax=None
) -> Axes | np.ndarray:
    """Plot quantiles of a new observation along one input, with the other inputs at their medians.

    Parameters
    ----------
    estimator : InfiniteQuantileRegressor, GPRegressor, OVKRidge or ORFFRidge
        Fitted estimator.
    X, y : array-like of shape (n, d) and (n,) or (n, p), default=None
        Data to show as dots. If only X is given, it sets the range. If both are None, the stored training data are
        shown.
    levels : array-like, default=(0.05, 0.25, 0.5, 0.75, 0.95)
        Levels of the curves, strictly between 0 and 1. For a regressor with finite coupling, its training levels.
    along, output, num_points, ax
        As in `plot_prediction`.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Notes
    -----
    If there are several inputs, the dots are partial residuals around the level nearest to the median, as in `plot_prediction`.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.datasets import make_sine_quantiles
    >>> X, y, _ = make_sine_quantiles(100, random_state=0)
    >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y)
    >>> ax = ovkgp.plotting.plot_quantiles(model, levels=[0.1, 0.5, 0.9], ax=Figure().subplots())
    >>> ax.get_legend_handles_labels()[1]
    ['10 %, 90 %', '50 %', 'data']
    """
    check_is_fitted(estimator)
    if estimator.kind != "target":
        check_posterior_regressor(estimator, "plot_quantiles")
    levels, data = check_levels(levels), PlotData.resolve(estimator, X, y)
    input_slice = InputSlice.create(estimator, data, along, num_points)
    predict = estimator.predict if estimator.kind == "target" else estimator.predict_quantiles
    curves = predict(as_inputs(estimator, input_slice.points), levels).reshape(num_points, -1, len(levels))
    dots, central = None, levels[[np.abs(levels - 0.5).argmin()]]
    if data.Y is not None:
        kinds = (
            ["real"] * curves.shape[1] if estimator.kind == "target" else get_output_kinds(estimator, curves.shape[1])
        )
        dots = Dots.create(
            *(input_slice, data, kinds), lambda X: predict(as_inputs(estimator, X), central).reshape(len(X), -1)
        )

    def draw(axes: Axes, a: int, name: str) -> None:
        _draw_fan(axes, input_slice.axis, curves[:, a], levels)
        if dots is not None:
            _draw_dots(axes, dots, a)
        axes.set(xlabel=input_slice.name, ylabel=format_label(name))
        axes.margins(x=0.01)

    return plot_outputs(estimator, output, ax, draw)


def _draw_fan(axes: Axes, x: np.ndarray, curves: np.ndarray, levels: np.ndarray) -> None:
    """Draw bands between symmetric levels, darker towards the median, and a curve per level."""
    colors = np.linspace(to_rgb(BAND_COLOR), to_rgb(MIDTONE_COLOR), len(levels) // 2)
    for i, color in enumerate(colors):
        axes.fill_between(x, curves[:, i], curves[:, -1 - i], color=color, linewidth=0)
    depths = np.round(np.minimum(levels, 1 - levels), 9)
    for i, depth in enumerate(np.unique(depths)):
        indices = np.flatnonzero(depths == depth)
        style = {"color": LINE_COLOR, "linestyle": "-" if depth == 0.5 else DASHES[i % len(DASHES)]}
        name = ", ".join(f"{100 * level:.4g} %" for level in levels[indices])
        axes.plot(x, curves[:, indices[0]], linewidth=1.8 if depth == 0.5 else 1.1, label=name, **style)
        for other in indices[1:]:
            axes.plot(x, curves[:, other], linewidth=1.1, **style)
