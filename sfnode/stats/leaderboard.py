"""The members of an organised run by what their work is worth: from its decisions alone (SPEC O16).

Whoever has the control feed comes to the same digits. Asks no model and no clock, and believes nobody about
himself; but the figures are the organiser's, as measured on its validation rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sfprotocol import decisions
from sfprotocol.counting import NEVER, Counting
from sfprotocol.decisions import Worth
from sfprotocol.messages import Entry, RunParameters
from sfprotocol.worths import Sum, worths


class Standing(NamedTuple):
    """A member by what it has brought."""

    origin: bytes
    counted: int
    """Its updates that count."""
    worth: int
    """Nats of validation loss that they have taken off, in units of 10^-9."""
    measured: int
    """Updates among them of which the worth was measured."""
    revoked: bool


def standings(run: RunParameters, entries: Sequence[Entry]) -> list[Standing]:
    """Return what members have brought by these decisions, the greatest worth first, then most updates."""
    counting, said = Counting.of(run), list[Worth]()
    for entry in entries:
        recorded = decisions.read(entry.record)
        counting.apply(recorded)
        if isinstance(recorded.decision, Worth):
            said.append(recorded.decision)
    sums = worths(counting, said)
    found = []
    for number, member in enumerate(counting.members):
        known = sums.get(number, Sum())
        counted = counting.counts_of(number)
        found.append(Standing(member.origin, counted, known.worth, known.updates, member.revoked < NEVER))
    return sorted(found, key=lambda one: (-one.worth, -one.counted, one.origin))
