"""Calibration plots: PIT histograms, interval coverage, residuals and leave-one-out predictions."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri
from scipy.stats import binom

from ovkgp.checks import check_integer
from ovkgp.criticism import Coverage, pit_values
from ovkgp.criticism.predictive_distributions import predictive
from ovkgp.estimators.common.summary import pluralize
from ovkgp.plotting.axes import (
    ACCENT_COLOR,
    BAND_COLOR,
    GUIDE_COLOR,
    INK_COLOR,
    LINE_COLOR,
    MIDTONE_COLOR,
    format_label,
    plot_outputs,
)

CONSISTENCY_LEVEL = 0.9  # probability that a calibrated model stays within the band, for each bin or level
CONSISTENCY_LABEL = f"{100 * CONSISTENCY_LEVEL:g} % band if calibrated"
RESIDUAL_LEVEL = 0.95  # fraction of the residuals of a calibrated model inside of the band
OUTLIER_THRESHOLD = 3.0  # absolute standardized residuals above are marked; a calibrated model has one in 370
INTERVAL_LEVEL = 0.9  # level of the intervals of `plot_leave_one_out`
SQUARE_PANEL_INCHES = (4.2, 4.2)


def plot_pit(estimator, X=None, Y=None, *, groups="rows", output=None, bins: int = 10, ax=None) -> Axes | np.ndarray:
    """Plot histograms of the probability integral transform P(y′ ≤ y).

    The histogram of a calibrated model is flat. Overconfident models have high bins at both ends, underconfident
    models in the middle. The dashed lines contain each bin of a calibrated model with probability 90 %.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor
        Fitted estimator.
    X, Y : array-like of shape (n, d) and (n, p), default=None
        Held-out data, NaN in Y where missing. If None, each row of the stored training data is predicted from all others.
    groups : {"rows", "entries"} or array-like of shape (n,), default="rows"
        Labels of the training rows X and Y: all rows of a label (a track, a station) are predicted from the others. Without X
        and Y, "entries" holds out single entries instead of rows.
    output : str, int or list, default=None
        Name or index of one output, or a list of them. If None, every output gets a panel.
    bins : int, default=10
        Number of bins. Must be at least 2.
    ax : Axes or array of Axes, default=None
        Axes to draw on, one per output. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X, y, _ = ovkgp.datasets.make_sine_quantiles(60, random_state=0)
    >>> ax = ovkgp.plotting.plot_pit(ovkgp.OVKRidge(lam=0.1).fit(X, y), ax=Figure().subplots())
    >>> ax.get_title()
    'output 0 (60 entries)'
    """
    bins = check_integer("bins", bins, minimum=2)
    values = pit_values(estimator, X, Y, groups=groups)

    def draw(axes: Axes, a: int, name: str) -> None:
        observed = values[np.isfinite(values[:, a]), a]
        counts, edges = np.histogram(observed, bins, range=(0, 1))
        axes.stairs(counts, edges, fill=True, color=MIDTONE_COLOR, label="model")
        axes.stairs(counts, edges, color=LINE_COLOR, linewidth=1)
        axes.axhline(len(observed) / bins, color=INK_COLOR, linewidth=1, label="uniform")
        limits = binom.interval(CONSISTENCY_LEVEL, len(observed), 1 / bins) if len(observed) else (0, 0)
        for limit, label in zip(limits, (CONSISTENCY_LABEL, None), strict=True):
            axes.axhline(limit, color=INK_COLOR, linestyle="--", linewidth=0.8, label=label)
        axes.set(xlabel="probability integral transform (PIT)", ylabel="number of entries", xlim=(0, 1))
        axes.set_ylim(bottom=0)
        _set_title(axes, name, pluralize(len(observed), "entry", "entries"))

    return plot_outputs(estimator, output, ax, draw)


def _set_title(axes: Axes, name: str, numbers: str) -> None:
    """Set the title to the name of an output with the numbers of entries shown."""
    axes.set_title(format_label(f"{name} ({numbers})", 36), fontsize="medium")


def plot_coverage(estimator, X=None, Y=None, *, groups="rows", output=None, ax=None) -> Axes | np.ndarray:
    """Plot the coverage of central intervals against their nominal level.

    The curve of a calibrated model lies on the diagonal; the curve of an overconfident model lies below it. The band
    contains the whole curve of a calibrated model, at all levels, with probability 90 %.

    Parameters
    ----------
    estimator, X, Y, groups, output, ax
        As in `plot_pit`.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X, y, _ = ovkgp.datasets.make_sine_quantiles(60, random_state=0)
    >>> ax = ovkgp.plotting.plot_coverage(ovkgp.OVKRidge(lam=0.1).fit(X, y), ax=Figure().subplots())
    >>> ax.get_ylabel()
    'fraction of observations inside'
    """
    coverage = Coverage.of(pit_values(estimator, X, Y, groups=groups), groups=groups)
    lower, upper = coverage.band(CONSISTENCY_LEVEL, simultaneous=True)

    def draw(axes: Axes, a: int, name: str) -> None:
        band = {"color": BAND_COLOR, "linewidth": 0, "label": CONSISTENCY_LABEL}
        axes.fill_between(coverage.levels, lower[:, a], upper[:, a], **band)
        axes.plot([0, 1], [0, 1], color=GUIDE_COLOR, linestyle="--", linewidth=1, label="nominal")
        axes.plot(coverage.levels, coverage.observed[:, a], color=LINE_COLOR, marker="o", markersize=3.5, label="model")
        labels = {"xlabel": "nominal level of the interval", "ylabel": "fraction of observations inside"}
        axes.set(**labels, xlim=(0, 1), ylim=(0, 1), aspect="equal")
        _set_title(axes, name, pluralize(int(coverage.counts[a]), "entry", "entries"))

    return plot_outputs(estimator, output, ax, draw, SQUARE_PANEL_INCHES)


def plot_residuals(estimator, X=None, Y=None, *, groups="rows", output=None, ax=None) -> Axes | np.ndarray:
    """Plot standardized residuals (y − E y)/std(y) against the predicted mean E y.

    The standard deviation includes the noise. The residuals of a calibrated model scatter around zero without a
    pattern; absolute values above three are marked.

    Parameters
    ----------
    estimator, X, Y, groups, output, ax
        As in `plot_pit`.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Notes
    -----
    If predictions are not Gaussian (sampled hyperparameters, heavy tails, labels, counts), the quantile
    residuals Φ⁻¹(u) are plotted, with u of `ovkgp.criticism.pit_values`. They are standard normal for a calibrated
    model, too.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X, y, _ = ovkgp.datasets.make_sine_quantiles(60, random_state=0)
    >>> ax = ovkgp.plotting.plot_residuals(ovkgp.OVKRidge(lam=0.1).fit(X, y), ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('predicted mean', 'standardized residual')
    """
    distribution = predictive(estimator, X, Y, groups)
    scores, kind = distribution.scores(), "standardized" if distribution.is_gaussian else "quantile"

    def draw(axes: Axes, a: int, name: str) -> None:
        observed = np.isfinite(scores[:, a])
        _draw_residuals(axes, distribution.mean[observed, a], scores[observed, a])
        axes.set(xlabel="predicted mean", ylabel=f"{kind} residual")
        _set_title(axes, name, pluralize(int(observed.sum()), "entry", "entries"))

    return plot_outputs(estimator, output, ax, draw)


def _draw_residuals(axes: Axes, mean: np.ndarray, scores: np.ndarray) -> None:
    half_width = ndtri((1 + RESIDUAL_LEVEL) / 2)
    band = {"color": BAND_COLOR, "linewidth": 0, "label": f"{100 * RESIDUAL_LEVEL:g} % if calibrated"}
    axes.axhspan(-half_width, half_width, **band)
    axes.axhline(0, color=GUIDE_COLOR, linewidth=1)
    is_outlier = np.abs(scores) > OUTLIER_THRESHOLD
    if is_outlier.any():
        marked = {"color": ACCENT_COLOR, "markersize": 5, "label": f"beyond {OUTLIER_THRESHOLD:g}"}
        axes.plot(mean[is_outlier], scores[is_outlier], "s", **marked)
    dots = {"color": INK_COLOR, "markersize": 3.5, "markerfacecolor": "none", "label": "residual"}
    axes.plot(mean[~is_outlier], scores[~is_outlier], "o", **dots)
    limit = max(OUTLIER_THRESHOLD, np.abs(scores).max(initial=0.0)) * 1.1
    axes.set_ylim(-limit, limit)


def plot_leave_one_out(estimator, X=None, Y=None, *, groups="rows", output=None, ax=None) -> Axes | np.ndarray:
    """Plot observations against their leave-one-out predictions with 90 % intervals.

    Squares mark observations outside of their interval.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge or ORFFRidge
        Fitted estimator with Gaussian noise.
    X, Y : array-like of shape (n, d) and (n, p), default=None
        Training data, NaN in Y where missing. Required only if the model does not store them (random features), or for
        labels `groups`.
    groups : {"rows", "entries"} or array-like of shape (n,), default="rows"
        What is held out together: all outputs of a row, single entries, or all rows with the same label.
    output, ax
        As in `plot_pit`.

    Returns
    -------
    Axes or ndarray of shape (p,)
        The Axes, or an array of them if there are several outputs.

    Notes
    -----
    If predictions average over sampled hyperparameters, intervals are those of the Gaussian with the mean and variance of the average.

    Complexity: one factorization, or one per draw that predictions average over.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X, y, _ = ovkgp.datasets.make_sine_quantiles(60, random_state=0)
    >>> ax = ovkgp.plotting.plot_leave_one_out(ovkgp.OVKRidge(lam=0.1).fit(X, y), ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('leave-one-out prediction', 'observed')
    """
    entries = estimator.leave_one_out_entries(X, Y, groups)

    def draw(axes: Axes, a: int, name: str) -> None:
        observed = np.isfinite(entries.Y[:, a])
        num_outside = _draw_entries(axes, *(part[observed, a] for part in (entries.mean, entries.std, entries.Y)))
        axes.set(xlabel="leave-one-out prediction", ylabel="observed")
        _set_title(axes, name, f"{num_outside} of {observed.sum()} outside")

    return plot_outputs(estimator, output, ax, draw, SQUARE_PANEL_INCHES)


def _draw_entries(axes: Axes, mean: np.ndarray, std: np.ndarray, observed: np.ndarray) -> int:
    """Draw entries with their intervals; return the number of entries outside."""
    half_width = ndtri((1 + INTERVAL_LEVEL) / 2) * std
    bars = {"color": MIDTONE_COLOR, "linewidth": 0.7, "label": f"{100 * INTERVAL_LEVEL:g} % interval"}
    axes.hlines(observed, mean - half_width, mean + half_width, **bars)
    is_outside = np.abs(observed - mean) > half_width
    inside = {"marker": "o", "color": INK_COLOR, "markerfacecolor": "none", "label": "inside"}
    outside = {"marker": "s", "color": ACCENT_COLOR, "label": "outside"}
    axes.plot(mean[~is_outside], observed[~is_outside], linestyle="none", markersize=4, **inside)
    axes.plot(mean[is_outside], observed[is_outside], linestyle="none", markersize=4, **outside)
    axes.axline((float(observed.mean()),) * 2, slope=1, color=GUIDE_COLOR, linestyle="--", linewidth=1, zorder=0.9)
    return int(is_outside.sum())
