"""Waits before another attempt: doubled with each failure, and with jitter."""

from __future__ import annotations

from random import Random

JITTER = 0.8, 1.2
"""Range of the random factor of a wait. It keeps nodes that lost a peer at the same time from dialling it at
the same time."""

_MOST_DOUBLINGS = 10


def doubled(first: float, times: int, most: float) -> float:
    """Return the pause, in seconds, after a failure that followed `times` earlier ones: `first`, doubled
    `times` times, and at most `most`."""
    return min(first * 2.0 ** min(times, _MOST_DOUBLINGS), most)


def about(seconds: float, random: Random) -> float:
    """Return a wait of about `seconds`, with jitter."""
    return seconds * random.uniform(*JITTER)
