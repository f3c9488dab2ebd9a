"""The engine thread: it does one job at a time, never blocks the event loop, and reads updates from the
log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.engine.core import Core, UpdateBatch
from sfnode.node.training.engine_thread import EngineThread, Order
from sfnode.store.log import CutRecord, Record, UpdateLog
from sfnode.store.replay import changes
from sfprotocol.decisions import FACTOR_ONE, RateFrom
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.run_state import Span
from sfprotocol.weighing import Counted, Rates, once
from tests.node.helpers import (
    Result,
    SmallEngine,
    batch,
    eventually,
    feed_of,
    manifest,
    record,
    scalar_of,
)

RUN = manifest()
FEED = Feed(bytes(32), 0)

Stops = Mapping[Feed, int]


def counted(stops: Stops) -> dict[Feed, Counted]:
    return {feed: once(stop) for feed, stop in stops.items()}


def advance(owner: Owner, stops: Stops) -> None:
    owner.thread.advance(counted(stops))


def nothing(applied: Mapping[Feed, Counted], wanted: Mapping[Feed, Counted]) -> Iterator[UpdateBatch]:
    """Read nothing: no feed of this log ever grows."""
    return iter(())


class Owner:
    """An engine thread and its callbacks, which must run on the event loop's thread."""

    made: ClassVar[list[Owner]] = []

    def __init__(self, load: Callable[[], Any], read: Callable[..., Iterator[UpdateBatch]] = nothing) -> None:
        self.ready = asyncio.Event()
        self.results: list[tuple[Order, Any]] = []
        self.failures: list[BaseException] = []
        self.loop_thread = threading.current_thread()
        self.thread = EngineThread(
            load,
            read,
            on_ready=self._on_ready,
            on_result=self._on_result,
            on_failure=self.failures.append,
        )
        self.made.append(self)

    def start(self) -> Owner:
        self.thread.start()
        return self

    def _on_ready(self) -> None:
        assert threading.current_thread() is self.loop_thread
        self.ready.set()

    def _on_result(self, order: Order, result: Any) -> None:
        assert threading.current_thread() is self.loop_thread
        self.results.append((order, result))


class Exact:
    """An engine with exact cores that records the sizes of its batches. Its steps wait for `gate`."""

    def __init__(self) -> None:
        self.core = Core(*RUN.core_shape)
        self.mini_batches = self
        self.devices = ()
        self.sizes: list[int] = []
        self.subtracted = 0
        self.gate = threading.Event()
        self.gate.set()
        self.stepping = threading.Event()

    def apply(self, batch: UpdateBatch) -> None:
        self.sizes.append(len(batch.seeds))
        self.core.add(batch)

    def prepare(self, seeds: Sequence[int]) -> None:
        pass

    def step(self, seeds: Sequence[int], epoch: int, rate: object = None) -> Result:
        self.stepping.set()
        self.gate.wait()
        return Result((0,) * len(seeds))


class Loading:
    """A function that returns the engine once `done` is set."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.done = threading.Event()

    def __call__(self) -> Any:
        self.done.wait()
        return self.engine


def cannot_load() -> SmallEngine:
    raise ValueError("no model")


def core_of(log: UpdateLog, stops: Stops) -> bytes:
    """Return the digest of a core with exactly these updates."""
    core = Core(*RUN.core_shape)
    for kept in log.records():
        parts = [(epoch, scalar) for epoch, scalars in kept.segment.parts for scalar in scalars]
        wanted = parts[: max(0, stops.get(kept.feed, 0) - kept.segment.first)]
        if wanted:
            one_by_one = [EpochScalars(epoch, (scalar,)) for epoch, scalar in wanted]
            core.add(batch(kept.segment.feed_key, kept.segment.first, one_by_one))
    return core.digest()


@pytest.fixture(autouse=True)
async def all_stop() -> AsyncIterator[None]:
    """Stop the threads of a test. All must end soon."""
    yield
    assert all([await owner.thread.stop(5) for owner in Owner.made])
    Owner.made.clear()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as opened:
        yield opened


# -- orders and questions --------------------------------------------------------------------------------


async def test_the_constructor_starts_no_thread() -> None:
    before = threading.active_count()
    owner = Owner(Exact)
    assert threading.active_count() == before
    assert await owner.start().thread.call(lambda engine: 7) == 7


async def test_steps_and_updates_take_turns_in_the_order_of_asking(log: UpdateLog) -> None:
    engine = SmallEngine(RUN).go()
    owner = Owner(lambda: engine, partial(changes, log)).start()
    said: list[int] = []
    for number in range(20):
        owner.thread.order(Order(FEED, number, 0, (number,)))
        log.append([record(RUN, "a", [number], before=said)])
        said.append(number)
        advance(owner, {feed_of("a"): number + 1})
        assert await owner.thread.call(lambda engine: len(engine.applied)) == number + 1  # type: ignore[attr-defined]
    assert [order.first for order, _ in owner.results] == list(range(20))
    assert owner.results[3][1] == Result((scalar_of(3),))


class OnOneThread:
    """An engine that fails if anything but `prepare` is called on another thread."""

    def __init__(self, engine: SmallEngine) -> None:
        self._engine = engine
        self._thread = threading.current_thread()
        self.prepared: list[tuple[int, ...]] = []
        self.mini_batches = self
        self.devices = ()

    def prepare(self, seeds: Sequence[int]) -> None:
        self.prepared.append(tuple(seeds))

    def __getattr__(self, name: str) -> Any:
        assert threading.current_thread() is self._thread, f"{name} was asked for on another thread"
        return getattr(self._engine, name)


async def test_nothing_but_preparing_is_asked_of_the_engine_on_another_thread(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1, 2, 3])])
    owner = Owner(lambda: OnOneThread(SmallEngine(RUN).go()), partial(changes, log))
    advance(owner, {feed_of("a"): 3})
    owner.start()
    await owner.ready.wait()
    for number in range(5):
        owner.thread.order(Order(FEED, number, 0, (number,)))
    await eventually(lambda: len(owner.results) == 5)
    prepared = await owner.thread.call(lambda engine: engine.prepared)  # type: ignore[attr-defined]
    assert prepared == [(number,) for number in range(5)]
    assert not owner.failures


async def test_an_engine_that_fails_in_a_step_is_reported_and_does_nothing_more(log: UpdateLog) -> None:
    engine = SmallEngine(RUN)
    engine.step = lambda seeds, epoch, rate: Result((1 // 0,))  # type: ignore[method-assign]
    log.append([record(RUN, "a", [5])])
    owner = Owner(lambda: engine, partial(changes, log)).start()
    owner.thread.order(Order(FEED, 0, 0, (1,)))
    advance(owner, {feed_of("a"): 1})
    await eventually(lambda: owner.failures)
    assert isinstance(owner.failures[0], ZeroDivisionError)
    assert not engine.applied


async def test_a_log_that_ends_too_early_is_reported(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [5])])
    owner = Owner(Exact, partial(changes, log)).start()
    advance(owner, {feed_of("a"): 2})
    await eventually(lambda: owner.failures)
    assert "missing" in str(owner.failures[0])


async def test_a_result_that_cannot_be_taken_in_is_reported_like_an_engine_that_fails() -> None:
    owner = Owner(lambda: SmallEngine(RUN).go()).start()
    owner.results = None  # type: ignore[assignment]
    owner.thread.order(Order(FEED, 0, 0, (1,)))
    await eventually(lambda: owner.failures)
    assert isinstance(owner.failures[0], AttributeError)


async def test_a_question_that_fails_is_its_askers_business() -> None:
    owner = Owner(lambda: SmallEngine(RUN)).start()
    with pytest.raises(ZeroDivisionError):
        await owner.thread.call(lambda _: 1 / 0)
    assert await owner.thread.ask(lambda _: 7) == 7
    assert not owner.failures


async def test_nobody_waits_for_the_answer_of_a_thread_that_has_ended() -> None:
    broken = Owner(cannot_load).start()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(broken.thread.ask(lambda _: 7), 5)
    ended = Owner(lambda: SmallEngine(RUN)).start()
    assert await ended.thread.ask(lambda _: 7) == 7
    assert await ended.thread.stop(5)
    assert ended.thread.ask(lambda _: 7).cancelled()
    busy = SmallEngine(RUN)
    left = Owner(lambda: busy).start()
    left.thread.order(Order(FEED, 0, 0, (1,)))
    waiting = left.thread.ask(lambda _: 7)
    await eventually(busy.stepping.is_set)
    assert not await left.thread.stop(0.05)
    assert waiting.cancelled()
    busy.steps.release()


async def test_a_step_that_takes_a_minute_is_left_behind() -> None:
    engine = SmallEngine(RUN)
    owner = Owner(lambda: engine).start()
    owner.thread.order(Order(FEED, 0, 0, (1,)))
    owner.thread.order(Order(FEED, 1, 0, (2,)))
    await eventually(engine.stepping.is_set)
    assert not await owner.thread.stop(0.05)
    engine.steps.release()
    thread = owner.thread._executor.thread
    await eventually(lambda: thread and not thread.is_alive())
    assert engine.epochs == [0]  # it did not begin the other one


async def test_orders_that_have_not_begun_can_be_withdrawn() -> None:
    engine = Exact()
    engine.gate.clear()
    owner = Owner(lambda: engine).start()
    orders = [Order(FEED, number, 0, (number,)) for number in range(3)]
    for order in orders:
        owner.thread.order(order)
    await eventually(engine.stepping.is_set)
    assert owner.thread.withdraw() == orders[1:]
    engine.gate.set()
    await owner.thread.call(lambda _: None)
    assert [order for order, _ in owner.results] == orders[:1]


# -- updates by position ---------------------------------------------------------------------------------


async def test_the_engine_is_ready_when_it_has_the_history(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1, 2, 3])])
    engine = SmallEngine(RUN)
    owner = Owner(lambda: engine, partial(changes, log))
    owner._on_ready = None  # type: ignore[assignment, method-assign]
    seen: list[int] = []
    owner.thread._on_ready = lambda: seen.append(len(engine.applied))
    advance(owner, {feed_of("a"): 3})
    owner.start()
    await eventually(lambda: seen)
    assert seen == [3]


async def test_what_waits_while_the_model_loads_is_bounded_by_the_feeds(log: UpdateLog) -> None:
    """The number of updates does not matter."""
    engine, updates, names = Exact(), 3_000, "abc"
    loading = Loading(engine)
    owner = Owner(loading, partial(changes, log)).start()
    stops: dict[Feed, int] = {}
    for number in range(updates):
        stops[feed_of(names[number % 3])] = number // 3 + 1
        advance(owner, {feed_of(names[number % 3]): number // 3 + 1})
    assert owner.thread._executor._jobs.qsize() == 2  # positions, and that it is ready
    assert owner.thread._wanted == counted(stops)
    for name in names:
        scalars = [scalar_of(step) for step in range(stops[feed_of(name)])]
        starts = [*range(0, len(scalars), 400), len(scalars)]
        for first, stop in pairwise(starts):
            log.append([record(RUN, name, scalars[first:stop], before=scalars[:first])])
    loading.done.set()
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, stops)
    assert sum(engine.sizes) == updates


async def test_a_cut_while_the_model_loads_and_one_after_it(log: UpdateLog) -> None:
    engine = Exact()
    loading = Loading(engine)
    a, b = feed_of("a"), feed_of("b")
    log.append([record(RUN, "a", [1, 2, 3, 4, 5]), record(RUN, "b", [6, 7])])
    owner = Owner(loading, partial(changes, log)).start()
    advance(owner, {a: 5, b: 1})
    log.append([], [CutRecord(a, 2, bytes(32), b"proof")])
    advance(owner, {a: 2})
    loading.done.set()
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 2, b: 1})
    assert sum(engine.sizes) == 3  # the steps behind the cut were never applied
    advance(owner, {b: 2})
    log.append([], [CutRecord(b, 0, bytes(32), b"proof")])
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 2, b: 2})
    advance(owner, {b: 0})
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 2})
    assert sum(engine.sizes) == 6


async def test_a_question_is_about_the_moment_at_which_it_was_asked(log: UpdateLog) -> None:
    """This holds even if updates and a cut arrive while the question waits for a step."""
    engine = Exact()
    engine.gate.clear()
    a = feed_of("a")
    log.append([record(RUN, "a", [1, 2, 3, 4, 5, 6, 7])])
    owner = Owner(lambda: engine, partial(changes, log)).start()
    owner.thread.order(Order(FEED, 0, 0, (1,)))
    await eventually(engine.stepping.is_set)
    answers = {}
    for stop in (2, 5, 3, 7):
        advance(owner, {a: stop - 1})
        advance(owner, {a: stop})
        answers[stop] = owner.thread.ask(lambda engine: engine.core.digest())
    advance(owner, {a: 1})
    engine.gate.set()
    for stop, answer in answers.items():
        assert await answer == core_of(log, {a: stop})
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 1})


async def test_a_question_can_be_about_other_updates_which_leave_no_trace(log: UpdateLog) -> None:
    engine, (a, b, c) = Exact(), map(feed_of, "abc")
    log.append([record(RUN, name, [1, 2, 3, 4, 5, 6, 7]) for name in "abc"])
    owner = Owner(lambda: engine, partial(changes, log)).start()
    advance(owner, {a: 7, b: 3})
    digest: Callable[[Any], bytes] = lambda engine: engine.core.digest()  # noqa: E731

    def fails(engine: Any) -> None:
        raise ValueError(engine.core.digest().hex())

    named = {a: 2, c: 5}
    assert await owner.thread.ask(digest, counted(named)) == core_of(log, named)
    with pytest.raises(ValueError, match=core_of(log, named).hex()):
        await owner.thread.ask(fails, counted(named))
    assert await owner.thread.ask(digest) == core_of(log, {a: 7, b: 3})
    advance(owner, {a: 6, b: 4})
    assert await owner.thread.ask(digest) == core_of(log, {a: 6, b: 4})
    assert not owner.failures


async def test_a_question_about_updates_that_the_log_lacks_ends_the_engine(log: UpdateLog) -> None:
    """The cores may already hold some of the updates."""
    owner = Owner(Exact, partial(changes, log)).start()
    asked = owner.thread.ask(lambda engine: 7, counted({feed_of("a"): 1}))
    await eventually(lambda: owner.failures)
    assert asked.cancelled()


async def test_a_long_replay_does_not_hold_up_the_end() -> None:
    engine = Exact()

    def endless(applied: Mapping[Feed, Counted], wanted: Mapping[Feed, Counted]) -> Iterator[UpdateBatch]:
        while True:
            yield batch(1, 0, [EpochScalars(0, (1,))])

    owner = Owner(lambda: engine, endless).start()
    advance(owner, {FEED: 1})
    await eventually(lambda: engine.sizes)
    assert not owner.failures


NAMES = "abc"
STEPS = 100


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpdateLog]:
    """A log of three feeds in segments of various sizes, partly from an earlier opening of the file."""
    path = tmp_path_factory.mktemp("history") / "updates.sqlite"
    with UpdateLog.open(path, RUN.run_id) as log:
        _say(log, 0, 60)
    with UpdateLog.open(path, RUN.run_id) as log:
        _say(log, 60, STEPS)
        yield log


def _say(log: UpdateLog, start: int, end: int) -> None:
    records = []
    for number, name in enumerate(NAMES):
        size = 7 * number + 1
        for first in range(start, end, size):
            said = [step * 31 % 401 - 200 for step in range(min(first + size, end))]
            records.append(record(RUN, name, said[first:], before=said[:first]))
    log.append(records)


moves = st.tuples(st.sampled_from(NAMES), st.integers(0, STEPS))
"""A feed and its new number of counted updates, larger or smaller than before."""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(moves, st.sampled_from(["ask", "step", "wait"])), max_size=30))
def test_whatever_the_order_the_cores_are_those_of_the_final_positions(
    history: UpdateLog, play: list[Any]
) -> None:
    async def run() -> None:
        owner = Owner(Exact, partial(changes, history)).start()
        stops: dict[Feed, int] = {}
        answers = []
        for act in [*play, "ask"]:
            if act == "ask":
                answers.append((dict(stops), owner.thread.ask(lambda engine: engine.core.digest())))
            elif act == "step":
                owner.thread.order(Order(FEED, 0, 0, (1,)))
            elif act == "wait":
                await owner.thread.call(lambda engine: None)
            else:
                stops[feed_of(act[0])] = act[1]
                advance(owner, {feed_of(act[0]): act[1]})
        for moment, answer in answers:
            assert await answer == core_of(history, moment)
        assert await owner.thread.stop(5)
        assert not owner.failures
        Owner.made.remove(owner)

    asyncio.run(run())


# -- histories that are about to be replaced -------------------------------------------------------------


def as_(name: str, scalars: list[int], first: int) -> Record:
    """Return the segment of `name` from step `first` on, for a history that may differ from an earlier
    one."""
    return record(RUN, name, scalars[first:], before=scalars[:first])


async def test_updates_are_taken_out_before_others_take_their_place_in_the_log(log: UpdateLog) -> None:
    engine, a = Exact(), feed_of("a")
    engine.gate.clear()
    log.append([as_("a", [1, 2, 3, 4], 0)])
    owner = Owner(lambda: engine, partial(changes, log)).start()
    advance(owner, {a: 4})
    before = owner.thread.ask(lambda engine: engine.core.digest())
    wanted = core_of(log, {a: 4})
    owner.thread.order(Order(FEED, 0, 0, (1,)))
    await eventually(engine.stepping.is_set)
    retreating = asyncio.create_task(owner.thread.retreat(counted({a: 1})))
    await asyncio.sleep(0)
    assert not retreating.done()  # the engine is in a step
    engine.gate.set()
    await retreating
    log.append([as_("a", [1, 7, 8], 1)], replacing=True)
    advance(owner, {a: 3})
    assert await before == wanted
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 3})
    assert not owner.failures


async def test_a_history_may_be_replaced_at_once_while_the_model_loads(log: UpdateLog) -> None:
    loading, a = Loading(Exact()), feed_of("a")
    log.append([as_("a", [1, 2, 3, 4], 0)])
    owner = Owner(loading, partial(changes, log)).start()
    advance(owner, {a: 4})
    await asyncio.wait_for(owner.thread.retreat(counted({a: 1})), 5)
    log.append([as_("a", [1, 7, 8], 1)], replacing=True)
    advance(owner, {a: 3})
    loading.done.set()
    assert await owner.thread.ask(lambda engine: engine.core.digest()) == core_of(log, {a: 3})


async def test_a_question_that_waits_while_the_model_loads_is_about_the_history_that_was_there(
    log: UpdateLog,
) -> None:
    loading, a = Loading(Exact()), feed_of("a")
    log.append([as_("a", [1, 2, 3, 4], 0)])
    wanted = core_of(log, {a: 4})
    owner = Owner(loading, partial(changes, log)).start()
    advance(owner, {a: 4})
    before = owner.thread.ask(lambda engine: engine.core.digest())
    retreating = asyncio.create_task(owner.thread.retreat(counted({a: 1})))
    await asyncio.sleep(0)
    assert not retreating.done()
    loading.done.set()
    await retreating
    assert await before == wanted


async def test_nobody_waits_for_an_engine_that_has_failed(log: UpdateLog) -> None:
    owner = Owner(cannot_load).start()
    owner.thread.ask(lambda _: 7)
    await asyncio.wait_for(owner.thread.retreat(counted({feed_of("a"): 1})), 5)


async def test_factors_and_rates_of_what_is_applied_change(log: UpdateLog) -> None:
    engine, a = Exact(), feed_of("a")
    log.append([as_("a", [1, 2, 3, 4], 0)])
    owner = Owner(lambda: engine, partial(changes, log)).start()
    rates = Rates(0, (RateFrom(0, 1 << 20),))
    for runs in ((Span(4, FACTOR_ONE),), (Span(2, 0), Span(4, 2048)), (Span(1, 7), Span(4, FACTOR_ONE)), ()):
        owner.thread.advance({a: Counted(runs, rates)})
        core = Core(*RUN.core_shape)
        for columns in changes(log, {}, {a: Counted(runs, rates)}):
            core.add(columns)
        assert await owner.thread.ask(lambda engine: engine.core.digest()) == core.digest()
