"""Each entry given all the others: what was observed against what the rest of the data would have predicted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri

from ovkgp.criticism.left_out import leave_one_out_entries
from ovkgp.plotting.names import chosen_outputs, label, output_names
from ovkgp.plotting.panels import Panels
from ovkgp.plotting.style import GUIDE, INK, MIDDLE, OTHER

LEVEL = 0.9
"""Of the bars."""
SQUARE = (4.2, 4.2)
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
    panels = Panels.of(ax, len(outputs), size=SQUARE)
    for axes, a in zip(panels.axes, outputs, strict=True):
        seen = np.isfinite(found.Y[:, a])
        num_outside = _draw_entries(axes, *(part[seen, a] for part in (found.mean, found.std, found.Y)))
        axes.set(xlabel="predicted from all others", ylabel="observed")
        axes.set_title(label(f"{names[a]} ({num_outside} of {seen.sum()} outside)", 36), fontsize="medium")
    panels.legend()
    return panels.answer


def _draw_entries(axes: Axes, mean: np.ndarray, std: np.ndarray, observed: np.ndarray) -> int:
    """How many entries lie outside of their bars."""
    reach = ndtri((1 + LEVEL) / 2) * std
    bars = {"color": MIDDLE, "linewidth": 0.7, "label": f"{100 * LEVEL:g} % interval"}
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
