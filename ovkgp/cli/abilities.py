"""What the estimator of a recipe can do: learn from chunks, and be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovkgp.recipes import Recipe

GAUSSIAN = ("gaussian", "by_values")
"""Likelihoods that are Gaussian, or may turn out so when the outputs are read."""


def has_checkpoints(estimator: str, options: Mapping[str, Any]) -> bool:
    """Whether a fit keeps its progress in a file: that of a `GPRegressor` that climbs an evidence.

    Example:
        >>> has_checkpoints("GPRegressor", {"rank": 3}), has_checkpoints("GPRegressor", {"likelihood": "poisson"})
        (True, False)
    """
    likelihood = options.get("likelihood", "gaussian")
    may_be_gaussian = isinstance(likelihood, str) and likelihood in GAUSSIAN
    has_evidence = options.get("approximation") != "variational"  # which climbs a bound instead
    climbs = options.get("hyperparameters") != "fixed"
    return estimator == "GPRegressor" and may_be_gaussian and has_evidence and climbs


def why_whole(recipe: Recipe) -> str | None:
    """Why a recipe needs all rows at once; None where it learns from chunks."""
    options = recipe.options
    if recipe.estimator == "ORFFRidge":
        return None if options.get("solver", "auto") == "auto" else "only solver=auto works on statistics of the rows"
    if recipe.estimator != "GPRegressor":
        return "only GPRegressor and ORFFRidge learn from chunks"
    if options.get("approximation", "auto") in ("exact", "variational"):
        return "chunks need a feature map, such as --set approximation=orff"
    if options.get("likelihood", "gaussian") != "gaussian":
        return "chunks are for Gaussian noise"
    if options.get("hyperparameters", "evidence") not in ("evidence", "fixed"):
        return "draws of hyperparameters look at all rows; --set hyperparameters=evidence does not"
    return None
