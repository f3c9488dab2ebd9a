"""Runs the engine on its own thread: requests come through one queue, results go to callbacks.

All work on the model happens here, one job at a time. So the engine needs no locks, and the event loop never
waits for a forward pass. The event loop passes on only which updates count: the number of steps of each feed,
with their factors. The thread compares these numbers with the applied updates and reads the difference from
the log. The difference may be the whole history after loading, the updates of a round, a cut, or a seal. So
the queue grows with the number of feeds only, however long the engine is busy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sfnode.daemon_thread import DaemonExecutor
from sfnode.engine.core import UpdateBatch
from sfprotocol.decisions import RateFrom
from sfprotocol.fields import Values
from sfprotocol.messages import Feed
from sfprotocol.weighing import NOTHING, Counted

if TYPE_CHECKING:  # they load torch
    from sfnode.engine.trainable_model import StepResult
    from sfnode.engine.trainer import Replica
    from sfnode.engine.trainer import ReplicatedTrainer as Engine

T = TypeVar("T")

ReadChanges = Callable[[Mapping[Feed, Counted], Mapping[Feed, Counted]], Iterator[UpdateBatch]]
"""Function `read(applied, wanted)` that yields the difference between two states of the cores, in batches of
bounded size. Updates that no longer count are negated (`store.replay.changes`). Called on the engine
thread."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order to evaluate consecutive steps of our own feed in one batched forward pass, together with the
    rest of their groups (SPEC U2)."""

    feed: Feed
    first: int
    epoch: int
    seeds: tuple[int, ...]
    """Seeds of all updates of the groups that have an ordered step."""
    before: int = 0
    """Number of leading seeds, which belong to steps before `first`."""
    after: int = 0
    """Number of trailing seeds, which belong to steps after the last ordered one."""
    rate: RateFrom | None = None
    """Rate of the label, with the unit and the limit of its updates; None in an open run."""

    def asked(self, scalars: tuple[Values, ...]) -> tuple[Values, ...]:
        """Return the scalars of the ordered steps. `scalars` has the scalars of all seeds."""
        return scalars[self.before : len(scalars) - self.after]


class EngineThread:
    """Runs an Engine in a daemon thread, from loading to the end. `start` starts it.

    It is made and called on the event loop. The callbacks run there, too: `on_ready()` once the engine is
    loaded and the requests made before `start` are done, `on_result(order, result)` after a step, and
    `on_failure(error)` after an error of the engine or of the other two callbacks.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        read: ReadChanges,
        *,
        on_ready: Callable[[], None],
        on_result: Callable[[Order, StepResult], None],
        on_failure: Callable[[BaseException], None],
        begin: Callable[[Engine], Mapping[Feed, Counted]] = lambda engine: {},
    ) -> None:
        """`begin` gives the loaded engine the cores of a checkpoint, and returns the updates in these cores,
        keyed by feed."""
        self._load = load
        self._begin = begin
        self._read = read
        self._on_ready = on_ready
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._executor = DaemonExecutor("engine")
        self._before: list[Callable[[], None]] | None = []
        """Requests from before `start`; None afterwards."""
        self._last: asyncio.Future[None] | None = None
        """Future of the last request. When it is done, all requests are done."""
        self._engine: Engine | None = None
        """The engine; None until it is loaded. Used by the thread alone."""
        self.busy = 0.0
        """Total time of all steps, in seconds."""
        self.devices: Sequence[Replica] = ()
        """Devices that compute; empty before the engine is loaded."""
        self._lock = threading.Lock()
        """Guards the next three attributes. Never held for long."""
        self._wanted: dict[Feed, Counted] | None = None
        """Updates that the queued request of `advance` asks for. Later calls of `advance` may still change
        them. None if no such request is queued, or a question was queued after it."""
        self._reads = False
        """Whether the thread may be reading the log. It may when the engine is loaded, or when the queued
        request of `advance` cannot be changed any more."""
        self._waiting: deque[Order] = deque()
        """Orders on which the thread has not begun."""
        self._applied: dict[Feed, Counted] = {}
        """Updates in the cores, with their factors, keyed by feed. Used by the thread alone."""
        self._prepare: Callable[[Sequence[int]], None] | None = None
        """Prepares mini-batches; None until the engine is loaded."""
        self._open: dict[asyncio.Future[Any], None] = {}
        """Calls without an answer. Used by the event loop alone."""
        self._ended = False
        self._stopping = threading.Event()

    def start(self) -> None:
        """Load the engine and begin with the queued requests."""
        self._put(lambda engine: self._post(self._on_ready))
        waiting, self._before = self._before or [], None
        self._submit(partial(self._try, self._load_engine))
        for job in waiting:
            self._submit(job)

    def advance(self, counted: Mapping[Feed, Counted]) -> None:
        """Make the cores hold exactly the updates `counted` of these feeds. The log has these updates."""
        with self._lock:
            if self._wanted is None:
                waiting: dict[Feed, Counted] = {}
                self._wanted = waiting
                self._put(lambda engine: self._catch_up(engine, waiting))
            self._wanted.update(counted)

    async def retreat(self, counted: Mapping[Feed, Counted]) -> None:
        """Like `advance`, but return only when the engine no longer reads updates from the log that do not
        count.

        While the engine is being loaded, return at once. It reads nothing yet, and the queued request of an
        earlier `advance` can still be changed.
        """
        self.advance(counted)
        with self._lock:
            settled = not self._reads
        if not settled:
            await asyncio.wait([self.ask(lambda engine: None)])

    def order(self, order: Order) -> None:
        """Queue the evaluation of a step. The result is passed to `on_result`."""
        if self._prepare is not None:
            self._prepare(order.seeds)
        with self._lock:
            self._waiting.append(order)
        self._put(lambda engine: self._step(engine, order))

    def withdraw(self) -> list[Order]:
        """Withdraw the orders on which the engine has not begun, and return them in the order in which they
        were given."""
        with self._lock:
            orders = list(self._waiting)
            self._waiting.clear()
        return orders

    def call(
        self, function: Callable[[Engine], T], of: Mapping[Feed, Counted] | None = None
    ) -> asyncio.Future[T]:
        """Run `function(engine)` after the earlier requests, between two steps. The returned future gets the
        function's result or error.

        With `of`, the cores hold exactly the updates `of` during the call, and afterwards the same bits as
        before. The log has the updates `of`. The future is cancelled if the thread ends without an answer.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._ended:
            future.cancel()
            return future
        self._open[future] = None
        future.add_done_callback(self._open.pop)

        def job(engine: Engine) -> None:
            before = dict(self._applied)
            if of is not None and not self._apply(engine, dict.fromkeys(before, NOTHING) | dict(of)):
                return
            try:
                result = function(engine)
            except Exception as error:  # the caller handles it; the thread goes on
                self._post(_settle, future, future.set_exception, error)
            else:
                self._post(_settle, future, future.set_result, result)
            if of is not None:
                self._apply(engine, dict.fromkeys(of, NOTHING) | before)

        self._put(job)
        return future

    def ask(
        self, question: Callable[[Engine], T], of: Mapping[Feed, Counted] | None = None
    ) -> asyncio.Future[T]:
        """Like `call`, but without `of` the cores hold the updates of all earlier calls of `advance`, and no
        later ones."""
        with self._lock:
            self._wanted, self._reads = None, True
        return self.call(question, of)

    @property
    def idle(self) -> bool:
        """Whether all queued requests are done."""
        return self._last is None or self._last.done()

    async def stop(self, grace: float) -> bool:
        """End the thread, and wait at most `grace` seconds for its end. Return False if a long forward pass
        is still running after that time."""
        self._stopping.set()
        self._executor.shutdown(wait=False)
        if self._last:
            await asyncio.wait([self._last], timeout=grace)
        self._end()
        return self.idle

    def _end(self) -> None:
        """Cancel all calls without an answer, so that no caller waits for ever."""
        self._ended = True
        for future in list(self._open):
            future.cancel()

    def _catch_up(self, engine: Engine, wanted: dict[Feed, Counted]) -> None:
        """Make the cores hold the wanted updates, unless the node stops meanwhile."""
        with self._lock:
            self._reads = True
            if self._wanted is wanted:
                self._wanted = None  # from here on `wanted` does not change
        self._apply(engine, wanted)

    def _apply(self, engine: Engine, wanted: Mapping[Feed, Counted]) -> bool:
        """Make the cores hold the wanted updates of these feeds. Return False if the node stops meanwhile."""
        for batch in self._read(self._applied, wanted):
            if self._stopping.is_set():
                return False
            engine.apply(batch)
        self._applied.update(wanted)
        return True

    def _step(self, engine: Engine, order: Order) -> None:
        with self._lock:
            if not (self._waiting and self._waiting[0] is order):
                return  # withdrawn
            self._waiting.popleft()
        begun = time.monotonic()
        result = engine.step(order.seeds, order.epoch, order.rate)
        self.busy += time.monotonic() - begun
        self._post(self._on_result, order, result)

    def _put(self, job: Callable[[Engine], None]) -> None:
        """Queue a job for the loaded engine."""

        def do() -> None:
            engine = self._engine
            if engine is not None and not self._stopping.is_set():
                self._try(partial(job, engine))

        if self._before is None:
            self._submit(do)
        else:
            self._before.append(do)

    def _submit(self, job: Callable[[], None]) -> None:
        if not self._ended and not self._stopping.is_set():
            self._last = self._loop.run_in_executor(self._executor, job)

    def _load_engine(self) -> None:
        engine = self._load()
        self._applied = dict(self._begin(engine))
        self._prepare, self.devices = engine.mini_batches.prepare, engine.devices
        self._engine = engine

    def _try(self, work: Callable[[], None]) -> None:
        """Do a piece of work. After a failure, stop the thread and report the error."""
        try:
            work()
        except BaseException as error:
            self._stopping.set()
            self._executor.shutdown(wait=False)
            if not isinstance(error, CancelledError):  # the work waited for a cancelled task: the node stops
                self._post(self._on_failure, error)  # an engine that fails is a local fault
            self._post(self._end)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._call_back, callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _call_back(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:  # the event loop would only log it
            self._on_failure(error)


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():
        settle(outcome)
