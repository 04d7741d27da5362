"""Errors of random features against their number, on log-log axes with the Monte Carlo rate D^(−1/2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ovkgp.exceptions import InputError
from ovkgp.plotting.axes import GUIDE_COLOR, Panels, format_legend_label, get_line_style

GUIDE_OFFSET = 1.6  # ratio of the reference line to the largest error
MAX_TICKS = 8  # up to this number of sizes, each has a tick


def plot_feature_error(sizes: Sequence[int], errors: Mapping[str, Sequence[float]], *, ax: Axes | None = None) -> Axes:
    """Plot errors against the number of features, with a reference line of slope D^(−1/2).

    Parameters
    ----------
    sizes : array-like of shape (k,)
        Numbers of features or frequencies, positive and increasing.
    errors : dict of array-like of shape (k,)
        Positive errors at these sizes by name, NaN where unknown.
    ax : Axes, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Raises
    ------
    InputError
        If `errors` is empty, or lengths or signs are invalid.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.plotting import plot_feature_error
    >>> ax = plot_feature_error([100, 400], {"iid": [0.2, 0.1], "orthogonal": [0.1, 0.04]}, ax=Figure().subplots())
    >>> [line.get_label() for line in ax.get_lines()]
    ['iid', 'orthogonal', 'slope $D^{-1/2}$']
    """
    sizes, curves = _check_curves(sizes, errors)
    panels = Panels.create(ax, 1, "one for all curves")
    (axes,) = panels.axes
    for i, (name, values) in enumerate(curves.items()):
        axes.loglog(sizes, values, **get_line_style(i), markersize=5, label=format_legend_label(name))
    top = GUIDE_OFFSET * max(np.nanmax(values * np.sqrt(sizes / sizes[0])) for values in curves.values())
    guide = {"color": GUIDE_COLOR, "linestyle": (0, (1, 2)), "label": "slope $D^{-1/2}$"}
    axes.loglog(sizes, top * np.sqrt(sizes[0] / sizes), **guide)
    axes.set(xlabel="number of features $D$", ylabel="error")
    _format_ticks(axes, sizes)
    panels.legend()
    return axes


def _format_ticks(axes: Axes, sizes: np.ndarray) -> None:
    """Label few sizes by their values; add ticks at 2 and 5 if the errors span less than a factor of 100."""
    if len(sizes) <= MAX_TICKS:
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xticks([], minor=True)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0) if high < 100 * low else ()))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(True, which="both", color="0.88")
    axes.set_axisbelow(True)


def _check_curves(sizes, errors) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    try:
        sizes = np.asarray(sizes, dtype=np.float64)
        curves = {str(name): np.asarray(values, dtype=np.float64) for name, values in dict(errors).items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"sizes must be numbers and errors a dictionary from names to numbers: {error}.") from error
    if sizes.ndim != 1 or not len(sizes) or not (sizes > 0).all() or not (np.diff(sizes) > 0).all():
        raise InputError(f"sizes must be positive and increasing, got {sizes.tolist()}.")
    if not curves:
        raise InputError("errors is empty. Give at least one curve, such as {'iid': [0.2, 0.1]}.")
    for name, values in curves.items():
        if values.shape != sizes.shape:
            raise InputError(f"errors[{name!r}] has shape {values.shape}, expected {sizes.shape} as sizes.")
        if not np.isfinite(values).any() or (values <= 0).any() or np.isinf(values).any():
            raise InputError(f"errors[{name!r}] must be positive (for logarithmic axes), got {values.tolist()}.")
    return sizes, curves
