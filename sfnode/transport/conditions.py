"""Conditions of a simulated network: what it does to every frame, independently of all others. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

HALF_ROUND_TRIP = 0.05
"""Seconds one way where nothing else is said: 100 ms round trips, between continents on an ordinary day."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Distribution of the seconds from one end of a link to the other, drawn for every frame."""

    kind: Literal["constant", "uniform", "lognormal"] = "constant"
    typical: float = HALF_ROUND_TRIP
    """Seconds: the constant, the middle of the uniform one, the median of the lognormal one."""
    spread: float = 0.0
    """Half the width of the uniform distribution as a share of its middle; sigma of the lognormal one."""
    most: float = 10.0
    """Seconds at which the tail is cut off."""

    def draw(self, random: Random) -> float:
        """Return the seconds of one frame."""
        if self.kind == "constant":
            return self.typical
        if self.kind == "uniform":
            return self.typical * (1 + self.spread * (2 * random.random() - 1))
        return min(self.typical * random.lognormvariate(0, self.spread), self.most)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Effects of the network on every frame on its way."""

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


CALM = Conditions()
"""Round trips of 100 ms, and nothing else."""

PERFECT = Conditions(Latency(typical=0.0))
"""No effect at all."""
