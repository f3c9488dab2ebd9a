"""The engine's thread: one queue in, callbacks out.

Everything that touches the model happens here, one thing at a time, so that the engine needs no locks and the
event loop never waits for a forward pass. This module knows neither links nor logs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sfprotocol.messages import Feed

T = TypeVar("T")
EngineT = TypeVar("EngineT", bound="Engine")


class StepResult(Protocol):
    """What the engine returns for a step; `engine.trainer.StepResult` in the daemon."""

    @property
    def scalars(self) -> tuple[int, ...]: ...
    @property
    def loss(self) -> float: ...


class Engine(Protocol):
    """What the worker needs of a trainer (`engine.trainer.Trainer`)."""

    def apply(self, batch: Any) -> None: ...
    def step(self, seeds: Sequence[int], epoch: int) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Order:
    """Evaluate these consecutive steps of our own feed, in one batched forward."""

    feed: Feed
    first: int
    epoch: int
    seeds: tuple[int, ...]


class Worker(Generic[EngineT]):
    """Runs an Engine in a daemon thread, from loading it to the end.

    Updates that arrive while the engine loads wait in the queue. `on_ready()`, `on_result(order, result)` and
    `on_failure(error)` are called on the event loop that created the worker.
    """

    def __init__(
        self,
        load: Callable[[], EngineT],
        on_ready: Callable[[], None],
        on_result: Callable[[Order, StepResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[EngineT], None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def apply(self, batch: Any) -> None:
        """Apply updates to the cores, in the order of calls."""
        self._jobs.put(lambda engine: engine.apply(batch))

    def order(self, order: Order) -> None:
        """Evaluate a step; the result comes through `on_result`."""
        self._jobs.put(lambda engine: self._step(engine, order))

    async def call(self, function: Callable[[EngineT], T]) -> T:
        """Run `function(engine)` between two steps and return its result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def job(engine: EngineT) -> None:
            try:
                result = function(engine)
            except Exception as error:  # the caller's to handle, not the worker's end
                self._post(_settle, future, None, error)
            else:
                self._post(_settle, future, result, None)

        self._jobs.put(job)
        return await future

    async def stop(self, grace: float) -> bool:
        """Ask the thread to end and give it `grace` seconds. False if a long forward pass was left behind."""
        self._stopping.set()
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, grace)
        return not self._thread.is_alive()

    def _step(self, engine: EngineT, order: Order) -> None:
        result = engine.step(order.seeds, order.epoch)
        self._post(self._on_result, order, result)

    def _run(self) -> None:
        try:
            engine = self._load()
            self._post(self._on_ready)
            while (job := self._jobs.get()) is not None and not self._stopping.is_set():
                job(engine)
        except BaseException as error:  # an engine that fails is a local fault: loud
            self._post(self._on_failure, error)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
