"""The traffic of the day: counted on the event loop, written by one thread at a time, over restarts."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from sfnode.resources.bandwidth_limits import DailyTraffic
from sfnode.store.log import UpdateLog
from tests.node.helpers import eventually, manifest

RUN = manifest()
MAY_1, MAY_2 = date(2030, 5, 1), date(2030, 5, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "updates.sqlite"


@pytest.fixture
def log(path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(path, RUN.run_id) as opened:
        yield opened


class SlowWrites:
    """Writes of the meta table that take place when they are allowed to; it notes what and where."""

    def __init__(self, log: UpdateLog) -> None:
        self.values: list[bytes] = []
        self.allowed = threading.Semaphore(0)
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0
        self._write = log.set_meta

    def set_meta(self, key: str, value: bytes) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.threads.add(threading.get_ident())
        assert self.allowed.acquire(timeout=10)
        self._write(key, value)
        self.values.append(value)
        self.at_once -= 1


@pytest.fixture
def slow(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> SlowWrites:
    writes = SlowWrites(log)
    monkeypatch.setattr(log, "set_meta", writes.set_meta)
    return writes


async def test_a_restart_does_not_forget_the_traffic_of_today(path: Path) -> None:
    for total in (1000, 500, 0):
        with UpdateLog.open(path, RUN.run_id) as log:
            await DailyTraffic(log, lambda: MAY_1).flush(total)
    with UpdateLog.open(path, RUN.run_id) as log:
        assert DailyTraffic(log, lambda: MAY_1).today(7) == 1507
        assert DailyTraffic(log, lambda: MAY_2).today(7) == 7


async def test_a_new_day_begins_at_zero_while_the_node_runs(log: UpdateLog) -> None:
    days = [MAY_1]
    traffic = DailyTraffic(log, lambda: days[-1])
    assert traffic.today(1000) == 1000
    days.append(MAY_2)
    assert (traffic.today(1000), traffic.today(1200)) == (0, 200)
    await traffic.flush(1200)
    assert DailyTraffic(log, lambda: days[-1]).today(0) == 200


async def test_what_a_quota_leaves_is_counted_from_midnight(log: UpdateLog) -> None:
    days = [MAY_1]
    traffic = DailyTraffic(log, lambda: days[-1])
    assert traffic.remaining(None, 10**9) == math.inf
    assert traffic.remaining(2, 500_000) == 1_500_000
    assert traffic.remaining(2, 3_000_000) == 0
    days.append(MAY_2)
    assert traffic.remaining(2, 3_000_000) == 2_000_000


def test_nothing_is_written_before_the_first_flush(log: UpdateLog) -> None:
    DailyTraffic(log, lambda: MAY_1).today(1000)
    assert log.get_meta("traffic") is None


async def test_midnight_during_a_write_loses_no_bytes_and_counts_none_twice(
    path: Path, log: UpdateLog, slow: SlowWrites
) -> None:
    days, loop_thread = [MAY_1], threading.get_ident()

    def today() -> date:
        assert threading.get_ident() == loop_thread, "the day is looked at beside the event loop"
        return days[-1]

    traffic = DailyTraffic(log, today)
    writing = asyncio.create_task(traffic.flush(1000))
    await eventually(lambda: slow.at_once)
    days.append(MAY_2)
    assert traffic.today(1200) == 0  # the first look after midnight, while the write is under way
    assert traffic.today(1500) == 300
    slow.allowed.release(2)
    await writing
    await traffic.flush(1700)
    assert slow.values == [b"2030-05-01 1000", b"2030-05-02 500"]
    assert DailyTraffic(log, lambda: MAY_2).today(0) == traffic.today(1700) == 500
    assert loop_thread not in slow.threads


async def test_writes_come_one_after_the_other_in_the_order_of_their_counts(
    log: UpdateLog, slow: SlowWrites
) -> None:
    traffic = DailyTraffic(log, lambda: MAY_1)
    flushes = [asyncio.create_task(traffic.flush(total)) for total in (100, 200, 200, 300)]
    await eventually(lambda: slow.at_once)
    slow.allowed.release(9)
    await asyncio.gather(*flushes)
    assert slow.values == [b"2030-05-01 100", b"2030-05-01 200", b"2030-05-01 300"]
    assert slow.most_at_once == 1


async def test_a_flush_waits_for_the_write_of_one_that_was_cancelled(
    log: UpdateLog, slow: SlowWrites
) -> None:
    """A node that ends while it writes: what it knew last must be what stays."""
    traffic = DailyTraffic(log, lambda: MAY_1)
    cancelled = asyncio.create_task(traffic.flush(100))
    await eventually(lambda: slow.at_once)
    cancelled.cancel()
    last = asyncio.create_task(traffic.flush(250))
    await asyncio.sleep(0.05)
    assert slow.most_at_once == 1
    slow.allowed.release(2)
    await last
    assert slow.values == [b"2030-05-01 100", b"2030-05-01 250"]
