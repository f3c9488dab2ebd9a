"""Daemon threads, for which the process does not wait at its end. If a call hangs in such a thread, its
caller gets no answer, but the process can still end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonExecutor(Executor):
    """An executor of one daemon thread, which does one job after another.

    The thread begins with the first job. Unlike a thread of a `ThreadPoolExecutor`, it does not keep the
    process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        """The thread; None before the first job."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(job)
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self.thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread once it has done all jobs that it was given. With `wait`, wait for its end."""
        self._jobs.put(None)
        if wait and self.thread:
            self.thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


async def in_daemon_thread(function: Callable[[], T], name: str = "beside") -> T:
    """Call a slow function in a daemon thread called `name`, and return its result or raise its error.

    The thread is abandoned if the caller is cancelled or the process ends.
    """
    executor = DaemonExecutor(name)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, function)
    finally:
        executor.shutdown(wait=False)
