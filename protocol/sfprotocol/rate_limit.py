"""Token buckets as data, and the one that bounds what a link may waste (SPEC L8).

`take` asks before something is done; `spend` records what was done, which may leave a debt that `wait` turns
into time: a rate that is kept on average, in pieces of any size.

Time is an argument. The caller of a bucket says what an empty one means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sfprotocol.errors import RemoteProtocolError

FRAME_COST = 256
"""Tokens that a frame without news costs besides its bytes: to decode one takes as long as to hash a few
hundred bytes."""

FORGERY_COST = 4096
"""Tokens that a signature that does not verify costs besides: the most expensive work that a stranger can
cause."""

WASTE_RATE, WASTE_RATE_PER_FEED = 131_072.0, 256.0
WASTE_BURST, WASTE_BURST_PER_FEED = 1_048_576.0, 1024.0
"""Bytes that a link may waste in a second and at once (SPEC L8). An honest peer announces and repeats a feed
a few times a second and tells all feeds now and then; a peer that sends nonsense as fast as it may takes 1 %
of a core for as long as its bucket lasts, and is then dropped."""


@dataclass(slots=True)
class Bucket:
    """A token bucket: holds at most `burst` tokens, which come back at `rate` a second."""

    level: float
    """Tokens at the time `at`."""
    at: float
    """Seconds on the caller's clock."""

    def holds(self, tokens: float, now: float, *, rate: float) -> bool:
        """Return whether `tokens` can be taken now."""
        return self.level + rate * max(0.0, now - self.at) >= tokens

    def take(self, tokens: float, now: float, *, rate: float, burst: float) -> bool:
        """Take `tokens` if there are as many; otherwise take nothing and return False.

        `rate` and `burst` may differ from call to call, as a fair share grows with a run.
        """
        self.level = min(burst, self.level + rate * max(0.0, now - self.at))
        self.at = now
        if tokens > self.level:
            return False
        self.level -= tokens
        return True

    def spend(self, tokens: float, now: float, *, rate: float, burst: float) -> None:
        """Take what was used since the last call, which may leave the bucket in debt."""
        self.level = min(burst, self.level + rate * (now - self.at) - tokens)
        self.at = now

    def wait(self, tokens: float, now: float, *, rate: float) -> float:
        """Return the seconds until the bucket holds `tokens`."""
        return max(0.0, (tokens - self.level) / rate - (now - self.at))


@dataclass(slots=True)
class Waste:
    """The bucket of what one link may waste; full at first."""

    bucket: Bucket = field(default_factory=lambda: Bucket(float("inf"), 0.0))

    def charge(self, cost: float, feeds: int, now: float) -> None:
        """Take `cost` tokens in a run of `feeds` feeds. Raises RemoteProtocolError if there are too few."""
        rate = WASTE_RATE + WASTE_RATE_PER_FEED * feeds
        burst = WASTE_BURST + WASTE_BURST_PER_FEED * feeds
        if not self.bucket.take(cost, now, rate=rate, burst=burst):
            raise RemoteProtocolError("L8", "more than its share of frames without news")
