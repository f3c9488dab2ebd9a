"""The bytes of the links: a rate in each direction, a ration of the day, and both changed at any time."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import date
from pathlib import Path

import pytest
from runtime_helpers import eventually, manifest

from sfnode.runtime.governor import CREDIT
from sfnode.runtime.ledger import Ledger
from sfnode.runtime.throttle import Lane, Throttle
from sfnode.store.log import UpdateLog
from sfprotocol.machine import LINK_TIMEOUT

RUN = manifest()

STALE = 0.2
"""Seconds that the loop's time, read once a turn, may lag behind on a busy machine, and two frames beyond."""


async def carry(lane: Lane, frames: int, size: int) -> float:
    """Seconds that so many frames take."""
    begun = time.monotonic()
    for _ in range(frames):
        await lane.ready()
        lane.count(size)
    return time.monotonic() - begun


async def test_without_a_limit_nothing_waits() -> None:
    assert await carry(Throttle().upload, 1000, 10_000) < 1


async def test_a_rate_is_kept_in_one_direction_and_for_all_who_share_it() -> None:
    throttle = Throttle()
    throttle.upload.limit(100_000)
    took = await asyncio.gather(*(carry(throttle.upload, 50, 1000) for _ in range(2)))
    assert max(took) >= 1 - CREDIT - STALE
    assert await carry(throttle.download, 100, 1000) < 0.5
    assert throttle.total == 200_000


async def test_what_goes_beside_the_links_goes_one_at_a_time_and_after_them() -> None:
    throttle, went = Throttle(), []
    throttle.upload.limit(100_000)

    async def beside(size: int) -> None:
        await throttle.upload.spare()
        went.append("beside")
        throttle.upload.count(size)

    async def link() -> None:
        await throttle.upload.ready()
        went.append("link")

    begun = time.monotonic()
    await asyncio.gather(*(beside(50_000) for _ in range(3)), link())
    assert went[:2] == ["beside", "link"]  # the first finds nobody waiting
    assert time.monotonic() - begun >= 1 - CREDIT - STALE


async def test_what_is_expected_keeps_others_waiting_until_it_is_known_what_came() -> None:
    throttle = Throttle()
    heard: list[int] = []
    throttle.on_spent = lambda: heard.append(throttle.total)
    throttle.download.limit(10_000)
    throttle.leave(100_000)
    throttle.download.expect(100_000)
    waiting = [asyncio.create_task(wait) for wait in (throttle.download.spare(), throttle.upload.ready())]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    throttle.download.count(0, 100_000)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert (throttle.total, heard) == (0, [])


async def test_nothing_beside_the_links_silences_them_for_longer_than_their_peers_wait() -> None:
    lane = Throttle().upload
    assert lane.most == math.inf
    lane.limit(1000)
    assert lane.most <= 1000 * LINK_TIMEOUT / 2


async def test_who_waits_for_a_slow_rate_goes_on_when_it_is_lifted() -> None:
    throttle = Throttle()
    throttle.download.limit(1000)
    throttle.download.count(1_000_000)
    waiting = asyncio.create_task(throttle.download.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    throttle.download.limit(None)
    await asyncio.wait_for(waiting, 5)


async def test_a_ration_that_is_spent_stops_both_directions_until_there_is_more() -> None:
    throttle, heard = Throttle(), []
    throttle.on_spent = lambda: heard.append(throttle.total)
    throttle.leave(1500)
    throttle.upload.count(1000)
    assert heard == []
    throttle.download.count(1000)
    assert heard == [2000]
    waiting = [asyncio.create_task(lane.ready()) for lane in (throttle.upload, throttle.download)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    throttle.leave(math.inf)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)


# -- the bytes of the day --------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "updates.sqlite"


def test_a_restart_does_not_forget_what_was_carried_today(path: Path) -> None:
    today = date(2030, 5, 1)
    for total in (1000, 500, 0):
        with UpdateLog.open(path, RUN.run_id) as log:
            ledger = Ledger(log, lambda: today)
            ledger.close(total)
    with UpdateLog.open(path, RUN.run_id) as log:
        assert Ledger(log, lambda: today).today(7) == 1507
        assert Ledger(log, lambda: date(2030, 5, 2)).today(7) == 7


def test_a_new_day_begins_at_nothing_while_the_node_runs(path: Path) -> None:
    days = [date(2030, 5, 1)]
    with UpdateLog.open(path, RUN.run_id) as log:
        ledger = Ledger(log, lambda: days[-1])
        assert ledger.today(1000) == 1000
        days.append(date(2030, 5, 2))
        assert (ledger.today(1000), ledger.today(1200)) == (0, 200)
        ledger.close(1200)
        assert Ledger(log, lambda: days[-1]).today(0) == 200


async def test_it_is_written_down_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with UpdateLog.open(path, RUN.run_id) as log:
        ledger = Ledger(log)
        await ledger.keep(1000)
        assert Ledger(log).today(0) == 0
        monkeypatch.setattr("sfnode.runtime.ledger.KEEP_INTERVAL", 0.0)
        await ledger.keep(2000)
        await eventually(lambda: Ledger(log).today(0) == 2000)
