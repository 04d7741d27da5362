"""How the outputs go together under the prior that was learned: a heat map of their correlations, with the numbers in it.

The covariance of the outputs at a point is the p × p block K(x, x): Γ of a decomposable kernel, the sum of its matrices for an LMC,
diagonal for outputs that share nothing. Lightness grows from −1 to 1.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.mixture_posterior import MixturePosterior
from ovkgp.kernels import block
from ovkgp.plotting.names import label, output_names
from ovkgp.plotting.panels import Panels, colour_bar

MOST_NUMBERS = 20
"""Beyond so many outputs the cells are too small for numbers."""
CELL = 0.45
"""Inches of a cell, while there are numbers in it."""
ROUNDING = 1e-6


def plot_output_correlations(estimator, *, names=None, ax: Axes | None = None) -> Axes:
    """Correlations of the outputs of the latent function at one point, as the kernel has them; averaged over draws where there are any.

    Args:
        estimator: a fitted estimator with a `gp_`, or a covariance or correlation matrix (p, p).
        names: of the outputs of a matrix.
        ax: where to draw.

    Raises:
        InputError: a matrix is not symmetric with a positive diagonal, or has not as many rows as names.

    Cost: nothing to speak of.

    Example:
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
        raise OptionError("names are for a matrix: those of a model are the columns that it was fitted to.")
    matrix = output_correlations(estimator) if is_model else _correlations(_checked(estimator))
    names = output_names(estimator) if is_model else _names(names, len(matrix))
    side = 1.8 + CELL * min(len(matrix), MOST_NUMBERS)
    (axes,) = Panels.of(ax, 1, "one for the map", size=(side + 1.6, side + 0.6)).axes
    drawn = axes.imshow(matrix, cmap="cividis", vmin=-1, vmax=1)
    _name_cells(axes, names)
    if len(matrix) <= MOST_NUMBERS:
        _write(axes, matrix)
    colour_bar(axes, drawn, "correlation of the outputs")
    return axes


def output_correlations(estimator) -> np.ndarray:
    """The correlations (p, p) of the latent outputs at a point, under the prior; their mean over the draws where there are draws.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.correlations import output_correlations
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> model = ovkgp.OVKRidge("decomposable", output_matrix=[[1.0, -0.6], [-0.6, 1.0]]).fit(X, np.hstack([X, -X]))
        >>> output_correlations(model).round(2).tolist()
        [[1.0, -0.6], [-0.6, 1.0]]
    """
    check_is_fitted(estimator)
    if not hasattr(estimator, "gp_"):
        raise OptionError(f"{type(estimator).__name__} has no kernel between outputs: give a GPRegressor or a ridge.")
    posterior = getattr(estimator, "posterior_", None)
    if not isinstance(posterior, MixturePosterior):
        return _correlations(_block(estimator.gp_.kernel, estimator.n_features_in_))
    drawn = (posterior.parts.place(index).kernel for index in range(len(posterior)))
    return np.mean([_correlations(_block(kernel, estimator.n_features_in_)) for kernel in drawn], axis=0)


def _block(kernel, num_inputs: int) -> np.ndarray:
    point = torch.full((num_inputs,), 0.5, dtype=torch.float64)  # a point of every domain
    with torch.no_grad():
        return block(kernel, point, point).numpy()


def _correlations(covariance: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diag(covariance))
    return np.clip(covariance / np.outer(scale, scale), -1, 1)


def _checked(matrix) -> np.ndarray:
    try:
        matrix = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"give a fitted estimator or a matrix (p, p) of numbers, got a {type(matrix).__name__}."
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"give a fitted estimator or a square matrix (p, p), got shape {matrix.shape}.")
    if not np.isfinite(matrix).all() or not (np.diag(matrix) > 0).all():
        raise InputError("a covariance or correlation matrix is finite and has a positive diagonal; this one is not.")
    if np.abs(matrix - matrix.T).max() > ROUNDING * np.abs(matrix).max():
        raise InputError("a covariance or correlation matrix is symmetric; this one is not.")
    return matrix


def _names(names, count: int) -> list[str]:
    names = [f"output {a}" for a in range(count)] if names is None else [str(name) for name in names]
    if len(names) != count:
        raise InputError(f"names has {len(names)} names for {count} outputs; give one for each.")
    return names


def _name_cells(axes: Axes, names: list[str]) -> None:
    texts, is_long = [label(name, 22) for name in names], max(map(len, names)) > 6
    size = min(_letters(axes, len(names)) * 1.3, 10.0)
    axes.set_xticks(range(len(names)), texts, fontsize=size, rotation=90 if is_long else 0)
    axes.set_yticks(range(len(names)), texts, fontsize=size)


def _write(axes: Axes, matrix: np.ndarray) -> None:
    """The numbers, light on dark cells and dark on light ones."""
    style = {"ha": "center", "va": "center", "fontsize": _letters(axes, len(matrix))}
    for (row, column), value in np.ndenumerate(matrix):
        text = "1" if row == column else f"{value:.2f}".replace("-", "−")
        axes.text(column, row, text, color="white" if value < 0 else "black", **style)


def _letters(axes: Axes, count: int) -> float:
    """The size in points of letters of which five fit into a cell."""
    across = axes.get_window_extent().width / axes.figure.dpi / count
    return float(np.clip(72 * across / 4, 3.0, 10.0))
