"""States of feeds as the log knows them without reading a row: where each begins and ends, what continues it.

Pure values; knows neither SQLite nor files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sfnode.store.records import SMALL_UPDATES, Record
from sfprotocol import seeds
from sfprotocol.checkpoints import Base
from sfprotocol.errors import LocalProtocolError
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.signing import genesis


class Tail(NamedTuple):
    """The end of a feed; of one that is cut, of the part that counts."""

    feed: Feed
    next: int
    """The first step that is not in the log, or does not count."""
    chain: bytes
    """Chain head before that step, 32 bytes."""
    epoch: int
    """Epoch of the last update."""


class FeedState(NamedTuple):
    """The part of a feed that is kept in memory; replaced, never changed, and only after a commit."""

    number: int
    """The feed's id in the table."""
    key: int
    """The feed key (SPEC R4)."""
    base: Base
    """The beginning of its rows: step 0, or later where a checkpoint stands for what comes before."""
    tail: Tail
    loose: int
    """Small rows appended since the feed was last packed."""

    @property
    def feed(self) -> Feed:
        return self.base.feed


def beginning(run_id: bytes, feed: Feed) -> Base:
    """Return the base of a feed that is kept from its first step on."""
    return Base(feed, 0, genesis(run_id, feed), 0, 0)


def fresh(run_id: bytes, number: int, base: Base) -> FeedState:
    """Return the state of a feed of which nothing is stored from its base on."""
    key = seeds.feed_key(run_id, base.feed.origin, base.feed.incarnation)
    return FeedState(number, key, base, Tail(base.feed, base.step, base.chain, base.epoch), 0)


def unknown(run_id: bytes, feed: Feed, number: int = 0) -> FeedState:
    """Return the state of a feed of which there is nothing."""
    return fresh(run_id, number, beginning(run_id, feed))


def tail_after(record: Record) -> Tail:
    """Return the end of the feed whose last row is `record`."""
    return Tail(record.feed, record.segment.stop, record.chain, record.segment.parts[-1].epoch)


def continued(before: FeedState, record: Record, replacing: bool) -> FeedState:
    """Return the feed's state after `record`. Raises LocalProtocolError unless that continues the feed."""
    segment, tail = record.segment, before.tail
    if segment.feed_key != before.key:
        raise LocalProtocolError("a record's segment is not of the record's feed")
    replaced = replacing and before.base.step <= segment.first < tail.next
    if segment.first != tail.next and not replaced:
        raise LocalProtocolError(f"the log has a feed up to step {tail.next}, not {segment.first}")
    check_epochs([EpochScalars(before.base.epoch if replaced else tail.epoch, ()), *segment.parts])
    small = segment.count < SMALL_UPDATES
    return before._replace(tail=tail_after(record), loose=before.loose + small)


def check_epochs(parts: Sequence[EpochScalars]) -> None:
    """Raise LocalProtocolError unless epochs never decrease."""
    epochs = [part.epoch for part in parts]
    if epochs != sorted(epochs):
        raise LocalProtocolError("epochs decrease within a feed")
