"""What the model leaves unexplained: standardised residuals against what it predicted, where trends and spreads show."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri

from ovkgp.criticism.predictives import predictive
from ovkgp.plotting.calibration import entries_title
from ovkgp.plotting.names import chosen_outputs, output_names
from ovkgp.plotting.panels import Panels
from ovkgp.plotting.style import BAND, GUIDE, INK, OTHER

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
        seen = np.isfinite(scores[:, a])
        _draw_scores(axes, found.mean[seen, a], scores[seen, a])
        axes.set(xlabel="predicted mean", ylabel=f"{kind} residual")
        axes.set_title(entries_title(names[a], int(seen.sum())), fontsize="medium")
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
