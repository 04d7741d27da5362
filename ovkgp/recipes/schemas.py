"""The parts of a recipe against their schemas: first the tables of the file, then the options by the name of the estimator."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from ovkgp.exceptions import OptionError
from ovkgp.recipes.options import (
    CostOptions,
    GPOptions,
    Graph,
    LevelSetOptions,
    Options,
    ORFFRidgeOptions,
    OVKRidgeOptions,
    QuantileOptions,
    SimplexOptions,
    VectorTaskOptions,
    allowed_words,
    described,
)
from ovkgp.recipes.toml_reader import KeyPath, did_you_mean

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


MISSING = object()


@dataclass(frozen=True)
class Place:
    """Where values come from, for an error to say.

    Args:
        source: how the recipe is called: its path, or "recipe multitask".
        lines: the line of each key; empty where values came from Python.
        path: the table that is being checked.
    """

    source: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    path: KeyPath = ()

    def error(self, sentence: str, path: KeyPath = ()) -> OptionError:
        """An error about the value at a path below this place, or about the nearest table that has a line."""
        whole = (*self.path, *path)
        near = (self.lines[whole[:k]] for k in range(len(whole), 0, -1) if whole[:k] in self.lines)
        line = next(near, None)
        return OptionError(f"{self.source}{'' if line is None else f', line {line}'}: {sentence}.")

    def within(self, *keys: str) -> Place:
        """A table inside this one."""
        return Place(self.source, self.lines, (*self.path, *keys))


def check(schema: type[Options], values: dict[str, Any], place: Place, owner: str) -> Options:
    """Values as a table of a schema, or an `OptionError` about the first that is wrong.

    Args:
        owner: what the table is called, where a key is unknown: "an option of GPRegressor".
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise _first_complaint(schema, values, place, owner, error) from None


def _first_complaint(schema, values, place: Place, owner: str, error: ValidationError) -> OptionError:
    found = [(_path_in(values, item["loc"]), item) for item in error.errors()]
    found.sort(key=lambda pair: (place.lines.get((*place.path, *pair[0][:1]), 0), -len(pair[0])))
    path, item = found[0]
    if item["type"] == "misfit":
        context = item["ctx"]
        return place.error(context["sentence"], (*path, context["field"]))
    inner, name, kind = _field_of(schema, item["loc"])
    if item["type"] == "extra_forbidden":
        owner = owner if kind is None else f"a key of {name}"
        return place.error(_unknown(item["loc"][-1], inner, owner), path)
    if item["type"] == "missing" and item["loc"][-1] == name:
        return place.error(f"{name} is missing; it must be {described(kind)}", path)
    return place.error(_wrong(name, kind, _value_of(values, path, name)), path)


def _unknown(key, schema: type[Options], owner: str) -> str:
    names = tuple(schema.model_fields)
    return f"{key!r} is not {owner}{did_you_mean(key, names)}; there are {', '.join(names)}"


def _wrong(name: str, kind: FieldInfo | None, given) -> str:
    near = did_you_mean(given, allowed_words(kind)) if kind and isinstance(given, str) else ""
    expected = described(kind) if kind else "a table"
    return f"{name} must be {expected}; got {reprlib.repr(given)}{near}"


def _path_in(values, location: tuple) -> KeyPath:
    """The part of pydantic's location that is a path in the values: it also names members of unions."""
    path: list = []
    for part in location:
        is_inside = part in values if isinstance(values, dict) else isinstance(values, (list, tuple))
        if is_inside and (isinstance(values, dict) or (isinstance(part, int) and part < len(values))):
            path.append(part)
            values = values[part]
    return tuple(path)


def _field_of(schema: type[Options], location: tuple) -> tuple[type[Options], str, FieldInfo | None]:
    """The innermost table and field that a location is about."""
    name, kind = "the table", None
    for part in location:
        inner = _table_of(kind) if kind is not None else schema
        if inner is not None and part in inner.model_fields:
            schema, name, kind = inner, str(part), inner.model_fields[part]
    inner = _table_of(kind) if kind is not None else None
    return inner or schema, name, kind


def _table_of(kind: FieldInfo) -> type[Options] | None:
    parts = getattr(kind.annotation, "__args__", (kind.annotation,))
    tables = (part for part in parts if isinstance(part, type) and issubclass(part, Options))
    return next(tables, None)


def _value_of(values, path: KeyPath, name: str):
    for part in path:
        values = values[part]
        if part == name:
            break
    return values


def checked_document(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """The fields of a `Recipe` from the values of a file.

    Example:
        >>> from ovkgp.recipes.schemas import checked_document
        >>> from ovkgp.recipes.schemas import Place
        >>> checked_document({"model": {"estimator": "OVKRidge", "options": {"lam": 0.1}}}, Place("mine.toml"))["options"]
        {'lam': 0.1}
    """
    document = check(Document, values, place, "a table or key of a recipe")
    return {**document.recipe.model_dump(), **_checked(document.model, place.within("model"))}


def checked_model(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """`estimator`, `options` and `graph` as the estimator's schema reads them; only those options that were set."""
    return _checked(check(Model, values, place, "a part of a model"), place)


def _checked(model: Model, place: Place) -> dict[str, Any]:
    if model.estimator not in SCHEMAS:
        near = did_you_mean(model.estimator, SCHEMAS)
        sentence = f"estimator must be one of {', '.join(SCHEMAS)}; got {model.estimator!r}{near}"
        raise place.error(sentence, ("estimator",))
    owner, inside = f"an option of {model.estimator}", place.within("options")
    options = check(SCHEMAS[model.estimator], model.options, inside, owner).model_dump(exclude_unset=True)
    return {"estimator": model.estimator, "options": options, "graph": _checked_graph(model, place)}


def _checked_graph(model: Model, place: Place) -> dict[str, Any] | None:
    if model.graph is None:
        return None
    if model.estimator != "GPRegressor":
        raise place.error(f"a graph between outputs is for GPRegressor, not for {model.estimator}", ("graph",))
    graph = check(Graph, model.graph, place.within("graph"), "a key of [model.graph]")
    for name, only in (("kernel", "decomposable"), ("rank", None)):
        if model.options.get(name, only) != only:
            sentence = (
                f"{name} cannot be set beside a graph, which is the matrix of a decomposable kernel: leave it out"
            )
            raise place.error(sentence, ("options", name))
    return graph.model_dump(exclude_unset=True)
