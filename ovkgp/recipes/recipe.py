"""Recipes: an estimator with validated options from a TOML file, which can be changed, built and fitted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ovkgp.exceptions import OptionError
from ovkgp.recipes.schemas import SourceLocation, validate_document, validate_model
from ovkgp.recipes.toml_reader import SUFFIX, list_recipes, read_toml, recipe_path

if TYPE_CHECKING:  # scikit-learn is slow to load, and reading a recipe does not need it
    from sklearn.base import BaseEstimator


class Recipe(BaseModel):
    """Named estimator with its options, read from a TOML file.

    Attributes
    ----------
    name : str
        Name of the file without its suffix.
    title, purpose, data, paper : str
        Description of the model, its purpose, the data it expects and the paper it comes from.
    estimator : str
        Name of a class in `ovkgp`.
    options : dict
        Arguments of its constructor; all others have their defaults.
    graph : dict or None
        Edges and variance of the mean, if the outputs are coupled by a graph.
    source : pathlib.Path or None
        File that the recipe was read from.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.recipes import load_recipe
    >>> recipe = load_recipe("multitask").with_options(rank=1)
    >>> recipe.options["rank"]
    1
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = recipe.fit(X, np.hstack([np.sin(X), np.sin(X + 0.3)]), base_kernel="rbf")
    >>> model.predict(X).shape
    (30, 2)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str = ""
    purpose: str = ""
    data: str = ""
    paper: str = ""
    estimator: str
    options: dict[str, Any] = Field(default_factory=dict)
    graph: dict[str, Any] | None = None
    source: Path | None = None

    def with_options(self, **changes) -> Recipe:
        """Return a copy with other options, which are validated like those of a file.

        Parameters
        ----------
        **changes : Any
            Options of the estimator by name, and `graph`. A dictionary changes the entries that it names and keeps the
            others. The string "none" means None.

        Returns
        -------
        Recipe
            Recipe with the changed options.

        Raises
        ------
        OptionError
            If there is no such option, or its value is invalid.
        """
        changes = {name: _to_builtin(value) for name, value in changes.items()}
        graph = _merge(self.graph, changes.pop("graph")) if "graph" in changes else self.graph
        options = {**self.options, **{name: _merge(self.options.get(name), new) for name, new in changes.items()}}
        values = {"estimator": self.estimator, "options": options, "graph": graph}
        return self.model_copy(update=validate_model(values, SourceLocation(f"Recipe {self.name}")))

    def build(self, Y=None, X=None, **changes) -> BaseEstimator:
        """Make the estimator, not yet fitted.

        Parameters
        ----------
        Y : array-like of shape (n, p) or None, default=None
            Outputs. Required if options depend on them: a graph between columns, or a likelihood by values or by column.
        X : array-like of shape (n, d) or None, default=None
            Inputs. If there is a graph, each input then has a separate lengthscale.
        **changes : Any
            As for `with_options`.

        Returns
        -------
        sklearn.base.BaseEstimator
            Unfitted estimator.
        """
        from ovkgp.recipes.factory import make_estimator  # loads torch

        return make_estimator(self.with_options(**changes), X, Y)

    def fit(self, X, Y=None, **changes) -> BaseEstimator:
        """Make the estimator and fit it.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        Y : array-like of shape (n, p) or (n,) or None, default=None
            Outputs; None for level sets.
        **changes : Any
            As for `with_options`.

        Returns
        -------
        sklearn.base.BaseEstimator
            Fitted estimator.
        """
        from ovkgp.recipes.factory import fit_estimator  # loads torch

        return fit_estimator(self.with_options(**changes), X, Y)

    def __repr__(self) -> str:
        shown = {**self.options, **({"graph": self.graph} if self.graph else {})}
        options = "".join(f", {name}={value!r}" for name, value in shown.items())
        return f"Recipe({self.name!r}, {self.estimator}{options})"

    __str__ = __repr__


def load_recipe(name: str | os.PathLike) -> Recipe:
    """Load a recipe of the package by name, or a custom one by the path of its TOML file.

    Parameters
    ----------
    name : str or os.PathLike
        One of `list_recipes`, or a path.

    Returns
    -------
    Recipe
        Validated recipe.

    Raises
    ------
    OptionError
        If there is no such recipe, or its content is invalid; the message names the line.
    InputError
        If the file cannot be read.

    Examples
    --------
    >>> from ovkgp.recipes import load_recipe
    >>> load_recipe("vector_feild")
    Traceback (most recent call last):
    ...
    ovkgp.exceptions.OptionError: Unknown recipe 'vector_feild' (did you mean 'vector_field'?). Available are ...
    """
    path = _resolve_path(name)
    values, lines = read_toml(path)
    return Recipe(name=path.stem, source=path, **validate_document(values, SourceLocation(str(path), lines)))


def _resolve_path(name: str | os.PathLike) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise OptionError(f"name must be the name of a recipe or the path of a TOML file, got {name!r}.")
    text = os.path.expanduser(os.fspath(name))
    is_path = isinstance(name, os.PathLike) or text.endswith(SUFFIX) or "/" in text or os.sep in text
    if is_path or (text not in list_recipes() and os.path.isfile(text)):
        return Path(text)
    return recipe_path(text)


def _merge(old, new):
    """Update a dictionary by the entries of another; replace any other value."""
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _to_builtin(value):
    """Convert NumPy numbers and arrays, and tuples, to values that a TOML file could hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _to_builtin(one) for name, one in value.items()}
    return [_to_builtin(one) for one in value] if isinstance(value, (list, tuple)) else value
