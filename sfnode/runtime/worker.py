"""The engine's thread: one queue in, callbacks out.

Everything that touches the model happens here, one thing at a time, so that the engine needs no locks and the
event loop never waits for a forward pass. This module knows neither links nor logs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sfnode.engine.core import Core, UpdateBatch
from sfprotocol.messages import Feed

T = TypeVar("T")


class StepResult(Protocol):
    """What the engine returns for a step (`engine.trainer.StepResult`)."""

    @property
    def scalars(self) -> tuple[int, ...]: ...
    @property
    def loss(self) -> float: ...


class Evaluation(Protocol):
    """A measurement of the model (`engine.tasks.Evaluation`)."""

    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def count(self) -> int: ...


class Engine(Protocol):
    """What a node needs of `engine.trainer.Trainer`; that one needs torch, this does not."""

    @property
    def core(self) -> Core: ...
    def apply(self, batch: UpdateBatch) -> None: ...
    def prepare(self, seeds: Sequence[int]) -> None: ...
    def step(self, seeds: Sequence[int], epoch: int) -> StepResult: ...
    def evaluate(self, limit: int, wanted: Callable[[], bool]) -> Evaluation: ...
    def evaluate_base(self, limit: int, wanted: Callable[[], bool]) -> Evaluation: ...
    def park(self) -> None: ...
    def unpark(self) -> None: ...
    def use_threads(self, count: int | None, most: int | None) -> None: ...
    def generate(self, prompt: str, tokens: int) -> tuple[str, str]: ...


@dataclass(frozen=True, slots=True)
class Order:
    """Evaluate these consecutive steps of our own feed, in one batched forward."""

    feed: Feed
    first: int
    epoch: int
    seeds: tuple[int, ...]


class Worker:
    """Runs an Engine in a daemon thread, from loading it to the end.

    Updates that arrive while the engine loads wait in the queue. `on_ready()`, `on_result(order, result)` and
    `on_failure(error)` are called on the event loop that created the worker; `on_failure` also with what the
    other two raise.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        on_ready: Callable[[], None],
        on_result: Callable[[Order, StepResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self.busy = 0.0
        """Seconds in which a step ran, until now."""
        self._waiting: deque[Order] = deque()
        """Orders that have not begun."""
        self._beginning = threading.Lock()
        self._stopping = threading.Event()
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def apply(self, batch: UpdateBatch) -> None:
        """Apply updates to the cores, in the order of calls."""
        self._jobs.put(lambda engine: engine.apply(batch))

    def order(self, order: Order) -> None:
        """Evaluate a step; the result comes through `on_result`."""
        if self._engine is not None:
            self._engine.prepare(order.seeds)  # returns at once
        with self._beginning:
            self._waiting.append(order)
        self._jobs.put(lambda engine: self._step(engine, order))

    def withdraw(self) -> list[Order]:
        """Take back the orders that have not begun, in the order in which they were given."""
        with self._beginning:
            orders = list(self._waiting)
            self._waiting.clear()
        return orders

    def call(self, function: Callable[[Engine], T]) -> asyncio.Future[T]:
        """Run `function(engine)` after what was asked before, between two steps; its result or exception."""
        future: asyncio.Future[T] = self._loop.create_future()

        def job(engine: Engine) -> None:
            try:
                result = function(engine)
            except Exception as error:  # the caller's to handle, not the worker's end
                self._post(_fail, future, error)
            else:
                self._post(_settle, future, result)

        self._jobs.put(job)
        return future

    async def stop(self, grace: float) -> bool:
        """Ask the thread to end and give it `grace` seconds. False if a long forward pass was left behind."""
        self._stopping.set()
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, grace)
        return not self._thread.is_alive()

    def _step(self, engine: Engine, order: Order) -> None:
        with self._beginning:
            if not (self._waiting and self._waiting[0] is order):
                return  # withdrawn
            self._waiting.popleft()
        begun = time.monotonic()
        result = engine.step(order.seeds, order.epoch)
        self.busy += time.monotonic() - begun
        self._post(self._on_result, order, result)

    def _run(self) -> None:
        try:
            self._engine = engine = self._load()
            self._post(self._on_ready)
            while (job := self._jobs.get()) is not None and not self._stopping.is_set():
                job(engine)
        except CancelledError:
            pass  # what it waited for was called off: the node stops
        except BaseException as error:  # an engine that fails is a local fault: loud
            self._post(self._on_failure, error)

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
