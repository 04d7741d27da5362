"""Recipes: an estimator with its options from a TOML file, which can be changed, built and fitted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from ovkgp.checks import suggest_name
from ovkgp.exceptions import OptionError
from ovkgp.recipes.schemas import SourceLocation, replace_none_strings, validate_document, validate_graph
from ovkgp.recipes.toml_reader import SUFFIX, KeyPath, list_recipes, read_toml, recipe_path

if TYPE_CHECKING:  # scikit-learn is slow to load, and reading a recipe does not need it
    from ovkgp.estimators.common.estimator import Estimator


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
    _lines: dict[KeyPath, int] = PrivateAttr(default_factory=dict)  # of unchanged values, in the source

    @property
    def estimator_class(self) -> type[Estimator]:
        """Class of the estimator; the first use loads torch."""
        import ovkgp

        kind = getattr(ovkgp, self.estimator, None)
        if not hasattr(kind, "check_options"):
            names = [name for name in ovkgp.__all__ if hasattr(getattr(ovkgp, name), "check_options")]
            suggestion = suggest_name(self.estimator, names)
            message = f"estimator must be one of {', '.join(names)}, got {self.estimator!r}{suggestion}"
            raise self._error(message, "estimator")
        return kind

    def check_options(self) -> None:
        """Check the options by those that the estimator allows; `build` and `fit` do so, too.

        Raises
        ------
        OptionError
            If there is no such estimator or option, or a value is invalid; the message names the line of the file.
        """
        from ovkgp.recipes.factory import options_without_data  # loads torch

        known = self.estimator_class._get_param_names()
        for name in self.options:
            if name not in known:
                message = f"{name!r} is not an option of {self.estimator}{suggest_name(name, known)}"
                raise self._error(f"{message}. Allowed are {', '.join(known)}", "options", name)
        try:
            self.estimator_class(**options_without_data(self.options)).check_options()
        except ValueError as error:
            message = str(error).removesuffix(".")
            name = re.match(r"\w*", message)[0]  # an option, or an entry of `sampling`
            inside = ("sampling", name) if name in (self.options.get("sampling") or ()) else (name,)
            raise self._error(message.replace(" or None", " or 'none'"), "options", *inside) from None

    def _error(self, message: str, *path: str) -> OptionError:
        """Make an error about a value, or its option; one that was changed or is a default has no line."""
        path = next((known for known in (("model", *path), ("model", *path[:2])) if known in self._lines), None)
        if path is None:
            return SourceLocation(f"Recipe {self.name}").error(message)
        return SourceLocation(str(self.source), self._lines).error(message, path)

    def with_options(self, **changes) -> Recipe:
        """Return a copy with other options, which are checked when it is built.

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
            If the graph is invalid.
        """
        changes = replace_none_strings({name: _to_builtin(value) for name, value in changes.items()})
        graph = _merge(self.graph, changes.pop("graph")) if "graph" in changes else self.graph
        options = {**self.options, **{name: _merge(self.options.get(name), new) for name, new in changes.items()}}
        validate_graph(self.estimator, options, graph, SourceLocation(f"Recipe {self.name}"))
        changed = self.model_copy(update={"options": options, "graph": graph})
        changed._lines = {path: line for path, line in self._lines.items() if not {*path[2:3]} & {*changes}}
        return changed

    def build(self, Y=None, X=None, **changes) -> Estimator:
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
        Estimator
            Unfitted estimator.
        """
        from ovkgp.recipes.factory import complete_options  # loads torch

        recipe = self.with_options(**changes)
        recipe.check_options()
        return self.estimator_class(**complete_options(recipe.name, recipe.options, recipe.graph, X, Y))

    def fit(self, X, Y=None, **changes) -> Estimator:
        """Make the estimator and fit it.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs. Of a series, the first column holds the stamps, and the others are exogenous.
        Y : array-like of shape (n, p) or (n,) or None, default=None
            Outputs; None for level sets.
        **changes : Any
            As for `with_options`.

        Returns
        -------
        Estimator
            Fitted estimator.
        """
        from ovkgp.recipes.factory import select_target  # loads torch

        if self.estimator_class.kind == "series":
            return self.build(Y, X, **changes).fit_table(X, Y)
        return self.build(Y, X, **changes).fit(X, select_target(self.name, self.estimator_class.kind, Y))

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
        Recipe, whose options are checked when it is built; loading does not need torch.

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
    recipe = Recipe(name=path.stem, source=path, **validate_document(values, SourceLocation(str(path), lines)))
    recipe._lines = lines
    return recipe


def _resolve_path(name: str | os.PathLike) -> Path:
    try:
        path, text = Path(os.path.expanduser(Path(name))), str(name)
    except TypeError:
        raise OptionError(f"name must be the name of a recipe or the path of a TOML file, got {name!r}.") from None
    is_path = isinstance(name, os.PathLike) or text.endswith(SUFFIX) or "/" in text or os.sep in text
    return path if is_path or (text not in list_recipes() and os.path.isfile(path)) else recipe_path(text)


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
