"""The index over the log: it counts what counts, follows cuts, and is sparing with the processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_helpers import feed_of, manifest, record

from sfnode.runtime import history
from sfnode.runtime.history import LogIndex
from sfnode.runtime.viewed import Origins
from sfnode.store.log import CutRecord, UpdateLog
from sfprotocol import signing

RUN = manifest()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "log", RUN.run_id) as opened:
        yield opened


def cut(name: str, at: int) -> CutRecord:
    return CutRecord(feed_of(name), at, signing.genesis(RUN.run_id, feed_of(name)), b"proof")


def told(index: LogIndex, find: str = "") -> Origins:
    return index.origins(b"", 0, 100, find)


def updates(index: LogIndex) -> dict[str, int]:
    return {origin.origin: origin.updates for origin in told(index).origins}


def key(name: str) -> str:
    return feed_of(name).origin.hex()


def test_a_feed_that_is_cut_counts_as_far_as_the_cut_and_one_cut_at_its_first_step_not_at_all(
    log: UpdateLog,
) -> None:
    log.append([record(RUN, "a", [1, 2, 3]), record(RUN, "b", [4])])
    index = LogIndex(log, dict)
    assert updates(index) == {key("a"): 3, key("b"): 1}
    log.append([], [cut("a", 2), cut("b", 0)])
    assert updates(index) == {key("a"): 2}
    assert told(index).origins[0].cut
    assert index.history(10).indexed == 2
    assert [leader.origin for leader in index.history(10).leaders] == [key("a")]


def test_a_log_that_is_too_long_for_one_question_is_counted_by_several(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([record(RUN, "a", [1]), record(RUN, "b", [2]), record(RUN, "c", [3])])
    monkeypatch.setattr(history, "PATIENCE", -1.0)
    index = LogIndex(log, dict)
    assert told(index).indexed == 0
    assert told(index).origins == []
    monkeypatch.setattr(history, "PATIENCE", 2.0)
    assert told(index).indexed == 3


def test_who_asks_again_at_once_is_given_the_same_answer(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LEAST_AGE", 3600.0)
    log.append([record(RUN, "a", [1])])
    index = LogIndex(log, dict)
    first, course = told(index), index.history(5)
    log.append([record(RUN, "b", [1])])
    assert told(index) == first
    assert index.history(5) is course
    assert index.history(3).indexed == 1


def test_an_index_that_is_closed_reads_no_more(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1])])
    index = LogIndex(log, dict)
    assert told(index).indexed == 1
    log.append([record(RUN, "b", [1])])
    index.close()
    assert told(index).indexed == 1


def test_nothing_is_told_of_an_empty_log(log: UpdateLog) -> None:
    index = LogIndex(log, dict)
    assert (told(index).total, told(index).updates, told(index, "ab").origins) == (0, 0, [])
    assert index.history(7).points == []
