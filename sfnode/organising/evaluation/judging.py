"""The content of a seal: the factor of its epoch, what it skips and recounts, and rates of epochs to come.

Whoever judges is injected. The judge that ships counts everything, at the manifest's rate; a line search or a
judge of origins takes its place and nothing else has to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfprotocol.counting import MAX_EPOCHS, Counting
from sfprotocol.decisions import FACTOR_ONE, RateFrom, Recount

RECOUNTS_PER_SEAL = 4096
"""Most that one seal recounts, 40 kB; the rest is for the next one."""


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


def at_rate(rate: int) -> Judge:
    """Return the judge that counts everything, at this rate in units of 2^-32."""

    def judge(counting: Counting) -> Judgement:
        coming = counting.open_epoch + 1
        if coming >= MAX_EPOCHS or rate == counting.rate(coming):
            return Judgement()
        return Judgement(rates=(RateFrom(coming, rate),))

    return judge
