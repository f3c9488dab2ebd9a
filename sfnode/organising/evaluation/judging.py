"""The content of a seal: the factor of its epoch, what it skips and recounts, and rates of epochs to come.

Whoever judges is injected. The judge that ships counts everything, at the rates of the manifest's schedule; a
line search or a judge of origins takes its place and nothing else has to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sfprotocol.counting import MAX_EPOCHS, Counting
from sfprotocol.decisions import FACTOR_ONE, RateFrom, Recount

RECOUNTS_PER_SEAL = 4096
"""Most that one seal recounts, 40 kB; the rest is for the next one."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rates of a run as the manifest has them, by the updates that count.

    Only the organiser computes a rate, and signs an integer, so that one rounding of a float (of the cosine)
    does no harm.
    """

    kind: Literal["constant", "linear", "cosine"]
    initial: int
    """Rate of the first updates, in units of 2^-32 as all rates here."""

    def rate(self, counted: int, budget: int) -> int:
        """Return the rate for what is made when `counted` of `budget` updates count."""
        left = max(0, budget - counted)
        match self.kind:
            case "constant":
                return self.initial
            case "linear":
                return self.initial * left // max(1, budget)
            case "cosine":
                return round(self.initial * 0.5 * (1 - math.cos(math.pi * left / max(1, budget))))


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's word on the oldest epoch without a seal."""

    factor: int = FACTOR_ONE
    """Units of 2^-12; what is recounted gets it, too."""
    skipped: frozenset[int] = frozenset()
    """Numbers of feeds that are not to count, as far as the epoch has moved them."""
    recounted: frozenset[Recount] = frozenset()
    """Named steps that are to count after all, as far as seals have skipped them."""
    rates: tuple[RateFrom, ...] = ()
    """Rates of coming epochs, those above the open one, in order."""


Judge = Callable[[Counting], Judgement]
"""Judges what the close of epoch `counting.sealed` has named, once all of it is here and may be sealed."""


def by_schedule(schedule: Schedule) -> Judge:
    """Return the judge that counts everything; the rate of the next epoch follows from what counts so far."""

    def judge(counting: Counting) -> Judgement:
        coming = counting.open_epoch + 1
        rate = schedule.rate(counting.counted, counting.budget)
        if coming >= MAX_EPOCHS or rate == counting.rate(coming):
            return Judgement()
        return Judgement(rates=(RateFrom(coming, rate),))

    return judge
