"""What a recipe file holds: who it is, and an estimator with its options."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ovkgp.recipes.gp_options import GPOptions
from ovkgp.recipes.ridge_options import ORFFRidgeOptions, OVKRidgeOptions, SimplexOptions
from ovkgp.recipes.task_options import CostOptions, LevelSetOptions, QuantileOptions, VectorTaskOptions
from ovkgp.recipes.values import Options

SCHEMAS: dict[str, type[Options]] = {
    "GPRegressor": GPOptions,
    "InfiniteCostSensitiveClassifier": CostOptions,
    "InfiniteOneClassSVM": LevelSetOptions,
    "InfiniteQuantileRegressor": QuantileOptions,
    "ORFFRidge": ORFFRidgeOptions,
    "OVKRidge": OVKRidgeOptions,
    "SimplexClassifier": SimplexOptions,
    "VectorTaskRegressor": VectorTaskOptions,
}
"""By the name of the estimator, the options that a recipe may set."""


class About(Options):
    """The table [recipe]: what the model is for, what data it wants, and the paper behind it."""

    title: str = ""
    purpose: str = ""
    data: str = ""
    paper: str = ""


class Model(Options):
    """The table [model]: the estimator by name; its options are checked by the schema of that name."""

    estimator: str
    options: dict[str, Any] = Field(default_factory=dict)
    graph: dict[str, Any] | None = None


class Document(Options):
    """A whole file."""

    recipe: About = About()
    model: Model
