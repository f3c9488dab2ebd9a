"""The virtual clock: calls in the order of time and, at one moment, in the order of entry.

One heap for everything, so that a step costs about the same with ten nodes and with ten thousand. Knows
nothing of what it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Agenda:
    """Calls functions at their time; time passes only by that."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        """Number of calls that were made."""
        self._number = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call `do(*arguments)` at `when`, or now if that is past."""
        self._number += 1
        heappush(self._heap, (when if when > self.now else self.now, self._number, do, arguments))

    def later(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call `do(*arguments)` in `seconds`."""
        self.at(self.now + seconds, do, *arguments)

    def run_until(self, end: float) -> None:
        """Make all calls that are due before or at `end`, and set the time to `end`."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do, arguments = heappop(heap)
            self.steps += 1
            do(*arguments)
        self.now = max(self.now, end)
