"""Limits on the traffic of a node: rates over all its links, and the bytes left of its daily quota.

Links and bulk transfers, such as of the base model, wait here before they send or receive. The limits know
neither what a frame means nor whose link it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import date

from sfnode.limits import MEGABYTE
from sfnode.resources.pauses import BURST
from sfnode.store.log import UpdateLog
from sfprotocol.rate_limit import Bucket

BULK_RESERVE = 0.5
"""Share of the token bucket that must be full before a bulk transfer may begin. Links need not wait for that,
so they have precedence."""

LONGEST_HOLD = 20.0
"""Maximum time, in seconds, for which one bulk transfer may keep the links silent. Peers drop a link only
after three times as long a silence (SPEC L7)."""


class RateLimit:
    """The rate limit of one direction, shared by all links and by bulk transfers beside them.

    A link awaits `ready` before a frame and then calls `count` with the size. A bulk transfer awaits
    `ready_for_bulk` and then calls `count` or `reserve`. It must await nothing between the two calls, or many
    transfers would begin where only one may.
    """

    def __init__(self, bandwidth: Bandwidth) -> None:
        self.total = 0
        """Bytes carried since the start."""
        self.largest_bulk: float = math.inf
        """Maximum number of bytes of one bulk transfer."""
        self._bandwidth = bandwidth
        self._rate: int | None = None
        self._bucket = Bucket(0.0, 0.0)

    def limit(self, rate: int | None) -> None:
        """Allow `rate` bytes per second from now on; None removes the limit."""
        self._rate = rate
        self._bucket = Bucket(BURST * (rate or 0), _now())
        self.largest_bulk = rate * LONGEST_HOLD if rate else math.inf
        self._bandwidth.wake()

    async def ready(self) -> None:
        """Wait until the next frame may go."""
        await self._wait(0.0)

    async def ready_for_bulk(self) -> None:
        """Wait until a bulk transfer may begin. Links have precedence."""
        await self._wait(BULK_RESERVE)

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes for a request. The reservation ends when `count` is called with the number of
        bytes that came."""
        self._bandwidth.reserved += size
        self._spend(size)

    def count(self, size: int, reserved: int = 0) -> None:
        """Count `size` bytes as carried, and end a reservation of `reserved` bytes."""
        self.total += size
        self._bandwidth.reserved -= reserved
        self._spend(size - reserved)
        if size < reserved:
            self._bandwidth.wake()
        if self._bandwidth.exhausted:
            self._bandwidth.on_exhausted()

    async def _wait(self, reserve: float) -> None:
        while (seconds := self._seconds_to_wait(reserve)) > 0:
            await self._bandwidth.changed(seconds)

    def _seconds_to_wait(self, reserve: float) -> float:
        if self._bandwidth.committed:
            return math.inf
        if not self._rate:
            return 0.0
        return self._bucket.wait(reserve * BURST * self._rate, _now(), rate=self._rate)

    def _spend(self, size: int) -> None:
        if self._rate:
            self._bucket.spend(size, _now(), rate=self._rate, burst=BURST * self._rate)


class Bandwidth:
    """The rate limits of both directions, and the number of bytes that both directions together may still
    carry."""

    def __init__(self) -> None:
        self.upload = RateLimit(self)
        self.download = RateLimit(self)
        self.on_exhausted: Callable[[], None] = lambda: None
        """Function that is called when no bytes are left."""
        self.reserved = 0
        """Bytes that were reserved and are not yet counted."""
        self._stop_at = math.inf
        self._wake = asyncio.Event()

    @property
    def total(self) -> int:
        """Bytes in both directions since the start."""
        return self.upload.total + self.download.total

    @property
    def exhausted(self) -> bool:
        """Whether no more bytes may be carried."""
        return self.total >= self._stop_at

    @property
    def committed(self) -> bool:
        """Whether all bytes are used up or reserved, so that no transfer may begin."""
        return self.total + self.reserved >= self._stop_at

    def set_remaining(self, size: float) -> None:
        """Allow `size` more bytes, in both directions together; infinity for no limit."""
        before, self._stop_at = self._stop_at, self.total + size
        if self._stop_at > before:
            self.wake()

    def wake(self) -> None:
        """Wake all waiting transfers, because the limits have changed."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def changed(self, patience: float) -> None:
        """Wait until the limits change, `patience` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(patience) else patience):
                await self._wake.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


# -- traffic of a day ----------------------------------------------------------------------------------

# The daily traffic quota (`mb_per_day`): bytes uploaded and downloaded since midnight, including those before
# a restart. The total is written to the update log now and then; a node that is killed loses the last half
# minute. Counting happens on the event loop alone, and one thread writes at a time.
FLUSH_INTERVAL = 30.0
"""Seconds between two writes of the day's traffic, each of which costs a commit."""

_KEY = "traffic"


class DailyTraffic:
    """Number of bytes carried today, including the bytes before a restart. Callers pass the number of bytes
    since the start of the process.

    All methods are called on the event loop.
    """

    def __init__(self, update_log: UpdateLog, today: Callable[[], date] = date.today) -> None:
        """Read the bytes that earlier processes carried today. Nothing is written before the first flush."""
        self._log = update_log
        self._date = today
        self._day = today()
        day, _, count = (update_log.get_meta(_KEY) or b"").decode().partition(" ")
        self._before = int(count) if day == self._day.isoformat() else 0
        """Number that is added to this process's bytes to get the bytes of today: the bytes of earlier
        processes today, minus this process's bytes of earlier days."""
        self._written: tuple[date, int] | None = None
        self._writing = asyncio.Lock()
        """Held until a write has ended, even if its caller is cancelled."""

    def today(self, total: int) -> int:
        """Return the number of bytes carried today. `total` is their number since the process started."""
        return self._count(total)[1]

    def remaining(self, mb_per_day: float | None, total: int) -> float:
        """Return the number of bytes left of today's quota; infinity without a quota. `total` is the number
        of bytes since the process started."""
        return math.inf if mb_per_day is None else max(0.0, mb_per_day * MEGABYTE - self.today(total))

    async def flush(self, total: int) -> None:
        """Write the number of bytes carried today durably. Several calls write in their order.

        Raises UserError DISK_FULL, DATA_DIR_UNUSABLE.
        """
        await asyncio.shield(self._write(self._count(total)))

    def _count(self, total: int) -> tuple[date, int]:
        if (day := self._date()) != self._day:
            self._day, self._before = day, -total
        return self._day, self._before + total

    async def _write(self, entry: tuple[date, int]) -> None:
        async with self._writing:
            if entry != self._written:
                await asyncio.to_thread(self._log.set_meta, _KEY, f"{entry[0]} {entry[1]}".encode())
                self._written = entry
