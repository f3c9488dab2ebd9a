"""Messages to bytes and back: canonical MessagePack, positional arrays (SPEC C1-C9).

Strict on purpose: bytes that do not re-encode to themselves are refused, so that one message has exactly one
encoding and nothing can be smuggled in a second one. Framing (the length in front) is the transport's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgpack

from sfprotocol import names
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

E = TypeVar("E")

_U31 = (1 << 31) - 1
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_FORMATS = {1: "b", 2: "h"}
_BOUNDS = {"max_array_len": MAX_SEGMENT_UPDATES, "max_map_len": 0, "max_ext_len": 0}
"""Bounds for the unpacker, which allocates what an array announces before it has seen one element."""


def encode(message: Message, scalar_bytes: int = 2) -> bytes:
    """Return the one encoding of `message`. Raises LocalProtocolError if the peer could not decode it."""
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
    """Return the message that `data` encodes. Raises RemoteProtocolError (C rules) for anything else."""
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
    """Return the message with these fields. Raises RemoteProtocolError if there is none."""
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise RemoteProtocolError("C3", "not an array that starts with a message type")
    decoder = _DECODERS.get(fields[0])
    if decoder is None:
        raise RemoteProtocolError("C3", f"unknown message type {fields[0]}")
    arity, build = decoder
    _require(len(fields) == arity, "C3", "wrong number of fields")
    return build(fields, scalar_bytes)


def pack_scalars(scalars: tuple[int, ...], scalar_bytes: int) -> bytes:
    """Return scalars as fixed-width big-endian two's complement (SPEC C6)."""
    try:
        return struct.pack(f">{len(scalars)}{_FORMATS[scalar_bytes]}", *scalars)
    except struct.error as error:
        raise LocalProtocolError(f"a scalar does not fit {scalar_bytes} bytes: {error}") from None


def unpack_scalars(data: bytes, scalar_bytes: int) -> tuple[int, ...]:
    """Invert `pack_scalars`; the caller has checked that the length is a multiple of the width."""
    return struct.unpack(f">{len(data) // scalar_bytes}{_FORMATS[scalar_bytes]}", data)


# -- encoding: message -> positional fields ----------------------------------------------------------


def _parts_fields(parts: tuple[EpochScalars, ...], scalar_bytes: int) -> list[list[Any]]:
    return [[part.epoch, pack_scalars(part.scalars, scalar_bytes)] for part in parts]


def _segment_fields(m: Segment, scalar_bytes: int) -> list[Any]:
    return [1, m.hops, m.feed_key, m.first, _parts_fields(m.parts, scalar_bytes), m.signature]


def _proof_fields(m: Proof, scalar_bytes: int) -> list[Any]:
    branches = [[_parts_fields(branch.parts, scalar_bytes), branch.signature] for branch in m.branches]
    return [9, *m.feed, m.at, *m.chains, branches]


_ENCODERS: dict[type, Callable[[Any, int], list[Any]]] = {
    Hello: lambda m, _: [0, m.version, m.run_id, m.role, m.known],
    Segment: _segment_fields,
    Summary: lambda m, _: [2, m.more, m.known, m.digest, [[*e.feed, e.next, e.tag] for e in m.entries]],
    Want: lambda m, _: [3, [[*e.feed, e.next] for e in m.entries]],
    ManifestRequest: lambda m, _: [4],
    ManifestReply: lambda m, _: [5, m.manifest],
    Goodbye: lambda m, _: [6, m.reason],
    Have: lambda m, _: [7, [list(entry) for entry in m.entries]],
    Prune: lambda m, _: [8, list(m.feed_keys)],
    Proof: _proof_fields,
    PartRequest: lambda m, _: [10, m.listing, m.part, m.offset, m.length],
    PartReply: lambda m, _: [11, m.size, m.data],
    Card: lambda m, _: [12, *m.feed, m.step, m.name, m.team, m.signature],
    ControlHead: lambda m, _: [13, m.term, m.stop, m.chain],
    ControlWant: lambda m, _: [14, m.first],
    Control: lambda m, _: [15, m.first, [list(entry) for entry in m.entries]],
    Succession: lambda m, _: [16, m.term, m.kept, m.chain, m.key, [list(vote) for vote in m.votes]],
    ControlFork: lambda m, _: [17, m.term, m.stop, *m.chains, *m.signatures],
    Petition: lambda m, _: [18, m.origin, m.nonce, m.invitation, m.voucher, m.signature],
    Floor: lambda m, _: [19, m.epoch],
    Commitment: lambda m, _: [20, m.epoch, m.origin, m.digest, m.signature],
    Finding: lambda m, _: [21, m.epoch, m.origin, m.nonce, m.rows, [list(part) for part in m.parts]],
}


# -- decoding: positional fields -> message ----------------------------------------------------------


def _require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)


def _unsigned(value: Any, bound: int, what: str) -> int:
    _require(type(value) is int and 0 <= value <= bound, "C5", f"{what} is not an unsigned integer in range")
    return cast(int, value)


def _signed(value: Any, what: str) -> int:
    _require(type(value) is int and -(1 << 63) <= value < 1 << 63, "C5", f"{what} is not an i64")
    return cast(int, value)


def _binary(value: Any, length: int, what: str) -> bytes:
    _require(isinstance(value, bytes) and len(value) == length, "C5", f"{what} is not {length} bytes")
    return cast(bytes, value)


def _list(value: Any, bound: int, what: str) -> list[Any]:
    _require(isinstance(value, list) and len(value) <= bound, "C5", f"{what} is not a list in range")
    return cast("list[Any]", value)


def _feed(origin: Any, incarnation: Any) -> Feed:
    return Feed(_binary(origin, 32, "origin"), _unsigned(incarnation, _U32, "incarnation"))


def _position(value: Any) -> Position:
    origin, incarnation, following = _fields(value, 3, "entry")
    return Position(_feed(origin, incarnation), _unsigned(following, _U32, "next"))


def _claim(value: Any) -> Claim:
    origin, incarnation, following, tag = _fields(value, 4, "entry")
    feed = _feed(origin, incarnation)
    return Claim(feed, _unsigned(following, _U32, "next"), _binary(tag, 4, "tag"))


def _ahead(value: Any) -> Ahead:
    key, following = _fields(value, 2, "entry")
    return Ahead(_key(key), _unsigned(following, _U32, "next"))


def _key(value: Any) -> int:
    return _unsigned(value, _U64, "feed key")


def _entries(value: Any, read: Callable[[Any], E], name: Callable[[E], Any]) -> tuple[E, ...]:
    """Return entries, which are in strictly ascending order of what they are about (SPEC C8)."""
    entries = tuple(read(item) for item in _list(value, MAX_ENTRIES, "entries"))
    ascending = all(name(a) < name(b) for a, b in pairwise(entries))
    _require(ascending, "C8", "entries are not in strictly ascending order")
    return entries


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
        feed_key=_key(f[2]),
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
    claims = _entries(f[4], _claim, attrgetter("feed"))
    return Summary(f[1], _unsigned(f[2], _U64, "known"), _binary(f[3], 32, "digest"), claims)


def _decode_proof(f: list[Any], scalar_bytes: int) -> Proof:
    at, chains = _unsigned(f[3], _U32, "step"), (_binary(f[4], 32, "chain"), _binary(f[5], 32, "chain"))
    one, other = (_branch(item, scalar_bytes) for item in _fields(f[6], 2, "proof"))
    return Proof(_feed(f[1], f[2]), at, chains, (one, other))


def _branch(value: Any, scalar_bytes: int) -> Branch:
    parts, signature = _fields(value, 2, "branch")
    said = () if parts == [] else _parts(parts, scalar_bytes)
    return Branch(said, _binary(signature, 64, "signature"))


def _decode_manifest(f: list[Any], _: int) -> ManifestReply:
    _require(isinstance(f[1], bytes), "C5", "the manifest is not binary")
    return ManifestReply(f[1])


def _decode_part_request(f: list[Any], _: int) -> PartRequest:
    part, offset = _unsigned(f[2], _U32, "part"), _unsigned(f[3], _U32, "offset")
    length = _unsigned(f[4], MAX_PART_BYTES, "length")
    _require(length > 0, "C5", "nothing is asked for")
    return PartRequest(_binary(f[1], 32, "listing"), part, offset, length)


def _decode_part_reply(f: list[Any], _: int) -> PartReply:
    size = _unsigned(f[1], _U32, "size")
    fits = isinstance(f[2], bytes) and len(f[2]) <= min(size, MAX_PART_BYTES)
    _require(fits, "C5", "the bytes of a part are too many, or none")
    return PartReply(size, f[2])


def _decode_card(f: list[Any], _: int) -> Card:
    for text in (f[4], f[5]):
        _require(isinstance(text, str) and not names.fault(text), "K2", "a name that cannot be shown")
    return Card(_feed(f[1], f[2]), _unsigned(f[3], _U32, "step"), f[4], f[5], _binary(f[6], 64, "signature"))


def _decode_control_head(f: list[Any], _: int) -> ControlHead:
    return ControlHead(
        _unsigned(f[1], _U32, "term"), _unsigned(f[2], _U32, "position"), _binary(f[3], 32, "chain")
    )


def _decode_control(f: list[Any], _: int) -> Control:
    entries = [_fields(item, 3, "decision") for item in _list(f[2], MAX_ENTRIES, "decisions")]
    for _term, record, _signature in entries:
        _require(isinstance(record, bytes) and len(record) <= MAX_DECISION, "C5", "a decision is too long")
    return Control(
        _unsigned(f[1], _U32, "position"),
        tuple(
            Entry(_unsigned(term, _U32, "term"), record, _binary(signature, 64, "signature"))
            for term, record, signature in entries
        ),
    )


def _decode_succession(f: list[Any], _: int) -> Succession:
    return Succession(
        _unsigned(f[1], _U32, "term"),
        _unsigned(f[2], _U32, "position"),
        _binary(f[3], 32, "chain"),
        _binary(f[4], 32, "key"),
        _entries(f[5], _vote, attrgetter("deputy")),
    )


def _vote(value: Any) -> Vote:
    deputy, signature = _fields(value, 2, "vote")
    return Vote(_unsigned(deputy, 255, "deputy"), _binary(signature, 64, "signature"))


def _decode_control_fork(f: list[Any], _: int) -> ControlFork:
    return ControlFork(
        _unsigned(f[1], _U32, "term"),
        _unsigned(f[2], _U32, "position"),
        (_binary(f[3], 32, "chain"), _binary(f[4], 32, "chain")),
        (_binary(f[5], 64, "signature"), _binary(f[6], 64, "signature")),
    )


def _decode_petition(f: list[Any], _: int) -> Petition:
    _require(f[4] == b"" or (isinstance(f[4], bytes) and len(f[4]) == 64), "C5", "voucher is no signature")
    origin, nonce = _binary(f[1], 32, "origin"), _unsigned(f[2], _U64, "nonce")
    return Petition(origin, nonce, _unsigned(f[3], _U32, "invitation"), f[4], _binary(f[5], 64, "signature"))


def _decode_commitment(f: list[Any], _: int) -> Commitment:
    origin, digest = _binary(f[2], 32, "origin"), _binary(f[3], 32, "digest")
    return Commitment(_unsigned(f[1], _U32, "epoch"), origin, digest, _binary(f[4], 64, "signature"))


def _decode_finding(f: list[Any], _: int) -> Finding:
    origin, nonce = _binary(f[2], 32, "origin"), _unsigned(f[3], _U64, "nonce")
    parts = _entries(f[5], _measured, attrgetter("feed"))
    return Finding(_unsigned(f[1], _U32, "epoch"), origin, nonce, _unsigned(f[4], _U32, "rows"), parts)


def _measured(value: Any) -> Part:
    feed, updates, worth, score = _fields(value, 4, "part")
    numbers = _unsigned(feed, _U31, "feed"), _unsigned(updates, _U32, "updates")
    return Part(*numbers, _signed(worth, "worth"), _signed(score, "score"))


def _decode_goodbye(f: list[Any], _: int) -> Goodbye:
    _require(isinstance(f[1], str) and len(f[1].encode()) <= MAX_REASON, "C5", "reason is not a short string")
    return Goodbye(f[1])


_DECODERS: dict[int, tuple[int, Callable[[list[Any], int], Message]]] = {
    0: (5, _decode_hello),
    1: (6, _decode_segment),
    2: (5, _decode_summary),
    3: (2, lambda f, _: Want(_entries(f[1], _position, attrgetter("feed")))),
    4: (1, lambda f, _: ManifestRequest()),
    5: (2, _decode_manifest),
    6: (2, _decode_goodbye),
    7: (2, lambda f, _: Have(_entries(f[1], _ahead, attrgetter("feed_key")))),
    8: (2, lambda f, _: Prune(_entries(f[1], _key, int))),
    9: (7, _decode_proof),
    10: (5, _decode_part_request),
    11: (3, _decode_part_reply),
    12: (7, _decode_card),
    13: (4, _decode_control_head),
    14: (2, lambda f, _: ControlWant(_unsigned(f[1], _U32, "position"))),
    15: (3, _decode_control),
    16: (6, _decode_succession),
    17: (7, _decode_control_fork),
    18: (6, _decode_petition),
    19: (2, lambda f, _: Floor(_unsigned(f[1], _U32, "floor"))),
    20: (5, _decode_commitment),
    21: (6, _decode_finding),
}
