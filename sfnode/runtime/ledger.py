"""The bytes of the day: what was sent and received since midnight, over restarts of the node.

Kept with the update log, now and then; a node that is killed forgets what it carried in the last moments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import date

from sfnode.store.log import UpdateLog

_KEY = "traffic"

KEEP_INTERVAL = 30.0
"""Seconds between two times of writing it down: a commit costs the disk more than the bytes matter."""


class Ledger:
    """Give it the bytes carried since the process began; it knows what was before."""

    def __init__(self, update_log: UpdateLog, today: Callable[[], date] = date.today) -> None:
        self._log = update_log
        self._date = today
        self._day = today()
        self._before = _kept(update_log, self._day)
        """Of this day: bytes by earlier processes, less what this one carried on earlier days."""
        self._written: tuple[date, int] | None = None
        self._written_at = time.monotonic()

    def today(self, total: int) -> int:
        """Bytes of today."""
        if (day := self._date()) != self._day:
            self._day, self._before = day, -total
        return self._before + total

    async def keep(self, total: int) -> None:
        """Write it down, if it is time to."""
        if time.monotonic() - self._written_at >= KEEP_INTERVAL:
            await asyncio.get_running_loop().run_in_executor(None, self.close, total)

    def close(self, total: int) -> None:
        """Write it down now."""
        entry = self._day, self.today(total)
        self._written_at = time.monotonic()
        if entry != self._written:
            self._log.set_meta(_KEY, f"{entry[0].isoformat()} {entry[1]}".encode())
            self._written = entry


def _kept(update_log: UpdateLog, today: date) -> int:
    day, _, count = (update_log.get_meta(_KEY) or b"").decode().partition(" ")
    return int(count) if day == today.isoformat() else 0
