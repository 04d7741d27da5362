"""From a recipe to an estimator. Some options depend on the data: a graph between columns, likelihoods by values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from sklearn.base import BaseEstimator

import ovkgp
from ovkgp.estimators.common.named_kernels import base_kernel
from ovkgp.estimators.common.validation import output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import DecomposableKernel, GraphMatrix
from ovkgp.recipes.recipe import Recipe
from ovkgp.recipes.toml_reader import did_you_mean


@dataclass(frozen=True)
class Outputs:
    """The outputs that a model will be fitted to.

    Args:
        names: of the columns; y0, y1, … where they have none.
        values: (n, p), NaN where missing.

    Example:
        >>> import pandas as pd
        >>> from ovkgp.recipes.factory import Outputs
        >>> outputs = Outputs.of(pd.DataFrame({"u": [1.0, 2.0], "v": [3.0, None]}))
        >>> outputs.number("v", "edges"), outputs.number(0, "edges")
        (1, 0)
    """

    names: list[str]
    values: np.ndarray

    @classmethod
    def of(cls, Y) -> Outputs:
        """From an array, a tensor, a series or a data frame."""
        values, names, _ = output_table(Y, Y)
        return cls(names or [f"y{column}" for column in range(values.shape[1])], values)

    def number(self, key: str | int, option: str) -> int:
        """The number of a column from its name or its number, a number in quotes included."""
        if key in self.names:
            return self.names.index(key)
        number = int(key) if str(key).isdecimal() else len(self.names)
        if number < len(self.names):
            return number
        raise OptionError(
            f"{option} speaks of the output {key!r}{did_you_mean(key, self.names)}; the columns of Y are "
            f"{', '.join(self.names)}, or 0 to {len(self.names) - 1} by number."
        )


def graph_kernel(graph: dict[str, Any], base: str, outputs: Outputs, num_inputs: int | None = None) -> Kernel:
    """The kernel of p outputs that are the nodes of a graph.

    Args:
        graph: `edges`, and `mean_variance` or `ridge`.
        base: the scalar kernel by name.
        outputs: the columns that edges speak of.
        num_inputs: d, for a lengthscale of each input; None is one for all.

    Example:
        >>> import numpy as np
        >>> from ovkgp.kernels import num_outputs
        >>> from ovkgp.recipes.factory import graph_kernel
        >>> from ovkgp.recipes.factory import Outputs
        >>> num_outputs(graph_kernel({"edges": "chain", "ridge": 0.1}, "rbf", Outputs.of(np.ones((5, 3)))))
        3
    """
    weights = edge_weights(graph["edges"], outputs)
    matrix = GraphMatrix(weights, ridge=graph.get("ridge"), mean_variance=graph.get("mean_variance"))
    return ScaleKernel(DecomposableKernel(base_kernel(base, num_inputs), output_matrix=matrix))


def edge_weights(edges: str | list, outputs: Outputs) -> torch.Tensor:
    """W (p, p): the weight of the edge between two outputs, 0 where there is none.

    Args:
        edges: "chain" (each column with the next), "complete" (all with all), or a list of pairs of columns with, where it is
            not 1, a weight.

    Example:
        >>> import numpy as np
        >>> from ovkgp.recipes.factory import edge_weights
        >>> from ovkgp.recipes.factory import Outputs
        >>> edge_weights([("y0", 1), (1, 2, 0.5)], Outputs.of(np.ones((5, 3)))).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 0.0]]
    """
    p = len(outputs.names)
    weights = torch.zeros(p, p, dtype=torch.float64)
    if edges == "complete":
        return torch.ones_like(weights).fill_diagonal_(0.0)
    for first, second, weight in _numbered(edges, outputs):
        weights[first, second] = weights[second, first] = weight
    return weights


def _numbered(edges: str | list, outputs: Outputs) -> list[tuple[int, int, float]]:
    if edges == "chain":
        return [(k, k + 1, 1.0) for k in range(len(outputs.names) - 1)]
    found = []
    for first, second, *weight in edges:
        ends = outputs.number(first, "edges"), outputs.number(second, "edges")
        if ends[0] == ends[1]:
            raise OptionError(f"edges has one from {first!r} to itself; an edge joins two outputs.")
        found.append((*ends, *(weight or [1.0])))
    return found


BY_VALUES = "by_values"


def depends_on_outputs(likelihood) -> bool:
    """Whether a likelihood of a recipe is known only when the columns are."""
    return isinstance(likelihood, dict) or likelihood == BY_VALUES


def choose_likelihoods(likelihood: str | dict[str, str], outputs: Outputs) -> str | list[str]:
    """The likelihood of each output, as `GPRegressor` takes it.

    Args:
        likelihood: "by_values", or a table from columns to likelihoods; columns that it does not name go by their values.
        outputs: the columns.

    Returns:
        A list with one for each output; "gaussian" where all are, which is then exact.

    Example:
        >>> import numpy as np
        >>> from ovkgp.recipes.factory import Outputs
        >>> from ovkgp.recipes.factory import choose_likelihoods
        >>> outputs = Outputs.of(np.array([[0.0, 3.0, 0.5], [1.0, 0.0, np.nan]]))
        >>> choose_likelihoods("by_values", outputs)
        ['bernoulli', 'negative_binomial', 'gaussian']
        >>> choose_likelihoods({"y1": "poisson"}, outputs)
        ['bernoulli', 'poisson', 'gaussian']
    """
    chosen = [likelihood_of(column) for column in outputs.values.T]
    if isinstance(likelihood, dict):
        for key, name in likelihood.items():
            chosen[outputs.number(key, "likelihood")] = name
    return "gaussian" if set(chosen) == {"gaussian"} else chosen


def likelihood_of(values: np.ndarray) -> str:
    """That of values (n,), NaN where missing: labels are 0 and 1, counts are whole numbers from 0.

    Counts are "negative_binomial", which comes close to "poisson" where they do not vary more than that.

    Example:
        >>> from ovkgp.recipes.factory import likelihood_of
        >>> likelihood_of([0, 1, 1]), likelihood_of([0, 1, 7]), likelihood_of([0, -1])
        ('bernoulli', 'negative_binomial', 'gaussian')
    """
    observed = np.asarray(values, dtype=np.float64)
    observed = observed[np.isfinite(observed)]
    if np.isin(observed, (0.0, 1.0)).all():
        return "bernoulli"
    return "negative_binomial" if (observed >= 0).all() and (observed == np.round(observed)).all() else "gaussian"


ONE_OUTPUT = ("InfiniteCostSensitiveClassifier", "InfiniteQuantileRegressor", "SimplexClassifier")
"""Estimators whose target is one column."""
DEFAULT_BASE = "matern52"
"""The scalar kernel beside a graph, where the recipe has none."""


def make_estimator(recipe: Recipe, X=None, Y=None) -> BaseEstimator:
    """The estimator of a recipe for data X (n, d) and Y (n, p), not yet fitted; None where no option depends on them."""
    options = dict(recipe.options)
    if recipe.graph is not None:
        options["kernel"] = _kernel_of(recipe, X, Y)
    if depends_on_outputs(options.get("likelihood")):
        options["likelihood"] = choose_likelihoods(options["likelihood"], _outputs(recipe, Y, "likelihood"))
    return getattr(ovkgp, recipe.estimator)(**options)


def fit_estimator(recipe: Recipe, X, Y=None) -> BaseEstimator:
    """The estimator of a recipe, fitted to X (n, d) and Y; a table of one column becomes (n,) where a target is one."""
    estimator = make_estimator(recipe, X, Y)
    return estimator.fit(X, _one_column(recipe, Y) if recipe.estimator in ONE_OUTPUT else Y)


def _kernel_of(recipe: Recipe, X, Y):
    shape, outputs = np.shape(X), _outputs(recipe, Y, "graph")
    num_inputs = shape[1] if len(shape) == 2 else None  # no X at all, or one that the estimator will refuse
    return graph_kernel(recipe.graph, recipe.options.get("base_kernel", DEFAULT_BASE), outputs, num_inputs)


def _outputs(recipe: Recipe, Y, option: str) -> Outputs:
    if Y is None:
        raise InputError(f"the {option} of recipe {recipe.name} depends on the outputs: give Y as well.")
    return Outputs.of(Y)


def _one_column(recipe: Recipe, Y) -> Any:
    if Y is None:
        raise InputError(f"recipe {recipe.name} needs a target column, and Y is None.")
    shape = np.shape(Y)
    if len(shape) < 2:
        return Y
    if len(shape) > 2 or shape[1] != 1:
        raise InputError(
            f"recipe {recipe.name} takes one output column, and Y has the shape {shape}: fit one model a column."
        )
    return Y.iloc[:, 0] if hasattr(Y, "iloc") else np.asarray(Y)[:, 0]
