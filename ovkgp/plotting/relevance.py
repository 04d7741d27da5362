"""Relevance of each input under a learned kernel: its standard deviation divided by its lengthscale; of series for each other."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism import training_data
from ovkgp.estimators.common.base import LENGTHSCALE
from ovkgp.exceptions import OptionError
from ovkgp.plotting.axes import (
    Panels,
    add_colorbar,
    format_label,
    format_legend_label,
    get_line_style,
)
from ovkgp.plotting.output_correlations import CELL_INCHES, MAX_NUMBERED_OUTPUTS, label_cells, write_number
from ovkgp.scales import mean_and_std

INTERVAL_LEVEL = 0.9  # level of the intervals of sampled lengthscales
INPUT_INCHES, FIGURE_WIDTH_INCHES = 0.45, 6.0  # height per input, and width of the figure of relevances


def plot_relevance(estimator, *, ax: Axes | None = None) -> Axes:
    """Plot the relevance of each input, its standard deviation divided by its lengthscale.

    Each part of the kernel has its own marker. If hyperparameters were sampled, markers are medians and lines are 90 %
    intervals.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor
        Fitted estimator whose kernel has one lengthscale per input (ARD).
    ax : Axes, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Raises
    ------
    OptionError
        If the kernel has one lengthscale for all inputs, or none.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X = np.random.default_rng(0).uniform(size=(40, 2))
    >>> model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(5 * X[:, 0]))
    >>> ax = ovkgp.plotting.plot_relevance(model, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['input 0', 'input 1']
    """
    parts, names = compute_relevance(estimator), [format_label(name, 24) for name in estimator.input_labels()]
    size = (FIGURE_WIDTH_INCHES, 1.4 + INPUT_INCHES * len(names))
    panels = Panels.create(ax, 1, "one for all inputs", size=size)
    (axes,) = panels.axes
    offsets = (np.arange(len(parts)) - (len(parts) - 1) / 2) * 0.6 / max(len(parts), 2)
    for i, (part, values) in enumerate(parts.items()):
        label = format_legend_label(part) if len(parts) > 1 else None
        _draw_part(axes, np.arange(len(names)) + offsets[i], values, i, label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first input on top
    axes.set_xlim(left=0)
    axes.set_xlabel("relevance: standard deviation / lengthscale")
    axes.grid(True, axis="x", color="0.88")
    axes.set_axisbelow(True)
    panels.legend()
    return axes


def _draw_part(axes: Axes, heights: np.ndarray, values: np.ndarray, index: int, name: str | None) -> None:
    style = get_line_style(index)
    ends = np.quantile(values, [(1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2], axis=0)
    if len(values) > 1:
        axes.hlines(heights, *ends, color=style["color"], linewidth=1.5)
    axes.plot(np.median(values, axis=0), heights, **style | {"linestyle": "none"}, markersize=6, label=name)


def plot_series_relevance(forecaster, *, ax: Axes | None = None) -> Axes:
    """Plot which series help to predict which, the `relevance_` of a vector autoregression, as a heat map.

    Parameters
    ----------
    forecaster : VectorAutoregressor
        Fitted forecaster.
    ax : Axes, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Examples
    --------
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> series = ovkgp.datasets.make_var_series(100)
    >>> model = ovkgp.VectorAutoregressor(kernel="linear", random_state=0).fit(series)
    >>> ax = ovkgp.plotting.plot_series_relevance(model, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('lagged series', 'predicted series')
    """
    check_is_fitted(forecaster)
    matrix, names = forecaster.relevance_, forecaster.output_labels()
    side = 1.8 + CELL_INCHES * min(len(matrix), MAX_NUMBERED_OUTPUTS)
    (axes,) = Panels.create(ax, 1, "one for the matrix", size=(side + 1.6, side + 0.6)).axes
    limit = max(float(matrix.max()), np.finfo(float).tiny)
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=limit)
    label_cells(axes, names)
    if len(matrix) <= MAX_NUMBERED_OUTPUTS:
        for (row, column), value in np.ndenumerate(matrix):
            write_number(axes, row, column, f"{value:.2f}", len(matrix), is_dark=value < limit / 2)
    axes.set_xlabel("lagged series")
    axes.set_ylabel("predicted series")
    add_colorbar(axes, image, "relevance (standard deviations)")
    return axes


def compute_relevance(estimator) -> dict[str, np.ndarray]:
    """Compute s/ℓ (S, d) of each part of the kernel with one lengthscale per input; S = 1 unless there are draws."""
    check_is_fitted(estimator)
    d = estimator.n_features_in_
    lengthscales = {name: values for name, values in estimator.lengthscales().items() if values.shape[1] == d}
    if not lengthscales:
        raise OptionError(
            "estimator must have one lengthscale per input (ARD). Set base_kernel, as in "
            'GPRegressor(kernel="decomposable", base_kernel="matern52"), or pass a kernel with ard_num_dims.'
        )
    std = _get_input_std(estimator)
    return {_name_part(estimator, name): std / values for name, values in lengthscales.items()}


def _get_input_std(estimator) -> np.ndarray:
    """Return the standard deviation (d,) of each input in standardized units."""
    scaling = estimator.scaling_
    if (rows := training_data(estimator)) is not None:
        return mean_and_std(rows[0])[1] / scaling.input_scale
    scale = scaling.input_scale
    if len(scale) > 1 and (scale == scale[0]).all():  # one for all, or none
        raise OptionError(
            "The standard deviations of the inputs are unknown: the model stores no training data and did not scale each input separately. Use an exact model, or scale the inputs."
        )
    return np.ones(len(scale))


def _name_part(estimator, name: str) -> str:
    """Name the part of the kernel that a lengthscale belongs to: an output, or a component of a sum."""
    path = name.rpartition(".")[0]
    return estimator.output_labels()[int(path)] if path.isdigit() else path.replace("_", " ") or LENGTHSCALE
