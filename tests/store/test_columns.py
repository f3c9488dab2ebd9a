"""Tests of a log's columns: content, order of rows, and earlier states of a run."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sfnode.engine.core import Core, UpdateBatch
from sfnode.errors import Code
from sfnode.store.columns import Columns
from sfnode.store.log import LOOSE_ROWS, CutRecord, UpdateLog
from sfprotocol import seeds
from sfprotocol.checkpoints import Base
from sfprotocol.messages import Feed
from tests.refusals import fails_with
from tests.store.helpers import RUN_ID, Author


class Row(NamedTuple):
    """One update."""

    feed: Feed
    step: int
    epoch: int
    seed: int
    scalar: int


def rows(columns: Columns) -> list[Row]:
    """Return the columns as rows."""
    return [
        Row(columns.feeds[feed], *rest)
        for feed, *rest in zip(*(column.tolist() for column in columns.updates), strict=True)
    ]


def written(authors: list[Author]) -> list[Row]:
    """Return the authors' updates in the order of `Columns`, computed without numpy."""
    found = []
    for author in authors:
        epochs: list[int] = []
        for step, (epoch, scalar) in enumerate(author.updates):
            seed = int(seeds.update_seeds(author.key, step, 1)[0])
            row = Row(author.feed, step, epoch, seed, scalar)
            found.append(((epoch, epochs.count(epoch), author.feed), row))
            epochs.append(epoch)
    return [row for _, row in sorted(found)]


@pytest.fixture
def authors() -> list[Author]:
    return [Author(number) for number in (1, 2, 3)]


@pytest.fixture
def columns(path: Path, authors: list[Author]) -> Iterator[Columns]:
    """Return the columns of a log with three feeds of different lengths and epochs."""
    a, b, c = authors
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([a.write([1, 2, 3]), b.write([-4])])
        log.append([c.write([5, 300], epoch=1), a.write([7, 8], epoch=1)])
        log.append([b.write([-9] * 4, epoch=1), a.write([10], epoch=3)])
        yield log.columns()


def test_an_empty_log_has_no_rows(path: Path) -> None:
    with UpdateLog.open(path, RUN_ID) as log:
        columns = log.columns()
    assert len(columns) == 0
    assert (columns.feeds, columns.frontier(), columns.run_id) == ((), {}, RUN_ID)
    assert len(columns.at(0)) == len(columns.before_epoch(7)) == len(columns.prefix({})) == 0
    assert columns.epochs().tolist() == []


def test_every_update_is_a_row_and_the_order_is_by_epoch_then_by_turns(
    columns: Columns, authors: list[Author]
) -> None:
    assert rows(columns) == written(authors)
    assert len(columns) == 13
    kinds = {name: column.dtype for name, column in columns.updates._asdict().items()}
    assert kinds.pop("seed") == np.uint64
    assert set(kinds.values()) == {np.dtype(np.int64)}
    assert columns.epochs().tolist() == [4, 8, 0, 1]


def test_the_order_does_not_depend_on_when_updates_were_admitted(
    columns: Columns, authors: list[Author], tmp_path: Path
) -> None:
    again = [Author(number) for number in (1, 2, 3)]
    with UpdateLog.open(tmp_path / "other.sqlite", RUN_ID) as other:
        for one, author in zip(again[::-1], authors[::-1], strict=True):
            for epoch, scalar in author.updates:
                other.append([one.write([scalar], epoch)])
        assert rows(other.columns()) == rows(columns)


def test_every_prefix_is_a_state_that_the_run_may_have_been_in(columns: Columns) -> None:
    for known in range(len(columns) + 1):
        state = columns.at(known)
        assert len(state) == known
        for feed, steps in state.frontier().items():
            assert [row.step for row in rows(state) if row.feed == feed] == list(range(steps))
    for wrong in (-1, len(columns) + 1):
        with pytest.raises(ValueError, match="13 updates"):
            columns.at(wrong)


def test_the_state_before_an_epoch_has_all_updates_of_those_before(columns: Columns) -> None:
    assert [len(columns.before_epoch(epoch)) for epoch in range(5)] == [0, 4, 12, 12, 13]


def test_any_frontier_is_a_prefix_and_one_that_the_log_has_not_reached_is_refused(
    columns: Columns, authors: list[Author]
) -> None:
    a, b, c = (author.feed for author in authors)
    state = columns.prefix({a: 4, c: 1})
    assert state.frontier() == {a: 4, b: 0, c: 1}
    assert sorted(rows(state)) == sorted(
        row for row in rows(columns) if row.step < {a: 4, b: 0, c: 1}[row.feed]
    )
    assert rows(columns.prefix(columns.frontier())) == rows(columns)
    for wrong in ({a: 7}, {a: -1}, {Author(4).feed: 1}):
        with pytest.raises(ValueError, match="updates of"):
            columns.prefix(wrong)


def test_a_batch_of_columns_makes_the_same_cores_as_the_log(columns: Columns, authors: list[Author]) -> None:
    once, twice = Core(2, 4), Core(2, 4)
    for author in authors:
        for step, (epoch, scalar) in enumerate(author.updates):
            seed = seeds.update_seeds(author.key, step, 1)
            once.add(UpdateBatch(np.array([epoch]), seed, np.array([scalar])))
    twice.add(columns.batch())
    assert once.digest() == twice.digest()


def test_what_is_behind_a_cut_is_no_row(path: Path, authors: list[Author]) -> None:
    a, b, _ = authors
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([a.write([1, 2, 3]), a.write([4]), b.write([5])])
        log.append([], [CutRecord(a.feed, 2, a.chains[2], b"proof"), CutRecord(b.feed, 0, b.chains[0], b"")])
        assert [(row.feed, row.scalar) for row in rows(log.columns())] == [(a.feed, 1), (a.feed, 2)]


def test_from_a_base_on_the_rows_are_the_same_and_in_the_same_order(
    path: Path, columns: Columns, authors: list[Author]
) -> None:
    first = authors[0]
    with UpdateLog.open(path, RUN_ID) as log:
        log.rebase([Base(first.feed, 4, first.chains[4], 1, 1)])
        left = log.columns()
    assert rows(left) == [row for row in rows(columns) if row.feed != first.feed or row.step >= 4]
    assert left.frontier() == columns.frontier()
    assert len(left.prefix({first.feed: 4})) == 0
    with pytest.raises(ValueError, match="and not 3"):
        left.prefix({first.feed: 3})


def test_rows_that_were_packed_are_the_same(path: Path) -> None:
    author = Author()
    with UpdateLog.open(path, RUN_ID) as log:
        for step in range(LOOSE_ROWS + 3):
            log.append([author.write([step - 30], epoch=step // 20)])
        assert rows(log.columns()) == written([author])


# -- beside a running node -----------------------------------------------------------------------------


def test_reading_changes_nothing(path: Path, columns: Columns) -> None:
    before = hashlib.sha256(path.read_bytes()).digest()
    with UpdateLog.open(path, read_only=True) as log:
        log.columns()
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_a_log_is_not_written_without_saying_of_which_run_and_not_read_if_it_is_none(path: Path) -> None:
    with pytest.raises(ValueError, match="one run"):
        UpdateLog.open(path)
    with fails_with(Code.DATA_DIR_UNUSABLE):
        UpdateLog.open(path, read_only=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE something (else_)")
    with fails_with(Code.LOG_CORRUPT):
        UpdateLog.open(path, read_only=True)
