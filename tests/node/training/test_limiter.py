"""Whole nodes within limits: they stop computing when the owner or a limit says so, and the swarm goes on."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.node import readiness
from sfnode.node.disk_wait import DiskWait
from sfnode.node.training import limiter
from sfnode.node.training.limiter import asked_text
from sfnode.node.training.model import LocalModel
from sfnode.resources.bandwidth_limits import Bandwidth, DailyTraffic
from sfnode.resources.pauses import BURST, Readings
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from tests.node.helpers import Node, SmallEngine, Swarm, eventually
from tests.refusals import fails_with, refused

LARGEST = 3 * MAX_SEGMENT_UPDATES + 200
"""Size of the largest frame, a segment. A link may exceed its rate by that much, and then waits longer."""

LONG_STEP = 0.1
"""Seconds of a step that takes a hundred times as long as usual. A longer rest follows it."""


@pytest.fixture(autouse=True)
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "LOOK_INTERVAL", 0.05)


def made(node: Node) -> int:
    return node.node.model.scheduler.made


async def training(swarm: Swarm, **options: Any) -> Node:
    """Start the first node of the run, and return it once it makes updates."""
    node = await swarm.first(**options)
    await node.until(lambda: made(node) > 5)
    return node


async def steady(node: Node) -> int:
    """Wait until the node's last update is admitted, and return the number of its updates."""
    await eventually(lambda: not node.node.model.scheduler.busy)
    return made(node)


def away_from_now() -> str:
    """Return a range of hours that does not contain the present time."""
    now = datetime.now()
    return f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"


# -- pausing ---------------------------------------------------------------------------------------------


async def test_no_step_begins_after_a_pause_and_the_one_that_runs_counts(swarm: Swarm) -> None:
    a = swarm.node("a", make_engine=SmallEngine)
    await swarm.first()
    await a.until(lambda: a.engine and a.engine.stepping.is_set())  # one runs, one waits for it
    status = await a.client.pause()
    assert (status.state, status.pauses) == ("paused", ["asked for"])
    a.engine.steps.release(5)
    assert await steady(a) == len(a.engine.epochs) == 1
    await eventually(lambda: a.engine.aside)


async def test_a_paused_node_forwards_the_updates_of_others_and_resumes_where_it_stopped(
    swarm: Swarm,
) -> None:
    a, b = await swarm.first(), await swarm.join("b")
    c = await swarm.join("c", via="b", role="relay")
    await b.until(lambda: made(b) > 5)
    await b.client.pause()
    own = await steady(b)
    known = c.known
    await c.until(lambda: c.known > known + 200)
    assert made(b) == own
    assert made(a) > 0
    assert b.node.status().state == "paused"
    status = await b.client.resume()
    assert (status.state, status.pauses) == ("training", [])
    await b.until(lambda: made(b) > own + 20)
    assert not b.engine.aside
    feed = b.machine.own
    said = b.machine.frontier.next(feed)
    await c.until(lambda: c.machine.frontier.next(feed) >= said)


async def test_a_pause_ends_by_itself_after_the_time_asked_for(swarm: Swarm) -> None:
    a = await training(swarm)
    begun = time.monotonic()
    status = await a.client.pause(0.3)
    assert status.pauses[0].startswith("asked for, until ")
    own = await steady(a)
    await a.until(lambda: made(a) > own)
    assert time.monotonic() - begun >= 0.3


async def test_a_pause_does_not_outlive_the_node(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.client.pause()
    await a.stop()
    await swarm.first()
    await a.until(lambda: made(a) > 5)


async def test_a_pause_ends_an_evaluation_in_progress_but_not_one_asked_for_later(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    a.engine.endless = True
    asking = asyncio.create_task(a.client.evaluate())
    await eventually(a.engine.measuring.is_set)
    await a.client.pause()
    with fails_with(Code.PAUSED):
        await asking
    await eventually(lambda: a.engine.aside)
    a.engine.endless = False
    own = await steady(a)
    assert (await a.client.evaluate()).value == own


async def test_a_pause_ends_what_follows_an_evaluation(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    evaluate, loop, paused = a.engine.evaluate, asyncio.get_running_loop(), threading.Event()

    def evaluated(*asked: Any) -> Any:
        found = evaluate(*asked)
        loop.call_soon_threadsafe(lambda: (a.node.limiter.pause(None), paused.set()))
        assert paused.wait(10)
        return found

    a.engine.evaluate = evaluated
    a.engine.drift = None  # is not called any more
    with fails_with(Code.PAUSED):
        await a.client.evaluate()
    await eventually(lambda: a.engine.aside)


async def test_an_evaluation_in_progress_ends_when_the_node_stops(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    a.engine.endless = True
    asking = asyncio.create_task(a.client.evaluate())
    await eventually(a.engine.measuring.is_set)
    engine_thread = a.node.model.thread
    await a.stop()
    with pytest.raises(UserError):
        await asking
    assert engine_thread.idle


async def test_an_offloaded_model_answers_questions_and_is_offloaded_again(swarm: Swarm) -> None:
    a = await training(swarm)
    await a.client.pause()
    await steady(a)
    assert (await a.client.evaluate(base=True)).value == 0
    assert a.engine.aside
    assert a.engine.parked == 2


async def test_pausing_and_resuming_at_once_loses_no_step(swarm: Swarm) -> None:
    a = await swarm.first()
    for _ in range(10):
        await a.client.pause()
        await a.client.resume()
        known = a.known
        await a.until(lambda known=known: a.known > known)  # type: ignore[misc]
    with swarm.log("a") as log:
        assert len(log.tails()) == 1


async def test_a_node_that_waits_for_its_history_can_be_paused(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LocalModel, "start", lambda _: None)
        a = await swarm.first()
        assert (await a.client.pause()).pauses == ["asked for"]
    a.node.model.start()
    await eventually(lambda: a.node.status().state == "paused")
    assert await steady(a) == 0


async def test_a_relay_cannot_pause_but_may_have_limits(swarm: Swarm) -> None:
    a = await swarm.first(role="relay", limits=Limits(hours=away_from_now(), cpu=5))
    with refused(Code.BAD_OPTION, "a relay computes nothing"):
        await a.client.pause()
    assert (a.node.status().state, a.node.status().pauses) == ("idle", [])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(float("inf"), "asked for"), (60, "asked for, until .*:.."), (3e5, "asked for, until 20..-..-.. ..:..")],
)
def test_a_pause_says_until_when(seconds: float, text: str) -> None:
    assert re.fullmatch(text, asked_text(seconds))


# -- leaving ---------------------------------------------------------------------------------------------


async def test_finishing_completes_the_step_and_hands_everything_over(swarm: Swarm) -> None:
    a = await swarm.first(role="relay")
    b = swarm.node("b", make_engine=lambda run: SmallEngine(run).go(30))
    await swarm.join("b")
    await b.until(lambda: made(b) == 30)
    await eventually(lambda: b.engine.stepping.is_set() and len(b.engine.epochs) == 30)
    await b.client.finish()
    assert b.node.status().state == "finishing"
    b.engine.steps.release(5)
    await b.ended()
    with swarm.log("b") as log:
        assert log.updates() == 31
    await a.until(lambda: a.known == 31)


async def test_a_paused_node_can_finish(swarm: Swarm) -> None:
    await swarm.first(role="relay")
    b = await swarm.join("b")
    await b.until(lambda: made(b) > 5)
    await b.client.pause()
    await b.client.finish()
    await b.ended()


async def test_a_node_without_a_neighbour_finishes_without_waiting_for_one(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "LEAVE_GRACE", 1000.0)
    monkeypatch.setattr(readiness, "SETTLE_TIME", 0.2)
    a = await training(swarm)
    await a.client.finish()
    await a.ended()


# -- limits ----------------------------------------------------------------------------------------------


async def test_a_node_outside_its_hours_computes_nothing_until_the_limit_is_removed(swarm: Swarm) -> None:
    hours = away_from_now()
    a = await swarm.first(limits=Limits(hours=hours))
    await a.until(lambda: a.node.status().state == "paused")
    assert a.node.status().pauses == [f"hours: only {hours}"]
    assert made(a) == 0
    assert await a.client.limit({"hours": None}) == Limits()
    await a.until(lambda: made(a) > 5)
    await a.client.limit({"hours": hours})
    assert a.node.status().state == "paused"
    own = await steady(a)
    await a.client.resume()
    assert a.node.status().state == "paused"
    assert made(a) == own


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """A program with a name of its own."""
    path = tmp_path / "TheGame"
    shutil.copy(shutil.which("sleep") or "sleep", path)
    return path


async def test_a_node_pauses_while_a_named_program_runs(swarm: Swarm, game: Path) -> None:
    a = await training(swarm, limits=Limits(not_while=("thegame",)))
    process = await asyncio.create_subprocess_exec(game, "60")
    try:
        await a.until(lambda: a.node.status().pauses == ["program: thegame is running"])
        own = await steady(a)
    finally:
        process.kill()
        await process.wait()
    await a.until(lambda: made(a) > own)


async def test_a_share_of_the_gpu_is_the_share_of_the_time_in_which_steps_run(swarm: Swarm) -> None:
    a = await training(swarm, limits=Limits(gpu=20))
    worker = a.node.model.thread
    busy, begun = worker.busy, time.monotonic()
    await eventually(lambda: worker.busy > busy + 0.3)
    assert worker.busy - busy <= 0.2 * (time.monotonic() - begun + BURST) + LONG_STEP


async def test_threads_are_as_many_as_limited_or_leave_room_for_other_programs(swarm: Swarm) -> None:
    a = await training(swarm, limits=Limits(threads=3))
    assert a.engine.threads == 3
    await a.client.limit({"threads": None})
    await eventually(lambda: a.engine.most_threads is not None)
    look = a.node.limiter._machine.look
    a.node.limiter._machine.look = lambda limits: look(limits)._replace(free=2.8)
    await eventually(lambda: a.engine.most_threads == 3)
    a.node.limiter._machine.look = lambda limits: look(limits)._replace(free=0.1)
    await eventually(lambda: a.engine.most_threads == 1)
    assert a.engine.threads is None
    await a.client.limit({"threads": "4"})
    await eventually(lambda: a.engine.threads == 4)  # an explicit number is used as it is


async def test_a_process_that_exceeds_its_memory_limit_pauses(swarm: Swarm) -> None:
    a = await swarm.first(limits=Limits(memory=1_000_000))
    await a.until(lambda: a.node.status().pauses)
    assert a.node.status().pauses[0].startswith("memory: ")
    await a.client.limit({"memory": "900G"})
    await a.until(lambda: made(a) > 5)


async def test_a_model_offloaded_for_a_pause_does_not_count_as_memory(swarm: Swarm) -> None:
    """Such a model came from a GPU and goes back there."""
    a = await training(swarm, limits=Limits(memory="4G"))
    look, size = a.node.limiter._machine.look, [2_000_000_000]

    def grown(limits: Limits) -> Readings:
        return look(limits)._replace(resident=size[-1] + 6_000_000_000 * a.engine.aside)

    a.node.limiter._machine.look = grown
    await a.client.pause()
    own = await steady(a)
    await eventually(lambda: a.engine.aside)
    await a.node.limiter._look()
    assert a.node.status().pauses == ["asked for"]
    await a.client.resume()
    await a.until(lambda: made(a) > own)
    size.append(5_000_000_000)
    await a.until(lambda: a.node.status().pauses == ["memory: 5000 MB, limit 4000"])
    own = await steady(a)
    assert not a.engine.aside
    size.append(2_000_000_000)
    await a.until(lambda: made(a) > own)


async def test_a_limit_on_sending_holds_over_all_links_and_everything_arrives_in_the_end(
    swarm: Swarm,
) -> None:
    a = await swarm.first(queries=16, limits=Limits(upload_rate=3000))  # it makes 60,000 bytes a second
    b, c = await swarm.join("b", role="relay"), await swarm.join("c", role="relay")
    await a.until(lambda: len(a.node.driver.pumps) == 2)
    before, begun = a.node.status().bytes_sent, time.monotonic()
    await a.until(lambda: time.monotonic() - begun > 0.6)
    sent, took = a.node.status().bytes_sent - before, time.monotonic() - begun
    assert 0 < sent <= 3000 * (took + BURST) + LARGEST
    await a.client.pause()
    await a.client.limit({"upload_rate": None})
    own = await steady(a)
    for relay in (b, c):
        await relay.until(lambda relay=relay: relay.known == own)  # type: ignore[misc]


async def test_a_limit_on_receiving_holds_for_a_newcomer_that_lacks_much(swarm: Swarm) -> None:
    a = await swarm.first(queries=64)
    await a.until(lambda: a.known > 20_000)
    await a.client.pause()
    begun = time.monotonic()
    b = await swarm.join("b", role="relay", limits=Limits(download_rate=20_000))
    size = await steady(a)
    await b.until(lambda: b.known == size)
    received = b.node.status().bytes_received
    assert received > 40_000
    assert time.monotonic() - begun >= (received - 2 * LARGEST) / 20_000 - BURST


async def test_a_node_whose_daily_quota_is_used_up_leaves_the_network_until_it_is_raised(
    swarm: Swarm,
) -> None:
    a = await swarm.first()
    b = await swarm.join("b", limits=Limits(mb_per_day=0.01))
    await b.until(lambda: b.node.status().state == "paused")
    assert b.node.status().pauses[0].startswith("traffic: 0.0 MB today")
    await a.until(lambda: not a.node.driver.pumps)
    total = b.node.driver.bandwidth.total
    assert total < 10_000 + 4096
    known = a.known
    await a.until(lambda: a.known > known + 50)
    assert b.node.driver.bandwidth.total == total
    await b.stop()
    await swarm.join("b", limits=Limits(mb_per_day=0.01))
    await b.until(lambda: b.node.status().pauses)  # it has not forgotten
    await b.client.limit({"mb_per_day": "100"})
    own = made(b)
    await b.until(lambda: made(b) > own and b.node.driver.pumps)


async def test_bytes_that_the_network_daemon_moves_beside_the_links_count_towards_the_quota(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await training(swarm, limits=Limits(mb_per_day=1))
    look, totals = a.node.limiter._machine.look, [0]
    monkeypatch.setattr(
        a.node.limiter._machine, "look", lambda limits: look(limits)._replace(moved=totals[0])
    )
    links = a.node.driver.bandwidth.total
    totals.append(totals.pop() + 2 * links + 990_000 - links)  # what links carry goes through it twice
    await asyncio.sleep(0.2)
    assert not a.node.status().pauses
    totals[0] += 20_000
    await a.until(lambda: a.node.status().pauses == ["traffic: 1.0 MB today, limit 1"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cpu": "50", "gpu": "lots"}, "gpu"),
        ({"cpu": "50", "bananas": 3}, "bananas"),
        ({"cpu": "50", "watts": 100}, "watts"),
        ({"cpu": "50", "upload_rate": "1"}, "upload_rate"),
    ],
)
async def test_limits_are_changed_all_or_none(swarm: Swarm, changes: dict[str, Any], word: str) -> None:
    a = await swarm.first(limits=Limits(mains=True))
    with pytest.raises(UserError, match=word) as refusal:
        await a.client.limit(changes)
    assert refusal.value.code is (Code.LIMIT_UNAVAILABLE if word == "watts" else Code.BAD_OPTION)
    assert await a.client.limits() == Limits(mains=True)
    assert a.node.status().limits == Limits(mains=True)


class SlowSensors:
    """Sensors that load their driver slowly. They record the threads that use them, and fail if two do at
    once."""

    def __init__(self, sensors: Any) -> None:
        self._sensors = sensors
        self._using = threading.Lock()
        self.threads: set[int] = set()
        self.loading = threading.Event()
        self.loaded = threading.Event()

    cores = 2.0

    def check(self, limits: Limits) -> None:
        with self._used():
            if limits.celsius is not None:
                self.loading.set()
                assert self.loaded.wait(10)

    def look(self, limits: Limits) -> Readings:
        with self._used():
            return cast(Readings, self._sensors.look(Limits()))._replace(celsius=20.0)

    def joules(self) -> float:
        return 0.0

    @contextmanager
    def _used(self) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        assert self._using.acquire(blocking=False), "the sensors are used by two threads at once"
        yield
        self._using.release()


async def test_a_driver_that_loads_slowly_holds_up_neither_the_event_loop_nor_loses_another_change(
    swarm: Swarm,
) -> None:
    a = await training(swarm)
    sensors = a.node.limiter._machine = SlowSensors(a.node.limiter._machine)
    first = asyncio.create_task(a.node.limiter.limit({"celsius": 80}))
    await eventually(sensors.loading.is_set)
    second = asyncio.create_task(a.node.limiter.limit({"mains": True}))
    own = made(a)
    await a.until(lambda: made(a) > own + 20)  # the node goes on
    assert a.node.limiter.limits == Limits()  # nothing is in force before it is known that it can be kept
    assert not any(change.done() for change in (first, second))
    sensors.loaded.set()
    await asyncio.gather(first, second)
    assert a.node.limiter.limits == Limits(celsius=80, mains=True)
    assert threading.get_ident() not in sensors.threads


async def test_a_new_limit_is_not_judged_by_readings_that_were_taken_without_it(swarm: Swarm) -> None:
    """Readings that no limit asks for are arbitrary: `idle` is 0, as if somebody were typing."""
    a = await training(swarm, limits=Limits(gpu=90))
    reasons: set[str] = set()
    machine = a.node.limiter._machine
    look = machine.look

    def slow_look(limits: Limits) -> Readings:
        time.sleep(0.2)  # steps go on meanwhile
        reasons.update(a.node.limiter.reason_texts())
        return look(limits)._replace(idle=3600.0 if limits.idle else 0.0)

    machine.look = slow_look
    await a.client.limit({"idle": 5})
    own = made(a)
    await a.until(lambda: made(a) > own + 5)
    assert reasons == set()


def test_nothing_is_measured_or_limited_before_the_limiter_starts() -> None:
    """Constructors have no side effects: a sensor may be a driver that takes seconds to load."""
    bandwidth, sensors = Bandwidth(), SlowSensors(None)
    limiter.ResourceLimiter(
        Limits(watts=100, celsius=80, upload_rate=1000),
        machine=sensors,
        bandwidth=bandwidth,
        traffic=cast(DailyTraffic, None),
        disk=cast(DiskWait, None),
        close_links=lambda _: None,
        fail=lambda _: None,
        clock=time.monotonic,
    )
    assert sensors.threads == set()
    assert bandwidth.upload.largest_bulk == math.inf


async def test_a_limit_that_cannot_be_kept_keeps_the_node_from_starting(swarm: Swarm) -> None:
    with fails_with(Code.LIMIT_UNAVAILABLE):
        await swarm.first(limits=Limits(watts=100))


def no_room(*_: object) -> None:
    raise UserError(Code.OUT_OF_MEMORY, "somebody else has the memory", "")


async def test_an_offloaded_model_that_finds_no_room_comes_back_when_there_is_room(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "RETURN_INTERVAL", 0.1)
    a = await training(swarm)
    await a.client.pause()
    own = await steady(a)
    a.engine.restore = no_room
    await a.client.resume()
    await a.until(lambda: a.node.status().pauses)
    told = ["room: somebody else has the memory; tried again every 0.1 s"]
    assert (a.node.status().state, a.node.status().pauses) == ("paused", told)
    assert made(a) == own
    await a.client.pause()
    assert a.node.status().pauses == ["asked for"]
    await a.client.resume()
    await a.until(lambda: a.node.status().pauses == told)
    with pytest.raises(UserError, match="somebody else"):
        await a.client.evaluate()
    del a.engine.restore
    await a.until(lambda: made(a) > own)
    assert a.node.status().pauses == []


async def test_a_node_without_room_for_its_model_can_finish(swarm: Swarm) -> None:
    a = await swarm.first(role="relay")
    b = await swarm.join("b")
    await b.until(lambda: made(b) > 5)
    await b.client.pause()
    own = await steady(b)
    b.engine.restore = no_room
    await b.client.resume()
    await b.until(lambda: b.node.status().pauses)
    await b.client.finish()
    await b.ended()
    await a.until(lambda: a.known == own)


async def test_an_engine_that_fails_to_unpark_ends_the_node_with_the_reason(swarm: Swarm) -> None:
    a = await training(swarm)
    await a.client.pause()
    await steady(a)

    def broken() -> None:
        raise RuntimeError("the device is gone")

    a.engine.restore = broken
    await a.client.resume()
    with pytest.raises(RuntimeError, match="the device is gone"):
        await a.ended()
