"""Encoding and decoding of messages: canonical MessagePack, positional arrays (SPEC C1-C9).

Decoding is strict: bytes are refused if encoding the decoded message does not give the same bytes. So each
message has exactly one valid encoding, and nobody can hide data in the choice between several. The transport
adds the length prefix (framing).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import Any, cast

from sfprotocol import messages
from sfprotocol.decisions import MAX_DECISION, Part
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.fields import (
    B4,
    B32,
    B64,
    BYTES,
    I64,
    U8,
    U31,
    U32,
    U64,
    Field,
    Values,
    array,
    binary,
    flat,
    listed,
    one,
    pack,
    pair,
    require,
    row,
    unpack,
)
from sfprotocol.fields import text_fault as faulty_name
from sfprotocol.segments import MAX_SEGMENT_UPDATES

MAX_FRAME = 256 * 1024
"""Maximum size of an encoded message, and so of a frame, in bytes (SPEC F1). A Summary with MAX_ENTRIES
entries, a Segment with the maximum number of updates and a manifest (192 KiB) each fit. A node with 12 links
buffers at most a few MiB."""

LENGTH_BYTES = 3
"""Bytes of the length prefix of a frame on a stream, big-endian (SPEC F1)."""

MAX_ENTRIES = 4096
"""Maximum number of entries of one message. As an entry has at most 50 bytes, a message with this number of
them stays below MAX_FRAME."""

MAX_TAIL = 64
"""Maximum number of undecided decisions in a Statement. They are one proposal, and one election for each
organiser that fell silent before the proposal was decided."""

MAX_REASON = 200
"""Maximum size of the reason in a Goodbye, in bytes. A sentence fits."""

MAX_PART_BYTES = 192 * 1024
"""Maximum size of the data in a PartReply, in bytes (SPEC B3). A piece of a base model takes six replies."""

_FORMATS = {1: "b", 2: "h"}
_BOUNDS = {"max_array_len": MAX_SEGMENT_UPDATES, "max_map_len": 0, "max_ext_len": 0}
"""Bounds for the unpacker: it allocates an array as soon as it has read the array's announced length."""


def encode(message: messages.Message, scalar_bytes: int = 2, cells: int = 0) -> bytes:
    """Return the one encoding of `message` in a run of this form (`messages.Form`).

    Raises LocalProtocolError if a peer would refuse the encoding.
    """
    kind, form = _KIND_OF[type(message)], messages.Form(scalar_bytes, cells)
    values = [kind, *_messages(form)[kind].write(message)]
    try:
        _build(values, form)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"encoding a {type(message).__name__}: {error}") from None
    data = pack(values)
    if len(data) > MAX_FRAME:
        raise LocalProtocolError(f"a message of {len(data)} bytes exceeds MAX_FRAME")
    return data


def decode(data: bytes, scalar_bytes: int = 2, cells: int = 0) -> messages.Message:
    """Return the message that `data` encodes in a run of this form.

    Raises RemoteProtocolError with the broken C rule if `data` is not the encoding of a message.
    """
    if len(data) > MAX_FRAME:
        raise RemoteProtocolError("C1", f"{len(data)} bytes exceed the largest frame")
    values = unpack(data, _BOUNDS, "C2")
    message = _build(values, messages.Form(scalar_bytes, cells))
    require(pack(values) == data, "C4", "not in canonical form")
    return message


def _build(values: Any, form: messages.Form) -> messages.Message:
    """Return the message with these fields. Raises RemoteProtocolError if no message has them."""
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise RemoteProtocolError("C3", "not an array that starts with a message type")
    found = _messages(form).get(values[0])
    if found is None:
        raise RemoteProtocolError("C3", f"unknown message type {values[0]}")
    require(len(values) == found.width + 1, "C3", "wrong number of fields")
    return cast(messages.Message, found.read(values, 1))


def pack_scalars(scalars: tuple[Values, ...], form: messages.Form) -> bytes:
    """Return the scalars of updates as bytes: big-endian two's complement of fixed width (SPEC C6)."""
    count = len(scalars) * (form.cells or 1)
    try:
        return struct.pack(f">{count}{_FORMATS[form.scalar_bytes]}", *flat(scalars))
    except struct.error as error:
        raise LocalProtocolError(f"scalars do not fit {form}: {error}") from None


def unpack_scalars(data: bytes, form: messages.Form) -> tuple[Values, ...]:
    """Return the scalars of the updates that `pack_scalars` has packed into `data`. The caller has checked
    that the length of `data` is a multiple of the size of one update."""
    every = struct.unpack(f">{len(data) // form.scalar_bytes}{_FORMATS[form.scalar_bytes]}", data)
    return tuple(batched(every, form.cells)) if form.cells else every


def batched(scalars: tuple[int, ...], cells: int) -> Iterator[tuple[int, ...]]:
    """Yield the scalars of each update, `cells` at a time."""
    return (scalars[at : at + cells] for at in range(0, len(scalars), cells))


def _parts(form: messages.Form, least: int = 1) -> Field:
    """Return the field for the scalars of at least `least` consecutive updates, grouped by epoch."""

    def read(values: list[Any], at: int) -> tuple[messages.EpochScalars, ...]:
        inner = values[at]
        require(isinstance(inner, list) and len(inner) <= MAX_SEGMENT_UPDATES, "C5", "not a list in range")
        parts: list[messages.EpochScalars] = []
        total = 0
        for item in inner:
            require(isinstance(item, list) and len(item) == 2, "C5", "a part has not 2 fields")
            epoch, data = U32.read(item, 0), item[1]
            require(isinstance(data, bytes) and len(data) > 0, "C6", "scalars are missing")
            require(len(data) % form.width == 0, "C6", "scalars have the wrong width")
            require(not parts or parts[-1].epoch < epoch, "C7", "epochs do not ascend")
            parts.append(messages.EpochScalars(epoch, unpack_scalars(data, form)))
            total += len(data) // form.width
        require(least <= total <= form.segment_updates, "C7", "a segment without updates, or with too many")
        return tuple(parts)

    def write(parts: tuple[messages.EpochScalars, ...]) -> list[Any]:
        return [[[part.epoch, pack_scalars(part.scalars, form)] for part in parts]]

    return Field(1, read, write)


def _segment(
    hops: int, key: int, first: int, parts: tuple[messages.EpochScalars, ...], signature: bytes
) -> messages.Segment:
    return messages.Segment(key, first, parts, signature, hops)


def _part_reply(size: int, data: bytes) -> messages.PartReply:
    require(len(data) <= min(size, MAX_PART_BYTES), "C5", "the bytes of a part are too many")
    return messages.PartReply(size, data)


# -- messages ----------------------------------------------------------------------------------------

_BOOLEAN = one(lambda value: isinstance(value, bool), "not a boolean")
_NAME = one(
    lambda value: isinstance(value, str) and not faulty_name(value), "a name that cannot be shown", "K2"
)
_REASON = one(
    lambda value: isinstance(value, str) and len(value.encode()) <= MAX_REASON, "not a short string"
)
_LENGTH = one(lambda value: type(value) is int and 0 < value <= MAX_PART_BYTES, "not a length in range")
_RECORD = one(lambda value: isinstance(value, bytes) and len(value) <= MAX_DECISION, "not a decision")
_FEED = row(messages.Feed, B32, U32)
_POSITIONS = listed(array(row(messages.Position, _FEED, U32)), MAX_ENTRIES, attrgetter("feed"))
_CLAIMS = listed(array(row(messages.Claim, _FEED, U32, B4)), MAX_ENTRIES, attrgetter("feed"))
_AHEAD = listed(array(row(messages.Ahead, U64, U32)), MAX_ENTRIES, attrgetter("feed_key"))
_ENTRIES = listed(array(row(messages.Entry, U32, _RECORD, B64)), MAX_ENTRIES)
_TAIL = listed(array(row(messages.Entry, U32, _RECORD, B64)), MAX_TAIL)
_VOTES = listed(array(row(messages.Vote, U8, B64)), MAX_ENTRIES, attrgetter("deputy"))
_MEASURED = listed(array(row(Part, U31, U32, I64, I64)), MAX_ENTRIES, attrgetter("feed"))
_STATEMENT = row(
    messages.Statement,
    *(B32, U64, U32, U32, binary(0, 32), binary(0, 64), U32, U32, U32, B32, U64, _BOOLEAN, _TAIL, B64),
)
_SEGMENT = "hops", "feed_key", "first", "parts", "signature"
"""Fields in the order in which they travel."""


@cache
def _messages(form: messages.Form) -> dict[int, Field]:
    """Return the fields of each message, keyed by the number of its type, in a run whose updates have this
    form."""
    parts = _parts(form)
    branch = array(row(messages.Branch, _parts(form, 0), B64))
    return {
        0: row(messages.Hello, U32, B32, U8, U64),
        1: row(_segment, U8, U64, U32, parts, B64, names=_SEGMENT),
        2: row(messages.Summary, _BOOLEAN, U64, B32, _CLAIMS),
        3: row(messages.Want, _POSITIONS),
        4: row(messages.ManifestRequest),
        5: row(messages.ManifestReply, BYTES),
        6: row(messages.Goodbye, _REASON),
        7: row(messages.Have, _AHEAD),
        8: row(messages.Prune, listed(U64, MAX_ENTRIES, int)),
        9: row(messages.Proof, _FEED, U32, pair(B32), array(pair(branch))),
        10: row(messages.PartRequest, B32, U32, U32, _LENGTH),
        11: row(_part_reply, U32, BYTES, names=("size", "data")),
        12: row(messages.Card, _FEED, U32, _NAME, _NAME, B64),
        13: row(messages.ControlHead, U32, U32, B32),
        14: row(messages.ControlWant, U32),
        15: row(messages.Control, U32, _ENTRIES),
        16: row(messages.Succession, U32, U32, B32, B32, _VOTES),
        17: row(messages.ControlFork, U32, U32, pair(B32), pair(B64)),
        18: row(messages.JoinRequest, B32, U64, U32, binary(0, 64), B64),
        19: row(messages.Floor, U32),
        20: row(messages.Commitment, U32, B32, B32, B64),
        21: row(messages.Finding, U32, B32, U64, U32, _MEASURED),
        22: row(messages.Offer, B32, B32, pair(B64)),
        23: _STATEMENT,
        24: row(messages.DoubleVote, pair(_STATEMENT), pair(B32)),
    }


_KINDS = (
    *(messages.Hello, messages.Segment, messages.Summary, messages.Want, messages.ManifestRequest),
    *(messages.ManifestReply, messages.Goodbye, messages.Have, messages.Prune, messages.Proof),
    *(messages.PartRequest, messages.PartReply, messages.Card, messages.ControlHead, messages.ControlWant),
    *(messages.Control, messages.Succession, messages.ControlFork, messages.JoinRequest, messages.Floor),
    *(messages.Commitment, messages.Finding, messages.Offer, messages.Statement, messages.DoubleVote),
)
_KIND_OF = {kind: number for number, kind in enumerate(_KINDS)}
