"""The update log: every segment that this node has admitted, durable, in SQLite (DESIGN section 4).

An `append` that has returned survives a power cut; one that has not leaves no trace. That is all that the
rest of the node relies on when it sends or applies an update. The log checks that feeds stay contiguous, but
does not verify signatures or chains (the machine did, `sfnode verify` does again) and does not know which
feed is our own.

Threads: `append` and `set_meta` may run in an executor and take turns; reads may go on meanwhile from any
other thread and never wait for a commit, because SQLite's WAL lets readers see the last committed state and
reads have a connection of their own.

Signatures inside long runs of small segments are dropped: the last one vouches for all (SPEC S6). Rows are
packed in the transaction that appends, so that the log of a slow feed costs about what its scalars cost.

In an organised run the organiser says which of two histories of a feed is meant. The log keeps one: a segment
that begins before the end of the feed takes the place of everything from there on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from sfnode.store import tables
from sfnode.store.disk_errors import BrokenRowError, disk_faults, unusable
from sfnode.store.records import (
    PACKED_UPDATES,
    SMALL_UPDATES,
    CardRecord,
    CutRecord,
    Record,
    decode,
    encode,
    join,
    packs,
)
from sfnode.store.segment_cache import SegmentCache
from sfprotocol import seeds
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import KeepControl
from sfprotocol.messages import Entry, EpochScalars, Feed, Segment
from sfprotocol.segments import first_updates, merge, without_front
from sfprotocol.signing import extend, genesis

if TYPE_CHECKING:
    from sfnode.store.columns import Columns

__all__ = ["CardRecord", "CutRecord", "Record", "Span", "Tail", "UpdateLog"]

LOOSE_ROWS = 64
"""Pack a feed after this many small rows: 64 rows of one update take 8 KB, and packing more often would write
every update more often."""

_INSERT = "INSERT INTO segment (feed, first, body) VALUES (?, ?, ?)"
_SINCE = """SELECT first, body FROM segment WHERE feed = ?1
    AND first >= (SELECT max(first) FROM segment WHERE feed = ?1 AND first <= ?2) ORDER BY first"""
_SPAN = """SELECT first, body FROM segment WHERE feed = ?1 AND first < ?3
    AND first >= (SELECT max(first) FROM segment WHERE feed = ?1 AND first <= ?2) ORDER BY first"""
_BEFORE = "SELECT first, body FROM segment WHERE feed = ? AND first < ? ORDER BY first DESC"
_AROUND = "SELECT first, body FROM segment WHERE feed = ? AND first <= ? ORDER BY first DESC LIMIT 2"
_CUTS = """SELECT f.id, f.origin, f.incarnation, c.step, c.chain, c.proof
    FROM cut c JOIN feed f ON f.id = c.feed"""
_CARDS = """SELECT f.origin, f.incarnation, c.frame FROM card c JOIN feed f ON f.id = c.feed
    ORDER BY f.origin, f.incarnation"""
_LAST = """SELECT f.id, f.origin, f.incarnation, s.first, s.body FROM feed f CROSS JOIN segment s
    ON s.feed = f.id AND s.first = (SELECT max(first) FROM segment WHERE feed = f.id)"""
_ALL = """SELECT f.origin, f.incarnation, s.first, s.body FROM feed f CROSS JOIN segment s ON s.feed = f.id
    ORDER BY f.origin, f.incarnation, s.first"""
"""CROSS JOIN fixes the order of the loops: SQLite then walks two indexes, and neither sorts nor scans."""


class Tail(NamedTuple):
    """The end of a feed; of one that is cut, of the part that counts."""

    feed: Feed
    next: int
    """The first step that is not in the log, or does not count."""
    chain: bytes
    """Chain head before that step, 32 bytes."""
    epoch: int
    """Epoch of the last update."""


class Span(Protocol):
    """Steps `first .. stop - 1` of a feed."""

    @property
    def feed(self) -> Feed: ...
    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...


S = TypeVar("S", bound=Span)


class _FeedState(NamedTuple):
    """The part of a feed that is kept in memory; replaced, never changed, and only after a commit."""

    number: int
    """The feed's id in the table."""
    key: int
    """The feed key (SPEC R4)."""
    tail: Tail
    loose: int
    """Small rows appended since the feed was last packed."""


class UpdateLog:
    """One run's updates on disk. Open with `UpdateLog.open`, close with `close` or a `with` block."""

    def __init__(self, path: Path, run_id: bytes, connection: sqlite3.Connection) -> None:
        self.path = path
        self.generation = 0
        """Generation of the file's inode, which tells it from a copy; 0 if unknown, as for a reader."""
        self._run_id = run_id
        self._writer, self._writing = connection, Lock()
        self._reader, self._reading = connection, Lock()
        self._memory = Lock()
        """Guards the three below; never held during input or output."""
        self._states: dict[Feed, _FeedState] = {}
        self._cuts: dict[Feed, CutRecord] = {}
        self._recent = SegmentCache()

    @classmethod
    def open(cls, path: Path, run_id: bytes | None = None, *, read_only: bool = False) -> UpdateLog:
        """Open the log of run `run_id` (32 bytes), creating it if there is none.

        With `read_only` the log must exist, and may be of any run if none is named. It is seen as it is now,
        even while its node goes on writing, and nothing in it is changed, locked or brought up to date.
        Raises UserError: WRONG_RUN, LOG_CORRUPT, DISK_FULL, DATA_DIR_UNUSABLE (also for a log of a newer
        sfnode), DATA_DIR_IN_USE.
        """
        if read_only and not path.exists():
            raise unusable(path, "there is no update log")
        if run_id is None and not read_only:
            raise ValueError("a log is opened for writing as that of one run")
        with disk_faults(path):
            generation = 0 if read_only else tables.inode_generation(path)
            log = cls(path, run_id or b"", tables.connect(path, read_only=read_only))
            log.generation = generation
            try:
                log._begin(read_only)
            except BaseException:
                log.close()
                raise
        return log

    def _begin(self, read_only: bool) -> None:
        if read_only:
            self._reader.execute("BEGIN")  # holds the snapshot until close
        else:
            tables.create(self._writer, self._run_id)
        self._run_id = self._run_id or tables.run_of(self._writer, self.path)
        tables.check(self._writer, self.path, self._run_id)
        if not read_only:
            tables.upgrade(self._writer)
            self._reader = tables.connect(self.path, read_only=True)
        for number, origin, incarnation, first, body in self._reader.execute(_LAST):
            state = self._fresh(Feed(origin, incarnation), number)
            record = decode(state.tail.feed, state.key, first, body)
            self._states[record.feed] = state._replace(tail=_tail_after(record))
        if tables.version(self._reader) < tables.SINCE_CUTS:
            return
        for number, origin, incarnation, *cut in self._reader.execute(_CUTS):
            feed = Feed(origin, incarnation)
            self._states.setdefault(feed, self._fresh(feed, number))
            self._cuts[feed] = CutRecord(feed, *cut)

    def close(self) -> None:
        """Wait for an append in progress and close the files."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()

    def __enter__(self) -> UpdateLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_id(self) -> bytes:
        """The run whose updates these are, 32 bytes."""
        return self._run_id

    # -- writing -------------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[Record],
        cuts: Sequence[CutRecord] = (),
        cards: Sequence[CardRecord] = (),
        *,
        control: Sequence[KeepControl] = (),
        authority: Sequence[bytes] = (),
        replacing: bool = False,
    ) -> None:
        """Add all of these in one transaction, durably; on an error, none of them.

        A cut or a card replaces an earlier one of the same feed, decisions those from their first position
        on. `authority` are encoded Successions and ControlForks. With `replacing`, a record may begin before
        the end of its feed and takes the place of what is there; as rows go, nobody may still need them.
        Raises LocalProtocolError when a record does not continue its feed, UserError DISK_FULL when there is
        no room. After either the log is as before and may be used further.
        """
        if not (records or cuts or cards or control or authority):
            return
        with self._writing:
            moved = self._advance(records, cuts, replacing)
            with self._transaction() as db:
                self._insert(db, records, moved)
                _insert_control(db, control, authority)
                for state in moved.values():
                    if state.loose >= LOOSE_ROWS:
                        _pack(db, state)
                rows_of_cuts = [(moved[cut.feed].number, cut.at, cut.chain, cut.proof) for cut in cuts]
                db.executemany("INSERT OR REPLACE INTO cut VALUES (?, ?, ?, ?)", rows_of_cuts)
                rows_of_cards = [
                    ((moved.get(feed) or self._states[feed]).number, frame) for feed, frame in cards
                ]
                db.executemany("INSERT OR REPLACE INTO card VALUES (?, ?)", rows_of_cards)
            self._adopt(records, cuts, moved)

    def set_meta(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, durably. Waits for an append in progress."""
        with self._writing, self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _advance(
        self, records: Sequence[Record], cuts: Sequence[CutRecord], replacing: bool
    ) -> dict[Feed, _FeedState]:
        """Return the states of the feeds after `records` and `cuts`; changes nothing."""
        moved: dict[Feed, _FeedState] = {}
        following = len(self._states) + 1
        for feed in [*(record.feed for record in records), *(cut.feed for cut in cuts)]:
            if feed not in moved:
                moved[feed] = self._states.get(feed) or self._fresh(feed, following)
                following += moved[feed].number == following
        for record in records:
            moved[record.feed] = _continued(moved[record.feed], record, replacing)
        return moved

    def _fresh(self, feed: Feed, number: int) -> _FeedState:
        key = seeds.feed_key(self._run_id, feed.origin, feed.incarnation)
        return _FeedState(number, key, Tail(feed, 0, genesis(self._run_id, feed), 0), 0)

    def _insert(
        self, db: sqlite3.Connection, records: Sequence[Record], moved: dict[Feed, _FeedState]
    ) -> None:
        new_feeds = [(moved[feed].number, *feed) for feed in moved if feed not in self._states]
        db.executemany("INSERT INTO feed (id, origin, incarnation) VALUES (?, ?, ?)", new_feeds)
        stops = {feed: self._states[feed].tail.next for feed in moved if feed in self._states}
        for record in records:
            feed, state = record.feed, moved[record.feed]
            stored = record.segment
            if stored.first < stops.get(feed, 0):
                stored = _take_place(db, state, stored)
            db.execute(_INSERT, (state.number, stored.first, encode(stored, record.chain)))
            stops[feed] = stored.stop

    def _adopt(
        self, records: Sequence[Record], cuts: Sequence[CutRecord], moved: dict[Feed, _FeedState]
    ) -> None:
        with self._memory:
            for feed, state in moved.items():
                packed = state.loose >= LOOSE_ROWS
                self._states[feed] = state._replace(loose=0) if packed else state
            for record in records:
                self._recent.add(record.feed, record.segment)
            self._cuts.update((cut.feed, cut) for cut in cuts)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._writer is self._reader:
            raise LocalProtocolError(f"{self.path} is open for reading only")
        with disk_faults(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has made SQLite roll back by itself
                    self._writer.execute("ROLLBACK")
                raise

    # -- reading -------------------------------------------------------------------------------------

    def tails(self) -> list[Tail]:
        """Return the tails of all feeds of which something counts, in the order of feeds."""
        return sorted(self.unsorted_tails())

    def unsorted_tails(self) -> list[Tail]:
        """Return `tails` in no order, for frequent use: sorting many keeps all threads waiting."""
        with self._memory:
            states, cuts = list(self._states.values()), dict(self._cuts)
        tails = (_counting(state.tail, cuts.get(state.tail.feed)) for state in states)
        return [tail for tail in tails if tail.next]

    def stop(self, feed: Feed) -> int:
        """Return the first step of `feed` that is not stored."""
        with self._memory:
            state = self._states.get(feed)
        return state.tail.next if state else 0

    def cuts(self) -> list[CutRecord]:
        """Return the cuts that proofs have made, in the order of feeds."""
        with self._memory:
            return sorted(cut for cut in self._cuts.values() if cut.proof)

    def evicted(self) -> list[Feed]:
        """Return the feeds that have made room for others, in order."""
        with self._memory:
            return sorted(feed for feed, cut in self._cuts.items() if not cut.proof)

    def proof(self, feed: Feed) -> bytes | None:
        """Return the encoded proof for the cut of `feed`; None if it is not cut, empty if it was evicted."""
        with self._memory:
            cut = self._cuts.get(feed)
        return cut.proof if cut else None

    def cards(self) -> list[CardRecord]:
        """Return the cards, in the order of feeds."""
        with self._reading, disk_faults(self.path):
            if tables.version(self._reader) < tables.SINCE_CARDS:
                return []
            found = self._reader.execute(_CARDS).fetchall()
        return [CardRecord(Feed(origin, incarnation), frame) for origin, incarnation, frame in found]

    def ends(self) -> list[Tail]:
        """Return the ends of all feeds of which something is stored, also behind cuts, in the order of
        feeds; not of those that were evicted."""
        with self._memory:
            states, gone = (
                list(self._states.values()),
                {feed for feed, cut in self._cuts.items() if not cut.proof},
            )
        return sorted(state.tail for state in states if state.tail.next and state.tail.feed not in gone)

    def control(self) -> list[Entry]:
        """Return the decisions of the control feed, in order."""
        rows = self._table("SELECT term, record, signature FROM control ORDER BY position")
        return [Entry(*row) for row in rows]

    def authority(self) -> list[bytes]:
        """Return the encoded Successions and ControlForks, in the order in which they came."""
        return [frame for (frame,) in self._table("SELECT frame FROM authority ORDER BY id")]

    def _table(self, query: str) -> list[Any]:
        """Return the rows of a table of the control feed, which logs of older versions lack."""
        with self._reading, disk_faults(self.path):
            if tables.version(self._reader) < tables.SINCE_CONTROL:
                return []
            return self._reader.execute(query).fetchall()

    def updates(self) -> int:
        """Return the number of updates that count."""
        return sum(tail.next for tail in self.unsorted_tails())

    def size_bytes(self) -> int:
        """Return the size of the log on disk in bytes."""
        with disk_faults(self.path):
            files = (self.path, self.path.with_name(self.path.name + "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())

    def get_meta(self, key: str) -> bytes | None:
        """Return what was last kept under `key`."""
        with self._reading, disk_faults(self.path):
            row = self._reader.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None:
        """Return the updates of `feed` from step `first` on as one segment that ends where a stored one ends.

        It has at most `max_updates` updates, except when the stored segment that contains `first` has more
        left: that comes whole, because only at its end is a signature (SPEC S6). None when the log has
        nothing from `first` on.
        """
        with self._memory:
            state = self._states.get(feed)
            recent = self._recent.since(feed, first)
        if state is None or first >= state.tail.next:
            return None
        if recent:
            return join(recent, first, max_updates)
        with self._reading, disk_faults(self.path), self._stored(state, first) as stored:
            return join(stored, first, max_updates)

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Return the chain head before `step` of `feed`, and the updates from there to the next signature.

        Includes what is behind a cut. At the end of the log the segment has no updates and carries the last
        signature; beyond the end the chain head is empty, too.
        """
        with self._memory:
            state = self._states.get(feed) or self._fresh(feed, 0)
        nothing = Segment(state.key, step, (), bytes(64))
        if step > state.tail.next or not state.tail.next:
            return (b"" if step else genesis(self._run_id, feed)), nothing
        with self._reading, disk_faults(self.path), closing(self._around(state, step)) as cursor:
            stored = [decode(feed, state.key, *row) for row in cursor]
        chain = stored[1].chain if len(stored) > 1 else genesis(self._run_id, feed)
        segment = stored[0].segment
        chain = extend(chain, first_updates(segment.parts, step - segment.first))
        return chain, without_front(segment, step)

    def label(self, feed: Feed, step: int) -> tuple[int, int]:
        """Return the epoch of the update before `step` of `feed`, and how many before `step` belong to it.

        (0, 0) at the beginning. Raises UserError LOG_CORRUPT when the log ends before.
        """
        with self._memory:
            state = self._states.get(feed)
        if not step:
            return 0, 0
        with self._reading, disk_faults(self.path):
            if state is None or step > state.tail.next:
                raise BrokenRowError(f"step {step - 1} of a feed is missing")
            with closing(self._reader.execute(_BEFORE, (state.number, step))) as cursor:
                return _label(_decoded(state, cursor), step)

    def _around(self, state: _FeedState, step: int) -> sqlite3.Cursor:
        """Select the stored segment with `step`, or the last one, and the one before it."""
        return self._reader.execute(_AROUND, (state.number, step))

    @contextmanager
    def _stored(self, state: _FeedState, first: int) -> Iterator[Iterable[Segment]]:
        """Yield an iterable of the stored segments from the one that contains `first`, read one by one."""
        with closing(self._reader.execute(_SINCE, (state.number, first))) as cursor:
            yield _decoded(state, cursor)

    def segments(self, spans: Iterable[S]) -> Iterator[tuple[S, Segment]]:
        """Yield the stored segments that hold these steps, each with its span; also what is behind a cut.

        For long reads: what is not in memory comes through a connection of its own, so that no `read` waits.
        Raises UserError LOG_CORRUPT when steps are missing.
        """
        with disk_faults(self.path), ExitStack() as stack:
            db: sqlite3.Connection | None = None
            for span in spans:
                with self._memory:
                    state = self._states.get(span.feed)
                    found: Iterable[Segment] = self._recent.since(span.feed, span.first)
                if state is None:
                    raise BrokenRowError("a feed is missing")
                if not found:
                    db = db or stack.enter_context(self._snapshot())
                    rows = db.execute(_SPAN, (state.number, span.first, span.stop))
                    found = _decoded(state, rows)
                yield from ((span, segment) for segment in _covering(span, found))

    def records(self) -> Iterator[Record]:
        """Yield every stored segment in the order of feeds and steps, from one consistent snapshot."""
        with disk_faults(self.path), self._snapshot() as db:
            for (origin, incarnation), group in groupby(db.execute(_ALL), key=itemgetter(0, 1)):
                feed = Feed(origin, incarnation)
                key = seeds.feed_key(self._run_id, origin, incarnation)
                following = 0
                for _, _, first, body in group:
                    if first != following:
                        raise BrokenRowError(f"steps {following} to {first} of a feed are missing")
                    record = decode(feed, key, first, body)
                    following = record.segment.stop
                    yield record

    def columns(self) -> Columns:
        """Read all updates that count as numpy columns, for programs that study a run."""
        from sfnode.store.columns import columns_of

        return columns_of(self)

    def replay(self, batch: int = 65_536) -> Iterator[tuple[Feed, int, list[EpochScalars]]]:
        """Yield all updates as (feed, first step, scalars by epoch), in the order of `records`.

        Every item of a feed except its last has at least `batch` updates, so that applying them is
        vectorised.
        """
        for feed, records in groupby(self.records(), key=attrgetter("feed")):
            first = 0
            parts: list[EpochScalars] = []
            for record in records:
                parts.extend(record.segment.parts)
                if record.segment.stop - first >= batch:
                    yield feed, first, list(merge(parts))
                    first, parts = record.segment.stop, []
            if parts:
                yield feed, first, list(merge(parts))

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Open a connection that a long scan may occupy without holding up `read`."""
        if self._writer is self._reader:
            yield self._reader
            return
        with closing(tables.connect(self.path, read_only=True)) as db:
            yield db


def _decoded(state: _FeedState, rows: Iterable[tuple[int, bytes]]) -> Iterator[Segment]:
    """Yield the segments in these rows of a feed."""
    return (decode(state.tail.feed, state.key, *row).segment for row in rows)


def _label(backwards: Iterable[Segment], step: int) -> tuple[int, int]:
    """Return the epoch of the update before `step` and how many updates there belong to it.

    The segments are consecutive, the last first; they are read only as far as needed.
    """
    epoch: int | None = None
    labelled = 0
    for segment in backwards:
        for part in first_updates(segment.parts, step - segment.first)[::-1]:
            if epoch not in (None, part.epoch):
                return epoch, labelled
            epoch, labelled = part.epoch, labelled + len(part.scalars)
    assert epoch is not None
    return epoch, labelled


def _covering(span: Span, segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield those of consecutive `segments` that hold steps of `span`.

    Raises BrokenRowError when steps are missing.
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


def _counting(tail: Tail, cut: CutRecord | None) -> Tail:
    """Return the tail of the part that counts."""
    return tail if cut is None or cut.at >= tail.next else tail._replace(next=cut.at, chain=cut.chain)


def _tail_after(record: Record) -> Tail:
    return Tail(record.feed, record.segment.stop, record.chain, record.segment.parts[-1].epoch)


def _continued(before: _FeedState, record: Record, replacing: bool) -> _FeedState:
    """Return the feed's state after `record`. Raises LocalProtocolError unless that continues the feed."""
    segment, tail = record.segment, before.tail
    if segment.feed_key != before.key:
        raise LocalProtocolError("a record's segment is not of the record's feed")
    replaced = replacing and segment.first < tail.next
    if segment.first != tail.next and not replaced:
        raise LocalProtocolError(f"the log has a feed up to step {tail.next}, not {segment.first}")
    _check_epochs([EpochScalars(0 if replaced else tail.epoch, ()), *segment.parts])
    small = segment.count < SMALL_UPDATES
    return before._replace(tail=_tail_after(record), loose=before.loose + small)


def _check_epochs(parts: Sequence[EpochScalars]) -> None:
    epochs = [part.epoch for part in parts]
    if epochs != sorted(epochs):
        raise LocalProtocolError("epochs decrease within a feed")


def _take_place(db: sqlite3.Connection, state: _FeedState, segment: Segment) -> Segment:
    """Delete what is stored of a feed from where `segment` begins; return what to store from there on.

    The row that spans its first step is joined with it, as its signature vouches for all before (SPEC S6).
    """
    with closing(db.execute(_BEFORE, (state.number, segment.first))) as cursor:
        before = next(_decoded(state, cursor), None)
    if before is not None and before.stop > segment.first:
        parts = merge([*first_updates(before.parts, segment.first - before.first), *segment.parts])
        segment = replace(segment, first=before.first, parts=parts)
        _check_epochs(parts)
    db.execute("DELETE FROM segment WHERE feed = ? AND first >= ?", (state.number, segment.first))
    return segment


def _insert_control(
    db: sqlite3.Connection, control: Sequence[KeepControl], authority: Sequence[bytes]
) -> None:
    for first, entries in ((kept.first, kept.entries) for kept in control):
        db.execute("DELETE FROM control WHERE position >= ?", (first,))
        rows = [(position, *entry) for position, entry in enumerate(entries, first)]
        db.executemany("INSERT INTO control VALUES (?, ?, ?, ?)", rows)
    db.executemany("INSERT OR IGNORE INTO authority (frame) VALUES (?)", [(frame,) for frame in authority])


def _pack(db: sqlite3.Connection, state: _FeedState) -> None:
    """Join the small rows at the end of a feed into few."""
    trailing = _small_rows_at_end(db, state)
    for group in packs(trailing):
        if len(group) == 1:
            continue
        first, last = group[0].segment.first, group[-1]
        joined = join((record.segment for record in group), first, PACKED_UPDATES)
        db.execute(
            "DELETE FROM segment WHERE feed = ? AND first BETWEEN ? AND ?",
            (state.number, first, last.segment.first),
        )
        db.execute(_INSERT, (state.number, first, encode(joined, last.chain)))


def _small_rows_at_end(db: sqlite3.Connection, state: _FeedState) -> list[Record]:
    found: list[Record] = []
    query = "SELECT first, body FROM segment WHERE feed = ? ORDER BY first DESC"
    with closing(db.execute(query, (state.number,))) as cursor:
        for row in cursor:
            record = decode(state.tail.feed, state.key, *row)
            if record.segment.count >= SMALL_UPDATES:
                break
            found.append(record)
    return found[::-1]
