"""Tests of replay: from positions in the log to batches of updates, forwards and backwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfnode.engine.core import Core, UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.store import replay
from sfnode.store.log import CutRecord, UpdateLog
from sfnode.store.replay import UpdatePiece, WeightedScalars, batch_of, changes, frontier_of
from sfprotocol.decisions import FACTOR_ONE, RateFrom, Recorded
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.run_state import RunState, Span
from sfprotocol.seeds import update_seeds
from sfprotocol.segments import merge
from sfprotocol.weighing import NOTHING, Counted, Rates, once
from tests.node.helpers import batch, feed_of, manifest, record
from tests.protocol.organised import admit, close, seal
from tests.refusals import fails_with
from tests.store.helpers import Author, scalar_of

RUN = manifest()
A, B = feed_of("a"), feed_of("b")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as opened:
        yield opened


def rows(batches: Iterator[UpdateBatch]) -> list[tuple[int, int, int]]:
    """Return (epoch, seed, scalar) of every update, in ascending order."""
    return sorted(
        row for found in batches for row in zip(*(column.tolist() for column in found), strict=True)
    )


def stops(log: UpdateLog) -> dict[Feed, int]:
    """Return the number of steps that count, for every feed with any."""
    return {state.feed: state.next for state in frontier_of(RUN.parameters(), log) if state.next}


def moves(log: UpdateLog, applied: Mapping[Feed, int], wanted: Mapping[Feed, int]) -> Iterator[UpdateBatch]:
    """Return the `changes` from the first steps of each feed to other first steps; each counts once."""
    before, now = ({feed: once(steps) for feed, steps in side.items()} for side in (applied, wanted))
    return changes(log, before, now)


def said(name: str, first: int, scalars: list[int]) -> list[tuple[int, int, int]]:
    key = record(RUN, name, [0]).segment.feed_key
    columns = batch(key, first, [EpochScalars(0, tuple(scalars))])
    return rows(iter([columns]))


def test_columns_of_many_feeds_at_once_are_those_of_one_after_the_other() -> None:
    pieces = [
        UpdatePiece(2**64 - 5, 0, (WeightedScalars(0, 1, (1, -2)), WeightedScalars(3, 2**40, (7,)))),
        UpdatePiece(12345, 2**31, (WeightedScalars(9, -1, (4,)),)),
        UpdatePiece(12345, 5, (WeightedScalars(1, 1, (-32768, 32767)),)),
    ]
    found = batch_of(pieces)
    assert found.epochs.tolist() == [0, 0, 3, 9, 1, 1]
    assert found.scalars.tolist() == [1, -2, 7 << 40, -4, -32768, 32767]
    expected = [update_seeds(2**64 - 5, 0, 3), update_seeds(12345, 2**31, 1), update_seeds(12345, 5, 2)]
    assert found.seeds.tolist() == np.concatenate(expected).tolist()
    assert (found.epochs.dtype, found.seeds.dtype, found.scalars.dtype) == (np.int64, np.uint64, np.int64)


def test_a_replay_stops_where_the_log_ended_when_it_was_asked_for(log: UpdateLog) -> None:
    """Later updates come with later positions, and must not be counted twice."""
    log.append([record(RUN, "a", [1, 2, 3]), record(RUN, "b", [4])])
    asked = stops(log)
    late = [record(RUN, "a", [5, 6], before=[1, 2, 3]), record(RUN, "c", [7])]
    log.append(late)
    assert len(rows(moves(log, {}, asked))) == 4
    core, whole = Core(2, 4), Core(2, 4)
    for applied, wanted in (({}, asked), (asked, stops(log))):
        for found in moves(log, applied, wanted):
            core.add(found)
    for found in moves(log, {}, stops(log)):
        whole.add(found)
    assert core.digest() == whole.digest()


def test_what_is_behind_a_cut_can_still_be_subtracted_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "updates.sqlite"
    with UpdateLog.open(path, RUN.run_id) as log:
        log.append([record(RUN, "a", [1, 2, 3])], [CutRecord(A, 1, bytes(32), b"proof")])
        assert stops(log) == {A: 1}
        assert rows(moves(log, {A: 3}, stops(log))) == said("a", 1, [-2, -3])
    with UpdateLog.open(path, RUN.run_id) as log:
        assert rows(moves(log, {A: 3}, stops(log))) == said("a", 1, [-2, -3])


def test_batches_are_of_bounded_size(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BATCH_UPDATES", 10)
    before: list[int] = []
    for size in (3, 7, 4, 9, 1):
        log.append([record(RUN, "a", [size] * size, before=before), record(RUN, f"other {size}", [1] * 6)])
        before += [size] * size
    sizes = [len(found.seeds) for found in moves(log, {}, stops(log))]
    assert sum(sizes) == 24 + 30
    assert max(sizes) < 10 + 9
    assert min(sizes[:-1]) >= 10


def test_a_log_that_lacks_steps_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "updates.sqlite"
    with UpdateLog.open(path, RUN.run_id) as log:
        for first in range(4):
            log.append([record(RUN, "a", [first], before=[0] * first)])
        for wanted in ({A: 5}, {B: 1}):
            with fails_with(Code.LOG_CORRUPT):
                list(moves(log, {}, wanted))
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM segment WHERE first = 1")
    with UpdateLog.open(path, RUN.run_id) as log, pytest.raises(UserError, match="step 1 of"):
        list(moves(log, {}, {A: 4}))


def test_long_reads_hold_no_other_read_up(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long reads use neither the lock nor the connection of other reads."""
    log.append([record(RUN, "a", [1, 2, 3])])
    with log._reading:
        assert len(rows(moves(log, {}, {A: 3}))) == 3
    log._known.begin_at(log._known.states())  # no segments in memory, as after a restart
    with log._reading:
        assert len(rows(moves(log, {}, {A: 3}))) == 3


# -- organised runs ------------------------------------------------------------------------------------

STEPS, LABEL_STEPS = 60, 9
SUBSPACE_OF = replace(RUN.parameters(), subspace_epochs=2).subspace_of
EARLY = Rates(6, (RateFrom(0, 1 << 31), RateFrom(1, 12_345), RateFrom(3, 0)))
LATE = Rates(7, (*EARLY.table, RateFrom(7, (1 << 32) - 1)))
OTHER = Rates(7, (RateFrom(0, 1 << 31), RateFrom(4, 99)))
"""Steps that count less than before, because decisions were dropped."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UpdateLog, list[Author]]]:
    """Return two feeds in which every label has LABEL_STEPS updates; rows end anywhere."""
    authors = [Author(number, run_id=RUN.run_id) for number in (1, 2)]
    with UpdateLog.open(tmp_path_factory.mktemp("log") / "updates.sqlite", RUN.run_id) as log:
        for number, author in enumerate(authors):
            for first in range(0, STEPS, 7 + number):
                steps = range(first, min(first + 7 + number, STEPS))
                parts = merge(EpochScalars(s // LABEL_STEPS, (scalar_of(s),)) for s in steps)
                log.append([author.write_parts(parts)])
        yield log, authors


def by_hand(authors: list[Author], wanted: Mapping[Feed, Counted]) -> Core:
    """Return a core to which every update was added singly, with its weight."""
    core = Core(2, 4)
    for author in authors:
        counted, first = wanted.get(author.feed, NOTHING), 0
        for stop, factor in counted.spans:
            for step in range(first, stop):
                label, scalar = author.updates[step]
                weight = counted.weight(label, factor)
                one = batch(author.key, step, [EpochScalars(SUBSPACE_OF(label), (scalar,))])
                core.add(one._replace(scalars=one.scalars * weight))
            first = stop
    return core


@st.composite
def states(draw: st.DrawFn) -> Counted:
    stops = sorted(draw(st.sets(st.integers(1, STEPS), max_size=5)))
    factors = draw(st.lists(st.sampled_from([0, 1, 4095, FACTOR_ONE, 65_535]), min_size=5, max_size=5))
    runs = tuple(Span(stop, factor) for stop, factor in zip(stops, factors, strict=False))
    return Counted(runs, draw(st.sampled_from([EARLY, LATE, OTHER])))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(st.tuples(st.integers(0, 1), states()), max_size=8))
def test_whatever_counted_in_between_the_cores_are_those_of_what_counts_now(
    labelled: tuple[UpdateLog, list[Author]], story: list[tuple[int, Counted]]
) -> None:
    log, authors = labelled
    core, applied = Core(2, 4), dict[Feed, Counted]()
    for number, counted in story:
        wanted = {authors[number].feed: counted}
        for found in changes(log, applied, wanted, SUBSPACE_OF):
            core.add(found)
        applied.update(wanted)
    fresh = Core(2, 4)
    for found in changes(log, {}, applied, SUBSPACE_OF):
        fresh.add(found)
    assert core.digest() == fresh.digest() == by_hand(authors, applied).digest()


def test_what_counts_as_before_is_not_read(labelled: tuple[UpdateLog, list[Author]]) -> None:
    log, authors = labelled
    feed = authors[0].feed
    before = Counted((Span(20, 1), Span(40, FACTOR_ONE)), EARLY)
    now = Counted((Span(10, 1), Span(20, 2), Span(45, FACTOR_ONE)), LATE)
    found = list(changes(log, {feed: before}, {feed: now}, SUBSPACE_OF))
    assert sum(len(columns.seeds) for columns in found) == 10 + 5


def test_sums_beyond_64_bits_go_round_and_come_back(labelled: tuple[UpdateLog, list[Author]]) -> None:
    log, authors = labelled
    feed, core = authors[0].feed, Core(2, 4)
    heaviest = Counted((Span(STEPS, 65_535),), Rates(7, (RateFrom(0, (1 << 32) - 1),)))
    there = list(changes(log, {}, {feed: heaviest}))
    back = list(changes(log, {feed: heaviest}, {feed: NOTHING}))
    with np.errstate(all="raise"):
        for found in (*there * (1 << 12), *back * (1 << 12)):
            core.add(found._replace(scalars=found.scalars << 10))
    assert core.epochs() == []


def test_updates_weigh_what_the_seals_say_worked_out_by_hand(
    labelled: tuple[UpdateLog, list[Author]],
) -> None:
    """The seals have factors 1/2, 0, 1.7 and 1 and a new rate; one feed is skipped and recounted, and some
    work comes late."""
    log, (anne, bob) = labelled
    run_state = RunState(budget=1000, rate=1_048_581)
    for decision in (
        admit(0),
        admit(1),
        close(0, {0: 9, 64: 9}),
        close(1, {0: 9}),
        seal(0, skip=(64,), factor=2048, rates=((3, 3_000_001),)),
        close(2, {0: 9}),
        close(3, {64: 18}),
        seal(1, factor=0),
        seal(2, recount=((64, 0),), factor=6963),
        close(4, {0: 9}),
        seal(3),
        seal(4, factor=6963),
    ):
        run_state.apply(Recorded(decision))
    weights = {
        (anne, 0): 524_290,  # 1,048,581 / 2 = 524,290.5
        (anne, 1): 0,
        (anne, 2): 1_782_536,  # 1,048,581 * 6963 / 4096 = 1,782,536.4998
        (anne, 3): 5_099_855,  # 3,000,001 * 6963 / 4096 = 5,099,855.2156
        (anne, 4): 3_000_001,  # held, and not named yet
        (bob, 0): 1_782_536,
        (bob, 1): 1_048_581,
        (bob, 2): 1_048_581,
    }
    rates = Rates.of(run_state)
    held = {
        anne.feed: Counted(run_state.spans(0, 5 * LABEL_STEPS), rates),
        bob.feed: Counted(run_state.spans(64, 3 * LABEL_STEPS), rates),
    }
    core, expected = Core(2, 4), Core(2, 4)
    for found in changes(log, {}, held, SUBSPACE_OF):
        core.add(found)
    for (author, label), weight in weights.items():
        for step in range(label * LABEL_STEPS, (label + 1) * LABEL_STEPS):
            parts = [EpochScalars(SUBSPACE_OF(label), (author.updates[step][1] * weight,))]
            expected.add(batch(author.key, step, parts))
    assert run_state.counted == 6 * LABEL_STEPS
    assert core.epochs() == [0, 1, 2]
    assert all((core.of(subspace) == expected.of(subspace)).all() for subspace in core.epochs())
