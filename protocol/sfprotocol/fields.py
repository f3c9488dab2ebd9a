"""Fields of messages and decisions: conversion to and from the values of a MessagePack array.

Each type is described once, as a sequence of Fields, for reading and for writing. Reading refuses invalid
values (SPEC C5, C8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, chain, pairwise
from operator import mul
from typing import Any, NamedTuple, cast

import msgpack

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError

MAX_NAME = 32
"""Maximum size of a name and of a team, in bytes of UTF-8, so that both fit a line of a table."""

_UNREADABLE = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xE000, 0xF8FF),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFF), (0x13430, 0x1345F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0x10FFFF),
)  # fmt: skip
"""Code points that are invisible, change the direction of writing or control a terminal, as pairs (first,
last) (SPEC K2). Unicode's categories are not used in their place, because they change from version to
version."""


class Names(NamedTuple):
    """The name and the team that an origin gives itself; empty if it gives none."""

    name: str = ""
    team: str = ""


NAMELESS = Names()


def text_fault(text: str, most: int = MAX_NAME) -> str | None:
    """Return the fault of a name, a team or another text, as a sentence that begins with "it"; None if the
    text is valid. A text of more than `most` bytes is invalid (SPEC K2)."""
    if len(text.encode("utf-8", "surrogatepass")) > most:
        return f"it takes more than {most} bytes"
    if text != text.strip(" "):
        return "it begins or ends with a space"
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        return "it is no Unicode"
    return None if readable(text) else "it has characters that cannot be seen"


def readable(text: str) -> bool:
    """Return whether a text has no invisible or misleading characters (SPEC K2)."""
    return not any(low <= ord(letter) <= high for letter in text for low, high in _UNREADABLE)


Scalar = int
"""A quantised directional derivative, in units of the manifest's scalar_delta. In a first-order run: a
quantised entry of the gradient, in the unit that Seals set for the update's label."""

Values = Scalar | tuple[Scalar, ...]
"""The content of an update. In a zeroth-order run it is one scalar along the update's direction. In a
first-order run it is one scalar for every cell of the cores, in the order of cells (SPEC U11)."""


def flat(every: Sequence[Values]) -> Sequence[Scalar]:
    """Return the scalars of these updates, all of one run, as one flat sequence in the same order."""
    vectors = not every or not isinstance(every[0], int)
    found = chain.from_iterable(cast(Sequence[tuple[Scalar, ...]], every)) if vectors else every
    return cast(tuple[Scalar, ...], tuple(found))


def cells_of(values: Values) -> int:
    """Return the number of cells of an update of a first-order run; 0 for an update of a zeroth-order run.
    The result equals `messages.RunParameters.cells` of the update's run."""
    return 0 if isinstance(values, int) else len(values)


def squares_of(values: Values) -> int:
    """Return the sum of the squares of an update's scalars."""
    return values * values if isinstance(values, int) else sum(map(mul, values, values))


def pack(value: Any) -> bytes:
    """Return the MessagePack of a value."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, bounds: Mapping[str, int], rule: str) -> Any:
    """Return the one value in `data`. Raises RemoteProtocolError (`rule`) if `data` is not MessagePack, or
    has lists or maps that exceed these `bounds`."""
    try:
        return msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, **bounds)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(rule, f"not MessagePack: {error}") from None


def require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)


class Field(NamedTuple):
    """The reader and the writer of a field of a message. The field takes `width` consecutive values of the
    encoded array."""

    width: int
    read: Callable[[list[Any], int], Any]
    """Function (all values of the array, index of the field's first value) -> the field. It raises
    RemoteProtocolError for invalid values."""
    write: Callable[[Any], list[Any]]
    """Function that returns the values of the field, to be put into the array."""


def one(holds: Callable[[Any], bool], reason: str, rule: str = "C5") -> Field:
    """Return a field for one plain value that satisfies a condition."""

    def read(values: list[Any], at: int) -> Any:
        value = values[at]
        if not holds(value):
            raise RemoteProtocolError(rule, reason)
        return value

    return Field(1, read, lambda value: [value])


def unsigned(bits: int) -> Field:
    bound = 1 << bits
    return one(
        lambda value: type(value) is int and 0 <= value < bound, f"not an unsigned integer of {bits} bits"
    )


def binary(*lengths: int) -> Field:
    reason = f"not {' or '.join(map(str, lengths))} bytes"
    return one(lambda value: isinstance(value, bytes) and len(value) in lengths, reason)


def row(build: Callable[..., Any], *parts: Field, names: Sequence[str] | None = None) -> Field:
    """Return the Field that reads and writes `parts` one after the other, and builds their tuple or dataclass
    with `build`. `names`: the attributes to write, in order; by default those of the dataclass."""
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
        return [written for part, item in zip(parts, items, strict=True) for written in part.write(item)]

    return Field(stops[-1] if stops else 0, read, write)


def pair(part: Field) -> Field:
    return row(lambda *two: two, part, part)


def array(inside: Field) -> Field:
    """Return the field for a nested array, whose elements are the values of `inside`."""
    reason = f"not {inside.width} fields"

    def read(values: list[Any], at: int) -> Any:
        inner = values[at]
        require(isinstance(inner, list) and len(inner) == inside.width, "C5", reason)
        return inside.read(inner, 0)

    return Field(1, read, lambda value: [inside.write(value)])


def listed(item: Field, most: int, name: Callable[[Any], Any] | None = None) -> Field:
    """Return the field for a list of at most `most` entries, strictly ascending by `name` if given (SPEC
    C8)."""

    def read(values: list[Any], at: int) -> tuple[Any, ...]:
        inner = values[at]
        require(isinstance(inner, list) and len(inner) <= most, "C5", "not a list in range")
        entries = tuple([item.read(inner, place) for place in range(len(inner))])
        ascending = name is None or all(name(a) < name(b) for a, b in pairwise(entries))
        require(ascending, "C8", "entries are not in strictly ascending order")
        return entries

    return Field(1, read, lambda entries: [[item.write(entry)[0] for entry in entries]])


U8, U16, U31, U32, U64 = unsigned(8), unsigned(16), unsigned(31), unsigned(32), unsigned(64)
I64 = one(lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63, "not an i64")
B4, B8, B32, B64 = binary(4), binary(8), binary(32), binary(64)
BYTES = one(lambda value: isinstance(value, bytes), "not bytes")
