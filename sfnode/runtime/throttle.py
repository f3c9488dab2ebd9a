"""What links may carry: bytes per second in each direction and bytes in all, counted over all links.

In front of the pumps of the links; knows neither what a frame means nor whose link it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from sfnode.runtime.governor import Allowance


class Lane:
    """One direction of all links. Call `ready` before a frame and `count` with its size."""

    def __init__(self, throttle: Throttle) -> None:
        self.total = 0
        """Bytes since the start."""
        self._throttle = throttle
        self._allowance: Allowance | None = None

    def limit(self, rate: int | None) -> None:
        """Bytes per second from now on; None: as many as there are."""
        self._allowance = Allowance(rate, _now()) if rate else None
        self._throttle.wake()

    async def ready(self) -> None:
        """Returns when the next frame may go."""
        while (rest := self._rest()) > 0:
            await self._throttle.changed(rest)

    def count(self, size: int) -> None:
        """A frame of this size was carried."""
        self.total += size
        if self._allowance:
            self._allowance.spend(size, _now())
        self._throttle.counted()

    def _rest(self) -> float:
        if self._throttle.spent:
            return math.inf
        return self._allowance.rest(_now()) if self._allowance else 0.0


class Throttle:
    """Both directions, and the bytes that are left for them."""

    def __init__(self) -> None:
        self.upload = Lane(self)
        self.download = Lane(self)
        self.on_spent: Callable[[], None] = lambda: None
        """Called when the bytes that were left have been used up."""
        self._stop_at = math.inf
        self._wake = asyncio.Event()

    @property
    def total(self) -> int:
        """Bytes in both directions since the start."""
        return self.upload.total + self.download.total

    @property
    def spent(self) -> bool:
        """Nothing more may be carried."""
        return self.total >= self._stop_at

    def leave(self, left: float) -> None:
        """So many bytes may still be carried from now on."""
        before, self._stop_at = self._stop_at, self.total + left
        if self._stop_at > before:
            self.wake()

    def counted(self) -> None:
        if self.spent:
            self.on_spent()

    def wake(self) -> None:
        """Limits have changed: whoever waits looks again."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def changed(self, patience: float) -> None:
        """Until limits change, `patience` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(patience) else patience):
                await self._wake.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
