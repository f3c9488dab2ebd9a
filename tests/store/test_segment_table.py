"""Tests of rows: feeds that begin at a base, and feeds whose end was replaced."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from bisect import bisect_left
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.store import database, segment_table
from sfnode.store.log import LOOSE_ROWS, CutRecord, UpdateLog
from sfnode.store.segment_encoding import UNSIGNED
from sfprotocol.checkpoints import Base
from sfprotocol.errors import LocalProtocolError
from sfprotocol.messages import EpochScalars
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from tests.refusals import refused
from tests.store.helpers import RUN_ID, Author, unpacked
from tests.store.test_log import from_step, histories


def base_of(author: Author, step: int) -> Base:
    label = author.updates[step - 1][0]
    labelled = step - bisect_left(author.updates, label, hi=step, key=itemgetter(0))
    return Base(author.feed, step, author.chains[step], label, labelled)


def grown(log: UpdateLog, number: int, rows: int, dice: random.Random) -> Author:
    """Log a feed of `rows` rows of up to 9 updates, in several appends; epochs sometimes advance."""
    author, epoch, written = Author(number), 0, []
    for _ in range(rows):
        epoch += dice.random() < 0.1
        written.append(author.write([dice.randint(-300, 300) for _ in range(dice.randint(1, 9))], epoch))
        if dice.random() < 0.2:
            log.append(written)
            written = []
    log.append(written)
    return author


# -- bases ---------------------------------------------------------------------------------------------


@settings(max_examples=16, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 2 * LOOSE_ROWS), share=st.floats(0, 1))
def test_from_its_base_on_a_feed_reads_as_before(seed: int, rows: int, share: float) -> None:
    dice = random.Random(seed)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite"
        with UpdateLog.open(path, RUN_ID) as log:
            author, other = grown(log, 1, rows, dice), grown(log, 2, 3, dice)
            base = base_of(author, max(1, int(share * len(author.updates))))
            log.rebase([base])
            read_from(log, author, base)
            log.append([author.write([7] * 5, epoch=author.updates[-1][0])])
            read_from(log, author, base)
        with UpdateLog.open(path, RUN_ID) as log:
            assert log.bases() == {author.feed: base}
            read_from(log, author, base)
            first = log.read(other.feed, 0, 1)
            assert first is not None
            other.assert_genuine(first)


def read_from(log: UpdateLog, author: Author, base: Base) -> None:
    """Compare everything that can be read of a feed with what its author has written."""
    feed, end = author.feed, len(author.updates)
    assert {tail.feed: tail.next for tail in log.tails()}[feed] == log.stop(feed) == end
    stored = [record for record in log.records() if record.feed == feed]
    updates = [update for record in stored for update in unpacked(record.segment.parts)]
    assert updates == author.updates[base.step :]
    for step in range(base.step, end + 1):
        assert log.past(feed, step)[0] == author.chains[step]
        assert log.label(feed, step) == base_of(author, step)[3:]
        segment = log.read(feed, step, 50)
        assert (segment is None) == (step == end)
        if segment:
            author.assert_genuine(segment)
    for step in range(base.step):
        assert log.read(feed, step, 50) is None
        assert log.past(feed, step)[0] == b""
    steps = [segment.first for of, segment, _ in log.records() if of == feed]
    assert steps[:1] == ([base.step] if base.step < end else [])


def test_a_new_log_may_begin_at_bases(log: UpdateLog) -> None:
    author = Author()
    author.write(range(100))
    base = base_of(author, 100)
    log.rebase([base])
    assert [(tail.next, tail.chain) for tail in log.tails()] == [(100, base.chain)]
    assert log.label(author.feed, 100) == (0, 100)
    assert log.read(author.feed, 0, 10) is None
    with pytest.raises(LocalProtocolError, match="up to step 100"):
        log.append([from_step(author, 0, 100)])
    log.append([author.write([1, 2])])
    read_from(log, author, base)


def test_a_base_moves_up_and_never_into_what_is_not_here(log: UpdateLog) -> None:
    author = grown(log, 1, 20, random.Random(1))
    for step in (10, 30, 40):
        log.rebase([base_of(author, step)])
        read_from(log, author, base_of(author, step))
    log.rebase([base_of(author, 20)])
    assert (log.stop(author.feed), list(log.records())) == (20, [])


def test_a_feed_of_which_nothing_is_left_is_known_after_the_next_start(tmp_path: Path) -> None:
    """Regression: its number was given to another feed, and the log accepted nothing more."""
    path, dice = tmp_path / "log.sqlite", random.Random(1)
    with UpdateLog.open(path, RUN_ID) as log:
        gone, other = grown(log, 1, 3, dice), grown(log, 2, 3, dice)
        log.rebase([base_of(gone, 5)])
        log.rebase([])
    with UpdateLog.open(path, RUN_ID) as log:
        assert [tail.feed for tail in log.tails()] == [other.feed]
        grown(log, 3, 1, dice)
        log.append([from_step(gone, 0, 5)])
    with UpdateLog.open(path, RUN_ID) as log:
        assert log.stop(gone.feed) == 5


def test_another_history_than_that_of_the_base_goes(log: UpdateLog) -> None:
    lost, kept = histories(30, 30)
    log.append([from_step(lost, 0, 36)])
    log.rebase([base_of(kept, 20)])
    assert (log.stop(kept.feed), list(log.records())) == (20, [])
    log.append([from_step(kept, 20, 30)])
    assert log.past(kept.feed, 30)[0] == kept.chains[30]


def test_a_feed_that_ends_before_its_base_begins_there(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write(range(10))])
    author.write(range(10))
    log.rebase([base_of(author, 15)])
    assert (log.stop(author.feed), list(log.records())) == (15, [])


def test_without_its_base_a_feed_begins_anew(log: UpdateLog) -> None:
    author = grown(log, 1, 10, random.Random(2))
    log.rebase([base_of(author, 10)])
    log.rebase([])
    assert (log.stop(author.feed), log.bases(), log.updates()) == (0, {}, 0)


def test_no_segment_takes_the_place_of_what_a_checkpoint_stands_for(log: UpdateLog) -> None:
    author = grown(log, 1, 20, random.Random(3))
    log.rebase([base_of(author, 20)])
    with pytest.raises(LocalProtocolError, match="not 19"):
        log.append([from_step(author, 19, 22)], replacing=True)
    log.append([from_step(author, 20, 22)], replacing=True)
    assert log.past(author.feed, 22)[0] == author.chains[22]


def test_who_needs_what_was_let_go_is_told_what_to_do(log: UpdateLog) -> None:
    author = grown(log, 1, 20, random.Random(4))
    log.rebase([base_of(author, 20)])
    with refused(Code.CHECKPOINT_UNUSABLE, "has let go"):
        log.label(author.feed, 5)


def test_the_disk_gets_back_what_was_let_go(log: UpdateLog) -> None:
    author = Author()
    for _ in range(300):
        log.append([author.write([30_000] * 512)])
    before = log.size_bytes()
    log.rebase([base_of(author, 300 * 512 - 100)])
    assert log.size_bytes() < before / 5
    assert log.stop(author.feed) == 300 * 512


# -- replaced ends -------------------------------------------------------------------------------------


def test_steps_that_have_lost_their_signature_are_read_up_to_the_next_one(log: UpdateLog) -> None:
    """They are too many to join the next row."""
    lost, kept = Author(), Author()
    for author in (lost, kept):
        author.write_parts([EpochScalars(0, (1,) * 3000)])
    lost.write([2] * 1000)
    kept.write([3] * 3000)
    log.append([from_step(lost, 0, 4000)])
    log.append([from_step(kept, 3000, 6000)], replacing=True)
    stored = list(log.records())
    assert [record.segment.count for record in stored] == [3000, 3000]
    assert [record.segment.signature == UNSIGNED for record in stored] == [True, False]
    for first in (0, 6000 - MAX_SEGMENT_UPDATES, 2999, 3000, 5999):
        segment = log.read(kept.feed, first, MAX_SEGMENT_UPDATES)
        assert segment is not None
        assert (segment.first, segment.stop) == (first, 6000)
        kept.assert_genuine(segment)
    log.append([kept.write([4] * 10)])
    assert [record.chain for record in log.records()] == [kept.chains[step] for step in (3000, 6000, 6010)]


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 12)), max_size=40),
    base=st.integers(0, 6),
)
def test_whatever_is_replaced_no_row_is_longer_than_a_message(
    moves: list[tuple[int, int, int]], base: int
) -> None:
    authors, feed, most = histories(30, 30), Author(1).feed, 12
    with (
        TemporaryDirectory() as folder,
        UpdateLog.open(Path(folder) / "log.sqlite", RUN_ID) as log,
        patch.object(segment_table, "most_updates", lambda _: most),
    ):
        branch, stop = 0, base
        if base:
            log.rebase([base_of(authors[0], base)])
        for other, first, count in moves:
            first = max(base, min(first, stop, 6) if other != branch else min(first, stop))
            log.append([from_step(authors[other], first, min(first + count, 36))], replacing=True)
            branch, stop = other, min(first + count, 36)
        author = authors[branch]
        stored = list(log.records())
        assert [u for record in stored for u in unpacked(record.segment.parts)] == author.updates[base:stop]
        assert all(record.segment.count <= most for record in stored)
        assert all(record.chain == author.chains[record.segment.stop] for record in stored)
        for step in range(base, stop + 1):
            chain, rest = log.past(feed, step)
            assert chain == author.chains[step]
            assert rest.count <= most
            log._known.begin_at(log._known.states())  # no segments in memory: rows are read
            if segment := log.read(feed, step, most):
                author.assert_genuine(segment)


# -- cuts, and what was named --------------------------------------------------------------------------


def test_a_cut_below_a_base_takes_nothing_of_what_the_checkpoint_stands_for(log: UpdateLog) -> None:
    author = grown(log, 1, 20, random.Random(5))
    log.append([], [CutRecord(author.feed, 5, author.chains[5], b"proof")])
    log.rebase([base_of(author, 20)])
    assert log.ends()[0].next == len(author.updates)


def test_reads_while_rows_are_let_go_are_right_or_find_nothing(log: UpdateLog) -> None:
    author = grown(log, 1, 200, random.Random(6))
    steps = range(5, len(author.updates), 5)
    done = threading.Event()

    def let_go() -> None:
        for step in steps:
            log.rebase([base_of(author, step)])
        done.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    dice = random.Random(7)
    while not done.is_set():
        step = dice.randrange(len(author.updates))
        if segment := log.read(author.feed, step, 50):
            author.assert_genuine(segment)
        assert log.past(author.feed, step)[0] in (b"", author.chains[step])
        with contextlib.suppress(UserError):  # it was let go
            assert log.label(author.feed, step) == (base_of(author, step)[3:] if step else (0, 0))
    thread.join()
    read_from(log, author, base_of(author, steps[-1]))


def test_a_log_without_room_for_bases_begins_as_before(log: UpdateLog) -> None:
    author = grown(log, 1, 20, random.Random(8))
    with (
        patch.object(database, "keep_bases", side_effect=OSError(errno.ENOSPC, "full")),
        pytest.raises(UserError),
    ):
        log.rebase([base_of(author, 20)])
    assert log.bases() == {}
    first = log.read(author.feed, 0, 10)
    assert first is not None
    author.assert_genuine(first)
