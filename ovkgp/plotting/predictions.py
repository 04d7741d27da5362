"""Quantile curves as a fan: the closer two levels are to the median, the darker the band between them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism.calibration import check_levels
from ovkgp.criticism.predictive_distributions import as_inputs
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import OptionError
from ovkgp.plotting.axes import BAND, FADED, INK, LINE, MIDDLE, Panels, chosen_outputs, label, output_names
from ovkgp.plotting.slices import PROBABILITIES, Bands, Data, InputSlice, check_posterior


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
    """Mean and interval of each output along one input, the other inputs at their medians.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge` or `ORFFRidge`.
        X, Y: rows to show as dots (n, d) and (n, p), NaN where missing. X alone says only where to draw; without both they are the
            rows that the model keeps. A model that keeps none is drawn two standard deviations around the mean of its inputs.
        output: the name or number of one output, or a list of them; None draws a panel for each.
        along: the name or number of the input that runs; None is the first.
        level: of the interval, between 0 and 1.
        num_draws: random latent functions to draw as well.
        noise: whether the interval is of a new observation or of the latent function. That of a label or a class is of its probability.
        num_points: of the curves.
        ax: where to draw: an Axes, or as many as there are panels.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    Where there are several inputs, dots are all rows, and not only those whose other inputs are near their medians.

    Cost: a prediction of mean and interval at `num_points` points.

    Example:
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
    check_posterior(estimator, "plot_prediction")
    level = check_level(level)
    outputs, data = chosen_outputs(estimator, output), Data.of(estimator, X, Y)
    cut = InputSlice.of(estimator, data, along, num_points)
    bands = Bands.of(estimator, cut.points, level, bool(noise), num_draws)
    panels = Panels.of(ax, len(outputs))  # last, so that a mistake leaves no empty figure behind
    for axes, a in zip(panels.axes, outputs, strict=True):
        _draw_band(axes, cut.axis, bands, a, _band_name(level, bool(noise)))
        if data.Y is not None and (noise or bands.kinds[a] == "real"):
            draw_dots(axes, data, cut.along, a)
        axes.set(xlabel=cut.name, ylabel=_output_name(output_names(estimator)[a], bands.kinds[a], bool(noise)))
        axes.margins(x=0.01)
    panels.legend()
    return panels.answer


def check_level(level) -> float:
    """Refuse a level that is not strictly between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, (int, float, np.number)) or not 0 < level < 1:
        raise OptionError(f"level must be a number strictly between 0 and 1, such as 0.9; got {level!r}.")
    return float(level)


def draw_dots(axes: Axes, data: Data, along: int, output: int) -> None:
    """The observed values of one output; faint where other inputs differ too, so that a cut does not explain them."""
    observed = np.isfinite(data.Y[:, output])
    alpha = {} if data.X.shape[1] == 1 else {"alpha": FADED}
    axes.plot(
        *(data.X[observed, along], data.Y[observed, output]),
        **{"linestyle": "none", "marker": "o", "markersize": 3.5, "markerfacecolor": "none", "markeredgecolor": INK},
        **{"markeredgewidth": 0.8, "label": "data", "zorder": 2.5, **alpha},
    )


def _draw_band(axes: Axes, x: np.ndarray, bands: Bands, a: int, name: str) -> None:
    axes.fill_between(x, bands.lower[:, a], bands.upper[:, a], color=BAND, linewidth=0, label=name)
    for i, draw in enumerate(bands.draws):
        axes.plot(x, draw[:, a], color=MIDDLE, linewidth=0.8, label="random functions" if i == 0 else None)
    axes.plot(x, bands.mean[:, a], color=LINE, linewidth=1.8, label="mean")


def _band_name(level: float, noise: bool) -> str:
    return f"{100 * level:g} % interval" + ("" if noise else " of the function")


def _output_name(name: str, kind: str, noise: bool) -> str:
    if kind in PROBABILITIES:
        return label(f"probability of {name}" if noise else f"log-odds of {name}")
    if kind == "count" and not noise:
        return label(f"log of expected {name}")
    return label(name)


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DASHES = (":", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))
"""Of the outermost curves and those next to them; the median is solid."""


def plot_quantiles(
    estimator, X=None, y=None, *, levels=LEVELS, along=None, output=None, num_points: int = 200, ax=None
) -> Axes | np.ndarray:
    """Quantiles of a new observation along one input, the other inputs at their medians.

    Args:
        estimator: a fitted `InfiniteQuantileRegressor`, or a regressor with `predict_quantiles`, such as `GPRegressor`.
        X, y: rows to show as dots; X alone says only where to draw. Without both they are the rows that the model keeps.
        levels: of the curves, strictly between 0 and 1; of a regressor with finite coupling those that it learned.
        along: the name or number of the input that runs; None is the first.
        output: the name or number of one output, or a list of them; None draws a panel for each.
        num_points: of the curves.
        ax: where to draw: an Axes, or as many as there are panels.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    Cost: a prediction of all levels at `num_points` points.

    Example:
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
    if not isinstance(estimator, InfiniteQuantileRegressor):
        check_posterior(estimator, "plot_quantiles")
    levels, outputs = check_levels(levels), chosen_outputs(estimator, output)
    data = Data.of(estimator, X, y)
    cut = InputSlice.of(estimator, data, along, num_points)
    curves = quantile_curves(estimator, cut.points, levels)
    panels = Panels.of(ax, len(outputs))
    for axes, a in zip(panels.axes, outputs, strict=True):
        _draw_fan(axes, cut.axis, curves[:, a], levels)
        if data.Y is not None:
            draw_dots(axes, data, cut.along, a)
        axes.set(xlabel=cut.name, ylabel=label(output_names(estimator)[a]))
        axes.margins(x=0.01)
    panels.legend()
    return panels.answer


def quantile_curves(estimator, points: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles (m, p, q) at points (m, d), whichever way the estimator is asked for them."""
    X = as_inputs(estimator, points)
    if isinstance(estimator, InfiniteQuantileRegressor):
        return estimator.predict(X, levels)[:, None]
    return estimator.predict_quantiles(X, levels).reshape(len(points), -1, len(levels))


def _draw_fan(axes: Axes, x: np.ndarray, curves: np.ndarray, levels: np.ndarray) -> None:
    pairs = len(levels) // 2
    for i in range(pairs):
        shade = _between(BAND, MIDDLE, i / max(pairs - 1, 1))
        axes.fill_between(x, curves[:, i], curves[:, -1 - i], color=shade, linewidth=0)
    depths = np.round(np.minimum(levels, 1 - levels), 9)
    for i, depth in enumerate(np.unique(depths)):
        places = np.flatnonzero(depths == depth)
        style = {"color": LINE, "linestyle": "-" if depth == 0.5 else DASHES[i % len(DASHES)]}
        name = ", ".join(f"{100 * level:.4g} %" for level in levels[places])
        axes.plot(x, curves[:, places[0]], linewidth=1.8 if depth == 0.5 else 1.1, label=name, **style)
        for other in places[1:]:
            axes.plot(x, curves[:, other], linewidth=1.1, **style)


def _between(first, second, part: float) -> np.ndarray:
    return (1 - part) * np.array(to_rgb(first)) + part * np.array(to_rgb(second))
