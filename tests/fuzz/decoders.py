"""All decoders of foreign bytes, as functions that raise AssertionError if a decoder misbehaves.

A decoder misbehaves if it raises an exception that it does not declare, or if its result does not encode to
the same bytes. The seeds (valid encodings) and their mutations are here, too.
"""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast

import msgpack

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.store import segment_encoding
from sfnode.store.disk_errors import BrokenRowError
from sfnode.transport.roster import pack_record, read_record
from sfprotocol import decisions, invitation, model_listing, wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import Form, Segment
from sfprotocol.wire_codec import MAX_FRAME
from tests.fuzz.choices import Choices
from tests.fuzz.stories import SAGAS
from tests.protocol.vectors.plain import load

MOST_MEMORY = 144 * MAX_FRAME
"""Maximum memory, in bytes, that decoding may take. MessagePack nests arrays up to 1,024 deep, and each may
announce 4,096 elements, for which the decoder makes room: 128 frames' worth. Flatter values take 72: an empty
list for every byte."""

PEER = "QmWv4MDNkJnWMTaHJxSwZ8dnkwJPZvLScPZzYD9bCHMgdB"

FORMS = Form(1), Form(2), Form(1, 24)
"""Forms of updates. The last one is that of the first-order vectors."""

Decoder = Callable[[bytes], None]


def of_codec(data: bytes) -> None:
    for form in FORMS:
        try:
            message = wire_codec.decode(data, *form)
        except RemoteProtocolError:
            continue
        assert wire_codec.encode(message, *form) == data


def of_decision(data: bytes) -> None:
    try:
        recorded = decisions.decode(data)
    except RemoteProtocolError:
        return
    if not isinstance(recorded.decision, decisions.Unknown):
        assert decisions.encode(*recorded) == data


def of_rows(data: bytes) -> None:
    """Decode a row of the log, as it is and with a valid checksum."""
    feed, key = SAGAS[0].feed, SAGAS[0].key
    with suppress(BrokenRowError):
        segment_encoding.decode(feed, key, 0, zlib.crc32(data[4:]).to_bytes(4, "little") + data[4:])
    try:
        record = segment_encoding.decode(feed, key, 0, data)
    except BrokenRowError:
        return
    assert segment_encoding.encode(record.segment, record.chain) == data


def of_manifest(data: bytes) -> None:
    try:
        manifest = Manifest.from_canonical(data, "a peer")
    except UserError as error:
        if error.code in (Code.BAD_MANIFEST, Code.NEWER_PROTOCOL):
            return
        raise
    assert manifest.canonical() == data
    assert len(manifest.run_id) == 32


def of_roster(data: bytes) -> None:
    """Read a roster record. The DHT has decoded it before, so it consists of values, not bytes."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except Exception:  # hivemind's decoder, not ours
        return
    record = read_record(PEER, value)
    assert record is None or pack_record(record) == [value[0], list(value[1]), *value[2:4]]


def of_listing(data: bytes) -> None:
    try:
        found = model_listing.decode(data)
    except RemoteProtocolError:
        return
    assert model_listing.encode(found.files) == data
    assert sum(piece.size for piece in found.pieces()[:100]) <= found.size


def of_invitation(data: bytes) -> None:
    """Read an invitation link with these bytes, as they are and with a valid checksum."""
    checksum = hashlib.blake2b(data, digest_size=4, person=b"sfnode-link").digest()
    sealed = urlsafe_b64encode(data + checksum).decode().rstrip("=")
    for link in (data.decode("latin-1"), invitation.SCHEME + sealed):
        try:
            said = invitation.read(link)
        except RemoteProtocolError:
            continue
        assert invitation.write(said) == link.strip()


DECODERS: dict[str, Decoder] = {
    "codec": of_codec,
    "decision": of_decision,
    "rows": of_rows,
    "manifest": of_manifest,
    "listing": of_listing,
    "invitation": of_invitation,
    "roster": of_roster,
}


def frugal(decoder: Decoder, data: bytes) -> None:
    """Run `decoder`, and check its peak memory."""
    tracemalloc.start()
    try:
        decoder(data)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY + 4 * len(data)
    finally:
        tracemalloc.stop()


# -- valid encodings, and worse ------------------------------------------------------------------------


@cache
def seeds(name: str) -> list[bytes]:
    """Return valid encodings for the decoder of this name."""
    if name == "codec":
        vectors = load("codec.json")
        return [
            bytes.fromhex(vector["encoding"]) for vector in [*vectors["valid"], *_first_order("segments")]
        ]
    if name == "decision":
        vectors = load("organised.json")
        told = [*vectors["decisions"], *_first_order("decisions")]
        return [bytes.fromhex(vector["encoding"]) for vector in told]
    if name == "manifest":
        vectors = load("manifest.json")
        return [bytes.fromhex(vector["canonical"]) for vector in (vectors, *vectors["version 2"])]
    if name == "listing":
        return [bytes.fromhex(load("sharing.json")["listing"])]
    if name == "invitation":
        vectors = load("invitations.json")
        links = [vector["link"].removeprefix(invitation.SCHEME) for vector in vectors["valid"]]
        return [urlsafe_b64decode(link + "=" * (-len(link) % 4))[:-4] for link in links]
    if name == "roster":
        address = f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}"
        return [msgpack.packb([PEER, [address] * count, count, count << 60]) for count in range(4)]
    segments = [saga.segment(0, 0, stop) for saga in SAGAS[:2] for stop in (1, 13, 40)]
    for vector in _first_order("segments"):
        read = wire_codec.decode(bytes.fromhex(vector["encoding"]), vector["scalar_bytes"], vector["cells"])
        segments.append(cast(Segment, read))
    return [segment_encoding.encode(segment, bytes(32)) for segment in segments]


def _first_order(what: str) -> list[Any]:
    found: list[Any] = load("first_order.json")[what]
    return found


def mutated(seed: bytes, choices: Choices) -> bytes:
    """Return `seed` after a few changes of kinds that often break decoders."""
    data = bytearray(seed)
    for _ in range(1 + choices.below(4)):
        at = choices.below(len(data) + 1)
        match choices.below(6):
            case 0:
                data[at : at + 1] = choices.take(1)
            case 1:
                data[at:at] = choices.take(1 + choices.below(8))
            case 2:
                del data[at : at + 1 + choices.below(8)]
            case 3:
                data[at:at] = data[at : at + choices.below(64)]
            case 4:  # a number, an empty value, or a length: the first bytes of MessagePack values
                data[at : at + 1] = choices.pick(HEADS)
            case _:
                data[at : at + 1] = bytes([data[at] ^ 1 << choices.below(8)]) if at < len(data) else b""
    return bytes(data)


HEADS = (
    *(bytes([head]) for head in (0x00, 0x7F, 0x80, 0x81, 0x90, 0x91, 0xA0, 0xC0, 0xC2, 0xC3, 0xFF)),
    b"\xc4\x00",
    b"\xc6\xff\xff\xff\xff",
    b"\xc7\x00\x05",
    b"\xca\x7f\xc0\x00\x00",
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xd6\xff\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdc\x10\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
)


VALUES: Sequence[Any] = (
    *(None, False, True, 0, 1, -1, 127, 128, 2**32 - 1, 2**32, 2**64 - 1, -(2**63)),
    *(0.0, float("nan"), float("inf"), b"", b"\0", bytes(32), bytes(64), "", "x", "\0", "é" * 101),
    *([], [[]], [0], [b""], {}, {"": 0}, {"protocol": 2}, msgpack.Timestamp(0), msgpack.ExtType(5, b"")),
)


def with_another_value(seed: bytes, choices: Choices) -> bytes:
    """Return `seed` with one value replaced, removed or repeated, which changes of single bytes cannot do."""
    root: list[Any] = [msgpack.unpackb(seed)]
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], list | dict) and holder[key] and not choices.flip(4):
        holder = holder[key]
        key = choices.pick(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match choices.below(4):
        case 0 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 1 if holder is not root:
            del holder[key]
        case _:
            holder[key] = choices.pick(VALUES)
    return cast(bytes, msgpack.packb(root[0]))
