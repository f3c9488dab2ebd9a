"""The policy of audits: which updates of whom to recompute, and what follows from the results.

Training rows that everybody has make every scalar a number that anybody can recompute, at about the state at
which its author has measured it. Whoever audits tells this policy of updates that have come, recomputes those
that it picks, and tells it what came of them. It says of each origin whether its scalars are confirmed,
refuted, or neither so far. It knows no model, no log and no clock, and decides nothing but that.

How often follows BOINC's adaptive replication (https://github.com/BOINC/boinc/wiki/AdaptiveReplication): all
of somebody who is not known yet, so far as there is time, and of who has been found right for long less and
less.

The test is one of betting (Waudby-Smith and Ramdas 2024, doi:10.1093/jrsssb/qkad009): of each audit it takes
a number from 0 to 1 alone, the disagreement, and assumes nothing about its distribution but its mean. Two
hypotheses have wealth that bets against them:

    honest     the mean disagreement is at most `tolerance`, whatever came before
    invented   it is at least INVENTED

The wealth against a hypothesis that holds exceeds 1/a at any time with probability a at most (Ville), however
long one goes on and whenever one looks. That against `honest` is spread over all beginnings, so that somebody
who was honest for long and then is not is found out as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from sfnode.schema.audits import Finding
from sfprotocol.messages import Feed

TOLERANCE = 0.15
"""The largest mean disagreement of an honest origin. Measured (docs/benchmarks.md): 0.01 at states an eighth
of an epoch before and after, also between float32 and int8, and 0.09 in a swarm of nodes of different speed;
0.02 to 0.05 at one state that is an eighth of an epoch old, 0.04 to 0.17 at one that is a whole epoch old.
But 0.2 to 0.6 if a scalar was measured in bfloat16 and recomputed in float32."""

INVENTED = 0.3
"""Below the mean disagreement of whatever is not measured: 0.4 to 0.5 for random, constant and copied scalars
and for zeros, 0.6 for scalars of the wrong sign, 0.32 where half of the signs are wrong."""

FALSE_REFUTATIONS = 1e-4
"""Share of honest origins that are refuted by accident, in the whole of a run."""

FALSE_CONFIRMATIONS = 0.05
"""Share of origins with invented scalars that are confirmed at first. That only lowers how often they are
audited, until there is doubt."""

BETS = (0.25, 0.5, 0.9)
"""Shares of the wealth that one audit may cost: small bets find small differences, large ones are fast. The
wealth is the mean over them."""

MOST_TRUST = 50.0
"""Wealth against `invented` beyond what confirms, as a factor: what somebody has to lose who turns."""

LEAST_RATE = 0.01
"""Share of the updates of somebody proven that is audited."""

PROVEN_AFTER = 10
"""Audits in a row without a doubt after which fewer are made, as in BOINC."""

TRIES = 8
"""Draws for each update that is to be picked, as one may be drawn again: so even of few nearly all are."""

SCALE_MEMORY = 256
"""Recomputed scalars whose median magnitude is the scale of disagreements."""


class News(NamedTuple):
    """Consecutive updates of a feed that may be audited."""

    feed: Feed
    first: int
    stop: int


class Audited(NamedTuple):
    """An update that was recomputed."""

    origin: bytes
    claimed: int
    recomputed: tuple[int, ...]
    """Scalars at states between which that of its author was, or at the nearest one alone."""

    @property
    def nearest(self) -> int:
        """The scalar nearest to what is claimed of those between what was recomputed."""
        return min(max(self.claimed, min(self.recomputed)), max(self.recomputed))


def disagreement(claimed: float, recomputed: float, scale: float) -> float:
    """Return how far apart two scalars are, from 0 (equal) to 1, beside their own size and what is usual.

    The usual size, `scale`, keeps small slopes, which no two machines measure alike, from counting like large
    ones.
    """
    whole = abs(claimed) + abs(recomputed) + scale
    return abs(claimed - recomputed) / whole if whole else 0.0


@dataclass(slots=True)
class AuditEvidence:
    """AuditEvidence about one origin."""

    tolerance: float
    audited: int = 0
    total: float = 0.0
    """Sum of the disagreements."""
    refuted: bool = False
    """Whether it is refuted, which it stays."""
    since_doubt: int = 0
    """Audits since there was doubt last."""
    _doubts: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    """Wealth against `honest`, for each bet."""
    _trusts: list[float] = field(default_factory=lambda: [1.0] * len(BETS))
    """Wealth against `invented`."""

    def take(self, found: float) -> None:
        """Take in the disagreement of one more update."""
        self.audited += 1
        self.total += found
        begins = 1 / (self.audited * (self.audited + 1))  # prior of a beginning here; they add up to 1
        most = MOST_TRUST / FALSE_CONFIRMATIONS
        for place, share in enumerate(BETS):
            lost = 1 + share / self.tolerance * (found - self.tolerance)
            self._doubts[place] = (self._doubts[place] + begins) * lost
            won = 1 + share / (1 - INVENTED) * (INVENTED - found)
            self._trusts[place] = min(most, self._trusts[place] * won)
        self.refuted = self.refuted or self.doubt >= 1 / FALSE_REFUTATIONS
        self.since_doubt = 0 if self.doubt >= 1 else self.since_doubt + 1

    @property
    def doubt(self) -> float:
        """The wealth against `honest`: the largest that would be an accident once in as many origins."""
        return sum(self._doubts) / len(BETS)

    @property
    def mean(self) -> float:
        """The mean disagreement; 0 before the first audit."""
        return self.total / self.audited if self.audited else 0.0

    @property
    def finding(self) -> Finding:
        """Result so far."""
        if self.refuted:
            return Finding.REFUTED
        trust = sum(self._trusts) / len(BETS)
        confirmed = self.doubt < 1 and trust >= 1 / FALSE_CONFIRMATIONS
        return Finding.CONFIRMED if confirmed else Finding.UNDECIDED

    @property
    def rate(self) -> float:
        """The share of its updates that are worth an audit."""
        if self.refuted:
            return 0.0
        if self.finding is Finding.UNDECIDED:
            return 1.0
        return max(LEAST_RATE, min(1.0, PROVEN_AFTER / max(1, self.since_doubt)))


class Audits:
    """Audits of all origins of a run, by one auditor."""

    def __init__(self, draw: Callable[[], float], tolerance: float = TOLERANCE) -> None:
        """`draw` returns numbers from 0 to 1 that nobody can foresee: who knew which updates are audited
        could invent the others."""
        self.origins: dict[bytes, AuditEvidence] = {}
        self._draw = draw
        self._tolerance = tolerance
        self._sizes: deque[int] = deque(maxlen=SCALE_MEMORY)

    def of(self, origin: bytes) -> AuditEvidence:
        """Return what is known of an origin."""
        return self.origins.get(origin) or AuditEvidence(self._tolerance)

    def pick(self, news: Sequence[News], room: int) -> list[tuple[Feed, int]]:
        """Return (feed, step) of up to `room` different updates to audit: as many as the rates of their
        origins say, if there is room, and drawn by these."""
        weights = [self.of(one.feed.origin).rate * (one.stop - one.first) for one in news]
        wanted = sum(weights)
        count = min(room, math.floor(wanted + self._draw()))
        picked: dict[tuple[Feed, int], None] = {}
        for _ in range(TRIES * count):
            if len(picked) == count:
                break
            place = self._draw() * wanted
            for one, weight in zip(news, weights, strict=True):
                place -= weight
                if place < 0:
                    step = one.first + math.floor(self._draw() * (one.stop - one.first))
                    picked[one.feed, step] = None
                    break
        return list(picked)

    def take(self, audited: Sequence[Audited]) -> list[bytes]:
        """Take in results; return the origins that are refuted by them."""
        self._sizes.extend(abs(one.recomputed[0]) for one in audited)
        scale = float(median(self._sizes)) if self._sizes else 0.0
        refuted = []
        for one in audited:
            evidence = self.origins.setdefault(one.origin, AuditEvidence(self._tolerance))
            before = evidence.refuted
            evidence.take(disagreement(one.claimed, one.nearest, scale))
            if evidence.refuted and not before:
                refuted.append(one.origin)
        return refuted
