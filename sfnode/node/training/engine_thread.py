"""The engine thread: one queue in, callbacks out.

Everything that touches the model happens here, one thing at a time, so that the engine needs no locks and the
event loop never waits for a forward pass. Of updates the event loop passes on what counts alone, `{feed: how
many steps, and with which factors}`: the thread reads what differs from what it has applied from the log,
whether that is the whole history after loading, the news of a round, a cut, or a seal. However long the
engine is busy, what waits for it is bounded by the number of feeds. This module knows no links, and of the
log only that differences can be read.
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
"""`read(applied, wanted)`: what takes the cores from the one to the other, in batches of bounded size;
negated where something does not count any more (`store.replay.changes`). Called on the engine thread."""


@dataclass(frozen=True, slots=True)
class Order:
    """Evaluate these consecutive steps of our own feed, in one batched forward, with the whole of the groups
    that they belong to (SPEC U2)."""

    feed: Feed
    first: int
    epoch: int
    seeds: tuple[int, ...]
    """Those of whole groups."""
    before: int = 0
    """Seeds of steps before `first`."""
    after: int = 0
    """Seeds of steps after the last one that is asked for."""
    rate: RateFrom | None = None
    """Rate of the label, with the unit and the limit of its updates; None in an open run."""

    def asked(self, scalars: tuple[Values, ...]) -> tuple[Values, ...]:
        """Return, of what each seed has given, that of the steps that are asked for."""
        return scalars[self.before : len(scalars) - self.after]


class EngineThread:
    """Runs an Engine in a daemon thread, from loading it to the end; `start` starts it.

    To be made and called on the event loop. `on_ready()`, `on_result(order, result)` and `on_failure(error)`
    are called there, too: `on_ready` once the engine is loaded and has applied what was advanced before
    `start`, `on_failure` also with what the other two raise.
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
        """`begin` gives the loaded engine the cores of a checkpoint, and returns what they have of feeds."""
        self._load = load
        self._begin = begin
        self._read = read
        self._on_ready = on_ready
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._executor = DaemonExecutor("engine")
        self._before: list[Callable[[], None]] | None = []
        """Requests from before `start`; None from then on."""
        self._last: asyncio.Future[None] | None = None
        """The last request; all others are done when it is."""
        self._engine: Engine | None = None
        """None until it is loaded; the thread's own."""
        self.busy = 0.0
        """Seconds in which a step ran, until now."""
        self.devices: Sequence[Replica] = ()
        """Devices that compute; none before the engine is loaded."""
        self._lock = threading.Lock()
        """Guards the three below; held for moments only."""
        self._wanted: dict[Feed, Counted] | None = None
        """Order of what is to count, which waits in the queue and may still change; None if none waits, or a
        question has to be answered before anything later."""
        self._reads = False
        """Whether the log may be read from now on: the engine is loaded, or what waits is not to change."""
        self._waiting: deque[Order] = deque()
        """Orders that have not begun."""
        self._applied: dict[Feed, Counted] = {}
        """Steps of each feed that are in the cores, with their weights; the thread's own."""
        self._prepare: Callable[[Sequence[int]], None] | None = None
        """Set once the engine is loaded."""
        self._open: dict[asyncio.Future[Any], None] = {}
        """Calls that have no answer yet; the event loop's own."""
        self._ended = False
        self._stopping = threading.Event()

    def start(self) -> None:
        """Load the engine and begin with what has been asked for."""
        self._put(lambda engine: self._post(self._on_ready))
        waiting, self._before = self._before or [], None
        self._submit(partial(self._try, self._load_engine))
        for job in waiting:
            self._submit(job)

    def advance(self, counted: Mapping[Feed, Counted]) -> None:
        """Have the cores hold of these feeds, which the log has, exactly what counts."""
        with self._lock:
            if self._wanted is None:
                waiting: dict[Feed, Counted] = {}
                self._wanted = waiting
                self._put(lambda engine: self._catch_up(engine, waiting))
            self._wanted.update(counted)

    async def retreat(self, counted: Mapping[Feed, Counted]) -> None:
        """Like `advance`; returns when nothing is read from the log any more that counts no longer.

        At once while the engine loads: what waits can still change.
        """
        self.advance(counted)
        with self._lock:
            settled = not self._reads
        if not settled:
            await asyncio.wait([self.ask(lambda engine: None)])

    def order(self, order: Order) -> None:
        """Evaluate a step; the result comes through `on_result`."""
        if self._prepare is not None:
            self._prepare(order.seeds)
        with self._lock:
            self._waiting.append(order)
        self._put(lambda engine: self._step(engine, order))

    def withdraw(self) -> list[Order]:
        """Withdraw the orders that have not begun, in the order in which they were given."""
        with self._lock:
            orders = list(self._waiting)
            self._waiting.clear()
        return orders

    def call(
        self, function: Callable[[Engine], T], of: Mapping[Feed, Counted] | None = None
    ) -> asyncio.Future[T]:
        """Run `function(engine)` after what was asked before, between two steps; its result or exception.

        With `of`, the cores hold exactly these updates meanwhile, which the log has, and no others;
        afterwards what they held before, to the bit. The future is cancelled when the thread ends without an
        answer.
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
            except Exception as error:  # the caller's to handle, not the end of the thread
                self._post(_fail, future, error)
            else:
                self._post(_settle, future, result)
            if of is not None:
                self._apply(engine, dict.fromkeys(of, NOTHING) | before)

        self._put(job)
        return future

    def ask(
        self, question: Callable[[Engine], T], of: Mapping[Feed, Counted] | None = None
    ) -> asyncio.Future[T]:
        """Like `call`, about exactly the updates that were advanced until now, and no later ones; or about
        `of`."""
        with self._lock:
            self._wanted, self._reads = None, True
        return self.call(question, of)

    @property
    def idle(self) -> bool:
        """Whether all that was asked for is done."""
        return self._last is None or self._last.done()

    async def stop(self, grace: float) -> bool:
        """Ask the thread to end and give it `grace` seconds. False if a long forward pass was left behind."""
        self._stopping.set()
        self._executor.shutdown(wait=False)
        if self._last:
            await asyncio.wait([self._last], timeout=grace)
        self._end()
        return self.idle

    def _end(self) -> None:
        """Answer nothing more: whoever waits for an answer must not wait for ever."""
        self._ended = True
        for future in list(self._open):
            future.cancel()

    def _catch_up(self, engine: Engine, wanted: dict[Feed, Counted]) -> None:
        """Bring the cores to what counts, unless the node stops meanwhile."""
        with self._lock:
            self._reads = True
            if self._wanted is wanted:
                self._wanted = None  # from here on it does not change
        self._apply(engine, wanted)

    def _apply(self, engine: Engine, wanted: Mapping[Feed, Counted]) -> bool:
        """Let the cores hold of these feeds what is wanted; return whether they do, and the node has not been
        stopped meanwhile."""
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
        """Have a job done once the engine is loaded, after those before it."""

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
        """Do a piece of work; if it fails, nothing more is done."""
        try:
            work()
        except BaseException as error:
            self._stopping.set()
            self._executor.shutdown(wait=False)
            if not isinstance(error, CancelledError):  # what it waited for was called off: the node stops
                self._post(self._on_failure, error)  # an engine that fails is a local fault: loud
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


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
