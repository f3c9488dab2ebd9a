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

PROBE_JITTER = 0.8, 1.2
"""Range of the factor by which one interval between probes differs from PROBE_INTERVAL."""

_NEVER, _ALWAYS = float("inf"), float("-inf")


@dataclass(slots=True)
class Job:
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


def first_probe(random: Random) -> float:
    """Return the seconds until a node's first probe: nodes that start together do not probe together."""
    return random.uniform(0, PROBE_INTERVAL)


def next_probe(random: Random) -> float:
    """Return the seconds from one probe to the next."""
    return PROBE_INTERVAL * random.uniform(*PROBE_JITTER)
