"""Fields of messages and decisions: how values of a MessagePack array become one, and the other way round.

A type is described once, as a row of fields; what reads it also refuses what it does not allow (SPEC C5, C8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError


def require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)


class Field(NamedTuple):
    """A part of a message that takes so many consecutive values of an array."""

    width: int
    read: Callable[[list[Any], int], Any]
    """Returns the part that the values from a place on are. Raises RemoteProtocolError."""
    write: Callable[[Any], list[Any]] | None = None
    """Returns the values of a part; None for one that is its one value."""


def one(holds: Callable[[Any], bool], reason: str, rule: str = "C5") -> Field:
    """Return a field that is a value as it is, for which something has to hold."""

    def read(values: list[Any], at: int) -> Any:
        value = values[at]
        if not holds(value):
            raise RemoteProtocolError(rule, reason)
        return value

    return Field(1, read)


def unsigned(bits: int) -> Field:
    bound = 1 << bits
    return one(
        lambda value: type(value) is int and 0 <= value < bound, f"not an unsigned integer of {bits} bits"
    )


def binary(*lengths: int) -> Field:
    reason = f"not {' or '.join(map(str, lengths))} bytes"
    return one(lambda value: isinstance(value, bytes) and len(value) in lengths, reason)


def row(build: Callable[..., Any], *parts: Field, names: Sequence[str] | None = None) -> Field:
    """Return the fields of a tuple, or of a dataclass in the order of `names`, one after the other."""
    stops = list(accumulate(part.width for part in parts))
    places = [(part.read, first) for part, first in zip(parts, [0, *stops], strict=False)]
    if names is None and is_dataclass(build):
        names = [field.name for field in fields(build)]

    def read(values: list[Any], at: int) -> Any:
        return build(*[read_part(values, at + first) for read_part, first in places])

    def write(value: Any) -> list[Any]:
        items = value if names is None else [getattr(value, name) for name in names]
        if len(items) != len(parts):
            raise LocalProtocolError(f"{len(items)} fields, where there are {len(parts)}")
        values: list[Any] = []
        for part, item in zip(parts, items, strict=True):
            if part.write is None:
                values.append(item)
            else:
                values += part.write(item)
        return values

    plain = names is None and all(part.write is None for part in parts)
    return Field(stops[-1] if stops else 0, read, list if plain else write)


def pair(part: Field) -> Field:
    return row(lambda *two: two, part, part)


def array(inside: Field) -> Field:
    """Return the one field that is an array of the values of a row."""
    reason = f"not {inside.width} fields"

    def read(values: list[Any], at: int) -> Any:
        inner = values[at]
        require(isinstance(inner, list) and len(inner) == inside.width, "C5", reason)
        return inside.read(inner, 0)

    write = inside.write
    return Field(1, read, lambda value: [write(value)] if write else [[value]])


def listed(item: Field, most: int, name: Callable[[Any], Any] | None = None) -> Field:
    """Return a list, in strictly ascending order of what its entries are about (SPEC C8) if that has a
    `name`."""

    def read(values: list[Any], at: int) -> tuple[Any, ...]:
        inner = values[at]
        require(isinstance(inner, list) and len(inner) <= most, "C5", "not a list in range")
        entries = tuple([item.read(inner, place) for place in range(len(inner))])
        ascending = name is None or all(name(a) < name(b) for a, b in pairwise(entries))
        require(ascending, "C8", "entries are not in strictly ascending order")
        return entries

    write = item.write
    return Field(
        1, read, lambda entries: [[write(entry)[0] for entry in entries] if write else list(entries)]
    )


U8, U16, U31, U32, U64 = unsigned(8), unsigned(16), unsigned(31), unsigned(32), unsigned(64)
I64 = one(lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63, "not an i64")
B4, B8, B32, B64 = binary(4), binary(8), binary(32), binary(64)
BYTES = one(lambda value: isinstance(value, bytes), "not bytes")
