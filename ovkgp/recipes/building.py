"""From a recipe to an estimator. Some options depend on the data: a graph between columns, likelihoods by values."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.recipes.output_graphs import graph_kernel
from ovkgp.recipes.outputs import Outputs
from ovkgp.recipes.recipe import Recipe
from ovkgp.recipes.value_likelihoods import choose_likelihoods, depends_on_outputs

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
