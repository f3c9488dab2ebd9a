"""Makes a running node wait for room on its disk: a write that fails for lack of room is repeated until it
succeeds.

Without room a node does not start (SF041). A running node pauses its engine, keeps its links and reports the
problem. It continues by itself once there is room. Updates that are not on disk have no effect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sfnode.errors import Code, UserError

RETRY = 2.0
"""Pause, in seconds, between two attempts to write. It is short, so that an owner who makes room soon sees
the effect."""

FRESH = 5 * RETRY
"""Time, in seconds, for which a failed write counts as a sign of a full disk. If the next attempt, such as a
download, runs for longer than that, it has found room."""

T = TypeVar("T")


class DiskWait:
    """The writes of one node, which wait while its disk has no room. All methods but `patiently_in_thread`
    are called on the event loop."""

    def __init__(self) -> None:
        self.changed: list[Callable[[], None]] = []
        """Functions that are called when the disk has filled up, and when there is room again."""
        self._loop = asyncio.get_running_loop()
        self._failures: dict[object, tuple[float, UserError]] = {}
        """Time and error of the last failure of each waiting write, keyed by an object that identifies the
        write."""
        self._full = False
        """Whether the disk was full when the functions in `changed` were last called."""
        self._leaving = threading.Event()
        self._left = asyncio.Event()

    @property
    def problem(self) -> UserError | None:
        """The error DISK_FULL while a write waits for room; else None."""
        since = self._loop.time() - FRESH
        return next((error for at, error in list(self._failures.values()) if at >= since), None)

    def leave(self) -> None:
        """Stop waiting for room, for good: from now on a write without room raises DISK_FULL."""
        self._leaving.set()
        self._left.set()

    async def patiently(
        self, write: Callable[[], Awaitable[T]], between: Callable[[], None] = lambda: None
    ) -> T:
        """Return the result of `write`. While `write` raises DISK_FULL, call `between`, wait RETRY seconds
        and try again. Raises any other error of `write` at once, and DISK_FULL after `leave`."""
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
        """Like `patiently`, but on a thread that may block, and without `between`."""
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
