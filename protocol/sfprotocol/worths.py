"""Worth of the work of members by the figures in the control feed (SPEC O16): a sum of integers.

Whoever has the same decisions comes to the same sums. How figures are measured is the organiser's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sfprotocol.counting import Counting
from sfprotocol.decisions import FACTOR_ONE, INCARNATIONS, Worth

WORTH_ONE = 10**9
"""A nat: worths are counted in units of 10^-9."""


class Sum(NamedTuple):
    """Worth of a member."""

    worth: int = 0
    """Nats of validation loss that its work has taken off, in units of 10^-9."""
    updates: int = 0
    """Updates that count and of which the worth was measured."""


def worths(counting: Counting, said: Iterable[Worth]) -> dict[int, Sum]:
    """Return the worth of each member of whom something that counts was measured; `counting` is the state
    after all decisions, `said` those of them that tell of worths, in order."""
    seen: set[tuple[int, int]] = set()
    sums: dict[int, Sum] = {}
    for worth in said:
        for part in worth.parts:
            place = part.feed, worth.epoch
            factor = counting.factor(*place)
            if not factor or place in seen:
                continue
            seen.add(place)
            member = part.feed // INCARNATIONS
            known = sums.get(member, Sum())
            more, updates = part.worth * factor // FACTOR_ONE, counting.counts(*place)
            sums[member] = Sum(known.worth + more, known.updates + updates)
    return sums
