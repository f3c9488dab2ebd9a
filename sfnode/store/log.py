"""The update log: every segment that this node has admitted, durable, in SQLite (DESIGN section 4).

An `append` that has returned survives a power cut; one that has not leaves no trace. That is all the rest of
the node relies on when it sends or applies an update. The log checks that feeds stay contiguous, but it does
not verify signatures or chains (the machine did, `sfnode verify` does again) and does not know which feed is
our own.

Threads: `append` and `set_meta` may run in an executor and take turns; reads may go on meanwhile from any
other thread and never wait for a commit, because SQLite's WAL lets readers see the last committed state and
reads have a connection of their own.

Signatures inside long runs of small segments are dropped: the last one vouches for all (SPEC S6). Rows are
packed in the transaction that appends, so that the log of a slow feed costs about what its scalars cost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from sfnode.store import rows, schema
from sfnode.store.faults import BrokenRowError, disk_faults, unusable
from sfnode.store.recent import Recent
from sfnode.store.rows import CardRecord, CutRecord, Record
from sfprotocol import seeds
from sfprotocol.errors import LocalProtocolError
from sfprotocol.frontier import drop_updates, first_updates
from sfprotocol.messages import EpochScalars, Feed, Segment
from sfprotocol.signing import extend, genesis

__all__ = ["CardRecord", "CutRecord", "Record", "Tail", "UpdateLog"]

LOOSE_ROWS = 64
"""Pack a feed after this many small rows: 64 rows of one update take 8 KB, and packing more often would write
every update more often."""

_INSERT = "INSERT INTO segment (feed, first, body) VALUES (?, ?, ?)"
_SINCE = """SELECT first, body FROM segment WHERE feed = ?1
    AND first >= (SELECT max(first) FROM segment WHERE feed = ?1 AND first <= ?2) ORDER BY first"""
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
    """Where a feed stands; of a feed that is cut, as far as it counts."""

    feed: Feed
    next: int
    """The first step that is lacking."""
    chain: bytes
    """Chain head, 32 bytes."""
    epoch: int
    """Of the last update."""


class _Standing(NamedTuple):
    """What is kept in memory of a feed; replaced, never changed, and only after a commit."""

    number: int
    """The feed's id in the table."""
    key: int
    tail: Tail
    loose: int
    """Small rows appended since the feed was last packed."""


class UpdateLog:
    """One run's updates on disk. Open with `UpdateLog.open`, close with `close` or a `with` block."""

    def __init__(self, path: Path, run_id: bytes, connection: sqlite3.Connection) -> None:
        self.path = path
        self._run_id = run_id
        self._writer, self._writing = connection, Lock()
        self._reader, self._reading = connection, Lock()
        self._memory = Lock()
        """Guards the two below; never held during input or output."""
        self._standings: dict[Feed, _Standing] = {}
        self._cuts: dict[Feed, CutRecord] = {}
        self._recent = Recent()

    @classmethod
    def open(cls, path: Path, run_id: bytes, *, read_only: bool = False) -> UpdateLog:
        """Open the log of run `run_id` (32 bytes), creating it if there is none.

        With `read_only` the log must exist and is seen as it is now, even while its node goes on writing.
        Raises UserError: WRONG_RUN, LOG_CORRUPT, DISK_FULL, DATA_DIR_UNUSABLE (also for a log of a newer
        sfnode), DATA_DIR_IN_USE.
        """
        if read_only and not path.exists():
            raise unusable(path, "there is no update log")
        with disk_faults(path):
            log = cls(path, run_id, schema.connect(path, read_only=read_only))
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
            schema.create(self._writer, self._run_id)
        schema.check(self._writer, self.path, self._run_id)
        if not read_only:
            schema.upgrade(self._writer)
            self._reader = schema.connect(self.path, read_only=True)
        for number, origin, incarnation, first, body in self._reader.execute(_LAST):
            standing = self._fresh(Feed(origin, incarnation), number)
            record = rows.decode(standing.tail.feed, standing.key, first, body)
            self._standings[record.feed] = standing._replace(tail=_tail_after(record))
        if schema.version(self._reader) < schema.SINCE_CUTS:
            return
        for number, origin, incarnation, *cut in self._reader.execute(_CUTS):
            feed = Feed(origin, incarnation)
            self._standings.setdefault(feed, self._fresh(feed, number))
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

    # -- writing -------------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[Record],
        cuts: Sequence[CutRecord] = (),
        cards: Sequence[CardRecord] = (),
    ) -> None:
        """Add these segments, cuts and cards in one transaction, durably; nothing of them on any error.

        A cut or a card takes the place of an earlier one of the same feed. Raises LocalProtocolError when a
        record does not continue its feed, UserError DISK_FULL when there is no room. After either the log
        stands where it stood and may be used further.
        """
        if not (records or cuts or cards):
            return
        with self._writing:
            moved = self._advance(records, cuts)
            with self._transaction() as db:
                self._insert(db, records, moved)
                for standing in moved.values():
                    if standing.loose >= LOOSE_ROWS:
                        _pack(db, standing)
                rows_of_cuts = [(moved[cut.feed].number, cut.at, cut.chain, cut.proof) for cut in cuts]
                db.executemany("INSERT OR REPLACE INTO cut VALUES (?, ?, ?, ?)", rows_of_cuts)
                rows_of_cards = [
                    ((moved.get(feed) or self._standings[feed]).number, frame) for feed, frame in cards
                ]
                db.executemany("INSERT OR REPLACE INTO card VALUES (?, ?)", rows_of_cards)
            self._adopt(records, cuts, moved)

    def set_meta(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, durably. Waits for an append in progress."""
        with self._writing, self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _advance(self, records: Sequence[Record], cuts: Sequence[CutRecord]) -> dict[Feed, _Standing]:
        """Where the feeds of `records` and `cuts` will stand; changes nothing."""
        moved: dict[Feed, _Standing] = {}
        following = len(self._standings) + 1
        for feed in [*(record.feed for record in records), *(cut.feed for cut in cuts)]:
            if feed not in moved:
                moved[feed] = self._standings.get(feed) or self._fresh(feed, following)
                following += moved[feed].number == following
        for record in records:
            moved[record.feed] = _continued(moved[record.feed], record)
        return moved

    def _fresh(self, feed: Feed, number: int) -> _Standing:
        key = seeds.feed_key(self._run_id, feed.origin, feed.incarnation)
        return _Standing(number, key, Tail(feed, 0, genesis(self._run_id, feed), 0), 0)

    def _insert(
        self, db: sqlite3.Connection, records: Sequence[Record], moved: dict[Feed, _Standing]
    ) -> None:
        strangers = [(moved[feed].number, *feed) for feed in moved if feed not in self._standings]
        db.executemany("INSERT INTO feed (id, origin, incarnation) VALUES (?, ?, ?)", strangers)
        db.executemany(
            _INSERT,
            [
                (moved[feed].number, segment.first, rows.encode(segment, chain))
                for feed, segment, chain in records
            ],
        )

    def _adopt(
        self, records: Sequence[Record], cuts: Sequence[CutRecord], moved: dict[Feed, _Standing]
    ) -> None:
        with self._memory:
            for feed, standing in moved.items():
                packed = standing.loose >= LOOSE_ROWS
                self._standings[feed] = standing._replace(loose=0) if packed else standing
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
        """Where every feed stands of which something counts, in the order of feeds."""
        return sorted(self.standing())

    def standing(self) -> list[Tail]:
        """The same in no order, for whoever asks often: putting many in order keeps all threads waiting."""
        with self._memory:
            standings, cuts = list(self._standings.values()), dict(self._cuts)
        tails = (_counting(standing.tail, cuts.get(standing.tail.feed)) for standing in standings)
        return [tail for tail in tails if tail.next]

    def cuts(self) -> list[CutRecord]:
        """The feeds that are cut, in the order of feeds."""
        with self._memory:
            return sorted(self._cuts.values())

    def proof(self, feed: Feed) -> bytes | None:
        """The encoded proof that `feed` is cut where it is, if it is."""
        with self._memory:
            cut = self._cuts.get(feed)
        return cut.proof if cut else None

    def cards(self) -> list[CardRecord]:
        """The kept cards, in the order of feeds."""
        with self._reading, disk_faults(self.path):
            if schema.version(self._reader) < schema.SINCE_CARDS:
                return []
            found = self._reader.execute(_CARDS).fetchall()
        return [CardRecord(Feed(origin, incarnation), frame) for origin, incarnation, frame in found]

    def updates(self) -> int:
        """How many updates in the log count."""
        return sum(tail.next for tail in self.standing())

    def size_bytes(self) -> int:
        """What the log takes on disk."""
        with disk_faults(self.path):
            files = (self.path, self.path.with_name(self.path.name + "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())

    def get_meta(self, key: str) -> bytes | None:
        """What was last kept under `key`."""
        with self._reading, disk_faults(self.path):
            row = self._reader.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None:
        """The updates of `feed` from step `first` on as one segment that ends where a stored one ends.

        At most `max_updates`, except when the stored segment that contains `first` has more left: it comes
        whole, because only at its end is a signature (SPEC S6). None when we have nothing from `first` on.
        """
        with self._memory:
            standing = self._standings.get(feed)
            recent = self._recent.since(feed, first)
        if standing is None or first >= standing.tail.next:
            return None
        if recent:
            return rows.join(recent, first, max_updates)
        with self._reading, disk_faults(self.path), self._stored(standing, first) as stored:
            return rows.join(stored, first, max_updates)

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Our chain head before `step` of `feed`, and what we have from there to the next signature.

        Also what is behind a cut. Where the log ends the segment has no updates and carries the last
        signature; where it has not come that far the chain head is empty, too.
        """
        with self._memory:
            standing = self._standings.get(feed) or self._fresh(feed, 0)
        nothing = Segment(standing.key, step, (), bytes(64))
        if step > standing.tail.next or not standing.tail.next:
            return (b"" if step else genesis(self._run_id, feed)), nothing
        with self._reading, disk_faults(self.path), closing(self._around(standing, step)) as cursor:
            stored = [rows.decode(feed, standing.key, *row) for row in cursor]
        chain = stored[1].chain if len(stored) > 1 else genesis(self._run_id, feed)
        segment = stored[0].segment
        chain = extend(chain, first_updates(segment.parts, step - segment.first))
        return chain, Segment(
            standing.key, step, drop_updates(segment.parts, step - segment.first), segment.signature
        )

    def _around(self, standing: _Standing, step: int) -> sqlite3.Cursor:
        """The stored segment with `step`, or the last one, and the one before."""
        return self._reader.execute(_AROUND, (standing.number, step))

    @contextmanager
    def _stored(self, standing: _Standing, first: int) -> Iterator[Iterable[Segment]]:
        """The stored segments from the one that contains `first`, read one by one as they are asked for."""
        with closing(self._reader.execute(_SINCE, (standing.number, first))) as cursor:
            yield (rows.decode(standing.tail.feed, standing.key, *row).segment for row in cursor)

    def records(self) -> Iterator[Record]:
        """Every stored segment, feed by feed in the order of feeds and steps; one consistent snapshot."""
        with disk_faults(self.path), self._snapshot() as db:
            for (origin, incarnation), group in groupby(db.execute(_ALL), key=itemgetter(0, 1)):
                feed = Feed(origin, incarnation)
                key = seeds.feed_key(self._run_id, origin, incarnation)
                following = 0
                for _, _, first, body in group:
                    if first != following:
                        raise BrokenRowError(f"steps {following} to {first} of a feed are missing")
                    record = rows.decode(feed, key, first, body)
                    following = record.segment.stop
                    yield record

    def replay(self, batch: int = 65_536) -> Iterator[tuple[Feed, int, list[EpochScalars]]]:
        """All updates as (feed, first step, scalars by epoch), in the order of `records`.

        Every item of a feed but its last has at least `batch` updates, so that applying them is vectorised.
        """
        for feed, records in groupby(self.records(), key=attrgetter("feed")):
            first = 0
            parts: list[EpochScalars] = []
            for record in records:
                parts.extend(record.segment.parts)
                if record.segment.stop - first >= batch:
                    yield feed, first, list(rows.merge(parts))
                    first, parts = record.segment.stop, []
            if parts:
                yield feed, first, list(rows.merge(parts))

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection that a long scan may occupy without holding up `read`."""
        if self._writer is self._reader:
            yield self._reader
            return
        with closing(schema.connect(self.path, read_only=True)) as db:
            yield db


def _counting(tail: Tail, cut: CutRecord | None) -> Tail:
    """As far as it counts."""
    return tail if cut is None or cut.at >= tail.next else tail._replace(next=cut.at, chain=cut.chain)


def _tail_after(record: Record) -> Tail:
    return Tail(record.feed, record.segment.stop, record.chain, record.segment.parts[-1].epoch)


def _continued(before: _Standing, record: Record) -> _Standing:
    """Where the feed stands after `record`. Raises LocalProtocolError unless it is its continuation."""
    segment, tail = record.segment, before.tail
    if segment.feed_key != before.key:
        raise LocalProtocolError("a record's segment is not of the record's feed")
    if segment.first != tail.next:
        raise LocalProtocolError(f"the log has a feed up to step {tail.next}, not {segment.first}")
    epochs = [tail.epoch, *(part.epoch for part in segment.parts)]
    if epochs != sorted(epochs):
        raise LocalProtocolError("epochs decrease within a feed")
    small = segment.count < rows.SMALL_UPDATES
    return before._replace(tail=_tail_after(record), loose=before.loose + small)


def _pack(db: sqlite3.Connection, standing: _Standing) -> None:
    """Join the small rows at the end of a feed into few."""
    trailing = _small_rows_at_end(db, standing)
    for group in rows.packs(trailing):
        if len(group) == 1:
            continue
        first, last = group[0].segment.first, group[-1]
        joined = rows.join((record.segment for record in group), first, rows.PACKED_UPDATES)
        db.execute(
            "DELETE FROM segment WHERE feed = ? AND first BETWEEN ? AND ?",
            (standing.number, first, last.segment.first),
        )
        db.execute(_INSERT, (standing.number, first, rows.encode(joined, last.chain)))


def _small_rows_at_end(db: sqlite3.Connection, standing: _Standing) -> list[Record]:
    found: list[Record] = []
    query = "SELECT first, body FROM segment WHERE feed = ? ORDER BY first DESC"
    with closing(db.execute(query, (standing.number,))) as cursor:
        for row in cursor:
            record = rows.decode(standing.tail.feed, standing.key, *row)
            if record.segment.count >= rows.SMALL_UPDATES:
                break
            found.append(record)
    return found[::-1]
