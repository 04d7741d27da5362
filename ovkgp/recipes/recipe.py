"""A recipe: an estimator and its options from a TOML file, checked, and the way from there to a fitted model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ovkgp.exceptions import OptionError
from ovkgp.recipes.schemas import Place, checked_document, checked_model
from ovkgp.recipes.toml_reader import SUFFIX, list_recipes, read_toml, recipe_path

if TYPE_CHECKING:  # scikit-learn is slow to load, and reading a recipe does not need it
    from sklearn.base import BaseEstimator


class Recipe(BaseModel):
    """A ready model: what it is for, and an estimator with its options.

    Attributes:
        name: of the file, without its ending.
        title, purpose, data, paper: what it is, what it is for, what data it wants, and where it comes from.
        estimator: the name of a class in `ovkgp`.
        options: what its constructor is given; the others have their defaults.
        graph: for outputs that are coupled by a graph, its edges and what keeps the mean over the outputs free.
        source: the file.

    Example:
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
        """The same recipe with other options, which are checked as those of a file are.

        Args:
            changes: options of the estimator by name, and `graph`. A dictionary changes the entries that it names and
                leaves the others; None, or the word "none", is None.

        Raises:
            OptionError: there is no such option, or it may not have that value.
        """
        changes = {name: _plain(value) for name, value in changes.items()}
        graph = _merged(self.graph, changes.pop("graph")) if "graph" in changes else self.graph
        options = {**self.options, **{name: _merged(self.options.get(name), new) for name, new in changes.items()}}
        values = {"estimator": self.estimator, "options": options, "graph": graph}
        return self.model_copy(update=checked_model(values, Place(f"recipe {self.name}")))

    def build(self, Y=None, X=None, **changes) -> BaseEstimator:
        """The estimator, not yet fitted.

        Args:
            Y: outputs (n, p), an array or a data frame, where options depend on them: a graph between columns,
                likelihood = "by_values" or by column.
            X: inputs (n, d), where there is a graph: each column then has a lengthscale of its own.
            changes: as for `with_options`.
        """
        from ovkgp.recipes.factory import make_estimator  # loads torch

        return make_estimator(self.with_options(**changes), X, Y)

    def fit(self, X, Y=None, **changes) -> BaseEstimator:
        """The estimator fitted to X (n, d) and Y (n, p), (n,) or, for level sets, None.

        Args:
            changes: as for `with_options`.

        Cost: that of the estimator's own `fit`.
        """
        from ovkgp.recipes.factory import fit_estimator  # loads torch

        return fit_estimator(self.with_options(**changes), X, Y)

    def __repr__(self) -> str:
        shown = {**self.options, **({"graph": self.graph} if self.graph else {})}
        options = "".join(f", {name}={value!r}" for name, value in shown.items())
        return f"Recipe({self.name!r}, {self.estimator}{options})"

    __str__ = __repr__


def load_recipe(name: str | os.PathLike) -> Recipe:
    """A recipe that comes with the package, by its name, or one of your own, by the path of its TOML file.

    Args:
        name: one of `list_recipes`, or a path.

    Raises:
        OptionError: there is no such recipe, or what it says is wrong; the message names the line and what is allowed.
        InputError: the file cannot be read.

    Example:
        >>> from ovkgp.recipes import load_recipe
        >>> load_recipe("vector_feild")
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.OptionError: there is no recipe 'vector_feild' (did you mean 'vector_field'?); there are ...
    """
    path = _path_of(name)
    values, lines = read_toml(path)
    return Recipe(name=path.stem, source=path, **checked_document(values, Place(str(path), lines)))


def _path_of(name: str | os.PathLike) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise OptionError(f"a recipe is given by its name or by the path of a TOML file, got {name!r}.")
    text = os.path.expanduser(os.fspath(name))
    is_path = isinstance(name, os.PathLike) or text.endswith(SUFFIX) or "/" in text or os.sep in text
    if is_path or (text not in list_recipes() and os.path.isfile(text)):
        return Path(text)
    return recipe_path(text)


def _merged(old, new):
    """A dictionary changes the entries that it names; anything else takes the place of the old value."""
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _plain(value):
    """NumPy's numbers and arrays, and tuples, as the plain values that a file would hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
