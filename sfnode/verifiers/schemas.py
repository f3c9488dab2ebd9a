"""The subset of JSON Schema (2020-12) that answers are held to, with the meaning that it has there.

A subset of our own: libraries follow references, match patterns by backtracking and compare items pairwise.
What is here is linear in the text. A keyword that is not here is refused when the verifier is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sfnode.verifiers.base import Name, Names, Table
from sfnode.verifiers.bounds import MAX_ANSWER, MAX_LISTED, MAX_NAME
from sfnode.verifiers.json_values import canonical

MAX_DEPTH = 8
"""Schemas within each other."""

MAX_SCHEMAS = 128
"""Schemas in a schema, itself counted."""

Type = Literal["object", "array", "string", "number", "integer", "boolean", "null"]
Scalar = (
    Annotated[str, Field(max_length=MAX_NAME)]
    | bool
    | Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
    | float
)
"""An integer beyond the 64 bits that the encoding of a manifest has is the binary64 that it means."""
Count = Annotated[int, Field(ge=0, le=MAX_ANSWER)]


class Schema(Table):
    """A schema; each keyword speaks of values of its own type only, and an empty schema allows anything."""

    type: Type | Annotated[tuple[Type, ...], Field(max_length=7, strict=False)] = ()
    enum: Annotated[tuple[Scalar, ...], Field(max_length=MAX_LISTED, strict=False)] = ()
    properties: Annotated[dict[Name, Schema], Field(max_length=MAX_LISTED)] = Field(default_factory=dict)
    required: Names = ()
    additionalProperties: bool | Schema = True  # noqa: N815 - JSON Schema spells its keywords so
    items: Schema | None = None
    minItems: Count = 0  # noqa: N815
    maxItems: Count | None = None  # noqa: N815
    minLength: Count = 0  # noqa: N815
    maxLength: Count | None = None  # noqa: N815
    minimum: float | None = None
    maximum: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Schema:
        if _depth(self) > MAX_DEPTH:
            raise ValueError(f"schemas are nested more than {MAX_DEPTH} deep")
        if sum(1 for _ in _all(self)) > MAX_SCHEMAS:
            raise ValueError(f"a schema has more than {MAX_SCHEMAS} schemas in it")
        return self

    @property
    def within(self) -> tuple[Schema, ...]:
        """The schemas of which this one consists."""
        others = (self.items, self.additionalProperties)
        return (*self.properties.values(), *(one for one in others if isinstance(one, Schema)))

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types allowed; none if all are."""
        return (self.type,) if isinstance(self.type, str) else self.type

    @cached_property
    def listed(self) -> frozenset[str]:
        """The values of `enum`, as canonical JSON."""
        return frozenset(canonical(_as_read(value)) for value in self.enum)


def conforms(value: Any, schema: Schema) -> bool:
    """Return whether a value that was read satisfies a schema."""
    if schema.types and not any(_is(value, name) for name in schema.types):
        return False
    if schema.enum and (isinstance(value, dict | list) or canonical(value) not in schema.listed):
        return False
    match value:
        case dict():
            return _object_conforms(value, schema)
        case list():
            return _within(len(value), schema.minItems, schema.maxItems) and (
                schema.items is None or all(conforms(item, schema.items) for item in value)
            )
        case str():
            return _within(len(value), schema.minLength, schema.maxLength)
        case float():
            return _within(value, schema.minimum, schema.maximum)
    return True


def _object_conforms(value: dict[str, Any], schema: Schema) -> bool:
    if not all(name in value for name in schema.required):
        return False
    for name, member in value.items():
        allowed = schema.properties.get(name, schema.additionalProperties)
        if not (allowed if isinstance(allowed, bool) else conforms(member, allowed)):
            return False
    return True


def _within(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _is(value: Any, name: str) -> bool:
    match value:
        case dict():
            return name == "object"
        case list():
            return name == "array"
        case str():
            return name == "string"
        case bool():
            return name == "boolean"
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
    return name == "null"


def _as_read(value: str | bool | int | float) -> str | bool | float:
    return value if isinstance(value, str | bool) else float(value)


def _all(schema: Schema) -> Iterator[Schema]:
    yield schema
    for one in schema.within:
        yield from _all(one)


def _depth(schema: Schema) -> int:
    return 1 + max(map(_depth, schema.within), default=0)
