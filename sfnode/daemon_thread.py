"""Slow calls in threads that nobody waits for at the end: what hangs there costs its caller one answer, and
not the whole process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[[], T], name: str = "beside") -> T:
    """Call a slow function in a daemon thread of this name, and return its result or raise its error.

    Who is cancelled meanwhile leaves the thread to itself, as does a process that ends.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, fault = None, None
        try:
            result = function()
        except Exception as error:
            fault = error
        try:
            loop.call_soon_threadsafe(settle, result, fault)
        except RuntimeError:
            return  # nobody waits any more: the loop is closed

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
