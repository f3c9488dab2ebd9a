"""The daily traffic quota (`mb_per_day`): bytes uploaded and downloaded since midnight, over restarts.

The total is kept in the update log and written from time to time; a node that is killed forgets what it
carried in the last half minute. Counting happens on the event loop alone, writing in one thread at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from sfnode.limits import MEGABYTE
from sfnode.store.log import UpdateLog

FLUSH_INTERVAL = 30.0
"""Seconds between two writes: a commit costs the disk more than the bytes matter."""

_KEY = "traffic"


class _DayTotal(NamedTuple):
    """The bytes of one day, as they are kept in the log's meta table."""

    day: date
    size: int

    def encode(self) -> bytes:
        return f"{self.day.isoformat()} {self.size}".encode()


class DailyTraffic:
    """Bytes carried today. Callers give the bytes since the process started; this knows what was before.

    All methods are called on the event loop.
    """

    def __init__(
        self,
        update_log: UpdateLog,
        today: Callable[[], date] = date.today,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read what earlier processes carried today; nothing is written before the first flush."""
        self._log = update_log
        self._date = today
        self._day = today()
        self._before = _stored_count(update_log, self._day)
        """Bytes that earlier processes carried on this day, less what this one carried on earlier days."""
        self._written: _DayTotal | None = None
        self._clock = clock
        self._flushed_at = clock()
        self._writing = asyncio.Lock()
        """Held until a write has ended, also when whoever asked for it has been cancelled."""

    def today(self, total: int) -> int:
        """Return the bytes of today, given those since the process started."""
        return self._count(total).size

    def remaining(self, mb_per_day: float | None, total: int) -> float:
        """Return the bytes that this quota leaves for today; infinity without a quota."""
        return math.inf if mb_per_day is None else max(0.0, mb_per_day * MEGABYTE - self.today(total))

    async def flush_if_due(self, total: int) -> None:
        """Flush if that was not done within the last FLUSH_INTERVAL."""
        if self._clock() - self._flushed_at >= FLUSH_INTERVAL:
            await self.flush(total)

    async def flush(self, total: int) -> None:
        """Write the bytes of today; they are on the disk when this returns.

        Writes take place in the order of calls. Raises UserError DISK_FULL, DATA_DIR_UNUSABLE.
        """
        self._flushed_at = self._clock()
        await asyncio.shield(self._write(self._count(total)))

    def _count(self, total: int) -> _DayTotal:
        if (day := self._date()) != self._day:
            self._day, self._before = day, -total
        return _DayTotal(self._day, self._before + total)

    async def _write(self, entry: _DayTotal) -> None:
        async with self._writing:
            if entry != self._written:
                await asyncio.to_thread(self._log.set_meta, _KEY, entry.encode())
                self._written = entry


def _stored_count(update_log: UpdateLog, today: date) -> int:
    day, _, count = (update_log.get_meta(_KEY) or b"").decode().partition(" ")
    return int(count) if day == today.isoformat() else 0
