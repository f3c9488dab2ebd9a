"""Measurements of time and memory: turns in changing order, and peaks that appear and disappear."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from pathlib import Path

import pytest
import torch

from sflab.bench import measure
from sfnode.resources import memory

CPU = torch.device("cpu")
MEGABYTE = 1 << 20

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def allocate(megabytes: int) -> None:
    torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)


def test_what_others_updates_take_is_a_share_of_the_time_however_short_a_step_is() -> None:
    assert [measure.share(3.0, 0.0, seconds) for seconds in (1.0, 3.0, 297.0)] == [0.75, 0.5, 0.01]
    merging = [measure.share(0.0, 1.0, seconds) for seconds in (8.0, 99.0)]
    assert merging == [pytest.approx(1 / 81), 0.01], "no more than one merge in 80 times its time"


@linux_only
def test_a_peak_shows_what_was_used_for_a_moment() -> None:
    little, much = memory.peak(lambda: allocate(1), CPU), memory.peak(lambda: allocate(201), CPU)
    assert little is not None
    assert much is not None
    assert 190 * MEGABYTE < much - little < 210 * MEGABYTE


@linux_only
def test_a_peak_does_not_show_what_was_used_before() -> None:
    before = memory.room(CPU).resident
    allocate(300)
    after = memory.peak(lambda: None, CPU)
    assert after is not None
    assert after < before + 100 * MEGABYTE


@linux_only
def test_the_resident_set_is_sampled_where_the_high_water_mark_cannot_be_set_back() -> None:
    with memory._sampled() as seen:
        held = torch.ones(200 * MEGABYTE, dtype=torch.uint8)
        time.sleep(20 * memory.SAMPLED)
        del held
    assert max(seen) - seen[0] > 190 * MEGABYTE


def test_what_fits_is_what_is_free_without_the_overhead() -> None:
    fits = memory.largest(free=9_000, overhead=1_000)
    assert [(fit.dtype, fit.parameters) for fit in fits[:2]] == [("float32", 2_000), ("bfloat16", 4_000)]
    assert {fit.parameters for fit in memory.largest(free=10, overhead=1_000)} == {0}


def test_contestants_take_turns_and_each_comes_behind_every_other() -> None:
    seen: list[str] = []
    actions = {name: (lambda _, name=name: seen.append(name)) for name in "abcd"}
    taken = measure.times(actions, 24 - measure.WARM_UPS, CPU)
    assert {len(turns) for turns in taken.values()} == {24 - measure.WARM_UPS}
    rounds = [seen[start : start + 4] for start in range(0, len(seen), 4)]
    assert all(sorted(turn) == list("abcd") for turn in rounds)
    assert {pair for turn in rounds for pair in itertools.pairwise(turn)} == {
        (one, other) for one in "abcd" for other in "abcd" if one != other
    }


def test_a_ratio_compares_neighbours_in_time() -> None:
    taken = {"one": [1.0, 20.0, 3.0], "other": [2.0, 10.0, 6.0]}  # a machine that was busy in the second turn
    assert measure.ratio(taken, "one", "other") == 0.5


@pytest.mark.parametrize(("threads", "expected"), [(1, 2.0), (2, 7.0)])
def test_of_a_single_thread_only_its_own_seconds_count(
    threads: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs take five of seven seconds."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(time, "process_time", iter([10.0, 12.0]).__next__)
    monkeypatch.setattr(time, "perf_counter", iter([100.0, 107.0]).__next__)
    assert measure.seconds(lambda: None, CPU) == expected


def test_no_garbage_is_collected_while_time_is_taken() -> None:
    with measure.undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_updates_of_others_differ_from_turn_to_turn() -> None:
    first, second = measure.updates(10, 0), measure.updates(10, 1)
    assert not set(first.seeds.tolist()) & set(second.seeds.tolist())
    assert set(first.epochs.tolist()) == {0}


@pytest.mark.parametrize(("most", "allowed"), [("1000", 600), ("300", 0), ("max", None)])
def test_files_that_were_read_leave_room_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, allowed: int | None
) -> None:
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory._allowed() is None
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 350\nfile 550\nactive_file 50\ninactive_file 500\n")
    assert memory._allowed() == allowed
