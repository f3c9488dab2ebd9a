"""Token buckets as data: how much of something there may be, at once and over time.

Time is an argument. What an empty bucket means is for the caller to say.
"""

from __future__ import annotations

from dataclasses import dataclass

FRAME_COST = 256
"""What a frame without news costs besides its bytes: to decode one takes as long as to hash some hundred."""

FORGERY_COST = 4096
"""What a signature that does not verify costs besides: the most expensive thing a stranger can make us do."""

WASTE_RATE, WASTE_RATE_PER_FEED = 131_072.0, 256.0
WASTE_BURST, WASTE_BURST_PER_FEED = 1_048_576.0, 1024.0
"""Bytes that a link may waste in a second and at once (SPEC L8). An honest peer announces and repeats a feed
a few times a second and tells all feeds now and then; a peer that talks nonsense as fast as it may takes 1 %
of a core for as long as its bucket lasts, and is then gone."""


@dataclass(slots=True)
class Bucket:
    """Holds at most `burst` tokens, which come back at `rate` a second."""

    level: float
    """Tokens at the time `at`."""
    at: float

    def holds(self, tokens: float, now: float, *, rate: float) -> bool:
        """Whether there are as many."""
        return self.level + rate * max(0.0, now - self.at) >= tokens

    def take(self, tokens: float, now: float, *, rate: float, burst: float) -> bool:
        """Take `tokens` if there are as many; otherwise take nothing and return False.

        `rate` and `burst` may differ from call to call, as what is fair grows with a run.
        """
        self.level = min(burst, self.level + rate * max(0.0, now - self.at))
        self.at = now
        if tokens > self.level:
            return False
        self.level -= tokens
        return True
