"""From a recipe to an estimator, where some options depend on the data: a graph between columns, likelihoods by values."""

from __future__ import annotations

from typing import Any

import numpy as np

import ovkgp
from ovkgp.exceptions import InputError

ONE_OUTPUT = ("InfiniteCostSensitiveClassifier", "InfiniteQuantileRegressor", "SimplexClassifier")
"""Estimators whose target is one column."""


def make_estimator(recipe, X=None, Y=None):
    """The estimator of a recipe for data X (n, d) and Y (n, p), not yet fitted; None where no option depends on them."""
    options: dict[str, Any] = dict(recipe.options)
    return getattr(ovkgp, recipe.estimator)(**options)


def fit_estimator(recipe, X, Y=None):
    """The estimator of a recipe, fitted."""
    return make_estimator(recipe, X, Y).fit(X, one_column(recipe, Y) if recipe.estimator in ONE_OUTPUT else Y)


def one_column(recipe, Y):
    """The target (n,) from a table with one column, or from what is flat already."""
    if Y is None:
        raise InputError(f"recipe {recipe.name} needs a target column, and Y is None.")
    shape = np.shape(Y)
    if len(shape) < 2:
        return Y
    if len(shape) > 2 or shape[1] != 1:
        raise InputError(
            f"recipe {recipe.name} takes one output column; Y has the shape {shape}. Fit one model a column."
        )
    return Y.iloc[:, 0] if hasattr(Y, "iloc") else Y[:, 0]
