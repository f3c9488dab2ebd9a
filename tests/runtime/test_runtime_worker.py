"""The engine's thread: in order, one at a time, never in the way of the loop; and from log to engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_helpers import Result, SmallEngine, batch, eventually, manifest, record, scalar_of

from sfnode.runtime.replay import batches
from sfnode.runtime.worker import Order, StepResult, Worker
from sfnode.store.log import UpdateLog
from sfprotocol.messages import EpochScalars, Feed

RUN = manifest()
FEED = Feed(bytes(32), 0)


class Boss:
    """Takes a worker's calls; they must come on the event loop's thread."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.ready = asyncio.Event()
        self.results: list[tuple[Order, StepResult]] = []
        self.failures: list[BaseException] = []
        self.thread = threading.current_thread()
        self.worker = Worker(load, self._on_ready, self._on_result, self.failures.append)

    def _on_ready(self) -> None:
        assert threading.current_thread() is self.thread
        self.ready.set()

    def _on_result(self, order: Order, result: StepResult) -> None:
        assert threading.current_thread() is self.thread
        self.results.append((order, result))


async def test_steps_and_updates_take_turns_in_the_order_of_asking() -> None:
    engine = SmallEngine(RUN).go()
    boss = Boss(lambda: engine)
    for number in range(20):
        boss.worker.order(Order(FEED, number, 0, (number,)))
        boss.worker.apply(batch(1, number, [EpochScalars(0, (number,))]))
        assert await boss.worker.call(lambda engine: len(engine.applied)) == number + 1  # type: ignore[attr-defined]
    assert [order.first for order, _ in boss.results] == list(range(20))
    assert boss.results[3][1] == Result((scalar_of(3),))
    assert await boss.worker.stop(5)


async def test_updates_that_arrive_while_the_model_loads_wait() -> None:
    loaded, engine = threading.Event(), SmallEngine(RUN)

    def load() -> SmallEngine:
        loaded.wait()
        return engine

    boss = Boss(load)
    boss.worker.apply(batch(1, 0, [EpochScalars(0, (5,))]))
    answer = boss.worker.call(lambda engine: engine.core.digest())
    assert not boss.ready.is_set()
    loaded.set()
    await answer
    assert boss.ready.is_set()
    assert len(engine.applied) == 1
    assert await boss.worker.stop(5)


async def test_an_engine_that_cannot_be_loaded_is_reported() -> None:
    def load() -> SmallEngine:
        raise ValueError("no model")

    boss = Boss(load)
    await eventually(lambda: boss.failures)
    assert str(boss.failures[0]) == "no model"
    assert not boss.ready.is_set()


async def test_an_engine_that_fails_in_a_step_is_reported_and_does_nothing_more() -> None:
    engine = SmallEngine(RUN)
    engine.step = lambda seeds, epoch: Result((1 // 0,))  # type: ignore[method-assign]
    boss = Boss(lambda: engine)
    boss.worker.order(Order(FEED, 0, 0, (1,)))
    boss.worker.apply(batch(1, 0, [EpochScalars(0, (5,))]))
    await eventually(lambda: boss.failures)
    assert isinstance(boss.failures[0], ZeroDivisionError)
    assert await boss.worker.stop(5)
    assert not engine.applied


async def test_a_result_that_cannot_be_taken_in_is_reported_like_an_engine_that_fails() -> None:
    boss = Boss(lambda: SmallEngine(RUN).go())
    boss.results = None  # type: ignore[assignment]
    boss.worker.order(Order(FEED, 0, 0, (1,)))
    await eventually(lambda: boss.failures)
    assert isinstance(boss.failures[0], AttributeError)
    assert await boss.worker.stop(5)


async def test_a_question_that_fails_is_its_askers_business() -> None:
    boss = Boss(lambda: SmallEngine(RUN))
    with pytest.raises(ZeroDivisionError):
        await boss.worker.call(lambda _: 1 / 0)
    assert await boss.worker.call(lambda _: 7) == 7
    assert not boss.failures
    assert await boss.worker.stop(5)


async def test_a_step_that_takes_a_minute_is_left_behind() -> None:
    engine = SmallEngine(RUN)
    boss = Boss(lambda: engine)
    boss.worker.order(Order(FEED, 0, 0, (1,)))
    boss.worker.order(Order(FEED, 1, 0, (2,)))
    await eventually(engine.stepping.is_set)
    assert not await boss.worker.stop(0.05)
    engine.steps.release()
    await eventually(lambda: not boss.worker._thread.is_alive())
    assert engine.epochs == [0]  # it did not begin the other one


# -- from the log to the engine --------------------------------------------------------------------------


def test_a_replay_stops_where_the_log_ended_when_it_was_asked_for(tmp_path: Path) -> None:
    """What is appended afterwards reaches the engine by another way, and must not be counted twice."""
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as log:
        log.append([record(RUN, "a", [1, 2, 3]), record(RUN, "b", [4])])
        tails = log.tails()
        late = [record(RUN, "a", [5, 6], before=[1, 2, 3]), record(RUN, "c", [7])]
        log.append(late)
        engine = SmallEngine(RUN)
        for piece in batches(log, RUN.run_id, tails):
            engine.apply(piece)
        assert len(engine.applied) == 4
        for _, segment, _ in late:
            engine.apply(batch(segment.feed_key, segment.first, segment.parts))
        whole = SmallEngine(RUN)
        for piece in batches(log, RUN.run_id, log.tails()):
            whole.apply(piece)
        assert whole.core.digest() == engine.core.digest()
