"""Token buckets as data: how much of something there may be, at once and over time.

Time is an argument. What an empty bucket means is for the caller to say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most `burst` tokens, which come back at `rate` a second."""

    level: float
    """Tokens at the time `at`."""
    at: float

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
