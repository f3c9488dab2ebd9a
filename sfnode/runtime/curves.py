"""Curves of a running node in bounded memory: a ring that thins itself out, and rates over a window.

Knows no node and no clock; whoever samples says what and when.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

MAX_SAMPLES = 512
"""Points of a curve: more than a browser's chart has pixels to tell apart; 40 KiB."""

RATE_WINDOW = 10.0
"""Seconds over which the swarm's rate is measured, as that of the own updates is."""


class Sample(NamedTuple):
    """What a node looked like at one moment."""

    seconds: float
    """Since the start."""
    known: int
    own_rate: float
    swarm_rate: float | None
    loss: float | None


class Curve:
    """Samples at equal distances from the start until now; the distance doubles whenever they become many."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._early = interval / 2
        """How much too early a sample may be: whoever samples is never quite on time."""
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Take it in if it is time for one."""
        if self.samples and sample.seconds - self.samples[-1].seconds < self.interval - self._early:
            return
        self.samples.append(sample._replace(loss=_finite(sample.loss)))
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            self.interval *= 2


class Rate:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, count: int) -> float:
        """Growth per second over the last RATE_WINDOW; a count that falls is a new beginning."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while now - self._seen[0][0] > RATE_WINDOW:
            self._seen.popleft()
        since, first = self._seen[0]
        return (count - first) / (now - since) if now > since else 0.0


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
