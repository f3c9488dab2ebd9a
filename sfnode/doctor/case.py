"""What is examined: the options that a node would be started with, and what several checks need at once.

Heavy things (libraries, the network) are had once, by the first check that asks, and awaited by all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """As `sfnode join` would be called, and how to examine."""

    data_dir: Path
    peers: tuple[str, ...] = ()
    run: Path | None = None
    model: str = ""
    """A folder, `shape:NAME`, or empty for the run's own."""
    data: Path | None = None
    device: str = "cpu"
    dtype: str = "auto"
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    ntp: tuple[str, int] | None = None
    """Time server and port; None asks none."""
    measure: bool = False
    """Measure steps even if the model is large."""


async def in_thread(function: Callable[[], T]) -> T:
    """The result of a function that takes its time, from a thread that nobody waits for at the end: what
    hangs there (a driver, a dead network disk) costs one check and not the command."""
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
            return  # the loop has ended: nobody wants to know any more

    threading.Thread(target=work, daemon=True, name="doctor").start()
    return await future
