"""Plots of model criticism: p-values of all tests, normal quantiles of residuals, and ranks of simulation-based calibration."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri

from ovkgp.checks import as_numbers, check_type
from ovkgp.criticism.results import Criticism
from ovkgp.criticism.simulated_ranks import SimulationCalibration
from ovkgp.exceptions import InputError
from ovkgp.plotting.axes import (
    ACCENT_COLOR,
    BAND_COLOR,
    GUIDE_COLOR,
    INK_COLOR,
    LINE_COLOR,
    Panels,
    format_label,
    format_legend_label,
    get_line_style,
)

MIN_PVALUE = 1e-6  # smaller adjusted p-values are drawn here
ROW_INCHES, TABLE_WIDTH_INCHES = 0.34, 6.4  # height of a test and width of the figure
NUM_SIMULATIONS = 1000  # samples from which the band of normal quantiles is computed
BAND_LEVEL = 0.95  # probability that all quantiles of a normal sample are in the band
MAX_PANELS = 9  # outputs that are drawn
MAX_CURVES = 6  # ECDFs that are drawn besides those outside of the envelope
SQUARE_PANEL_INCHES = (4.2, 4.2)


def plot_criticism(table: Criticism, *, ax=None) -> Axes:
    """Plot the adjusted p-values of the tests of a table.

    Tests left of the dashed line reject the model; they are marked by squares.

    Parameters
    ----------
    table : Criticism
        Table of `ovkgp.criticism.criticize`.
    ax : Axes or None, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X, y, _ = ovkgp.datasets.make_sine_quantiles(60, random_state=0)
    >>> table = ovkgp.criticism.criticize(ovkgp.OVKRidge(lam=0.1).fit(X, y), random_state=0)
    >>> ovkgp.plotting.plot_criticism(table, ax=Figure().subplots()).get_xscale()
    'log'
    """
    check_type("table", table, Criticism, "a table of ovkgp.criticism.criticize")
    tests = [check for check in table if check.adjusted is not None]
    if not tests:
        raise InputError("table has no tests. Pass at least 20 rows to criticize.")
    panels = Panels.create(ax, 1, "one", size=(TABLE_WIDTH_INCHES, 1.2 + ROW_INCHES * len(tests)))
    axes, heights = panels.axes[0], np.arange(len(tests))[::-1]
    values = np.array([max(check.adjusted, MIN_PVALUE) for check in tests])
    is_rejected = np.array([check.rejected for check in tests])
    axes.hlines(heights, values, 1.0, color=BAND_COLOR, linewidth=1.5)
    dots = {"linestyle": "none", "markersize": 6}
    axes.plot(values[~is_rejected], heights[~is_rejected], marker="o", color=LINE_COLOR, label="not rejected", **dots)
    axes.plot(values[is_rejected], heights[is_rejected], marker="s", color=ACCENT_COLOR, label="rejected", **dots)
    axes.axvline(table.alpha, color=GUIDE_COLOR, linestyle="--", linewidth=1, label=f"level {table.alpha:g}")
    axes.set_yticks(heights, [format_label(check.name, 40) for check in tests])
    low = min(values.min() / 2, table.alpha / 10)
    axes.set(xscale="log", xlim=(low, 1.5), xlabel="p-value (Holm's correction)", ylim=(-0.7, len(tests) - 0.3))
    panels.legend()
    return axes


def plot_gaussianity(residuals, *, names=None, ax=None) -> Axes | np.ndarray:
    """Plot the quantiles of residuals against those of the standard normal distribution, one panel per output.

    The band contains all quantiles of a standard normal sample with probability 95 %.

    Parameters
    ----------
    residuals : Criticism, Residuals or array-like of shape (n, p) or (n,)
        Table of `ovkgp.criticism.criticize`, or its residuals, NaN where missing. If hyperparameters were trained on the same rows,
        residuals are standardized.
    names : list of str or None, default=None
        Names of the outputs. If None, "output 0", ….
    ax : Axes or array of Axes, default=None
        Axes to draw on, one per output. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs; of more than nine outputs the first nine are drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.plotting import plot_gaussianity
    >>> z = np.random.default_rng(0).normal(size=50)
    >>> plot_gaussianity(z, ax=Figure().subplots()).get_xlabel()
    'standard normal quantile'
    """
    found = getattr(residuals, "residuals", residuals)  # of a table
    is_known = getattr(found, "is_known", True)
    values = as_numbers(getattr(found, "values", found), "residuals")
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or np.isinf(values).any() or (np.isfinite(values).sum(0) < 2).any():
        raise InputError(
            f"residuals has shape {values.shape}, expected (n, p) with at least 2 finite values per output."
        )
    count = min(values.shape[1], MAX_PANELS)
    names = [f"output {a}" for a in range(count)] if names is None else list(names)[:count]
    panels = Panels.create(ax, count, size=SQUARE_PANEL_INCHES)
    for axes, column, name in zip(panels.axes, values.T, names, strict=False):
        _draw_quantiles(axes, np.sort(column[np.isfinite(column)]), is_known)
        axes.set_title(format_label(name, 36), fontsize="medium")
    panels.legend()
    return panels.result


def _draw_quantiles(axes: Axes, values: np.ndarray, is_known: bool) -> None:
    """Draw sorted residuals (n,) with the simultaneous band of normal samples."""
    number = len(values)
    normal = ndtri((np.arange(number) + 0.5) / number)
    draws = np.sort(np.random.default_rng(0).standard_normal((NUM_SIMULATIONS, number)))
    if not is_known:
        values = (values - values.mean()) / values.std()
        draws = (draws - draws.mean(1, keepdims=True)) / draws.std(1, keepdims=True)
    ranks = (np.argsort(np.argsort(draws, 0), 0) + 0.5) / NUM_SIMULATIONS  # of each order statistic among the samples
    tail = np.quantile(np.minimum(ranks, 1 - ranks).min(1), 1 - BAND_LEVEL)
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    axes.fill_between(normal, low, high, color=BAND_COLOR, linewidth=0, label=f"{BAND_LEVEL:.0%} band if normal")
    axes.axline((0, 0), slope=1, color=GUIDE_COLOR, linestyle="--", linewidth=1)
    is_outside = (values < low) | (values > high)
    dots = {"linestyle": "none", "markersize": 3.5}
    axes.plot(normal[~is_outside], values[~is_outside], marker="o", color=LINE_COLOR, label="residual", **dots)
    if is_outside.any():
        axes.plot(
            normal[is_outside], values[is_outside], marker="s", color=ACCENT_COLOR, label="outside of the band", **dots
        )
    axes.set(xlabel="standard normal quantile", ylabel="residual")


def plot_simulation_calibration(result: SimulationCalibration, *, ax=None) -> Axes:
    """Plot ECDFs of the ranks of true hyperparameters minus that of the uniform distribution, with their envelope.

    Curves outside of the envelope are drawn in color; of the others, the first six.

    Parameters
    ----------
    result : SimulationCalibration
        Result of `ovkgp.criticism.simulation_calibration`.
    ax : Axes or None, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.criticism import SimulationCalibration
    >>> from ovkgp.plotting import plot_simulation_calibration
    >>> ranks = np.random.default_rng(0).integers(0, 20, (100, 1))
    >>> result = SimulationCalibration(("lengthscale",), ranks, 19, 0.05)
    >>> plot_simulation_calibration(result, ax=Figure().subplots()).get_xlabel()
    'fraction of the ranks'
    """
    check_type("result", result, SimulationCalibration, "a result of ovkgp.criticism.simulation_calibration")
    panels = Panels.create(ax, 1, "one")
    axes, points, found = panels.axes[0], result.points(), result.ecdf() - result.points()[:, None]
    lower, upper = result.envelope()
    label = f"{1 - result.alpha:.0%} envelope if calibrated"
    axes.fill_between(points, lower - points, upper - points, color=BAND_COLOR, linewidth=0, step="mid", label=label)
    axes.axhline(0, color=INK_COLOR, linewidth=0.8)
    poor = set(result.miscalibrated)
    shown = [*poor, *[name for name in result.names if name not in poor][:MAX_CURVES]]
    for number, name in enumerate(one for one in result.names if one in shown):
        style = get_line_style(number) | {"marker": ""}
        width = 2.0 if name in poor else 1.0
        axes.step(
            points,
            found[:, result.names.index(name)],
            where="mid",
            linewidth=width,
            label=format_legend_label(name),
            **style,
        )
    axes.set(xlabel="fraction of the ranks", ylabel="ECDF − uniform", xlim=(0, 1))
    panels.legend()
    return axes
