"""Writes, packs, replaces and removes the rows of the log's database that store segments.

All functions take a connection. Functions that write do so within the caller's transaction. A function that
changes rows handles one feed, and does not use the log's data in memory (`known_feeds`).

Most rows end with a signature that vouches for the whole row. If another history has replaced the end of a
feed, the signature of the steps just before the replaced end may be gone with it. If these steps and the
following ones do not fit into one segment, the former are stored as a row without a signature (`UNSIGNED`).
Such a row is only read together with the next row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace

from sfnode.store.known_feeds import StoredFeed, check_epochs, fresh
from sfnode.store.segment_encoding import (
    PACKED_UPDATES,
    SMALL_UPDATES,
    UNSIGNED,
    Record,
    decode,
    encode,
    join,
    packs,
)
from sfprotocol.checkpoints import Base
from sfprotocol.messages import Segment
from sfprotocol.segments import first_updates, merge, most_updates, size_of, without_front
from sfprotocol.signing import extend

_INSERT = "INSERT INTO segment (feed, first, body) VALUES (?, ?, ?)"
_DROP = "DELETE FROM segment WHERE feed = ? AND first >= ?"
_SINCE = """SELECT first, body FROM segment WHERE feed = ?1
    AND first >= (SELECT max(first) FROM segment WHERE feed = ?1 AND first <= ?2) ORDER BY first"""
_SPAN = """SELECT first, body FROM segment WHERE feed = ?1 AND first < ?3
    AND first >= (SELECT max(first) FROM segment WHERE feed = ?1 AND first <= ?2) ORDER BY first"""
_BEFORE = "SELECT first, body FROM segment WHERE feed = ? AND first < ? ORDER BY first DESC"
_LAST = """SELECT f.id, f.origin, f.incarnation, s.first, s.body FROM feed f CROSS JOIN segment s
    ON s.feed = f.id AND s.first = (SELECT max(first) FROM segment WHERE feed = f.id)"""
_ALL = """SELECT f.origin, f.incarnation, s.first, s.body FROM feed f CROSS JOIN segment s ON s.feed = f.id
    ORDER BY f.origin, f.incarnation, s.first"""
"""Query for all rows, in the order of feeds and steps. CROSS JOIN fixes the nesting of the loops, so that
SQLite follows two indexes and does not sort."""


def last(db: sqlite3.Connection) -> Iterator[tuple[int, bytes, int, int, bytes]]:
    """Yield (number of the feed, origin, incarnation, first step, body) for the last row of every feed that
    has rows."""
    return db.execute(_LAST)


def everything(db: sqlite3.Connection) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yield (origin, incarnation, first step, body) for every row, in the order of feeds and steps."""
    return db.execute(_ALL)


def since(db: sqlite3.Connection, state: StoredFeed, first: int) -> Generator[Segment, None, None]:
    """Yield the stored segments of a feed, from the one that contains step `first` on. Each segment is read
    from the database when it is requested."""
    with closing(db.execute(_SINCE, (state.number, first))) as cursor:
        yield from _decoded(state, cursor)


def span(db: sqlite3.Connection, state: StoredFeed, first: int, stop: int) -> Iterator[Segment]:
    """Yield the stored segments of a feed that contain some of the steps from `first` to `stop - 1`."""
    return _decoded(state, db.execute(_SPAN, (state.number, first, stop)))


def backwards(db: sqlite3.Connection, state: StoredFeed, step: int) -> Generator[Record, None, None]:
    """Yield the rows of a feed that begin before `step`, the last one first."""
    with closing(db.execute(_BEFORE, (state.number, step))) as cursor:
        for first, body in cursor:
            yield decode(state.feed, state.key, first, body)


def past(db: sqlite3.Connection, state: StoredFeed, step: int) -> tuple[bytes, Segment]:
    """Return the chain head before `step`, and a segment with the updates from `step` to the next signature.
    The feed must reach `step`.

    If `step` is the feed's end, the segment has no updates, and the feed's last signature. If the updates up
    to the next signature would not fit into a message, the segment has neither updates nor a signature.
    """
    before = backwards(db, state, step + 1)
    at = next(before, None)
    if at is None:
        return state.base.chain, Segment(state.key, step, (), UNSIGNED)
    segment, chain, joined = at.segment, at.chain, False
    if step < segment.stop:
        ahead = next(before, None)
        if ahead is None:  # otherwise the caller removes rows before the base next
            segment = without_front(segment, max(segment.first, state.base.step))
        chain = ahead.chain if ahead else state.base.chain
        chain = extend(chain, first_updates(segment.parts, step - segment.first))
        if joined := segment.signature == UNSIGNED:
            segment = join(since(db, state, step), step, segment.stop - step + 1)
    rest = without_front(segment, step)
    fits = not joined or rest.count <= most_updates(rest.parts)
    return chain, rest if fits else replace(rest, parts=(), signature=UNSIGNED)


def insert(db: sqlite3.Connection, state: StoredFeed, segment: Segment, chain: bytes) -> None:
    """Add a row that stores `segment`. `chain` is the chain head after the segment."""
    db.execute(_INSERT, (state.number, segment.first, encode(segment, chain)))


def take_place(db: sqlite3.Connection, state: StoredFeed, segment: Segment) -> Segment:
    """Remove a feed's steps from the first step of `segment` on; return the segment to store in their place.

    The row that contains the first step of `segment` may have earlier steps, too. These earlier steps become
    the beginning of the returned segment, whose signature vouches for them, too (SPEC S6). If the returned
    segment would then not fit into a message, the earlier steps are stored as a row without a signature.
    """
    before = next(backwards(db, state, segment.first), None)
    if before is None or before.segment.stop <= segment.first:
        db.execute(_DROP, (state.number, segment.first))
        return segment
    first = before.segment.first
    front = first_updates(before.segment.parts, segment.first - first)
    check_epochs([*front, *segment.parts])
    if segment.stop - first <= most_updates(segment.parts):
        db.execute(_DROP, (state.number, first))
        return replace(segment, first=first, parts=merge([*front, *segment.parts]))
    chain, _ = past(db, state, segment.first)
    db.execute(_DROP, (state.number, first))
    insert(db, state, replace(before.segment, parts=front, signature=UNSIGNED), chain)
    return segment


def pack(db: sqlite3.Connection, state: StoredFeed) -> None:
    """Join the small rows at the end of a feed into fewer, larger rows."""
    for group in packs(_small_rows_at_end(db, state)):
        if len(group) == 1:
            continue
        first, final = group[0].segment.first, group[-1]
        joined = join((record.segment for record in group), first, PACKED_UPDATES)
        db.execute(
            "DELETE FROM segment WHERE feed = ? AND first BETWEEN ? AND ?",
            (state.number, first, final.segment.first),
        )
        insert(db, state, joined, final.chain)


def _small_rows_at_end(db: sqlite3.Connection, state: StoredFeed) -> list[Record]:
    found: list[Record] = []
    for record in backwards(db, state, 1 << 62):
        if size_of(record.segment.parts) >= SMALL_UPDATES or record.segment.signature == UNSIGNED:
            break
        found.append(record)
    return found[::-1]


def rebase(db: sqlite3.Connection, run_id: bytes, state: StoredFeed, base: Base) -> StoredFeed:
    """Make a feed begin at `base`, and keep only its rows after the base. Return the feed's new state."""
    if base == state.base:
        return state
    reaches = state.base.step <= base.step <= state.tail.next
    chain, rest = past(db, state, base.step) if reaches else (b"", None)
    if rest is None or chain != base.chain:
        db.execute(_DROP, (state.number, 0))
        return fresh(run_id, state.number, base)
    spanning = next(backwards(db, state, base.step), None)
    db.execute("DELETE FROM segment WHERE feed = ? AND first < ?", (state.number, base.step))
    if spanning is not None and spanning.segment.stop > base.step:
        insert(db, state, without_front(spanning.segment, base.step), spanning.chain)
    return state._replace(base=base)


def _decoded(state: StoredFeed, rows: Iterable[tuple[int, bytes]]) -> Iterator[Segment]:
    return (decode(state.feed, state.key, *row).segment for row in rows)
