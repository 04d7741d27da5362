"""Tables of a recipe file: description, estimator, options and graph. Errors name the line in the file.

The values of the options are checked by the estimator, when the recipe is built.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    Strict,
    TypeAdapter,
    ValidationError,
)

from ovkgp.checks import suggest_name
from ovkgp.exceptions import OptionError
from ovkgp.recipes.toml_reader import KeyPath


@dataclass(frozen=True)
class SourceLocation:
    """Origin of the values of a table, for messages: a file or recipe, the line of each key if known, and a key path."""

    source: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    path: KeyPath = ()

    def error(self, message: str, path: KeyPath = ()) -> OptionError:
        """Make an error about the value at a path below this location, or about the nearest table that has a line."""
        line = self.find_line(path)
        return OptionError(f"{self.source}{'' if line is None else f', line {line}'}: {message}.")

    def find_line(self, path: KeyPath) -> int | None:
        """Return the line of a path below this location, or of the nearest table that has one."""
        full = (*self.path, *path)
        return next((self.lines[full[:k]] for k in range(len(full), 0, -1) if full[:k] in self.lines), None)

    def within(self, *keys: str) -> SourceLocation:
        """Return the location of a table inside this one."""
        return SourceLocation(self.source, self.lines, (*self.path, *keys))


class Table(BaseModel):
    """Table of a recipe: unknown keys and values of other types are errors; descriptions are for messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Text = Annotated[str, Field(description="a string in quotes")]
Positive = Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="a positive number or 'none'")]


class About(Table):
    """Table [recipe]: description of the model, its purpose, its data and its paper."""

    title: Text = ""
    purpose: Text = ""
    data: Text = ""
    paper: Text = ""


class Model(Table):
    """Table [model]: name of the estimator, its options, and a graph of the outputs."""

    estimator: Text
    options: dict[str, Any] = Field(default_factory=dict, description="a table")
    graph: dict[str, Any] | None = Field(None, description="a table")


class Document(Table):
    """Complete file."""

    recipe: About = Field(About(), description="a table with title, purpose, data, paper")
    model: Model = Field(description="a table with estimator, options, graph")


Column = str | NonNegativeInt  # name or index
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Edge = Annotated[tuple[Column, Column], Strict(False)] | Annotated[tuple[Column, Column, Weight], Strict(False)]
EDGES = TypeAdapter(
    Literal["chain", "complete"] | Annotated[list[Edge], Field(min_length=1)], config=ConfigDict(strict=True)
)


def _check_edges(edges):
    try:
        return EDGES.validate_python(edges)
    except ValidationError:
        raise ValueError("edges") from None  # one error instead of one per entry


class Graph(Table):
    """Table [model.graph]: arguments of `ovkgp.kernels.GraphMatrix`."""

    edges: Annotated[Any, AfterValidator(_check_edges)] = Field(
        description='\'chain\', \'complete\' or a list of edges, such as [["a", "b"], ["b", "c", 2.0]]'
    )
    mean_variance: Positive = None
    ridge: Positive = None


def validate_document(values: dict[str, Any], location: SourceLocation) -> dict[str, Any]:
    """Validate the values of a file and return the fields of a `Recipe`."""
    document = validate(Document, values, location, "a recipe")
    model = document.model
    found = replace_none_strings({"estimator": model.estimator, "options": model.options, "graph": model.graph})
    validate_graph(**found, location=location.within("model"))
    return document.recipe.model_dump() | found


def replace_none_strings(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the string "none", and "all" for training_rows, by None, since TOML has no null."""
    return {name: _replace_none_word(name, value) for name, value in values.items()}


def _replace_none_word(name: str, value):
    if isinstance(value, dict):
        return replace_none_strings(value)
    return None if value == "none" or (name, value) == ("training_rows", "all") else value


def validate_graph(estimator: str, options: dict[str, Any], graph: dict[str, Any] | None, location: SourceLocation):
    """Validate a graph, and the options that it excludes."""
    if graph is None:
        return
    if estimator != "GPRegressor":
        raise location.error(f"graph is only supported by GPRegressor, not by {estimator}", ("graph",))
    inside = location.within("graph")
    checked = validate(Graph, graph, inside, "[model.graph]")
    if (checked.mean_variance is None) == (checked.ridge is None):
        message = (
            "exactly one of mean_variance and ridge must be set: each defines the variance of the mean of all outputs"
        )
        raise inside.error(message, ("ridge",))
    for name, allowed in (("kernel", "decomposable"), ("rank", None)):
        if options.get(name, allowed) != allowed:
            message = f"{name} is not supported with a graph, which defines the output matrix. Remove the option"
            raise location.error(message, ("options", name))


def validate(schema: type[Table], values: dict[str, Any], location: SourceLocation, owner: str) -> Table:
    """Return values as a table of a schema, or raise about the first invalid one; `owner` has the keys of the table."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        item = min(error.errors(), key=lambda item: location.find_line(item["loc"]) or 0)
        raise location.error(_describe_error(schema, item, owner), item["loc"]) from None


def _describe_error(schema: type[Table], item, owner: str) -> str:
    *tables, name = item["loc"]
    for table in tables:
        schema, owner = schema.model_fields[table].annotation, table
    if item["type"] == "extra_forbidden":
        names = tuple(schema.model_fields)
        return f"{name!r} is not a key of {owner}{suggest_name(name, names)}. Allowed are {', '.join(names)}"
    expected = schema.model_fields[name].description
    if item["type"] == "missing":
        return f"{name} is missing; it must be {expected}"
    return f"{name} must be {expected}, got {reprlib.repr(item['input'])}"
