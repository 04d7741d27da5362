"""Properties of a learned kernel: the relevance of each input and the correlations of the outputs.

The relevance of an input is its standard deviation divided by its lengthscale. The covariance of the outputs at a
point is the p × p block K(x, x): Γ of a decomposable kernel, the sum of its matrices for an LMC, diagonal for
independent outputs.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism import training_data
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.kernels import block
from ovkgp.plotting.axes import (
    Panels,
    add_colorbar,
    format_label,
    format_legend_label,
    get_input_names,
    get_line_style,
    get_output_names,
)

INTERVAL_LEVEL = 0.9  # level of the intervals of sampled lengthscales
INPUT_INCHES, FIGURE_WIDTH_INCHES = 0.45, 6.0  # height per input, and width of the figure of relevances
LENGTHSCALE = "lengthscale"  # last part of the names of lengthscales
MAX_NUMBERED_OUTPUTS = 20  # up to this number of outputs, the cells of the correlation matrix contain numbers
CELL_INCHES = 0.45  # size of a cell with a number
SYMMETRY_TOLERANCE = 1e-6


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
    parts, names = compute_relevance(estimator), [format_label(name, 24) for name in get_input_names(estimator)]
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


def compute_relevance(estimator) -> dict[str, np.ndarray]:
    """Compute s/ℓ (S, d) of each part of the kernel with one lengthscale per input; S = 1 unless there are draws."""
    check_is_fitted(estimator)
    d = estimator.n_features_in_
    lengthscales = {name: values for name, values in _get_lengthscales(estimator).items() if values.shape[1] == d}
    if not lengthscales:
        raise OptionError(
            "estimator must have one lengthscale per input (ARD). Set base_kernel, as in "
            'GPRegressor(kernel="decomposable", base_kernel="matern52"), or pass a kernel with ard_num_dims.'
        )
    std = _get_input_std(estimator)
    return {_name_part(estimator, name): std / values for name, values in lengthscales.items()}


def _get_lengthscales(estimator) -> dict[str, np.ndarray]:
    """Return lengthscales (S, k) in standardized units by the name of the hyperparameter."""
    if isinstance(estimator, InfiniteQuantileRegressor):
        found = {} if estimator.lengthscale_ is None else {LENGTHSCALE: np.atleast_2d(estimator.lengthscale_)}
    elif hasattr(estimator, "draws_"):
        group = estimator.draws_["posterior"]
        found = {str(name): group[name].transpose("chain", "draw", ...).values for name in group.data_vars}
        found = {name: values.reshape(values.shape[0] * values.shape[1], -1) for name, values in found.items()}
    else:
        kernel = getattr(getattr(estimator, "gp_", None), "kernel", None)
        values = {} if kernel is None else hyperparameters(kernel)
        found = {name: value.detach().numpy().reshape(1, -1) for name, value in values.items()}
    return {name: values for name, values in found.items() if name.rpartition(".")[2] == LENGTHSCALE}


def _get_input_std(estimator) -> np.ndarray:
    """Return the standard deviation (d,) of each input in standardized units."""
    scaling = estimator.scaling_
    if (rows := training_data(estimator)) is not None:
        return rows[0].std(0) / scaling.input_scale
    scale = scaling.input_scale
    if len(scale) > 1 and (scale == scale[0]).all():  # one for all, or none
        raise OptionError(
            "The standard deviations of the inputs are unknown: the model stores no training data and did not scale each input separately. Use an exact model, or scale the inputs."
        )
    return np.ones(len(scale))


def _name_part(estimator, name: str) -> str:
    """Name the part of the kernel that a lengthscale belongs to: an output, or a component of a sum."""
    path = name.rpartition(".")[0]
    return get_output_names(estimator)[int(path)] if path.isdigit() else path.replace("_", " ") or LENGTHSCALE


def plot_output_correlations(estimator, *, names=None, ax: Axes | None = None) -> Axes:
    """Plot the prior correlations of the latent outputs at one point as a heat map.

    Correlations are averaged over draws if hyperparameters were sampled.

    Parameters
    ----------
    estimator : estimator or array-like of shape (p, p)
        Fitted estimator with a `gp_`, or a covariance or correlation matrix.
    names : list of str, default=None
        Names of the outputs of a matrix.
    ax : Axes, default=None
        Axes to draw on. If None, a new figure is made.

    Returns
    -------
    Axes
        The Axes.

    Raises
    ------
    InputError
        If a matrix is not symmetric with a positive diagonal, or the number of names differs from its size.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> matrix = np.array([[4.0, 1.0], [1.0, 1.0]])
    >>> ax = ovkgp.plotting.plot_output_correlations(matrix, names=["u", "v"], ax=Figure().subplots())
    >>> [text.get_text() for text in ax.texts]
    ['1', '0.50', '0.50', '1']
    """
    is_model = isinstance(estimator, BaseEstimator)
    if is_model and names is not None:
        raise OptionError("names is only supported with a matrix; an estimator has its own column names. Remove names.")
    matrix = compute_output_correlations(estimator) if is_model else _to_correlations(_check_covariance(estimator))
    names = get_output_names(estimator) if is_model else _check_names(names, len(matrix))
    side = 1.8 + CELL_INCHES * min(len(matrix), MAX_NUMBERED_OUTPUTS)
    (axes,) = Panels.create(ax, 1, "one for the matrix", size=(side + 1.6, side + 0.6)).axes
    image = axes.imshow(matrix, cmap="cividis", vmin=-1, vmax=1)
    _label_cells(axes, names)
    if len(matrix) <= MAX_NUMBERED_OUTPUTS:
        _write_numbers(axes, matrix)
    add_colorbar(axes, image, "correlation of the outputs")
    return axes


def compute_output_correlations(estimator) -> np.ndarray:
    """Compute the prior correlations (p, p) of the latent outputs at a point, averaged over draws if there are any."""
    check_is_fitted(estimator)
    if not hasattr(estimator, "gp_"):
        name = type(estimator).__name__
        raise OptionError(
            f"estimator must be a GPRegressor or a ridge regressor with a kernel between outputs, got {name}."
        )
    posterior = getattr(estimator, "posterior_", None)
    if not isinstance(posterior, MixturePosterior):
        return _to_correlations(_compute_block(estimator.gp_.kernel, estimator.n_features_in_))
    kernels = (posterior.parts.set_draw(index).kernel for index in range(len(posterior)))
    return np.mean([_to_correlations(_compute_block(kernel, estimator.n_features_in_)) for kernel in kernels], axis=0)


def _compute_block(kernel, num_inputs: int) -> np.ndarray:
    point = torch.full((num_inputs,), 0.5, dtype=torch.float64)  # a point of every domain
    with torch.no_grad():
        return block(kernel, point, point).numpy()


def _to_correlations(covariance: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diag(covariance))
    return np.clip(covariance / np.outer(scale, scale), -1, 1)


def _check_covariance(matrix) -> np.ndarray:
    expected = "estimator must be a fitted estimator or a covariance or correlation matrix"
    try:
        matrix = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{expected} of numbers, got {type(matrix).__name__}.") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"{expected} of shape (p, p), got shape {matrix.shape}.")
    if not np.isfinite(matrix).all() or not (np.diag(matrix) > 0).all():
        raise InputError(f"{expected} that is finite with a positive diagonal, got another matrix.")
    if np.abs(matrix - matrix.T).max() > SYMMETRY_TOLERANCE * np.abs(matrix).max():
        raise InputError(f"{expected} that is symmetric, got another matrix.")
    return matrix


def _check_names(names, count: int) -> list[str]:
    names = [f"output {a}" for a in range(count)] if names is None else [str(name) for name in names]
    if len(names) != count:
        raise InputError(f"names has {len(names)} entries, expected {count} (one per output).")
    return names


def _label_cells(axes: Axes, names: list[str]) -> None:
    texts, is_long = [format_label(name, 22) for name in names], max(map(len, names)) > 6
    size = min(_font_size(axes, len(names)) * 1.3, 10.0)
    axes.set_xticks(range(len(names)), texts, fontsize=size, rotation=90 if is_long else 0)
    axes.set_yticks(range(len(names)), texts, fontsize=size)


def _write_numbers(axes: Axes, matrix: np.ndarray) -> None:
    """Write the numbers, light on dark cells and dark on light ones."""
    style = {"ha": "center", "va": "center", "fontsize": _font_size(axes, len(matrix))}
    for (row, column), value in np.ndenumerate(matrix):
        text = "1" if row == column else f"{value:.2f}".replace("-", "−")
        axes.text(column, row, text, color="white" if value < 0 else "black", **style)


def _font_size(axes: Axes, count: int) -> float:
    """Return the font size in points at which five letters fit into a cell."""
    width = axes.get_window_extent().width / axes.figure.dpi / count
    return float(np.clip(72 * width / 4, 3.0, 10.0))
