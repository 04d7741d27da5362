"""How fast does an error fall with the number of random features? On log-log axes, beside the Monte-Carlo rate D^(−1/2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ovkgp.exceptions import InputError
from ovkgp.plotting.axes import GUIDE, Panels, legend_label, line_style

ABOVE = 1.6
"""How far above the largest error the guide begins."""
FEW = 8
"""So many sizes have a mark each."""


def plot_feature_error(sizes: Sequence[int], errors: Mapping[str, Sequence[float]], *, ax: Axes | None = None) -> Axes:
    """Errors against numbers of features, with the line D^(−1/2) to compare slopes by.

    Args:
        sizes: numbers of features or frequencies (k,), positive and increasing.
        errors: by name, the errors (k,) at these sizes, positive; NaN where one is not known.
        ax: where to draw.

    Raises:
        InputError: nothing to draw, or lengths or signs that do not fit.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from ovkgp.plotting import plot_feature_error
        >>> ax = plot_feature_error([100, 400], {"iid": [0.2, 0.1], "orthogonal": [0.1, 0.04]}, ax=Figure().subplots())
        >>> [line.get_label() for line in ax.get_lines()]
        ['iid', 'orthogonal', 'slope $D^{-1/2}$']
    """
    sizes, curves = _checked(sizes, errors)
    panels = Panels.of(ax, 1, "one for all curves")
    (axes,) = panels.axes
    for i, (name, values) in enumerate(curves.items()):
        axes.loglog(sizes, values, **line_style(i), markersize=5, label=legend_label(name))
    top = ABOVE * max(np.nanmax(values * np.sqrt(sizes / sizes[0])) for values in curves.values())
    axes.loglog(sizes, top * np.sqrt(sizes[0] / sizes), color=GUIDE, linestyle=(0, (1, 2)), label="slope $D^{-1/2}$")
    axes.set(xlabel="number of features $D$", ylabel="error")
    _mark(axes, sizes)
    panels.legend()
    return axes


def _mark(axes: Axes, sizes: np.ndarray) -> None:
    """Plain numbers: at the sizes where these are few, at 2 and 5 beside the powers of ten where errors span little."""
    if len(sizes) <= FEW:
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xticks([], minor=True)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0) if high < 100 * low else ()))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(True, which="both", color="0.88")
    axes.set_axisbelow(True)


def _checked(sizes, errors) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    try:
        sizes = np.asarray(sizes, dtype=np.float64)
        curves = {str(name): np.asarray(values, dtype=np.float64) for name, values in dict(errors).items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"sizes are numbers, and errors a dictionary from names to numbers: {error}.") from error
    if sizes.ndim != 1 or not len(sizes) or not (sizes > 0).all() or not (np.diff(sizes) > 0).all():
        raise InputError(f"sizes must be positive and increasing, got {sizes.tolist()}.")
    if not curves:
        raise InputError("errors is empty: give at least one curve, such as {'iid': [0.2, 0.1]}.")
    for name, values in curves.items():
        if values.shape != sizes.shape:
            raise InputError(f"errors[{name!r}] has shape {values.shape}; there are {len(sizes)} sizes.")
        if not np.isfinite(values).any() or (values <= 0).any() or np.isinf(values).any():
            raise InputError(f"errors[{name!r}] must be positive numbers, for logarithmic axes; got {values.tolist()}.")
    return sizes, curves
