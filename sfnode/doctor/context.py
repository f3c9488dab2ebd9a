"""The subject of an examination, the options that a node would be started with; calls of slow functions."""

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
    """The options of `sfnode join`, and how to examine."""

    data_dir: Path
    device: str
    dtype: str
    host_maddrs: tuple[str, ...]
    peers: tuple[str, ...] = ()
    run: Path | None = None
    model: str = ""
    """A folder, `shape:NAME`, or empty for the run's own."""
    data: Path | None = None
    ntp: tuple[str, int] | None = None
    """Time server and port; with None, no server is asked."""
    measure: bool = False
    """Measure steps even if the model is large."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices on which a node would compute."""
        return tuple(self.device.split(","))


async def in_thread(function: Callable[[], T]) -> T:
    """Call a slow function in a daemon thread and return its result.

    Nothing waits for the thread at the end: what hangs in it (a driver, a dead network disk) costs one check
    and not the command.
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
            return  # the event loop has ended, and the examination with it

    threading.Thread(target=work, daemon=True, name="doctor").start()
    return await future
