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

from ovkgp.criticism import kept_rows
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.kernels import block
from ovkgp.plotting.axes import Panels, colour_bar, input_names, label, legend_label, line_style, output_names

LEVEL = 0.9
"""Of the intervals of drawn lengthscales."""
ROW, WIDTH = 0.45, 6.0
"""Inches for an input, and of the picture."""
LAST = "lengthscale"


def plot_relevance(estimator, *, ax: Axes | None = None) -> Axes:
    """The relevance of each input: its standard deviation over its lengthscale, one marker for each part of the kernel.

    Where hyperparameters were drawn, markers are medians and lines are 90 % intervals.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge` or `ORFFRidge` whose kernel has a lengthscale for each input (ARD), or an
            `InfiniteQuantileRegressor` with one for each.
        ax: where to draw.

    Raises:
        OptionError: the kernel has one lengthscale for all inputs, or none.

    Cost: nothing to speak of.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.random.default_rng(0).uniform(size=(40, 2))
        >>> model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(5 * X[:, 0]))
        >>> ax = ovkgp.plotting.plot_relevance(model, ax=Figure().subplots())
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['input 0', 'input 1']
    """
    parts, names = relevances(estimator), [label(name, 24) for name in input_names(estimator)]
    panels = Panels.of(ax, 1, "one for all inputs", size=(WIDTH, 1.4 + ROW * len(names)))
    (axes,) = panels.axes
    offsets = (np.arange(len(parts)) - (len(parts) - 1) / 2) * 0.6 / max(len(parts), 2)
    for i, (part, values) in enumerate(parts.items()):
        _draw_part(axes, np.arange(len(names)) + offsets[i], values, i, legend_label(part) if len(parts) > 1 else None)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first input on top
    axes.set_xlim(left=0)
    axes.set_xlabel("relevance: standard deviation / lengthscale")
    axes.grid(True, axis="x", color="0.88")
    axes.set_axisbelow(True)
    panels.legend()
    return axes


def relevances(estimator) -> dict[str, np.ndarray]:
    """s/ℓ (S, d) of each part of the kernel that has a lengthscale for each input, for S draws, or one where nothing was drawn.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.relevance import relevances
        >>> X = np.random.default_rng(0).uniform(size=(40, 2))
        >>> model = ovkgp.GPRegressor("decomposable", random_state=0).fit(X, np.sin(5 * X[:, :1]))
        >>> [(part, values.shape) for part, values in relevances(model).items()]
        [('lengthscale', (1, 2))]
    """
    check_is_fitted(estimator)
    found = {
        name: values for name, values in _lengthscales(estimator).items() if values.shape[1] == estimator.n_features_in_
    }
    if not found:
        raise OptionError(
            "this model has no lengthscale for each input (ARD), so that nothing says which matter: name a base_kernel, as in "
            'GPRegressor(kernel="decomposable", base_kernel="matern52"), or give one with ard_num_dims.'
        )
    spread = _spread(estimator)
    return {_part_name(estimator, name): spread / values for name, values in found.items()}


def _lengthscales(estimator) -> dict[str, np.ndarray]:
    """Lengthscales (S, k) in the units of the model, by the name of the hyperparameter."""
    if isinstance(estimator, InfiniteQuantileRegressor):
        found = {} if estimator.lengthscale_ is None else {LAST: np.atleast_2d(estimator.lengthscale_)}
    elif hasattr(estimator, "draws_"):
        group = estimator.draws_["posterior"]
        found = {str(name): group[name].transpose("chain", "draw", ...).values for name in group.data_vars}
        found = {name: values.reshape(values.shape[0] * values.shape[1], -1) for name, values in found.items()}
    else:
        kernel = getattr(getattr(estimator, "gp_", None), "kernel", None)
        values = {} if kernel is None else hyperparameters(kernel)
        found = {name: value.detach().numpy().reshape(1, -1) for name, value in values.items()}
    return {name: values for name, values in found.items() if name.rpartition(".")[2] == LAST}


def _spread(estimator) -> np.ndarray:
    """The standard deviation (d,) of each input in the units of the model."""
    scaling = estimator.scaling_
    if (rows := kept_rows(estimator)) is not None:
        return rows[0].std(0) / scaling.input_scale
    scale = scaling.input_scale
    if len(scale) > 1 and (scale == scale[0]).all():  # one for all, or none
        raise OptionError(
            "this model keeps no rows, and did not scale its inputs one by one: it does not know how they spread."
        )
    return np.ones(len(scale))


def _part_name(estimator, name: str) -> str:
    """What a lengthscale belongs to: an output of independent ones, a component of a sum."""
    path = name.rpartition(".")[0]
    if not path.isdigit():
        return path or LAST
    if getattr(estimator, "kernel_", None) == "independent":
        return output_names(estimator)[int(path)]
    return f"component {int(path) + 1}"


def _draw_part(axes: Axes, places: np.ndarray, values: np.ndarray, index: int, name: str | None) -> None:
    style = line_style(index)
    ends = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    if len(values) > 1:
        axes.hlines(places, *ends, color=style["color"], linewidth=1.5)
    axes.plot(np.median(values, axis=0), places, **style | {"linestyle": "none"}, markersize=6, label=name)


MAX_NUMBERS = 20
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
    side = 1.8 + CELL * min(len(matrix), MAX_NUMBERS)
    (axes,) = Panels.of(ax, 1, "one for the map", size=(side + 1.6, side + 0.6)).axes
    drawn = axes.imshow(matrix, cmap="cividis", vmin=-1, vmax=1)
    _name_cells(axes, names)
    if len(matrix) <= MAX_NUMBERS:
        _write(axes, matrix)
    colour_bar(axes, drawn, "correlation of the outputs")
    return axes


def output_correlations(estimator) -> np.ndarray:
    """The correlations (p, p) of the latent outputs at a point, under the prior; their mean over the draws where there are draws.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.relevance import output_correlations
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
