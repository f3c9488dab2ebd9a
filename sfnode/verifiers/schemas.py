"""The base class of the tables in a verifier, and schemas for answers in JSON. The schemas are a subset of
JSON Schema (2020-12); the keywords have their standard meaning.

Libraries for JSON Schema follow references, match patterns with backtracking and compare items pairwise. Each
of these can take very long. Conformance to this subset is checked in time linear in the length of the answer.
A verifier with any other keyword is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

# -- bounds, so that an answer takes less than 10 ms (benchmarks/verifiers.py) -------------------------

MAX_ANSWER = 4096
"""Number of characters at the beginning of an answer, or of a row's value, that a verifier reads: about 1,000
tokens."""

MAX_NAME = 200
"""Maximum length, in characters, of the name of a column, a function, a parameter, a module or a JSON
object's member."""

MAX_LISTED = 64
"""Maximum number of entries of any list in a verifier."""

WHITE_SPACE = " \t\n\v\f\r"
"""The white space of ASCII. White space of Unicode would make scores depend on the version of Unicode."""


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_LISTED, strict=False)]
"""A tuple of names. A list is accepted too and becomes a tuple, because TOML and JSON have no tuples."""


class Table(BaseModel):
    """An immutable table of a verifier. Reading it fails for an unknown key, and for a value of another type
    than the key's.

    Keys with their default values are not written. So null, which TOML lacks, is never written, and the
    output stays the same if a later version adds a key with a default.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        usual = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        return {
            name: value
            for name, value in write(self).items()
            if name == "kind" or getattr(self, name) != usual[name]
        }


MAX_NESTING = 32
"""Maximum nesting depth of arrays and objects in an answer. Python's JSON parser calls itself once for each
level."""

_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Pattern for a bracket, or for a JSON string. It also matches a string without a closing quote."""


# -- JSON texts ----------------------------------------------------------------------------------------


def parse(text: str) -> Any:
    """Parse a JSON text (RFC 8259). Numbers become floats. Raises ValueError for other text.

    Raises ValueError, too, if an object has two members of one name, a number is too large for binary64, or
    the nesting is deeper than MAX_NESTING.
    """
    depth = 0
    for token in _NESTING.findall(text):
        depth += (token in "[{") - (token in "]}")
        if depth > MAX_NESTING:
            raise ValueError("nested too deeply")
    return json.loads(
        text, parse_int=_number, parse_float=_number, parse_constant=_number, object_pairs_hook=_object
    )


def agreement(value: Any, reference: Any) -> float:
    """Return the number of members that are equal in two JSON objects, divided by the number of member names
    that occur in either. If one of the values is no object, return 1 if the values are equal, else 0."""
    if not (isinstance(value, dict) and isinstance(reference, dict)):
        return float(canonical(value) == canonical(reference))
    names = value.keys() | reference.keys()
    return (len(names) - len(differing(value, reference))) / len(names) if names else 1.0


def differing(value: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Return the names of the members in which two JSON objects differ, the reference's members first."""
    left, right = ({name: canonical(one) for name, one in each.items()} for each in (value, reference))
    return [name for name in dict.fromkeys([*right, *left]) if left.get(name) != right.get(name)]


def canonical(value: Any) -> str:
    """Return a value from `parse` as JSON text. Values have the same text only if they are equal and of one
    type: true is not 1."""
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> float:
    value = float(text) + 0.0  # -0 becomes 0
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number of binary64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is named twice")
    return members


MAX_DEPTH = 8
"""Maximum depth of nested schemas."""

MAX_SCHEMAS = 128
"""Maximum number of schemas nested in a schema, at any depth and including itself."""

Type = Literal["object", "array", "string", "number", "integer", "boolean", "null"]
Scalar = (
    Annotated[str, Field(max_length=MAX_NAME)]
    | bool
    | Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
    | float
)
"""A value in `enum`. An integer that does not fit into the 64 bits of a manifest's integers becomes the
nearest binary64 number."""
Count = Annotated[int, Field(ge=0, le=MAX_ANSWER)]


class Schema(Table):
    """A schema for JSON values, with keywords of JSON Schema. A keyword such as `minLength` restricts values
    of one type and allows all values of other types. An empty schema allows any value."""

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
        """The schemas one level below this one: those of its properties, of its items and of its additional
        properties."""
        others = (self.items, self.additionalProperties)
        return (*self.properties.values(), *(one for one in others if isinstance(one, Schema)))

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The allowed types; empty if all types are allowed."""
        return (self.type,) if isinstance(self.type, str) else self.type

    @cached_property
    def listed(self) -> frozenset[str]:
        """The values of `enum`, as canonical JSON."""
        read = (value if isinstance(value, str | bool) else float(value) for value in self.enum)
        return frozenset(map(canonical, read))


def conforms(value: Any, schema: Schema) -> bool:
    """Return whether a value from `parse` satisfies a schema."""
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


def _all(schema: Schema) -> Iterator[Schema]:
    yield schema
    for one in schema.within:
        yield from _all(one)


def _depth(schema: Schema) -> int:
    return 1 + max(map(_depth, schema.within), default=0)
