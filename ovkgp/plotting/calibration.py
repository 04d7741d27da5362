"""Each entry given all the others: what was observed against what the rest of the data would have predicted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri
from scipy.stats import binom

from ovkgp.checks import check_integer
from ovkgp.criticism import Coverage, pit_values
from ovkgp.criticism.predictive_distributions import leave_one_out_entries, predictive
from ovkgp.plotting.axes import BAND, GUIDE, INK, LINE, MIDDLE, OTHER, Panels, chosen_outputs, label, output_names

CONFIDENCE = 0.9
"""A right model stays within what is marked as chance so often, bin by bin or level by level."""
CHANCE = f"{100 * CONFIDENCE:g} % of right models"
SQUARE = (4.2, 4.2)
"""Inches of a panel."""


def plot_pit(estimator, X=None, Y=None, *, output=None, bins: int = 10, ax=None) -> Axes | np.ndarray:
    """Histograms of P(y′ ≤ y): flat where the model is right, high at both ends where it is too sure, in the middle where not enough.

    The dashed lines hold a bin of a right model in nine of ten cases.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or `InfiniteQuantileRegressor`.
        X, Y: rows that were held out of the fit. Without them each entry that the model keeps, given all others, in closed form.
        output: the name or number of one output, or a list of them; None draws a panel for each.
        bins: of the histogram.
        ax: where to draw: an Axes, or as many as there are panels.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    Cost: that of `ovkgp.criticism.pit_values`.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=60)
        >>> ax = ovkgp.plotting.plot_pit(ovkgp.OVKRidge(lam=0.09).fit(X, y), ax=Figure().subplots())
        >>> ax.get_title()
        'output 0 (60 entries)'
    """
    number = check_integer("bins", bins, least=2)
    values = pit_values(estimator, X, Y)
    outputs, names = chosen_outputs(estimator, output), output_names(estimator)
    panels = Panels.of(ax, len(outputs))
    for axes, a in zip(panels.axes, outputs, strict=True):
        observed = values[np.isfinite(values[:, a]), a]
        _draw_histogram(axes, observed, number)
        axes.set(xlabel="P(new observation ≤ observed one)", ylabel="entries", xlim=(0, 1))
        axes.set_title(entries_title(names[a], len(observed)), fontsize="medium")
    panels.legend()
    return panels.answer


def plot_coverage(estimator, X=None, Y=None, *, output=None, ax=None) -> Axes | np.ndarray:
    """The share of observations inside the central interval of each level: on the diagonal where the model is right, below it where
    it is too sure.

    The band holds a right model in nine of ten cases, level by level.

    Args:
        estimator, X, Y, output, ax: as for `plot_pit`.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    Cost: that of `ovkgp.criticism.coverage`.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=60)
        >>> ax = ovkgp.plotting.plot_coverage(ovkgp.OVKRidge(lam=0.09).fit(X, y), ax=Figure().subplots())
        >>> ax.get_ylabel()
        'share of observations inside'
    """
    found = Coverage.of(pit_values(estimator, X, Y))
    outputs, names = chosen_outputs(estimator, output), output_names(estimator)
    panels = Panels.of(ax, len(outputs), size=SQUARE)
    lower, upper = found.band(CONFIDENCE)
    for axes, a in zip(panels.axes, outputs, strict=True):
        axes.fill_between(found.levels, lower[:, a], upper[:, a], color=BAND, linewidth=0, label=CHANCE)
        axes.plot([0, 1], [0, 1], color=GUIDE, linestyle="--", linewidth=1, label="as it should be")
        axes.plot(found.levels, found.observed[:, a], color=LINE, marker="o", markersize=3.5, label="this model")
        axes.set(xlabel="level of the interval", ylabel="share of observations inside", xlim=(0, 1), ylim=(0, 1))
        axes.set_title(entries_title(names[a], int(found.counts[a])), fontsize="medium")
        axes.set_aspect("equal")
    panels.legend()
    return panels.answer


def entries_title(name: str, count: int) -> str:
    """The name of an output and how many of its entries are shown."""
    return label(f"{name} ({count} {'entry' if count == 1 else 'entries'})", 36)


def _draw_histogram(axes: Axes, values: np.ndarray, bins: int) -> None:
    counts, edges = np.histogram(values, bins, range=(0, 1))
    axes.stairs(counts, edges, fill=True, color=MIDDLE, label="this model")
    axes.stairs(counts, edges, color=LINE, linewidth=1)
    axes.axhline(len(values) / bins, color=INK, linewidth=1, label="as it should be")
    for i, q in enumerate(((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)):
        limit = binom.ppf(q, len(values), 1 / bins) if len(values) else 0
        axes.axhline(limit, color=INK, linestyle="--", linewidth=0.8, label=None if i else CHANCE)
    axes.set_ylim(bottom=0)


LEVEL = 0.95
"""The band holds so many residuals of a right model."""
FAR = 3.0
"""Residuals beyond are marked: of a right model one in 370."""


def plot_residuals(estimator, X=None, Y=None, *, output=None, ax=None) -> Axes | np.ndarray:
    """Standardised residuals (y − E y)/sd against E y, noise included: a cloud around zero where the model is right.

    Where predictions are not Gaussian (draws of hyperparameters, heavy tails, labels, counts) they are quantile residuals Φ⁻¹(u), with u of
    `ovkgp.criticism.pit_values`, which are standard normal too. Those beyond three are marked.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or `InfiniteQuantileRegressor`.
        X, Y: rows that were held out of the fit. Without them each entry that the model keeps, given all others, in closed form.
        output: the name or number of one output, or a list of them; None draws a panel for each.
        ax: where to draw: an Axes, or as many as there are panels.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    Cost: that of `ovkgp.criticism.pit_values`.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=60)
        >>> ax = ovkgp.plotting.plot_residuals(ovkgp.OVKRidge(lam=0.09).fit(X, y), ax=Figure().subplots())
        >>> ax.get_ylabel(), len(ax.get_lines()[-1].get_xdata())
        ('standardised residual', 60)
    """
    found = predictive(estimator, X, Y)
    scores, kind = found.scores(), "standardised" if found.is_gaussian else "quantile"
    outputs, names = chosen_outputs(estimator, output), output_names(estimator)
    panels = Panels.of(ax, len(outputs))
    for axes, a in zip(panels.axes, outputs, strict=True):
        observed = np.isfinite(scores[:, a])
        _draw_scores(axes, found.mean[observed, a], scores[observed, a])
        axes.set(xlabel="predicted mean", ylabel=f"{kind} residual")
        axes.set_title(entries_title(names[a], int(observed.sum())), fontsize="medium")
    panels.legend()
    return panels.answer


def _draw_scores(axes: Axes, mean: np.ndarray, scores: np.ndarray) -> None:
    reach = ndtri((1 + LEVEL) / 2)
    axes.axhspan(-reach, reach, color=BAND, linewidth=0, label=f"{100 * LEVEL:g} % of a right model")
    axes.axhline(0, color=GUIDE, linewidth=1)
    is_far = np.abs(scores) > FAR
    if is_far.any():
        axes.plot(mean[is_far], scores[is_far], "s", color=OTHER, markersize=5, label=f"beyond {FAR:g}")
    axes.plot(mean[~is_far], scores[~is_far], "o", color=INK, markersize=3.5, markerfacecolor="none", label="residual")
    furthest = max(FAR, np.abs(scores).max(initial=0.0)) * 1.1
    axes.set_ylim(-furthest, furthest)


LEFT_OUT_LEVEL = 0.9
"""Of the bars."""
LEFT_OUT_SQUARE = (4.2, 4.2)
"""Inches of a panel."""


def plot_leave_one_out(estimator, X=None, Y=None, *, output=None, ax=None) -> Axes | np.ndarray:
    """Observations against their leave-one-out predictions, with 90 % bars; squares are those that their bars do not hold.

    Args:
        estimator: a fitted `GPRegressor` with Gaussian noise, `OVKRidge` or `ORFFRidge`.
        X, Y: the rows that it was fitted to, where the model does not keep them (random features); else None.
        output: the name or number of one output, or a list of them; None draws a panel for each.
        ax: where to draw: an Axes, or as many as there are panels.

    Returns:
        The Axes, or an array (p,) of them where there are several outputs.

    An entry is left out by itself: other outputs of the same row stay. Where predictions average over draws, bars are those of the
    Gaussian with the moments of the average.

    Cost: one factorisation; one for each draw that predictions average over.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=60)
        >>> ax = ovkgp.plotting.plot_leave_one_out(ovkgp.OVKRidge(lam=0.09).fit(X, y), ax=Figure().subplots())
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('predicted from all others', 'observed')
    """
    found = leave_one_out_entries(estimator, X, Y)
    outputs, names = chosen_outputs(estimator, output), output_names(estimator)
    panels = Panels.of(ax, len(outputs), size=LEFT_OUT_SQUARE)
    for axes, a in zip(panels.axes, outputs, strict=True):
        observed = np.isfinite(found.Y[:, a])
        num_outside = _draw_entries(axes, *(part[observed, a] for part in (found.mean, found.std, found.Y)))
        axes.set(xlabel="predicted from all others", ylabel="observed")
        axes.set_title(label(f"{names[a]} ({num_outside} of {observed.sum()} outside)", 36), fontsize="medium")
    panels.legend()
    return panels.answer


def _draw_entries(axes: Axes, mean: np.ndarray, std: np.ndarray, observed: np.ndarray) -> int:
    """How many entries lie outside of their bars."""
    reach = ndtri((1 + LEFT_OUT_LEVEL) / 2) * std
    bars = {"color": MIDDLE, "linewidth": 0.7, "label": f"{100 * LEFT_OUT_LEVEL:g} % interval"}
    axes.hlines(observed, mean - reach, mean + reach, **bars)
    is_outside = np.abs(observed - mean) > reach
    points = {"linestyle": "none", "markersize": 4}
    axes.plot(
        *(mean[~is_outside], observed[~is_outside]),
        marker="o",
        color=INK,
        markerfacecolor="none",
        label="inside",
        **points,
    )
    axes.plot(mean[is_outside], observed[is_outside], marker="s", color=OTHER, label="outside", **points)
    axes.axline((float(observed.mean()),) * 2, slope=1, color=GUIDE, linestyle="--", linewidth=1, zorder=0.9)
    return int(is_outside.sum())
