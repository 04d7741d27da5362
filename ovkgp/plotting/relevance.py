"""Which inputs matter? The inverse lengthscale of each, in units of how far the input spreads.

With s the standard deviation of an input and ℓ its lengthscale, s/ℓ is how many lengthscales the data usually span: near zero where the
function hardly changes along it.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism import kept_rows
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import OptionError
from ovkgp.inference.hyperparameters import hyperparameters
from ovkgp.plotting.names import input_names, label, legend_label, output_names
from ovkgp.plotting.panels import Panels
from ovkgp.plotting.style import line_style

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
