"""The kinds of values that a recipe may hold, each with the words that an error says it in.

TOML has no None: where an option may be None, a recipe says "none", or "all" for a number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Says:
    """How a kind of value is called in an error."""

    phrase: str


class Options(BaseModel):
    """A table of a recipe: nothing but its fields, and no value of another kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _none_where(word: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if isinstance(value, str) and value == word else value)


Count = Annotated[int, Field(ge=1), Says("a whole number, at least 1")]
Several = Annotated[int, Field(ge=2), Says("a whole number, at least 2")]
Seed = Annotated[int, Field(ge=0, lt=2**32), Says("a whole number from 0 to 2³² − 1")]
Switch = Annotated[bool, Says("true or false")]
Verbosity = Annotated[int, Field(ge=0, le=1), Says("0 or 1")]
Number = Annotated[float, Field(allow_inf_nan=False), Says("a number")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Says("a positive number")]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Says("a number, at least 0")]
Share = Annotated[float, Field(gt=0, lt=1), Says("a number between 0 and 1")]
Positives = Annotated[list[Positive], Field(min_length=1), Says("a list of positive numbers")]
Numbers = Annotated[list[Number], Field(min_length=1), Says("a list of numbers")]
Rows = Annotated[list[Numbers], Field(min_length=1), Says("a list of rows of numbers")]
Shares = Annotated[list[Share], Field(min_length=1), Says("a list of numbers between 0 and 1")]
Costs = Annotated[
    list[Annotated[float, Field(ge=-1, le=1)]], Field(min_length=1), Says("a list of numbers from −1 to 1")
]
Nothing = Annotated[None, _none_where("none"), Says("'none'")]
AllRows = Annotated[None, _none_where("all"), Says("'all'")]


def allowed_words(field: FieldInfo) -> tuple[str, ...]:
    """The words that an option may be, where it may be words.

    Example:
        >>> from typing import Literal
        >>> from pydantic.fields import FieldInfo
        >>> from ovkgp.recipes.values import Count, allowed_words
        >>> allowed_words(FieldInfo.from_annotation(Literal["auto", "exact"] | Count))
        ('auto', 'exact')
    """
    return tuple(word for word in _words(field.annotation) if isinstance(word, str))


def described(field: FieldInfo) -> str:
    """What an option may be, in words.

    Example:
        >>> from typing import Literal
        >>> from pydantic.fields import FieldInfo
        >>> from ovkgp.recipes.values import Count, described
        >>> described(FieldInfo.from_annotation(Literal["auto"] | Count))
        "'auto' or a whole number, at least 1"
    """
    said = next((mark.phrase for mark in field.metadata if isinstance(mark, Says)), None)
    phrases = [said] if said else _phrases(field.annotation)
    if len(phrases) > 1 and len(phrases) == len(_words(field.annotation)):
        return f"one of {', '.join(phrases)}"
    return f"{', '.join(phrases[:-1])} or {phrases[-1]}" if len(phrases) > 1 else phrases[0]


def _words(kind) -> tuple:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if _is_union(kind):
        return tuple(word for part in get_args(kind) for word in _words(part))
    return ()


def _phrases(kind) -> list[str]:
    if get_origin(kind) is Annotated:
        said = next((mark.phrase for mark in get_args(kind) if isinstance(mark, Says)), None)
        return [said] if said else _phrases(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [repr(word) for word in get_args(kind)]
    if _is_union(kind):
        return [phrase for part in get_args(kind) for phrase in _phrases(part)]
    if isinstance(kind, type) and issubclass(kind, Options):
        return [f"a table with {', '.join(kind.model_fields)}"]
    if kind is NoneType:  # cannot be written in a file
        return []
    return [{str: "a text in quotes", dict: "a table"}.get(get_origin(kind) or kind, "another value")]


def _is_union(kind) -> bool:
    return get_origin(kind) is Union or type(kind).__name__ == "UnionType"
