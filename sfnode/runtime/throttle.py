"""What a node may carry: bytes per second in each direction and bytes in all, counted over all links and what
goes beside them.

In front of the pumps of the links, and of the base model's parts; knows neither what a frame means nor whose
link it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from sfnode.runtime.governor import Allowance

SPARE = 0.5
"""Of what can be saved up of a rate, that there must be before something goes beside the links: they wait for
nothing but the rate, and so come first."""

LONGEST_HOLD = 20.0
"""Seconds for which one thing beside the links may keep them from being heard; their peers wait for three
times as long (SPEC L7)."""


class Lane:
    """One direction. Call `ready` before a frame and `count` with its size; beside the links `spare` and,
    with nothing awaited in between, `count` or `expect`: else many pass at once where one may."""

    def __init__(self, throttle: Throttle) -> None:
        self.total = 0
        """Bytes since the start."""
        self.most: float = math.inf
        """Bytes that may go at once beside the links."""
        self._throttle = throttle
        self._allowance: Allowance | None = None

    def limit(self, rate: int | None) -> None:
        """Bytes per second from now on; None: as many as there are."""
        self._allowance = Allowance(rate, _now()) if rate else None
        self.most = rate * LONGEST_HOLD if rate else math.inf
        self._throttle.wake()

    async def ready(self) -> None:
        """Returns when the next frame may go."""
        await self._rested(0.0)

    async def spare(self) -> None:
        """Returns when something may go beside the links."""
        await self._rested(SPARE)

    def expect(self, size: int) -> None:
        """So many bytes have been asked for: until they are counted nothing else has them."""
        self._throttle.expected += size
        self._spend(size)

    def count(self, size: int, expected: int = 0) -> None:
        """So many bytes were carried, where so many had been expected."""
        self.total += size
        self._throttle.expected -= expected
        self._spend(size - expected)
        if size < expected:
            self._throttle.wake()
        self._throttle.counted()

    async def _rested(self, saved: float) -> None:
        while (rest := self._rest(saved)) > 0:
            await self._throttle.changed(rest)

    def _rest(self, saved: float) -> float:
        if self._throttle.taken:
            return math.inf
        return self._allowance.rest(_now(), saved) if self._allowance else 0.0

    def _spend(self, size: int) -> None:
        if self._allowance:
            self._allowance.spend(size, _now())


class Throttle:
    """Both directions, and the bytes that are left for them."""

    def __init__(self) -> None:
        self.upload = Lane(self)
        self.download = Lane(self)
        self.on_spent: Callable[[], None] = lambda: None
        """Called when the bytes that were left have been used up."""
        self.expected = 0
        """Bytes that have been asked for and not been counted yet."""
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

    @property
    def taken(self) -> bool:
        """Nothing more may be begun."""
        return self.total + self.expected >= self._stop_at

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
