"""Tests of the update log: the guarantees that the rest of the node relies on."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.store import database
from sfnode.store.log import LOOSE_ROWS, CardRecord, CutRecord, Record, UpdateLog
from sfnode.store.segment_encoding import PACKED_UPDATES, SMALL_UPDATES
from sfprotocol.decisions import Admit, Close, Decision, Move, encode
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import KeepControl
from sfprotocol.messages import Entry, EpochScalars
from sfprotocol.segments import MAX_SEGMENT_UPDATES, merge
from sfprotocol.signing import extend, genesis
from tests.refusals import fails_with, refused
from tests.store.helpers import RUN_ID, Author, unpacked


def stops(log: UpdateLog, author: Author) -> list[int]:
    """Return the steps at which the stored segments of a feed end."""
    return [record.segment.stop for record in log.records() if record.feed == author.feed]


# -- writing and reading back ------------------------------------------------------------------------


def test_a_new_log_is_empty(log: UpdateLog) -> None:
    assert log.tails() == []
    assert list(log.records()) == []
    assert log.updates() == 0
    assert log.read(Author().feed, 0, 100) is None


def test_a_log_that_is_being_made_is_none_yet_rather_than_a_damaged_one(path: Path) -> None:
    database.connect(path, read_only=False).close()  # a node begins: the file is there, its tables are not
    with refused(Code.DATA_DIR_UNUSABLE, "there is no update log yet"):
        UpdateLog.open(path, read_only=True)


def test_appended_segments_are_there_after_reopening(path: Path) -> None:
    authors = [Author(1), Author(2), Author(2, incarnation=7)]
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([author.write([3, -4, 32_767, -32_768], epoch=5) for author in authors])
        log.append([authors[0].write([9], epoch=6)])
        tails = log.tails()
    with UpdateLog.open(path, RUN_ID) as log:
        assert log.tails() == tails
        assert log.updates() == 13
        for author in authors:
            segment = log.read(author.feed, 0, 100)
            assert segment is not None
            author.assert_genuine(segment)
            assert segment.count == len(author.updates)


def test_tails_are_the_ends_of_all_feeds_in_their_order(log: UpdateLog) -> None:
    authors = [Author(number) for number in range(1, 6)]
    log.append([author.write([1, 2], epoch=4) for author in authors])
    tails = log.tails()
    assert [tail.feed for tail in tails] == sorted(author.feed for author in authors)
    by_feed = {author.feed: author for author in authors}
    assert all(tail.chain == by_feed[tail.feed].chains[-1] for tail in tails)
    assert {(tail.next, tail.epoch) for tail in tails} == {(2, 4)}


def test_hops_are_not_stored(log: UpdateLog) -> None:
    author = Author()
    record = author.write([1])
    log.append([record._replace(segment=replace(record.segment, hops=9))])
    read = log.read(author.feed, 0, 10)
    assert read == record.segment
    assert list(log.records()) == [record]


# -- any split, any start ----------------------------------------------------------------------------


def random_feed(author: Author, sizes: list[int], dice: random.Random) -> list[Record]:
    """Return segments of these sizes with random scalars, some of 2 bytes, in epochs that sometimes
    advance."""
    records, epoch = [], 0
    for size in sizes:
        parts = []
        while size:
            count = dice.randint(1, size)
            limit = dice.choice([100, 32_767])
            parts.append(EpochScalars(epoch, tuple(dice.randint(-limit, limit) for _ in range(count))))
            size -= count
            epoch += size > 0 or dice.random() < 0.05
        records.append(author.write_parts(parts))
    return records


def assert_reads_right(log: UpdateLog, author: Author, first: int, most: int) -> None:
    segment = log.read(author.feed, first, most)
    if first >= len(author.updates):
        assert segment is None
        return
    assert segment is not None
    assert segment.first == first
    author.assert_genuine(segment)
    epochs = [part.epoch for part in segment.parts]
    assert epochs == sorted(set(epochs))
    ends = [stop for stop in stops(log, author) if stop > first]
    within = [stop for stop in ends if stop <= first + most]
    assert segment.stop in author.boundaries
    assert segment.count <= most or segment.stop <= ends[0]
    assert segment.stop >= max(within, default=first + 1)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3 * LOOSE_ROWS),
    batch=st.integers(1, 100),
    reads=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 1_000)), min_size=1, max_size=8),
    dice=st.randoms(use_true_random=False),
)
def test_a_read_from_any_step_returns_the_signed_updates_however_they_are_split(
    sizes: list[int], batch: int, reads: list[tuple[int, int]], dice: random.Random
) -> None:
    authors = [Author(1), Author(2)]
    records = [record for author in authors for record in random_feed(author, sizes, dice)]
    records.sort(key=lambda record: record.segment.first)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "updates.sqlite"
        with UpdateLog.open(path, RUN_ID) as fresh:
            for start in range(0, len(records), batch):
                fresh.append(records[start : start + batch])
            for first, most in reads:
                assert_reads_right(fresh, authors[0], first % (len(authors[0].updates) + 2), most)
        with UpdateLog.open(path, RUN_ID) as reopened:
            for first, most in reads:
                assert_reads_right(reopened, authors[1], first % (len(authors[1].updates) + 2), most)
            assert {feed: len(author.updates) for author in authors for feed in [author.feed]} == {
                tail.feed: tail.next for tail in reopened.tails()
            }


def test_a_large_row_may_follow_small_ones_in_one_append(log: UpdateLog) -> None:
    author = Author()
    small = [author.write([step]) for step in range(LOOSE_ROWS)]
    log.append([*small, author.write([7] * SMALL_UPDATES)])
    log.append([author.write([7])])
    assert log.updates() == LOOSE_ROWS + SMALL_UPDATES + 1
    assert sum(record.segment.count for record in log.records()) == log.updates()


def test_records_hold_all_that_a_verifier_needs(log: UpdateLog) -> None:
    authors = {author.feed: author for author in (Author(1), Author(2))}
    for author in authors.values():
        log.append([author.write([step]) for step in range(LOOSE_ROWS + 5)])
    following = dict.fromkeys(authors, 0)
    for feed, segment, chain in log.records():
        assert segment.first == following[feed]
        following[feed] = segment.stop
        authors[feed].assert_genuine(segment)
        assert chain == authors[feed].chains[segment.stop]
    assert set(following.values()) == {LOOSE_ROWS + 5}


# -- rules -------------------------------------------------------------------------------------------


def broken(kind: str) -> list[Record]:
    """Return two records of which the second breaks a rule."""
    author = Author()
    first = author.write([1], epoch=3)
    if kind == "gap":
        author.write([2], epoch=3)
    if kind == "again":
        return [first, first]
    second = author.write([70_000 if kind == "scalar" else 3], epoch=2 if kind == "epoch" else 3)
    if kind == "other feed":
        second = second._replace(feed=Author(9).feed, segment=Author(1).write([1]).segment)
    if kind == "chain":
        second = second._replace(chain=b"short")
    return [first, second]


@pytest.mark.parametrize("kind", ["gap", "again", "epoch", "other feed", "chain"])
def test_a_record_that_breaks_a_rule_is_refused_with_its_whole_batch(log: UpdateLog, kind: str) -> None:
    bystander = Author(2)
    with pytest.raises(LocalProtocolError):
        log.append([bystander.write([1]), *broken(kind)])
    assert log.tails() == []
    assert list(log.records()) == []
    author = Author()
    log.append([author.write([1])])
    assert log.updates() == 1


def test_a_feed_must_start_at_its_first_step(log: UpdateLog) -> None:
    author = Author()
    author.write([1])
    with pytest.raises(LocalProtocolError, match="up to step 0, not 1"):
        log.append([author.write([2])])


def test_another_runs_log_is_refused(path: Path) -> None:
    UpdateLog.open(path, RUN_ID).close()
    with fails_with(Code.WRONG_RUN) as caught:
        UpdateLog.open(path, bytes(32))
    assert RUN_ID.hex() in caught.value.what


def test_the_log_of_a_newer_sfnode_is_refused(path: Path) -> None:
    UpdateLog.open(path, RUN_ID).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    with refused(Code.DATA_DIR_UNUSABLE, "newer sfnode"):
        UpdateLog.open(path, RUN_ID)


# -- the small table ---------------------------------------------------------------------------------


def test_meta_values_are_kept_and_replaced(path: Path) -> None:
    with UpdateLog.open(path, RUN_ID) as log:
        assert log.get_meta("incarnation") is None
        log.set_meta("incarnation", b"1")
        log.set_meta("incarnation", b"2")
        assert log.get_meta("incarnation") == b"2"
    with UpdateLog.open(path, RUN_ID) as log:
        assert log.get_meta("incarnation") == b"2"


# -- a reader beside a running node ------------------------------------------------------------------


def test_a_read_only_log_is_a_snapshot_beside_its_writer(log: UpdateLog, path: Path) -> None:
    author = Author()
    log.append([author.write([1, 2, 3])])
    with UpdateLog.open(path, RUN_ID, read_only=True) as snapshot:
        log.append([author.write([step]) for step in range(LOOSE_ROWS)])
        assert snapshot.updates() == 3
        assert sum(record.segment.count for record in snapshot.records()) == 3
        assert snapshot.read(author.feed, 3, 10) is None
    assert log.updates() == 3 + LOOSE_ROWS


def test_a_read_only_log_refuses_to_be_written(log: UpdateLog, path: Path) -> None:
    with UpdateLog.open(path, RUN_ID, read_only=True) as snapshot:
        with pytest.raises(LocalProtocolError, match="reading only"):
            snapshot.append([Author().write([1])])
        with pytest.raises(LocalProtocolError, match="reading only"):
            snapshot.set_meta("key", b"value")


def test_a_read_only_log_must_exist(path: Path) -> None:
    with fails_with(Code.DATA_DIR_UNUSABLE):
        UpdateLog.open(path, RUN_ID, read_only=True)
    assert not path.exists()


# -- threads -----------------------------------------------------------------------------------------


def test_reads_go_on_during_a_slow_commit_and_do_not_see_it(log: UpdateLog) -> None:
    author, committing, go_on, released = Author(), threading.Event(), threading.Event(), []
    log.append([author.write(range(100)) for _ in range(40)])
    log.set_meta("key", b"value")

    def hold_back(statement: str) -> None:
        if statement == "COMMIT":
            committing.set()
            released.append(go_on.wait(30))

    log._writer.set_trace_callback(hold_back)
    disk = threading.Thread(target=log.append, args=([author.write([1, 2, 3])],))
    disk.start()
    assert committing.wait(30)
    cached, stored = log.read(author.feed, 3_950, 100), log.read(author.feed, 50, 100)
    beyond, kept, tails = log.read(author.feed, 4_000, 100), log.get_meta("key"), log.tails()
    scanned = sum(record.segment.count for record in log.records())
    go_on.set()
    disk.join()
    assert released == [True], "a read waited for the commit"
    assert cached is not None
    assert stored is not None
    author.assert_genuine(cached)
    author.assert_genuine(stored)
    assert (beyond, kept, tails[0].next, scanned) == (None, b"value", 4_000, 4_000)
    assert log.updates() == 4_003


def test_reads_during_appends_and_packing_are_always_right(log: UpdateLog) -> None:
    author = Author()
    records = [author.write([step, -step]) for step in range(6 * LOOSE_ROWS)]

    def append_all() -> None:
        for start in range(0, len(records), 3):
            log.append(records[start : start + 3])

    disk = threading.Thread(target=append_all)
    disk.start()
    dice, reads = random.Random(1), 0
    while disk.is_alive() or reads == 0:
        known = log.updates()
        segment = log.read(author.feed, dice.randint(0, known), dice.choice([5, 5_000]))
        if segment is not None:
            author.assert_genuine(segment)
            reads += 1
    disk.join()
    assert log.updates() == len(author.updates)


def test_a_scan_may_stay_open_while_the_log_grows(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write([1]), author.write([2])])
    scan = log.records()
    next(scan)
    log.append([author.write([step]) for step in range(2 * LOOSE_ROWS)])
    assert [record.segment.first for record in scan] == [1]


# -- cost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "segments", "most"), [(32, 400, 5), (1, 3_200, 10)], ids=["of 32 updates", "of one, packed"]
)
def test_segments_cost_few_bytes_an_update(path: Path, size: int, segments: int, most: int) -> None:
    authors = [Author(number) for number in range(1, 5)]
    dice = random.Random(3)
    with UpdateLog.open(path, RUN_ID) as log:
        for _ in range(segments // 8):
            whole = [a for a in authors for _ in range(8)]
            log.append([a.write(dice.randint(-9_999, 9_999) for _ in range(size)) for a in whole])
        updates = log.updates()
    assert path.stat().st_size / updates < most


def test_packed_rows_stay_far_below_the_largest_segment(log: UpdateLog) -> None:
    author = Author()
    for _ in range(40):
        log.append([author.write([1, 2, 3]) for _ in range(LOOSE_ROWS)])
    counts = [record.segment.count for record in log.records()]
    assert max(counts) <= PACKED_UPDATES < MAX_SEGMENT_UPDATES
    assert len(counts) < 2 * len(author.updates) / PACKED_UPDATES + LOOSE_ROWS


# -- feeds that are cut --------------------------------------------------------------------------------


@pytest.fixture
def forked(path: Path) -> Iterator[tuple[UpdateLog, Author]]:
    """Yield a log of twenty updates in segments of five, of which the first twelve count."""
    author = Author(1)
    with UpdateLog.open(path, RUN_ID) as log:
        for _ in range(4):
            log.append([author.write(range(5))])
        head, _ = log.past(author.feed, 12)
        log.append([], [CutRecord(author.feed, 12, head, b"the proof")])
        yield log, author


def test_nothing_counts_behind_a_cut(forked: tuple[UpdateLog, Author], path: Path) -> None:
    log, author = forked
    with UpdateLog.open(path, RUN_ID, read_only=True) as reopened:
        for seen in (log, reopened):
            (tail,) = seen.tails()
            assert (tail.next, tail.chain) == (12, seen.past(author.feed, 12)[0])
            assert seen.updates() == 12
            assert seen.proof(author.feed) == b"the proof"
            assert [cut.at for cut in seen.cuts()] == [12]


def test_updates_behind_a_cut_are_kept_as_the_signature_covers_the_whole_segment(
    forked: tuple[UpdateLog, Author],
) -> None:
    log, author = forked
    segment = log.read(author.feed, 10, 5)
    assert segment
    assert (segment.first, segment.stop) == (10, 15)
    _, rest = log.past(author.feed, 13)
    assert (rest.first, rest.stop, rest.signature) == (13, 15, segment.signature)


def test_a_lower_cut_replaces_a_higher_one(forked: tuple[UpdateLog, Author], path: Path) -> None:
    log, author = forked
    log.append([], [CutRecord(author.feed, 3, log.past(author.feed, 3)[0], b"another")])
    with UpdateLog.open(path, RUN_ID, read_only=True) as reopened:
        assert [(tail.next, reopened.proof(author.feed)) for tail in reopened.tails()] == [(3, b"another")]


def test_a_feed_may_be_cut_before_any_of_its_updates_is_known(path: Path) -> None:
    unknown, author = Author(1), Author(2)
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([], [CutRecord(unknown.feed, 7, bytes(32), b"proof")])
        log.append([author.write(range(2))])
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([unknown.write(range(3))])
        assert {tail.feed: tail.next for tail in log.tails()} == {unknown.feed: 3, author.feed: 2}


def test_the_past_of_a_feed_at_every_step(path: Path) -> None:
    author = Author(1)
    records = [author.write(range(3)), author.write(range(4))]
    with UpdateLog.open(path, RUN_ID) as log:
        log.append(records)
        for step in range(7):
            chain, ours = log.past(author.feed, step)
            end = records[0] if step < 3 else records[1]
            assert (ours.first, ours.signature) == (step, end.segment.signature)
            assert extend(chain, ours.parts) == end.chain
        chain, nothing = log.past(author.feed, 7)
        assert (chain, nothing.parts, nothing.signature) == (
            records[1].chain,
            (),
            records[1].segment.signature,
        )
        assert log.past(author.feed, 8)[0] == b""
        assert log.past(Author(9).feed, 0)[0] == genesis(RUN_ID, Author(9).feed)


def test_a_log_of_the_version_before_cuts_is_read_and_upgraded(path: Path) -> None:
    author = Author(1)
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([author.write(range(3))])
    with closing(sqlite3.connect(path)) as db:
        for table in ("cut", "card", "control", "authority", "base"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 1")
    with UpdateLog.open(path, RUN_ID, read_only=True) as log:
        assert (log.updates(), log.cuts(), log.cards()) == (3, [], [])
        assert (log.control(), log.authority(), log.bases()) == ([], [], {})
        assert [int(row) for row in log.columns().updates.scalar] == [0, 1, 2]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,), "reading changes nothing"
    with UpdateLog.open(path, RUN_ID) as log:
        card = CardRecord(author.feed, b"card")
        log.append([], [CutRecord(author.feed, 1, log.past(author.feed, 1)[0], b"proof")], [card])
        assert (log.updates(), log.cards()) == (1, [card])


def test_decisions_have_the_time_at_which_they_came_but_for_those_of_an_earlier_version(path: Path) -> None:
    first, second = (Entry(0, bytes([n]), bytes(64)) for n in range(2))
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([], control=[KeepControl(0, (first,))])
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE control DROP COLUMN arrived; PRAGMA user_version = 5")
    with UpdateLog.open(path, RUN_ID, read_only=True) as log:
        assert (log.control(), log.arrivals(), log.arrival(0)) == ([first], [], None)
    began = int(time.time())
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([], control=[KeepControl(1, (second,))])
        assert (log.control(), log.control(1), log.control(2)) == ([first, second], [second], [])
        unknown, arrived = log.arrivals()
        assert (log.arrival(0), log.arrival(1), log.arrival(2)) == (unknown, arrived, None)
    assert unknown is None
    assert arrived is not None
    assert began <= arrived <= time.time()


def test_the_newest_card_of_each_feed_is_kept(path: Path) -> None:
    ann, bob = sorted([Author(1), Author(2)], key=lambda author: author.feed)
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([bob.write(range(3))], cards=[CardRecord(bob.feed, b"bob")])
        log.append([ann.write(range(3))])
        log.append([], cards=[CardRecord(ann.feed, b"ann")])
        log.append([], cards=[CardRecord(bob.feed, b"robert")])
    with UpdateLog.open(path, RUN_ID, read_only=True) as log:
        assert log.cards() == [CardRecord(ann.feed, b"ann"), CardRecord(bob.feed, b"robert")]


# -- organised runs ------------------------------------------------------------------------------------


def histories(*sizes: int) -> list[Author]:
    """Return authors with one key, whose feeds differ after the first 6 updates."""
    authors = [Author(1) for _ in sizes]
    for number, (author, size) in enumerate(zip(authors, sizes, strict=True)):
        author.write([5] * 6)
        author.write([number] * size, epoch=1)
    return authors


def from_step(author: Author, first: int, stop: int) -> Record:
    """Return the author's updates `first .. stop - 1`, signed at their end."""
    again = Author(1)
    again.write_parts(_parts(author.updates[:first])) if first else None
    return again.write_parts(_parts(author.updates[first:stop]))


def _parts(updates: list[tuple[int, int]]) -> list[EpochScalars]:
    return list(merge(EpochScalars(epoch, (scalar,)) for epoch, scalar in updates))


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=40),
    together=st.integers(1, 5),
)
def test_a_record_takes_the_place_of_another_history_from_its_first_step_on(
    moves: list[tuple[int, int, int]], together: int
) -> None:
    """The protocol's tests do the same with a log in memory. A feed goes back only to steps that both
    histories share."""
    authors, feed = histories(30, 30, 30), Author(1).feed
    records, branch, stop = [], 0, 0
    for other, first, count in moves:
        first = min(first, stop, 6) if other != branch else min(first, stop)
        records.append(from_step(authors[other], first, min(first + count, 36)))
        branch, stop = other, records[-1].segment.stop
    with TemporaryDirectory() as folder, UpdateLog.open(Path(folder) / "log.sqlite", RUN_ID) as log:
        for start in range(0, len(records), together):
            log.append(records[start : start + together], replacing=True)
        assert log.stop(feed) == stop
        expected = authors[branch].updates[:stop]
        stored = [update for record in log.records() for update in unpacked(record.segment.parts)]
        assert stored == expected
        for step in range(stop + 1):
            assert log.past(feed, step)[0] == authors[branch].chains[step]
            labels = [epoch for epoch, _ in expected[:step]]
            assert log.label(feed, step) == ((labels[-1], labels.count(labels[-1])) if labels else (0, 0))
            if segment := log.read(feed, step, 100):
                authors[branch].assert_genuine(segment)
                assert segment.stop == stop


def test_in_an_open_run_no_history_takes_the_place_of_another(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write([1, 2, 3])])
    for first in (0, 2):
        with pytest.raises(LocalProtocolError, match="up to step 3"):
            log.append([from_step(author, first, 3)])
    assert log.stop(author.feed) == 3


def test_an_organised_feed_has_no_gaps_and_no_epochs_that_go_back(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write([1, 2]), author.write([3, 4], epoch=2)])
    records = list(log.records())
    late = Author()
    late.write([1, 2])
    late.write([3], epoch=2)
    with pytest.raises(LocalProtocolError, match="decrease"):
        log.append([late.write([4], epoch=1)], replacing=True)
    author.write([5])
    with pytest.raises(LocalProtocolError, match="up to step 4"):
        log.append([author.write([6])], replacing=True)
    assert list(log.records()) == records


def test_labels_are_counted_over_packed_and_loose_rows(path: Path) -> None:
    author = Author()
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([author.write([1] * 9)])
        for _ in range(3 * LOOSE_ROWS):
            log.append([author.write([1, 2], epoch=1)])
        assert log.label(author.feed, 9 + 6 * LOOSE_ROWS) == (1, 6 * LOOSE_ROWS)
        assert log.label(author.feed, 9) == (0, 9)
        with pytest.raises(UserError, match="missing"):
            log.label(author.feed, 10**6)


def test_a_cut_takes_nothing_of_what_was_named(path: Path) -> None:
    """The test looks at tails, chain heads, the number of updates, and columns."""

    def said(*decisions: Decision) -> tuple[Entry, ...]:
        return tuple(Entry(0, encode(decision), bytes(64)) for decision in decisions)

    author, other = Author(1), Author(2)
    admitted = said(Admit(author.feed.origin, 100, 0), Admit(other.feed.origin, 100, 0))
    first, second = (said(Close(epoch, bytes(8), (Move(0, 3, bytes(8)),))) for epoch in (0, 1))
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([author.write(range(10)), other.write(range(10))])
        log.append([], [CutRecord(a.feed, 2, a.chains[2], b"proof") for a in (author, other)])
        stops = []
        for kept in (
            KeepControl(0, admitted),
            KeepControl(2, first),
            KeepControl(3, second),
            KeepControl(3, ()),
        ):
            log.append([], control=[kept])
            tails = {tail.feed: (tail.next, tail.chain) for tail in log.tails()}
            assert tails[other.feed] == (2, other.chains[2])
            stop, chain = tails[author.feed]
            assert chain == author.chains[stop]
            assert log.updates() == len(log.columns()) == stop + 2
            stops.append(stop)
    assert stops == [2, 3, 6, 3]


def test_decisions_are_kept_by_position_and_who_has_a_say_in_order(path: Path) -> None:
    first, second, third = (Entry(0, bytes([n]) * n, bytes(64)) for n in (1, 2, 3))
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([], control=[KeepControl(0, (first, second))], authority=[b"two", b"one"])
        log.append([], control=[KeepControl(1, ()), KeepControl(1, (third, second))], authority=[b"two"])
        assert log.control() == [first, third, second]
    with UpdateLog.open(path, RUN_ID, read_only=True) as log:
        assert log.control() == [first, third, second]
        assert log.authority() == [b"two", b"one"]
