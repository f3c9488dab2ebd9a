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
from typing import Any, Protocol, TypeVar

from sfprotocol.messages import Feed

T = TypeVar("T")


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


class Worker:
    """Runs an Engine in a daemon thread.

    `on_result(order, result)` and `on_failure(error)` are called on the event loop that created the worker.
    """

    def __init__(
        self,
        engine: Engine,
        on_result: Callable[[Order, StepResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def apply(self, batch: Any) -> None:
        """Apply updates to the cores, in the order of calls."""
        self._jobs.put(lambda: self._engine.apply(batch))

    def order(self, order: Order) -> None:
        """Evaluate a step; the result comes through `on_result`."""
        self._jobs.put(lambda: self._step(order))

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` between two steps and return its result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def job() -> None:
            try:
                result = function()
            except Exception as error:  # the caller's to handle, not the worker's end
                self._post(_settle, future, None, error)
            else:
                self._post(_settle, future, result, None)

        self._jobs.put(job)
        return await future

    async def stop(self, timeout: float) -> None:
        """Ask the thread to end and give it `timeout` seconds; a long forward pass is left behind."""
        self._stopping.set()
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, timeout)

    def _step(self, order: Order) -> None:
        result = self._engine.step(order.seeds, order.epoch)
        self._post(self._on_result, order, result)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._stopping.is_set():
                job()
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
