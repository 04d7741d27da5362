"""Validation of recipes: the tables of a file, then the options of its estimator; errors name the line in the file."""

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
    allowed_strings,
    describe_field,
)
from ovkgp.recipes.toml_reader import KeyPath, suggest_name

SCHEMAS: dict[str, type[Options]] = {  # options that a recipe may set, by name of the estimator
    "GPRegressor": GPOptions,
    "InfiniteCostSensitiveClassifier": CostOptions,
    "InfiniteOneClassSVM": LevelSetOptions,
    "InfiniteQuantileRegressor": QuantileOptions,
    "ORFFRidge": ORFFRidgeOptions,
    "OVKRidge": OVKRidgeOptions,
    "SimplexClassifier": SimplexOptions,
    "VectorTaskRegressor": VectorTaskOptions,
}


class About(Options):
    """Table [recipe]: description of the model, its purpose, its data and its paper."""

    title: str = ""
    purpose: str = ""
    data: str = ""
    paper: str = ""


class Model(Options):
    """Table [model]: name of the estimator, and options that are validated by its schema."""

    estimator: str
    options: dict[str, Any] = Field(default_factory=dict)
    graph: dict[str, Any] | None = None


class Document(Options):
    """Complete file."""

    recipe: About = About()
    model: Model


@dataclass(frozen=True)
class SourceLocation:
    """Origin of the values of a table, for messages: a file or recipe, the line of each key if known, and a key path."""

    source: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    path: KeyPath = ()

    def error(self, message: str, path: KeyPath = ()) -> OptionError:
        """Make an error about the value at a path below this location, or about the nearest table that has a line."""
        full = (*self.path, *path)
        lines = (self.lines[full[:k]] for k in range(len(full), 0, -1) if full[:k] in self.lines)
        line = next(lines, None)
        return OptionError(f"{self.source}{'' if line is None else f', line {line}'}: {message}.")

    def within(self, *keys: str) -> SourceLocation:
        """Return the location of a table inside this one."""
        return SourceLocation(self.source, self.lines, (*self.path, *keys))


def validate_document(values: dict[str, Any], location: SourceLocation) -> dict[str, Any]:
    """Validate the values of a file and return the fields of a `Recipe`."""
    document = validate(Document, values, location, "a table or key of a recipe")
    return {**document.recipe.model_dump(), **_validate_options(document.model, location.within("model"))}


def validate_model(values: dict[str, Any], location: SourceLocation) -> dict[str, Any]:
    """Validate `estimator`, `options` and `graph`, and return them with only those options that were set."""
    return _validate_options(validate(Model, values, location, "a part of a model"), location)


def _validate_options(model: Model, location: SourceLocation) -> dict[str, Any]:
    if model.estimator not in SCHEMAS:
        suggestion = suggest_name(model.estimator, SCHEMAS)
        message = f"estimator must be one of {', '.join(SCHEMAS)}, got {model.estimator!r}{suggestion}"
        raise location.error(message, ("estimator",))
    owner, inside = f"an option of {model.estimator}", location.within("options")
    options = validate(SCHEMAS[model.estimator], model.options, inside, owner).model_dump(exclude_unset=True)
    return {"estimator": model.estimator, "options": options, "graph": _validate_graph(model, location)}


def _validate_graph(model: Model, location: SourceLocation) -> dict[str, Any] | None:
    if model.graph is None:
        return None
    if model.estimator != "GPRegressor":
        raise location.error(f"graph is only supported by GPRegressor, not by {model.estimator}", ("graph",))
    graph = validate(Graph, model.graph, location.within("graph"), "a key of [model.graph]")
    for name, allowed in (("kernel", "decomposable"), ("rank", None)):
        if model.options.get(name, allowed) != allowed:
            message = f"{name} is not supported with a graph, which defines the output matrix. Remove the option"
            raise location.error(message, ("options", name))
    return graph.model_dump(exclude_unset=True)


def validate(schema: type[Options], values: dict[str, Any], location: SourceLocation, owner: str) -> Options:
    """Return values as a table of a schema, or raise about the first invalid one.

    `owner` describes the keys of the table in the message about an unknown key, such as "an option of GPRegressor".
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise _first_error(schema, values, location, owner, error) from None


def _first_error(schema, values, location: SourceLocation, owner: str, error: ValidationError) -> OptionError:
    found = [(_path_in(values, item["loc"]), item) for item in error.errors()]
    found.sort(key=lambda pair: (location.lines.get((*location.path, *pair[0][:1]), 0), -len(pair[0])))
    path, item = found[0]
    if item["type"] == "incompatible_options":
        context = item["ctx"]
        return location.error(context["message"], (*path, context["field"]))
    inner, name, kind = _field_at(schema, item["loc"])
    if item["type"] == "extra_forbidden":
        owner = owner if kind is None else f"a key of {name}"
        return location.error(_unknown_key(item["loc"][-1], inner, owner), path)
    if item["type"] == "missing" and item["loc"][-1] == name:
        return location.error(f"{name} is missing; it must be {describe_field(kind)}", path)
    return location.error(_invalid_value(name, kind, _value_at(values, path, name)), path)


def _unknown_key(key, schema: type[Options], owner: str) -> str:
    names = tuple(schema.model_fields)
    return f"{key!r} is not {owner}{suggest_name(key, names)}. Allowed are {', '.join(names)}"


def _invalid_value(name: str, kind: FieldInfo | None, given) -> str:
    suggestion = suggest_name(given, allowed_strings(kind)) if kind and isinstance(given, str) else ""
    expected = describe_field(kind) if kind else "a table"
    return f"{name} must be {expected}, got {reprlib.repr(given)}{suggestion}"


def _path_in(values, location: tuple) -> KeyPath:
    """Return the entries of pydantic's location that are a path in the values; others name members of unions."""
    path: list = []
    for part in location:
        is_inside = part in values if isinstance(values, dict) else isinstance(values, (list, tuple))
        if is_inside and (isinstance(values, dict) or (isinstance(part, int) and part < len(values))):
            path.append(part)
            values = values[part]
    return tuple(path)


def _field_at(schema: type[Options], location: tuple) -> tuple[type[Options], str, FieldInfo | None]:
    """Return the innermost table and field of a location."""
    name, kind = "the table", None
    for part in location:
        inner = _table_in(kind) if kind is not None else schema
        if inner is not None and part in inner.model_fields:
            schema, name, kind = inner, str(part), inner.model_fields[part]
    inner = _table_in(kind) if kind is not None else None
    return inner or schema, name, kind


def _table_in(kind: FieldInfo) -> type[Options] | None:
    parts = getattr(kind.annotation, "__args__", (kind.annotation,))
    tables = (part for part in parts if isinstance(part, type) and issubclass(part, Options))
    return next(tables, None)


def _value_at(values, path: KeyPath, name: str):
    for part in path:
        values = values[part]
        if part == name:
            break
    return values
