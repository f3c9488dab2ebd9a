"""The wait of a running node for room on its disk: what could not be written is written again until it is.

A node that starts without room refuses to (SF041). One that runs holds its engine, keeps its links and says
what is wrong. It continues by itself once somebody has made room. Nothing follows from what is not on disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sfnode.errors import Code, UserError

RETRY = 2.0
"""Seconds between two attempts to write: whoever makes room sees soon that it helps."""

FRESH = 5 * RETRY
"""Seconds after which a failure says nothing any more: the attempt since then, such as a long download, has
found room."""

T = TypeVar("T")


class DiskWait:
    """The writes of one node that wait for room. All but `patiently_in_thread` is called on its loop."""

    def __init__(self) -> None:
        self.changed: list[Callable[[], None]] = []
        """Called when the disk has filled up, and when there is room again."""
        self._loop = asyncio.get_running_loop()
        self._failures: dict[object, tuple[float, UserError]] = {}
        """The last failure of each write that waits, with its time."""
        self._full = False
        """Whether `changed` was last told of a full disk."""
        self._leaving = threading.Event()
        self._left = asyncio.Event()

    @property
    def problem(self) -> UserError | None:
        """DISK_FULL while a write waits for room."""
        since = self._loop.time() - FRESH
        return next((error for at, error in list(self._failures.values()) if at >= since), None)

    def leave(self) -> None:
        """Wait no longer, for good: what cannot be written now raises DISK_FULL."""
        self._leaving.set()
        self._left.set()

    async def patiently(
        self, write: Callable[[], Awaitable[T]], between: Callable[[], None] = lambda: None
    ) -> T:
        """Return what `write` returns. Call it again every RETRY seconds while it raises DISK_FULL, and
        `between` before each of these waits. Raises other errors, and after `leave` DISK_FULL, too."""
        waiting = object()
        try:
            while True:
                try:
                    return await write()
                except UserError as error:
                    self._note(waiting, error)
                self._tell()
                between()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._left.wait(), RETRY)
        finally:
            self._failures.pop(waiting, None)
            self._tell()

    def patiently_in_thread(self, write: Callable[[], T]) -> T:
        """Do the same on a thread that may wait."""
        waiting = object()
        try:
            while True:
                try:
                    return write()
                except UserError as error:
                    self._note(waiting, error)
                self._tell_from_thread()
                self._leaving.wait(RETRY)
        finally:
            if self._failures.pop(waiting, None):
                self._tell_from_thread()

    def _note(self, waiting: object, error: UserError) -> None:
        if error.code is not Code.DISK_FULL or self._leaving.is_set():
            raise error
        self._failures[waiting] = self._loop.time(), error

    def _tell(self) -> None:
        if self._full != (full := self.problem is not None):
            self._full = full
            for changed in self.changed:
                changed()

    def _tell_from_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell)
