"""Is the model as sure as it should be? Histograms of probability integral transforms, and coverage at every level, each with what chance allows."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import binom

from ovkgp.criticism import Coverage, pit_values
from ovkgp.kernels.checks import whole_number
from ovkgp.plotting.names import chosen_outputs, label, output_names
from ovkgp.plotting.panels import Panels
from ovkgp.plotting.style import BAND, GUIDE, INK, LINE, MIDDLE

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
    number = whole_number("bins", bins, least=2)
    values = pit_values(estimator, X, Y)
    outputs, names = chosen_outputs(estimator, output), output_names(estimator)
    panels = Panels.of(ax, len(outputs))
    for axes, a in zip(panels.axes, outputs, strict=True):
        seen = values[np.isfinite(values[:, a]), a]
        _draw_histogram(axes, seen, number)
        axes.set(xlabel="P(new observation ≤ observed one)", ylabel="entries", xlim=(0, 1))
        axes.set_title(entries_title(names[a], len(seen)), fontsize="medium")
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
