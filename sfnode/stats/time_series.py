"""Time series of a running node in bounded memory, and rates over a time window.

Knows no node and no clock: the caller gives values and times.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

MAX_SAMPLES = 512
"""Most samples of a time series: more than a browser's chart has pixels for; 40 KiB."""

RATE_WINDOW, RATE_STEPS = 10.0, 4
"""Seconds, and times that a count has grown, over which a rate is measured, whatever takes longer: a step of
a large model on a CPU takes minutes."""


class SeriesSample(NamedTuple):
    """The state of a node at one moment."""

    seconds: float
    """Seconds since the start."""
    known: int
    """Updates known."""
    own_rate: float
    """Own updates per second."""
    swarm_rate: float | None
    """Updates per second of all nodes; None as long as the node catches up."""
    loss: float | None
    cpu: float | None = None
    """Cores that the node keeps busy."""
    memory: int | None = None
    """Bytes of memory that it holds."""
    gpu: float | None = None
    """Share of the time in which its GPU is busy."""


class TimeSeries:
    """Samples at equal intervals from the start until now; the interval doubles when they become many."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._tolerance = interval / 2
        """Seconds by which a sample may come too early: callers are never quite on time."""
        self.samples: list[SeriesSample] = []

    def add(self, sample: SeriesSample) -> None:
        """Keep this sample if one is due."""
        if self.samples and sample.seconds - self.samples[-1].seconds < self.interval - self._tolerance:
            return
        self.samples.append(sample._replace(loss=_finite(sample.loss)))
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            self.interval *= 2


class Rate:
    """The growth of a count per second."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()

    def update(self, now: float, count: float) -> float:
        """Take in a count; return its growth per second of late, 0 if it has not grown for long.

        A count that falls starts a new measurement.
        """
        counts = self._counts
        if counts and count < counts[-1][1]:
            counts.clear()
        if not counts or count > counts[-1][1]:
            counts.append((now, count))
        while len(counts) > RATE_STEPS + 1 and now - counts[0][0] > RATE_WINDOW:
            counts.popleft()
        (since, first), (last, _) = counts[0], counts[-1]
        usual = (last - since) / max(1, len(counts) - 1)
        if now - last > max(RATE_WINDOW, RATE_STEPS * usual):
            return 0.0
        spent = max(last - since, now - since - usual)  # what is under way is not late yet
        return (count - first) / spent if spent else 0.0


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
