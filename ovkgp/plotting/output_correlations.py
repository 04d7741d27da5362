"""Correlations of the outputs under a learned kernel, as a heat map.

The covariance of the outputs at a point is the p × p block K(x, x): Γ of a decomposable kernel, the sum of its
matrices for an LMC, diagonal for independent outputs.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes

from ovkgp.checks import check_estimator
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import block
from ovkgp.plotting.axes import Panels, add_colorbar, format_label

MAX_NUMBERED_OUTPUTS = 20  # up to this number of outputs, the cells of the matrix contain numbers
CELL_INCHES = 0.45  # size of a cell with a number
SYMMETRY_TOLERANCE = 1e-6


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
    is_model = np.ndim(estimator) == 0
    if is_model and names is not None:
        raise OptionError("names is only supported with a matrix; an estimator has its own column names. Remove names.")
    matrix = compute_output_correlations(estimator) if is_model else _to_correlations(_check_covariance(estimator))
    names = estimator.output_labels() if is_model else _check_names(names, len(matrix))
    side = 1.8 + CELL_INCHES * min(len(matrix), MAX_NUMBERED_OUTPUTS)
    (axes,) = Panels.create(ax, 1, "one for the matrix", size=(side + 1.6, side + 0.6)).axes
    image = axes.imshow(matrix, cmap="cividis", vmin=-1, vmax=1)
    label_cells(axes, names)
    if len(matrix) <= MAX_NUMBERED_OUTPUTS:
        _write_correlations(axes, matrix)
    add_colorbar(axes, image, "correlation of the outputs")
    return axes


def compute_output_correlations(estimator) -> np.ndarray:
    """Compute the prior correlations (p, p) of the latent outputs at a point, averaged over draws if there are any."""
    check_estimator(estimator)
    used = getattr(getattr(estimator, "scaling_", None), "used_inputs", None)
    num_inputs = estimator.n_features_in_ if used is None else len(used)
    point = torch.full((num_inputs,), 0.5, dtype=torch.float64)  # a point of every domain
    with torch.no_grad():
        blocks = [block(kernel, point, point).numpy() for kernel in estimator.output_kernels()]
    if not blocks:
        raise OptionError(
            f"estimator must be a GPRegressor or a ridge regressor with a kernel between outputs, got {estimator.class_name}."
        )
    return np.mean([_to_correlations(covariance) for covariance in blocks], axis=0)


def _to_correlations(covariance: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diag(covariance))
    return np.clip(covariance / np.outer(scale, scale), -1, 1)


def _check_covariance(matrix) -> np.ndarray:
    expected = "estimator must be a fitted estimator or a covariance or correlation matrix"
    try:
        matrix = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{expected} of numbers: {error}.") from error
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


def label_cells(axes: Axes, names: list[str]) -> None:
    """Label the rows and columns of a square matrix."""
    texts, is_long = [format_label(name, 22) for name in names], max(map(len, names)) > 6
    size = min(_font_size(axes, len(names)) * 1.3, 10.0)
    axes.set_xticks(range(len(names)), texts, fontsize=size, rotation=90 if is_long else 0)
    axes.set_yticks(range(len(names)), texts, fontsize=size)


def _write_correlations(axes: Axes, matrix: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        text = "1" if row == column else f"{value:.2f}".replace("-", "−")
        write_number(axes, row, column, text, len(matrix), is_dark=value < 0)


def write_number(axes: Axes, row: int, column: int, text: str, size: int, *, is_dark: bool) -> None:
    """Write a number into a cell of a matrix of some size, light on dark cells and dark on light ones."""
    style = {"ha": "center", "va": "center", "fontsize": _font_size(axes, size)}
    axes.text(column, row, text, color="white" if is_dark else "black", **style)


def _font_size(axes: Axes, count: int) -> float:
    """Return the font size in points at which five letters fit into a cell."""
    width = axes.get_window_extent().width / axes.figure.dpi / count
    return float(np.clip(72 * width / 4, 3.0, 10.0))
