"""Encodes segments as rows of the log, and joins segments. All functions are pure: they use no SQLite and no
files.

The body of a row, little-endian: CRC-32 of all that follows, signature (64 bytes), chain head (32 bytes),
scalar width (1 byte), number of parts (4 bytes), then epoch and count of every part (4 bytes each), then the
scalars of all parts. The width is 1 byte if every scalar of the row fits into it, otherwise 2. Late in a run,
when derivatives are small, a width of 1 halves the size of new rows. In a first-order run 2 is added to the
stored width, and the number of scalars of each update (4 bytes) comes before the scalars.

Readers request spans of steps. `covering` finds the segments that contain the steps of a span.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import BrokenRowError
from sfprotocol import segments
from sfprotocol.checkpoints import Base
from sfprotocol.errors import LocalProtocolError
from sfprotocol.fields import cells_of, flat
from sfprotocol.messages import EpochScalars, Feed, Form, Segment
from sfprotocol.segments import drop_updates, first_updates, size_of
from sfprotocol.wire_codec import pack_scalars, unpack_scalars

PACKED_UPDATES = 512
"""Maximum number of scalars in a row that results from packing small neighbouring rows of a feed. In a row of
this size, signature, chain head and bookkeeping take a quarter of a byte per update. The maximum is far below
that of a segment (SPEC S4), because a row is also the smallest piece that can be sent."""

SMALL_UPDATES = PACKED_UPDATES // 2
"""Number of scalars below which a row is small, and is packed with its neighbours. It is half of
PACKED_UPDATES, so two small neighbours always fit into one row, and packing cannot leave many small rows."""

UNSIGNED = bytes(64)
"""Zeros in place of the signature in a row that has none. The signature of the next row vouches for both
rows."""

_HEAD = struct.Struct("<I64s32sBI")
_CRC_BYTES = 4
_PART = struct.Struct("<II")
_CELLS = struct.Struct("<I")

VECTORS = 2
"""Number that is added to the stored width if updates have a scalar for every cell."""


class Record(NamedTuple):
    """A segment as the log stores it, with its chain head. `segment.hops` is not stored."""

    feed: Feed
    segment: Segment
    chain: bytes
    """Chain head (32 bytes) after the segment's last update (SPEC S2)."""


class CardRecord(NamedTuple):
    """The card of a feed's origin (SPEC K)."""

    feed: Feed
    frame: bytes
    """The encoded Card."""


class CutRecord(NamedTuple):
    """A cut of a feed: the feed's updates from step `at` on do not count (SPEC E4, S8)."""

    feed: Feed
    at: int
    chain: bytes
    """Chain head (32 bytes) at the end of the part that counts."""
    proof: bytes
    """The encoded Proof of the fork; empty if the feed was removed in favour of another feed."""


def encode(segment: Segment, chain_head: bytes) -> bytes:
    """Return the body of the row that stores `segment`. Raises LocalProtocolError if the segment has no
    updates, or if the signature or the chain head has a wrong length."""
    values = tuple(chain.from_iterable(part.scalars for part in segment.parts))
    if not values or len(segment.signature) != 64 or len(chain_head) != 32:
        raise LocalProtocolError("a segment needs updates, a signature of 64 and a chain head of 32 bytes")
    cells = cells_of(values[0])
    scalars = flat(values)
    width = 1 if min(scalars) >= -128 and max(scalars) <= 127 else 2
    told = width + VECTORS if cells else width
    head = _HEAD.pack(0, segment.signature, chain_head, told, len(segment.parts))
    parts = b"".join(_PART.pack(part.epoch, len(part.scalars)) for part in segment.parts)
    size = _CELLS.pack(cells) if cells else b""
    body = head[_CRC_BYTES:] + parts + size + pack_scalars(values, Form(width, cells))
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def decode(feed: Feed, feed_key: int, first: int, body: bytes) -> Record:
    """Return the record whose encoded row is `body`. Raises BrokenRowError if `body` is no result of
    `encode`."""
    if len(body) < _HEAD.size or zlib.crc32(body[_CRC_BYTES:]) != int.from_bytes(body[:_CRC_BYTES], "little"):
        raise BrokenRowError(f"the checksum of a row of {len(body)} bytes (step {first}) does not match")
    _, signature, chain_head, width, count = _HEAD.unpack_from(body)
    start = _HEAD.size + count * _PART.size
    table = list(_PART.iter_unpack(body[_HEAD.size : start])) if start <= len(body) else []
    cells = 0
    if width > VECTORS and len(body) >= start + _CELLS.size:
        (cells,) = _CELLS.unpack_from(body, start)
        width, start = width - VECTORS, start + _CELLS.size if cells else len(body)
    form = Form(width, cells)
    if width not in (1, 2) or sum(updates for _, updates in table) * form.width != len(body) - start:
        raise BrokenRowError(f"a row (step {first}) has a sound checksum and lengths that do not fit")
    scalars = unpack_scalars(body[start:], form)
    parts = []
    offset = 0
    for epoch, updates in table:
        parts.append(EpochScalars(epoch, scalars[offset : offset + updates]))
        offset += updates
    return Record(feed, Segment(feed_key, first, tuple(parts), signature), chain_head)


def join(rows: Iterable[Segment], first: int, max_updates: int) -> Segment:
    """Return `rows` joined into one segment, as `segments.join` does. The segment never ends with a row
    without a signature.

    Raises BrokenRowError if a step is missing.
    """
    try:
        return segments.join(_signed(rows), first, max_updates)
    except segments.MissingStepsError as error:
        raise BrokenRowError(str(error)) from None


def _signed(rows: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the rows in order. A row without a signature is joined with the following rows, up to the first
    one with a signature."""
    front: list[Segment] = []
    for row in rows:
        if row.signature == UNSIGNED:
            front.append(row)
        elif front:
            yield segments.join([*front, row], front[0].first, row.stop - front[0].first)
            front = []
        else:
            yield row


def packs(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Split consecutive `records` of one feed into groups of at most PACKED_UPDATES scalars. Each group is as
    long as possible. A record with more scalars is a group of its own."""
    start = size = 0
    for index, record in enumerate(records):
        size += (added := size_of(record.segment.parts))
        if size > PACKED_UPDATES and index > start:
            yield records[start:index]
            start, size = index, added
    if records:
        yield records[start:]


class Span(Protocol):
    """A range of a feed's steps: `first .. stop - 1`."""

    @property
    def feed(self) -> Feed: ...
    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...


def covering(span: Span, segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield those of the consecutive `segments` that contain steps of `span`.

    Raises BrokenRowError if steps are missing.
    """
    following = span.first
    for segment in segments:
        if following >= span.stop:
            return
        if not segment.first <= following < segment.stop:
            break
        yield segment
        following = segment.stop
    if following < span.stop:
        raise BrokenRowError(f"step {following} of a feed is missing")


def label_before(backwards: Iterable[Segment], step: int, base: Base) -> tuple[int, int]:
    """Return the epoch of the update before `step`, and the number of updates before `step` in that epoch.

    `backwards` yields consecutive segments in reverse order, down to `base`. Only as many segments as
    necessary are consumed.
    """
    epoch: int | None = None
    labelled = 0
    for segment in backwards:
        known = drop_updates(segment.parts, max(0, base.step - segment.first))
        for part in first_updates(known, step - max(segment.first, base.step))[::-1]:
            if epoch not in (None, part.epoch):
                return epoch, labelled
            epoch, labelled = part.epoch, labelled + len(part.scalars)
    if epoch in (None, base.epoch):
        return base.epoch, labelled + base.labelled
    return epoch, labelled


def let_go(feed: Feed, step: int) -> UserError:
    """Return the error for a step that is no longer in the log, because a checkpoint stands for it."""
    return UserError(
        Code.CHECKPOINT_UNUSABLE,
        f"step {step} of the feed of {feed.origin.hex()[:16]} is needed, and this folder has let go of "
        "it: a state before its checkpoint was asked for, or the organiser has changed which of the updates "
        "before the checkpoint count",
        "Start it again with --from-checkpoint once the organiser has signed a newer one, or join with "
        "an empty --data-dir.",
    )
