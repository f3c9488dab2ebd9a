"""Messages to bytes and back: canonical MessagePack, positional arrays (SPEC C1-C9).

Strict on purpose: bytes that do not re-encode to themselves are refused, so that one message has exactly one
encoding and nothing can be smuggled in a second one. Framing (the length in front) is the transport's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgpack

from sfprotocol.decisions import MAX_DECISION, Part
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.messages import (
    Ahead,
    Branch,
    Card,
    Claim,
    Commitment,
    Control,
    ControlFork,
    ControlHead,
    ControlWant,
    Entry,
    EpochScalars,
    Feed,
    Finding,
    Floor,
    Goodbye,
    Have,
    Hello,
    ManifestReply,
    ManifestRequest,
    Message,
    PartReply,
    PartRequest,
    Petition,
    Position,
    Proof,
    Prune,
    Segment,
    Succession,
    Summary,
    Vote,
    Want,
)
from sfprotocol.names import fault as faulty_name
from sfprotocol.segments import MAX_SEGMENT_UPDATES

MAX_FRAME = 256 * 1024
"""Largest encoded message, and so largest frame, in bytes (SPEC F1). Holds a full Summary page, a full
Segment and a manifest (192 KiB), and is small enough that a node with 12 links buffers at most a few MiB."""

LENGTH_BYTES = 3
"""Length prefix of a frame on a stream, big-endian (SPEC F1)."""

MAX_ENTRIES = 4096
"""Entries of one message: at most 50 bytes each, so a full page stays below MAX_FRAME."""

MAX_REASON = 200
"""Bytes of a Goodbye's reason: a sentence."""

MAX_PART_BYTES = 192 * 1024
"""Bytes of a PartReply (SPEC B3): a piece of a base model takes six."""

_FORMATS = {1: "b", 2: "h"}
_BOUNDS = {"max_array_len": MAX_SEGMENT_UPDATES, "max_map_len": 0, "max_ext_len": 0}
"""Bounds for the unpacker, which allocates what an array announces before it has seen one element."""


def encode(message: Message, scalar_bytes: int = 2) -> bytes:
    """Return the one encoding of `message`. Raises LocalProtocolError if the peer could not decode it."""
    kind = _KIND_OF[type(message)]
    row = _messages(scalar_bytes)[kind]
    assert row.write  # as every row has
    values = [kind, *row.write(message)]
    try:
        _build(values, scalar_bytes)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"encoding a {type(message).__name__}: {error}") from None
    data = _pack(values)
    if len(data) > MAX_FRAME:
        raise LocalProtocolError(f"a message of {len(data)} bytes exceeds MAX_FRAME")
    return data


def decode(data: bytes, scalar_bytes: int = 2) -> Message:
    """Return the message that `data` encodes. Raises RemoteProtocolError (C rules) for anything else."""
    if len(data) > MAX_FRAME:
        raise RemoteProtocolError("C1", f"{len(data)} bytes exceed the largest frame")
    try:
        values = msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, **_BOUNDS)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("C2", f"not MessagePack: {error}") from None
    message = _build(values, scalar_bytes)
    _require(_pack(values) == data, "C4", "not in canonical form")
    return message


def _pack(values: list[Any]) -> bytes:
    return cast(bytes, msgpack.packb(values, use_bin_type=True))


def _build(values: Any, scalar_bytes: int) -> Message:
    """Return the message with these fields. Raises RemoteProtocolError if there is none."""
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise RemoteProtocolError("C3", "not an array that starts with a message type")
    row = _messages(scalar_bytes).get(values[0])
    if row is None:
        raise RemoteProtocolError("C3", f"unknown message type {values[0]}")
    _require(len(values) == row.width + 1, "C3", "wrong number of fields")
    return cast(Message, row.read(values, 1))


def pack_scalars(scalars: tuple[int, ...], scalar_bytes: int) -> bytes:
    """Return scalars as fixed-width big-endian two's complement (SPEC C6)."""
    try:
        return struct.pack(f">{len(scalars)}{_FORMATS[scalar_bytes]}", *scalars)
    except struct.error as error:
        raise LocalProtocolError(f"a scalar does not fit {scalar_bytes} bytes: {error}") from None


def unpack_scalars(data: bytes, scalar_bytes: int) -> tuple[int, ...]:
    """Invert `pack_scalars`; the caller has checked that the length is a multiple of the width."""
    return struct.unpack(f">{len(data) // scalar_bytes}{_FORMATS[scalar_bytes]}", data)


# -- fields ------------------------------------------------------------------------------------------


def _require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)


class _Field(NamedTuple):
    """A part of a message that takes so many consecutive values of an array."""

    width: int
    read: Callable[[list[Any], int], Any]
    """Returns the part that the values from a place on are. Raises RemoteProtocolError."""
    write: Callable[[Any], list[Any]] | None = None
    """Returns the values of a part; None for one that is its one value."""


def _one(holds: Callable[[Any], bool], reason: str, rule: str = "C5") -> _Field:
    """Return a field that is a value as it is, for which something has to hold."""

    def read(values: list[Any], at: int) -> Any:
        value = values[at]
        if not holds(value):
            raise RemoteProtocolError(rule, reason)
        return value

    return _Field(1, read)


def _unsigned(bits: int) -> _Field:
    bound = 1 << bits
    return _one(
        lambda value: type(value) is int and 0 <= value < bound, f"not an unsigned integer of {bits} bits"
    )


def _binary(*lengths: int) -> _Field:
    reason = f"not {' or '.join(map(str, lengths))} bytes"
    return _one(lambda value: isinstance(value, bytes) and len(value) in lengths, reason)


def _row(build: Callable[..., Any], *parts: _Field, names: Sequence[str] | None = None) -> _Field:
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
    return _Field(stops[-1] if stops else 0, read, list if plain else write)


def _pair(part: _Field) -> _Field:
    return _row(lambda *two: two, part, part)


def _array(row: _Field) -> _Field:
    """Return the one field that is an array of the values of a row."""
    reason = f"not {row.width} fields"

    def read(values: list[Any], at: int) -> Any:
        inner = values[at]
        _require(isinstance(inner, list) and len(inner) == row.width, "C5", reason)
        return row.read(inner, 0)

    write = row.write
    return _Field(1, read, lambda value: [write(value)] if write else [[value]])


def _list(item: _Field, name: Callable[[Any], Any] | None = None) -> _Field:
    """Return a list, in strictly ascending order of what its entries are about (SPEC C8) if that has a
    `name`."""

    def read(values: list[Any], at: int) -> tuple[Any, ...]:
        inner = values[at]
        _require(isinstance(inner, list) and len(inner) <= MAX_ENTRIES, "C5", "not a list in range")
        entries = tuple([item.read(inner, place) for place in range(len(inner))])
        ascending = name is None or all(name(a) < name(b) for a, b in pairwise(entries))
        _require(ascending, "C8", "entries are not in strictly ascending order")
        return entries

    write = item.write
    return _Field(1, read, lambda entries: [[write(one)[0] for one in entries] if write else list(entries)])


def _parts(scalar_bytes: int, least: int = 1) -> _Field:
    """Return the scalars of consecutive updates by their epochs, `least` updates or more."""

    def read(values: list[Any], at: int) -> tuple[EpochScalars, ...]:
        inner = values[at]
        _require(isinstance(inner, list) and len(inner) <= MAX_SEGMENT_UPDATES, "C5", "not a list in range")
        parts: list[EpochScalars] = []
        total = 0
        for item in inner:
            _require(isinstance(item, list) and len(item) == 2, "C5", "a part has not 2 fields")
            epoch, data = _U32.read(item, 0), item[1]
            _require(isinstance(data, bytes) and len(data) > 0, "C6", "scalars are missing")
            _require(len(data) % scalar_bytes == 0, "C6", "scalars have the wrong width")
            _require(not parts or parts[-1].epoch < epoch, "C7", "epochs do not ascend")
            parts.append(EpochScalars(epoch, unpack_scalars(data, scalar_bytes)))
            total += len(data) // scalar_bytes
        _require(least <= total <= MAX_SEGMENT_UPDATES, "C7", "a segment without updates, or with too many")
        return tuple(parts)

    def write(parts: tuple[EpochScalars, ...]) -> list[Any]:
        return [[[part.epoch, pack_scalars(part.scalars, scalar_bytes)] for part in parts]]

    return _Field(1, read, write)


def _segment(hops: int, key: int, first: int, parts: tuple[EpochScalars, ...], signature: bytes) -> Segment:
    return Segment(key, first, parts, signature, hops)


def _part_reply(size: int, data: bytes) -> PartReply:
    _require(len(data) <= min(size, MAX_PART_BYTES), "C5", "the bytes of a part are too many")
    return PartReply(size, data)


# -- messages ----------------------------------------------------------------------------------------

_U8, _U31, _U32, _U64 = _unsigned(8), _unsigned(31), _unsigned(32), _unsigned(64)
_I64 = _one(lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63, "not an i64")
_B4, _B32, _B64 = _binary(4), _binary(32), _binary(64)
_BYTES = _one(lambda value: isinstance(value, bytes), "not binary")
_BOOLEAN = _one(lambda value: isinstance(value, bool), "not a boolean")
_NAME = _one(
    lambda value: isinstance(value, str) and not faulty_name(value), "a name that cannot be shown", "K2"
)
_REASON = _one(
    lambda value: isinstance(value, str) and len(value.encode()) <= MAX_REASON, "not a short string"
)
_LENGTH = _one(lambda value: type(value) is int and 0 < value <= MAX_PART_BYTES, "not a length in range")
_RECORD = _one(lambda value: isinstance(value, bytes) and len(value) <= MAX_DECISION, "not a decision")
_FEED = _row(Feed, _B32, _U32)
_POSITIONS = _list(_array(_row(Position, _FEED, _U32)), attrgetter("feed"))
_CLAIMS = _list(_array(_row(Claim, _FEED, _U32, _B4)), attrgetter("feed"))
_AHEAD = _list(_array(_row(Ahead, _U64, _U32)), attrgetter("feed_key"))
_ENTRIES = _list(_array(_row(Entry, _U32, _RECORD, _B64)))
_VOTES = _list(_array(_row(Vote, _U8, _B64)), attrgetter("deputy"))
_MEASURED = _list(_array(_row(Part, _U31, _U32, _I64, _I64)), attrgetter("feed"))
_SEGMENT = "hops", "feed_key", "first", "parts", "signature"
"""Fields in the order in which they travel."""


@cache
def _messages(scalar_bytes: int) -> dict[int, _Field]:
    """Return the fields of each type of message, in a run whose scalars take so many bytes."""
    parts = _parts(scalar_bytes)
    branch = _array(_row(Branch, _parts(scalar_bytes, 0), _B64))
    return {
        0: _row(Hello, _U32, _B32, _U8, _U64),
        1: _row(_segment, _U8, _U64, _U32, parts, _B64, names=_SEGMENT),
        2: _row(Summary, _BOOLEAN, _U64, _B32, _CLAIMS),
        3: _row(Want, _POSITIONS),
        4: _row(ManifestRequest),
        5: _row(ManifestReply, _BYTES),
        6: _row(Goodbye, _REASON),
        7: _row(Have, _AHEAD),
        8: _row(Prune, _list(_U64, int)),
        9: _row(Proof, _FEED, _U32, _pair(_B32), _array(_pair(branch))),
        10: _row(PartRequest, _B32, _U32, _U32, _LENGTH),
        11: _row(_part_reply, _U32, _BYTES, names=("size", "data")),
        12: _row(Card, _FEED, _U32, _NAME, _NAME, _B64),
        13: _row(ControlHead, _U32, _U32, _B32),
        14: _row(ControlWant, _U32),
        15: _row(Control, _U32, _ENTRIES),
        16: _row(Succession, _U32, _U32, _B32, _B32, _VOTES),
        17: _row(ControlFork, _U32, _U32, _pair(_B32), _pair(_B64)),
        18: _row(Petition, _B32, _U64, _U32, _binary(0, 64), _B64),
        19: _row(Floor, _U32),
        20: _row(Commitment, _U32, _B32, _B32, _B64),
        21: _row(Finding, _U32, _B32, _U64, _U32, _MEASURED),
    }


_KINDS = (
    *(Hello, Segment, Summary, Want, ManifestRequest, ManifestReply, Goodbye, Have, Prune, Proof),
    *(PartRequest, PartReply, Card, ControlHead, ControlWant, Control, Succession, ControlFork),
    *(Petition, Floor, Commitment, Finding),
)
_KIND_OF = {kind: number for number, kind in enumerate(_KINDS)}
