"""Faults as data: what the network does to a frame, what a disk and a processor cost, what goes wrong when.

Values only. `troubles` makes the troubles happen, `network` and `node` obey the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

HALF_ROUND_TRIP = 0.05
"""Seconds one way where nothing else is said: 100 ms round trips, between continents on an ordinary day."""

Range = tuple[float, float]
"""Something is drawn uniformly from here."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from one end of a link to the other, drawn for every frame."""

    kind: Literal["constant", "uniform", "lognormal"] = "constant"
    typical: float = HALF_ROUND_TRIP
    """The constant, the middle, the median."""
    spread: float = 0.0
    """Half the width of the uniform one as a share of its middle; sigma of the lognormal one."""
    most: float = 10.0
    """Cuts the tail."""

    def draw(self, random: Random) -> float:
        if self.kind == "constant":
            return self.typical
        if self.kind == "uniform":
            return self.typical * (1 + self.spread * (2 * random.random() - 1))
        return min(self.typical * random.lognormvariate(0, self.spread), self.most)


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to every frame on its way, each independently of all others."""

    latency: Latency = Latency()
    loss: float = 0.0
    """Probability that it never arrives."""
    duplication: float = 0.0
    """Probability that it arrives twice."""
    replay: float = 0.0
    """Probability that it arrives once more, up to `replay_within` seconds later."""
    replay_within: float = 5.0
    reorder: bool = False
    """Whether frames of one link may overtake each other."""
    bandwidth: float = 0.0
    """Bytes a second that one direction of a link takes; 0 means any number."""

    @property
    def clear(self) -> bool:
        """Whether every frame arrives once."""
        return not (self.loss or self.duplication or self.replay)


CALM = Weather()


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a node runs on."""

    commit: Range = (0.001, 0.004)
    """Seconds until what was written is on disk for good: an SSD with its journal."""
    work: float = 0.0
    """Seconds of processor time per event; 0 leaves them out."""


ORDINARY = Hardware()


# -- what goes wrong when: times in seconds after the links are up ------------------------------------


@dataclass(frozen=True, slots=True)
class Partition:
    """From `start` to `stop` two groups do not hear each other; `share` of all nodes are in the first one."""

    start: float
    stop: float
    share: float = 0.5
    one_way: bool = False
    """Only the second group does not hear the first."""
    hang_up: bool = False
    """Links between the groups end at once, instead of swallowing what is sent."""


@dataclass(frozen=True, slots=True)
class Flaps:
    """Every so often a link ends; whoever keeps links opens it again."""

    every: float


@dataclass(frozen=True, slots=True)
class Crashes:
    """Every so often a node dies in the middle of whatever it does, and comes back later."""

    every: float
    down: Range = (0.5, 5.0)
    power_cut: bool = False
    """What was not yet synced to disk is lost, and the neighbours hear nothing of the end."""


@dataclass(frozen=True, slots=True)
class OldBackup:
    """A node's disk is copied at `taken`; at `restored` the node crashes and comes back with the copy."""

    taken: float
    restored: float


@dataclass(frozen=True, slots=True)
class Twins:
    """At `start` a second machine begins with a copy of a node's disk and key, and both go on."""

    start: float
    told: bool = False
    """The copy knows that it is one (and takes an incarnation of its own)."""
    apart: float = 5.0
    """Seconds that the two are on different sides of a partition, so that neither hears of the other."""


@dataclass(frozen=True, slots=True)
class ClockJumps:
    """Every so often one node's clock leaps ahead, or stands still as long (a monotonic clock never goes
    back)."""

    every: float
    most: float = 300.0


@dataclass(frozen=True, slots=True)
class Churn:
    """Nodes leave for good and fresh ones join: this share of all nodes a minute."""

    per_minute: float


@dataclass(frozen=True, slots=True)
class SlowPeers:
    """A share of all nodes has a slow disk and processor, and links that take nothing for a while."""

    share: float
    hardware: Hardware = Hardware(commit=(0.1, 0.5), work=0.002)
    stall_every: float = 2.0
    stall: Range = (0.5, 15.0)


@dataclass(frozen=True, slots=True)
class LateJoin:
    """Fresh nodes join at this time."""

    at: float
    count: int = 1


Trouble = Partition | Flaps | Crashes | OldBackup | Twins | ClockJumps | Churn | SlowPeers | LateJoin
