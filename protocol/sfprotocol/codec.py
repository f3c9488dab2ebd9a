"""Messages to bytes and back: canonical MessagePack, positional arrays (SPEC C1-C9).

Strict on purpose: bytes that do not re-encode to themselves are refused, so that one message has exactly one
encoding and nothing can be smuggled in a second one. Framing (the length in front) is the transport's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import msgpack

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.messages import (
    EpochScalars,
    Feed,
    Goodbye,
    Hello,
    ManifestReply,
    ManifestRequest,
    Message,
    Position,
    Segment,
    Summary,
    Want,
)

MAX_FRAME = 256 * 1024
"""Largest encoded message in bytes. Holds a full Summary page and a full Segment with room to spare, and is
small enough that a node with 12 links buffers at most a few MiB."""

MAX_ENTRIES = 4096
"""Positions in one Summary or Want: at most 45 bytes each, so a full page stays below MAX_FRAME."""

MAX_SEGMENT_UPDATES = 16_384
"""Updates in one Segment (SPEC S4): 32 KiB of scalars. Even with an epoch of its own for each, 10 bytes with
the scalar, the segment stays below MAX_FRAME: whatever a node admits it can pass on."""

MAX_REASON = 200
"""Bytes of a Goodbye's reason: a sentence."""

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_FORMATS = {1: "b", 2: "h"}
_BOUNDS = {"max_array_len": MAX_SEGMENT_UPDATES, "max_map_len": 0, "max_ext_len": 0}
"""For the unpacker, which allocates what an array announces before it has seen one element."""


def encode(message: Message, scalar_bytes: int = 2) -> bytes:
    """The one encoding of `message`. Raises LocalProtocolError when it would not decode on the other side."""
    fields = _ENCODERS[type(message)](message, scalar_bytes)
    try:
        _build(fields, scalar_bytes)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"encoding a {type(message).__name__}: {error}") from None
    data = _pack(fields)
    if len(data) > MAX_FRAME:
        raise LocalProtocolError(f"a message of {len(data)} bytes exceeds MAX_FRAME")
    return data


def decode(data: bytes, scalar_bytes: int = 2) -> Message:
    """The message that `data` encodes. Raises RemoteProtocolError (C rules) for anything else."""
    if len(data) > MAX_FRAME:
        raise RemoteProtocolError("C1", f"{len(data)} bytes exceed the largest frame")
    try:
        fields = msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, **_BOUNDS)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("C2", f"not MessagePack: {error}") from None
    message = _build(fields, scalar_bytes)
    _require(_pack(fields) == data, "C4", "not in canonical form")
    return message


def _pack(fields: list[Any]) -> bytes:
    return cast(bytes, msgpack.packb(fields, use_bin_type=True))


def _build(fields: Any, scalar_bytes: int) -> Message:
    """The message with these fields. Raises RemoteProtocolError when they are none."""
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise RemoteProtocolError("C3", "not an array that starts with a message type")
    decoder = _DECODERS.get(fields[0])
    if decoder is None:
        raise RemoteProtocolError("C3", f"unknown message type {fields[0]}")
    arity, build = decoder
    _require(len(fields) == arity, "C3", "wrong number of fields")
    return build(fields, scalar_bytes)


def pack_scalars(scalars: tuple[int, ...], scalar_bytes: int) -> bytes:
    """Fixed-width big-endian two's complement (SPEC C6)."""
    try:
        return struct.pack(f">{len(scalars)}{_FORMATS[scalar_bytes]}", *scalars)
    except struct.error as error:
        raise LocalProtocolError(f"a scalar does not fit {scalar_bytes} bytes: {error}") from None


def unpack_scalars(data: bytes, scalar_bytes: int) -> tuple[int, ...]:
    """Inverse of `pack_scalars`; the caller has checked that the length is a multiple of the width."""
    return struct.unpack(f">{len(data) // scalar_bytes}{_FORMATS[scalar_bytes]}", data)


# -- encoding: message -> positional fields ----------------------------------------------------------


def _positions(entries: tuple[Position, ...]) -> list[list[Any]]:
    return [[e.feed.origin, e.feed.incarnation, e.next] for e in entries]


def _segment_fields(m: Segment, scalar_bytes: int) -> list[Any]:
    parts = [[part.epoch, pack_scalars(part.scalars, scalar_bytes)] for part in m.parts]
    return [1, m.hops, m.feed_key, m.first, parts, m.signature]


_ENCODERS: dict[type, Callable[[Any, int], list[Any]]] = {
    Hello: lambda m, _: [0, m.version, m.run_id, m.role, m.known],
    Segment: _segment_fields,
    Summary: lambda m, _: [2, m.more, m.known, m.digest, _positions(m.entries)],
    Want: lambda m, _: [3, _positions(m.entries)],
    ManifestRequest: lambda m, _: [4],
    ManifestReply: lambda m, _: [5, m.manifest],
    Goodbye: lambda m, _: [6, m.reason],
}


# -- decoding: positional fields -> message ----------------------------------------------------------


def _require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)


def _unsigned(value: Any, bound: int, what: str) -> int:
    _require(type(value) is int and 0 <= value <= bound, "C5", f"{what} is not an unsigned integer in range")
    return cast(int, value)


def _binary(value: Any, length: int, what: str) -> bytes:
    _require(isinstance(value, bytes) and len(value) == length, "C5", f"{what} is not {length} bytes")
    return cast(bytes, value)


def _list(value: Any, bound: int, what: str) -> list[Any]:
    _require(isinstance(value, list) and len(value) <= bound, "C5", f"{what} is not a list in range")
    return cast("list[Any]", value)


def _entries(value: Any) -> tuple[Position, ...]:
    entries = []
    for item in _list(value, MAX_ENTRIES, "entries"):
        origin, incarnation, following = _fields(item, 3, "entry")
        feed = Feed(_binary(origin, 32, "origin"), _unsigned(incarnation, _U32, "incarnation"))
        entries.append(Position(feed, _unsigned(following, _U32, "next")))
    _require(
        all(a.feed < b.feed for a, b in pairwise(entries)),
        "C8",
        "entries are not in strictly ascending order of feed",
    )
    return tuple(entries)


def _fields(value: Any, count: int, what: str) -> list[Any]:
    _require(isinstance(value, list) and len(value) == count, "C5", f"{what} has not {count} fields")
    return cast("list[Any]", value)


def _parts(value: Any, scalar_bytes: int) -> tuple[EpochScalars, ...]:
    parts: list[EpochScalars] = []
    total = 0
    for item in _list(value, MAX_SEGMENT_UPDATES, "parts"):
        epoch, data = _fields(item, 2, "part")
        _unsigned(epoch, _U32, "epoch")
        _require(isinstance(data, bytes) and len(data) > 0, "C6", "scalars are missing")
        _require(len(data) % scalar_bytes == 0, "C6", "scalars have the wrong width")
        _require(not parts or parts[-1].epoch < epoch, "C7", "epochs do not ascend")
        parts.append(EpochScalars(epoch, unpack_scalars(data, scalar_bytes)))
        total += len(data) // scalar_bytes
    _require(0 < total <= MAX_SEGMENT_UPDATES, "C7", "a segment without updates, or with too many")
    return tuple(parts)


def _decode_segment(f: list[Any], scalar_bytes: int) -> Segment:
    return Segment(
        hops=_unsigned(f[1], 255, "hops"),
        feed_key=_unsigned(f[2], _U64, "feed key"),
        first=_unsigned(f[3], _U32, "first step"),
        parts=_parts(f[4], scalar_bytes),
        signature=_binary(f[5], 64, "signature"),
    )


def _decode_hello(f: list[Any], _: int) -> Hello:
    return Hello(
        version=_unsigned(f[1], _U32, "version"),
        run_id=_binary(f[2], 32, "run id"),
        role=_unsigned(f[3], 255, "role"),
        known=_unsigned(f[4], _U64, "known"),
    )


def _decode_summary(f: list[Any], _: int) -> Summary:
    _require(isinstance(f[1], bool), "C5", "more is not a boolean")
    return Summary(f[1], _unsigned(f[2], _U64, "known"), _binary(f[3], 32, "digest"), _entries(f[4]))


def _decode_manifest(f: list[Any], _: int) -> ManifestReply:
    _require(isinstance(f[1], bytes), "C5", "the manifest is not binary")
    return ManifestReply(f[1])


def _decode_goodbye(f: list[Any], _: int) -> Goodbye:
    _require(isinstance(f[1], str) and len(f[1].encode()) <= MAX_REASON, "C5", "reason is not a short string")
    return Goodbye(f[1])


_DECODERS: dict[int, tuple[int, Callable[[list[Any], int], Message]]] = {
    0: (5, _decode_hello),
    1: (6, _decode_segment),
    2: (5, _decode_summary),
    3: (2, lambda f, _: Want(_entries(f[1]))),
    4: (1, lambda f, _: ManifestRequest()),
    5: (2, _decode_manifest),
    6: (2, _decode_goodbye),
}
