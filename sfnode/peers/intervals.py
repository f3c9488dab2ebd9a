"""The intervals at which a node checks its links, announces itself, searches, bootstraps and probes.

Only these and the bookkeeping of a job that recurs; what each job does is decided in `peers.manager`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sfnode.transport.roster import MAX_TTL

CHECK_INTERVAL = 2.0
"""Seconds between checks of the links; a link that ends is replaced at once."""

LONELY_INTERVAL = 2.0
"""Seconds between attempts of a node that has no links, or fewer than it wants."""

FIND_INTERVAL = 30.0
"""Seconds between searches of the roster when no links are missing."""

ANNOUNCE_INTERVAL = 30.0
ANNOUNCE_TTL = MAX_TTL
"""Seconds after which a dead node is gone from the roster; two announcements may fail before that."""

PROBE_INTERVAL = 60.0
"""Seconds, on average, between probes. In two halves of a swarm of 20 nodes that can reach each other again,
some node then contacts the other half within seconds."""

JITTER = 0.8, 1.2
"""Range of the factor by which a wait differs, so that nodes that lost a peer together do not return
together."""

_MOST_DOUBLINGS = 10

_NEVER, _ALWAYS = float("inf"), float("-inf")


@dataclass(slots=True)
class RecurringJob:
    """Something that is done at intervals and takes a while."""

    began: float = _ALWAYS
    running: int = 0

    def begin(self, now: float) -> None:
        self.began = now
        self.running += 1

    def end(self) -> None:
        self.running = max(0, self.running - 1)

    def due(self, interval: float) -> float:
        return _NEVER if self.running else self.began + interval


def doubled(first: float, times: int, most: float) -> float:
    """Return the seconds until the next attempt after so many that came to nothing before the last."""
    return min(first * 2.0 ** min(times, _MOST_DOUBLINGS), most)


def about(seconds: float, random: Random) -> float:
    """Return a wait with jitter."""
    return seconds * random.uniform(*JITTER)
