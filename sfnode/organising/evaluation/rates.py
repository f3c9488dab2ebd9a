"""Rates of coming epochs, as the manifest's schedule has them over the update budget.

A rate is an integer that the organiser signs; only the organiser computes it, so that one rounding of a
float (of the cosine) does no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rates of a run as a function of the updates that count."""

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
