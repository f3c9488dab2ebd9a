"""The update log: stores every segment that this node has admitted, durably, in SQLite.

Once `append` has returned, everything that it wrote survives a power cut. If the power fails earlier, either
all or nothing of it is in the log. The node therefore sends or applies an update only after `append` has
returned. The log checks that feeds stay contiguous. It does not verify signatures or chains: the machine
verifies them before, and `sfnode verify` can verify them again. It does not know which feed is this node's
own.

Threads: `append`, `rebase` and `set_meta` may run in an executor, one at a time. Meanwhile any other thread
may read. Reads never wait for a commit, because they have a connection of their own, and SQLite's WAL shows
them the last committed state.

Small consecutive segments are packed into one row with only the last signature, which vouches for all updates
before it (SPEC S6). Rows are packed in the transaction that appends. So the log takes hardly more space than
its scalars, even for a feed whose segments have one update each.

In an organised run the organiser chooses between two histories of a forked feed, and the log keeps only one
of them. A segment that begins before the end of the feed replaces all stored steps from the segment's first
step on. A checkpoint may stand for the first steps of a feed. In that case the feed begins at a base, and the
log has no steps before the base.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from sfnode.store import database, known_feeds, segment_table
from sfnode.store.disk_errors import BrokenRowError, disk_faults, unusable
from sfnode.store.known_feeds import KnownFeeds, StoredFeed, Tail
from sfnode.store.segment_encoding import (
    CardRecord,
    CutRecord,
    Record,
    Span,
    covering,
    decode,
    join,
    label_before,
    let_go,
)
from sfprotocol import seeds
from sfprotocol.checkpoints import Base
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import KeepControl
from sfprotocol.messages import Entry, Feed, Segment

if TYPE_CHECKING:
    from sfnode.store.columns import Columns

__all__ = ["CardRecord", "CutRecord", "Record", "Tail", "UpdateLog"]

LOOSE_ROWS = 64
"""Number of small rows after which the rows of a feed are packed. 64 rows of one update each take 8 KB. With
a smaller number every update would be written to disk more often."""


S = TypeVar("S", bound=Span)
T = TypeVar("T")


class UpdateLog:
    """One run's updates on disk. Open with `UpdateLog.open`, close with `close` or a `with` block."""

    def __init__(self, path: Path, run_id: bytes, connection: sqlite3.Connection) -> None:
        self.path = path
        self.generation = 0
        """Generation of the file's inode, which distinguishes the file from a copy. 0 if it is unknown, and
        for a log that is opened read-only."""
        self._run_id = run_id
        self._writer, self._writing = connection, Lock()
        self._reader, self._reading = connection, Lock()
        self._known = KnownFeeds(run_id)
        self._named = database.Named()
        """Number of steps of each feed that closes have listed. It is updated only when it is needed, for a
        feed that is cut, and under the lock of the reads."""

    @classmethod
    def open(cls, path: Path, run_id: bytes | None = None, *, read_only: bool = False) -> UpdateLog:
        """Open the log of run `run_id` (32 bytes), creating it if there is none.

        With `read_only` the log must exist, and may belong to any run unless `run_id` is given. Its current
        state can be read even while its node writes. Nothing in the file is changed, locked or upgraded.
        Raises UserError: WRONG_RUN, LOG_CORRUPT, DISK_FULL, DATA_DIR_UNUSABLE (also for a log of a newer
        sfnode), DATA_DIR_IN_USE.
        """
        if read_only and not path.exists():
            raise unusable(path, "there is no update log")
        if run_id is None and not read_only:
            raise ValueError("a log is opened for writing as that of one run")
        with disk_faults(path):
            generation = 0 if read_only else database.inode_generation(path)
            log = cls(path, run_id or b"", database.connect(path, read_only=read_only))
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
            database.create(self._writer, self._run_id)
        self._run_id = self._run_id or database.run_of(self._writer, self.path)
        database.check(self._writer, self.path, self._run_id)
        if not read_only:
            database.upgrade(self._writer)
            self._reader = database.connect(self.path, read_only=True)
        bases = database.bases(self._reader)
        states = {base.feed: known_feeds.fresh(self._run_id, number, base) for number, base in bases}
        for number, origin, incarnation, first, body in segment_table.last(self._reader):
            feed = Feed(origin, incarnation)
            state = states.get(feed) or known_feeds.unknown(self._run_id, feed, number)
            last = decode(feed, state.key, first, body)
            states[feed] = state._replace(tail=known_feeds.tail_after(last))
        for number, *known in self._reader.execute("SELECT id, origin, incarnation FROM feed ORDER BY id"):
            feed = Feed(*known)  # also feeds without rows, because their numbers are taken
            states.setdefault(feed, known_feeds.unknown(self._run_id, feed, number))
        cuts = database.cuts(self._reader)
        self._known = KnownFeeds(self._run_id, states, [cut for _, cut in cuts])

    def close(self) -> None:
        """Wait until an append in progress has ended, then close the files."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()

    def __enter__(self) -> UpdateLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_id(self) -> bytes:
        """The id of the log's run, 32 bytes."""
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
        statement: bytes = b"",
        replacing: bool = False,
    ) -> None:
        """Append all arguments durably in one transaction. If an error occurs, append none of them.

        A cut or a card replaces an earlier one of the same feed. Decisions replace all stored decisions from
        their first position on. `authority` are encoded Successions and ControlForks. `statement` is the
        encoded Statement of this node, if it is a stand-in. With `replacing`, a record may begin before the
        end of its feed. It then replaces all stored steps from its own first step on, and no other part of
        the node may still need the replaced steps. Raises LocalProtocolError if a record does not continue
        its feed, UserError DISK_FULL if there is no room. After either error the log is unchanged and usable.
        """
        if not (records or cuts or cards or control or authority or statement):
            return
        with self._writing:
            moved = self._known.after(records, cuts, replacing)
            with self._transaction() as db:
                self._insert(db, records, moved)
                database.keep_control(db, control, authority, statement)
                for feed, state in moved.items():
                    if state.loose >= LOOSE_ROWS:
                        segment_table.pack(db, state)
                        moved[feed] = state._replace(loose=0)
                database.keep_cuts(db, ((moved[cut.feed].number, cut) for cut in cuts))
                known = ((moved.get(card.feed) or self._known[card.feed], card) for card in cards)
                database.keep_cards(db, ((state.number, card) for state, card in known))
            self._known.adopt(moved, records, cuts)
            with self._reading:
                self._named.forget(control)

    def rebase(self, bases: Iterable[Base]) -> None:
        """Make each feed that has a base in `bases` begin there, and all other feeds at genesis, in one
        transaction.

        Rows after the bases are kept, and rows before the bases are removed. All rows of a feed are removed
        if the feed has another history at its base, or if it had a base and has none in `bases`. Reads that
        began before the call may still return removed rows. No other part of the node may need these rows. If
        enough space has become free, the file is made smaller. Raises UserError DISK_FULL; in that case the
        log is unchanged.
        """
        wanted = {base.feed: base for base in bases}
        with self._writing:
            before = self._known.states()
            states = dict(before)
            for feed in wanted:
                states.setdefault(feed, known_feeds.unknown(self._run_id, feed, len(states) + 1))
            try:
                with self._transaction() as db:
                    self._insert_feeds(db, states)
                    for feed, state in states.items():
                        base = wanted.get(feed) or known_feeds.beginning(self._run_id, feed)
                        states[feed] = segment_table.rebase(db, self._run_id, state, base)
                    database.keep_bases(db, ((states[feed].number, base) for feed, base in wanted.items()))
                    self._known.begin_at(states)  # before the commit, for reads that miss a row
            except BaseException:
                self._known.begin_at(before)
                raise
            with suppress(sqlite3.Error):  # without room to shrink, free pages are reused
                database.shrink(self._writer)

    def set_meta(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, durably. Waits for an append in progress."""
        with self._writing, self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _insert_feeds(self, db: sqlite3.Connection, states: Mapping[Feed, StoredFeed]) -> None:
        new = [(state.number, *feed) for feed, state in states.items() if feed not in self._known]
        db.executemany("INSERT INTO feed (id, origin, incarnation) VALUES (?, ?, ?)", new)

    def _insert(
        self, db: sqlite3.Connection, records: Sequence[Record], moved: Mapping[Feed, StoredFeed]
    ) -> None:
        self._insert_feeds(db, moved)
        stops = {feed: self._known[feed].tail.next for feed in moved if feed in self._known}
        for record in records:
            state, stored = moved[record.feed], record.segment
            if stored.first < stops.get(record.feed, 0):
                stored = segment_table.take_place(db, state, stored)
            segment_table.insert(db, state, stored, record.chain)
            stops[record.feed] = stored.stop

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
                with suppress(sqlite3.Error):  # on a full disk SQLite rolls back by itself
                    self._writer.execute("ROLLBACK")
                raise

    # -- reading -------------------------------------------------------------------------------------

    def tails(self) -> list[Tail]:
        """Return the tails of all feeds with updates that count, in the order of feeds."""
        return sorted(self.unsorted_tails())

    def unsorted_tails(self) -> list[Tail]:
        """Return the same tails as `tails`, unsorted. Frequent calls should use this function, because
        sorting many tails would block all threads."""
        states, cuts = self._known.both()
        named = self._named_of(cuts)
        tails = (self._run_state(state.tail, cuts.get(state.feed), named) for state in states)
        return [tail for tail in tails if tail.next]

    def _named_of(self, cuts: Iterable[Feed]) -> dict[Feed, int]:
        """Return, for each feed in `cuts`, the number of steps that closes have listed. These steps count in
        spite of a cut (SPEC O7)."""
        if not cuts:
            return {}
        with self._reading, disk_faults(self.path):
            self._named.follow(self._reader)
            return {feed: self._named.of(feed) for feed in cuts}

    def _run_state(self, tail: Tail, cut: CutRecord | None, named: Mapping[Feed, int]) -> Tail:
        """Return the tail of a feed, or of its part before a cut."""
        at = max(cut.at, named.get(cut.feed, 0)) if cut else tail.next
        if cut is None or at >= tail.next:
            return tail
        chain = cut.chain if at == cut.at else self.past(tail.feed, at)[0]
        return tail._replace(next=at, chain=chain)

    def base(self, feed: Feed) -> Base:
        """Return the base of a feed, which is the step at which its rows begin: step 0, or a later step if a
        checkpoint stands for the earlier steps."""
        return self._known.state(feed).base

    def bases(self) -> dict[Feed, Base]:
        """Return the bases of those feeds for whose first steps a checkpoint stands, keyed by feed, in the
        order of feeds."""
        states = self._known.states().values()
        return {base.feed: base for base in sorted(state.base for state in states) if base.step}

    def stop(self, feed: Feed) -> int:
        """Return the first step of `feed` that is not stored."""
        return self._known.state(feed).tail.next

    def cuts(self) -> list[CutRecord]:
        """Return the cuts of forked feeds, each with its proof, in the order of feeds."""
        return sorted(cut for cut in self._known.cuts().values() if cut.proof)

    def evicted(self) -> list[Feed]:
        """Return the feeds that were removed in favour of other feeds (SPEC S8), in the order of feeds."""
        return sorted(feed for feed, cut in self._known.cuts().items() if not cut.proof)

    def proof(self, feed: Feed) -> bytes | None:
        """Return the encoded proof for the cut of `feed`. Return None if the feed is not cut, and an empty
        value if it was removed in favour of another feed (SPEC S8)."""
        cut = self._known.cut(feed)
        return cut.proof if cut else None

    def cards(self) -> list[CardRecord]:
        """Return the cards, in the order of feeds."""
        with self._reading, disk_faults(self.path):
            return database.cards(self._reader)

    def ends(self) -> list[Tail]:
        """Return the ends of all feeds with stored updates, in the order of feeds. Updates after a cut are
        included. Feeds that were removed in favour of other feeds are not."""
        states, cuts = self._known.both()
        gone = {feed for feed, cut in cuts.items() if not cut.proof}
        return sorted(state.tail for state in states if state.tail.next and state.tail.feed not in gone)

    def arrivals(self) -> list[int | None]:
        """Return the times at which the decisions arrived, in seconds since 1970, in the order of the
        decisions. Earlier versions of sfnode did not record these times. The list may therefore contain None,
        or be shorter than the list of decisions."""
        with self._reading, disk_faults(self.path):
            return database.arrivals(self._reader)

    def arrival(self, position: int) -> int | None:
        """Return the time at which the decision at `position` arrived, in seconds since 1970; None if it is
        unknown."""
        with self._reading, disk_faults(self.path):
            return database.arrival(self._reader, position)

    def control(self, first: int = 0) -> list[Entry]:
        """Return the decisions of the control feed from position `first` on, in order of position."""
        with self._reading, disk_faults(self.path):
            return database.control(self._reader, first)

    def authority(self) -> list[bytes]:
        """Return the encoded Successions and ControlForks, in the order of their arrival."""
        with self._reading, disk_faults(self.path):
            return database.authority(self._reader)

    def updates(self) -> int:
        """Return the number of updates that count, including those that a checkpoint stands for."""
        return sum(tail.next for tail in self.unsorted_tails())

    def size_bytes(self) -> int:
        """Return the size of the log on disk in bytes."""
        with disk_faults(self.path):
            size = self.path.stat().st_size
            with suppress(FileNotFoundError):  # SQLite removes the file with the log's last connection
                size += self.path.with_name(self.path.name + "-wal").stat().st_size
            return size

    def get_meta(self, key: str) -> bytes | None:
        """Return the value last stored under `key`; None if there is none."""
        with self._reading, disk_faults(self.path):
            row = self._reader.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None:
        """Return the updates of `feed` from step `first` on as one segment that ends where a stored segment
        ends.

        A segment must end at a signature (SPEC S6). The returned segment has at most `max_updates` updates,
        unless the next signature comes later. In that case it ends at this signature. If the end of the feed
        has replaced another history, the segment may be too long for a message. Returns None if the log has
        no updates from `first` on, or if the feed's rows begin after `first`.
        """
        _, recent = self._known.recent(feed, first)
        if recent:
            return join(recent, first, max_updates)

        def stored(state: StoredFeed) -> Segment | None:
            if not state.base.step <= first < state.tail.next:
                return None
            with closing(segment_table.since(self._reader, state, first)) as segments:
                return join(segments, first, max_updates)

        return self._read(feed, stored)

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Return the chain head before `step` of `feed`, and a segment with the updates from `step` to the
        next signature.

        Updates after a cut are included. If `step` is the end of the feed, the segment has no updates, and
        the last signature of the feed. If `step` is beyond the end or before the base, the chain head is
        empty, and the segment has neither updates nor a signature.
        """

        def stored(state: StoredFeed) -> tuple[bytes, Segment]:
            if not state.base.step <= step <= state.tail.next:
                return b"", Segment(state.key, step, (), bytes(64))
            return segment_table.past(self._reader, state, step)

        return self._read(feed, stored)

    def label(self, feed: Feed, step: int) -> tuple[int, int]:
        """Return the epoch of the update before `step` of `feed`, and the number of updates before `step` in
        that epoch.

        Returns (0, 0) for step 0. Raises UserError LOG_CORRUPT if the log ends before `step`,
        CHECKPOINT_UNUSABLE if the feed's rows begin after `step`.
        """
        if not step:
            return 0, 0

        def stored(state: StoredFeed) -> tuple[int, int]:
            if step > state.tail.next:
                raise BrokenRowError(f"step {step - 1} of a feed is missing")
            if step < state.base.step:
                raise let_go(feed, step)
            with closing(segment_table.backwards(self._reader, state, step)) as records:
                return label_before((record.segment for record in records), step, state.base)

        return self._read(feed, stored)

    def _read(self, feed: Feed, read: Callable[[StoredFeed], T]) -> T:
        """Return the result of `read` for a feed. If rows were removed meanwhile, `read` is called again."""
        while True:
            state = self._known.state(feed)
            with self._reading, disk_faults(self.path):
                try:
                    found = read(state)
                except BrokenRowError:
                    if self._known.state(feed).base == state.base:
                        raise
                    continue
            if self._known.state(feed).base == state.base:
                return found

    def segments(self, spans: Iterable[S]) -> Iterator[tuple[S, Segment]]:
        """Yield, for each span, the stored segments that contain steps of the span, each as a pair (span,
        segment). Segments after a cut are included.

        This function is meant for long reads. Segments that are not in memory are read through a separate
        connection, so `read` never waits for this function. Raises UserError LOG_CORRUPT if steps are
        missing, CHECKPOINT_UNUSABLE if a feed's rows begin after a span's first step.
        """
        with disk_faults(self.path), ExitStack() as stack:
            db: sqlite3.Connection | None = None
            for span in spans:
                found: Iterable[Segment]
                state, found = self._known.recent(span.feed, span.first)
                if state is None:
                    raise BrokenRowError("a feed is missing")
                if span.first < state.base.step:
                    raise let_go(span.feed, span.first)
                if not found:
                    db = db or stack.enter_context(self._snapshot())
                    found = segment_table.span(db, state, span.first, span.stop)
                yield from ((span, segment) for segment in covering(span, found))

    def records(self) -> Iterator[Record]:
        """Yield every stored segment, in the order of feeds and steps, as of one commit."""
        with disk_faults(self.path), self._snapshot() as db:
            bases = {base.feed: base for _, base in database.bases(db)}
            for (origin, incarnation), group in groupby(segment_table.everything(db), key=itemgetter(0, 1)):
                feed = Feed(origin, incarnation)
                key = seeds.feed_key(self._run_id, origin, incarnation)
                following = bases[feed].step if feed in bases else 0
                for _, _, first, body in group:
                    if first != following:
                        raise BrokenRowError(f"steps {following} to {first} of a feed are missing")
                    record = decode(feed, key, first, body)
                    following = record.segment.stop
                    yield record

    def columns(self) -> Columns:
        """Return all updates that count, as numpy columns, for programs that study a run. Raises UserError
        LOG_CORRUPT."""
        from sfnode.store.columns import columns_of

        return columns_of(self._run_id, self.tails(), self.bases(), self.records())

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Open a separate connection for a long scan, so that `read` does not wait for the scan."""
        if self._writer is self._reader:
            yield self._reader
            return
        with closing(database.connect(self.path, read_only=True)) as db:
            yield db
