"""Token buckets as data, and the buckets of links and origins (SPEC L8-L9, FL11, E7).

`take` pays for an action in advance, if there are enough tokens. `spend` pays for a past action and may leave
a debt: a negative number of tokens. `wait` returns how long it takes until there are enough tokens again.
With debts, a rate holds on average even if a single action costs more than the burst.

Time is an argument. What happens if a bucket is empty is up to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sfprotocol.errors import RemoteProtocolError

FRAME_COST = 256
"""Cost, in tokens, of a frame that brings nothing new, in addition to one token for each byte. Decoding a
frame takes as long as hashing a few hundred bytes."""

FORGERY_COST = 4096
"""Cost of a signature that does not verify, in tokens. Checking a signature is the most expensive work that a
stranger can cause."""

WASTE_RATE, WASTE_RATE_PER_FEED = 131_072.0, 256.0
WASTE_BURST, WASTE_BURST_PER_FEED = 1_048_576.0, 1024.0
"""Maximum waste of a link: bytes per second on average, and bytes in a burst. To each maximum, an amount is
added for each feed of the run (SPEC L8). An honest peer announces and repeats a feed a few times a second,
and sometimes lists all feeds. A peer that only sends useless frames takes 1 % of a core until the bucket of
its link is empty, and is then dropped."""

INTAKE_RATE, INTAKE_BURST = 32_768.0, 131_072.0
"""Maximum intake of signed messages from a link: bytes per second on average, and bytes in a burst (SPEC L9).
INTAKE_RATE is enough for 16,000 updates a second in long segments, or 340 updates a second in segments of one
update. At this rate a link takes 2 to 10 % of a core and about 3 GB a day. After a burst of an honest peer
(FL7), the link rests for at most 4 s, which is less than the time after which a pull fails."""

LEAST_REST = 0.1
"""Minimum rest of a link in debt, in seconds. Several frames then arrive during a rest and are handled in one
round, with a single commit."""

RESERVE_RATE, RESERVE_BURST = 8192.0, 33_554_432.0
"""Maximum number of bytes that all links together may bring beyond their own rates: per second on average,
and in a burst. RESERVE_BURST has the size of all updates of a run with 16 million updates, which take some 10
s to hash. RESERVE_RATE fills the empty bucket in about an hour."""

ORIGIN_RATE, ORIGIN_BURST = 1024.0, 65_536.0
"""Maximum number of new updates of one origin: per second on average, and in a burst (SPEC FL11). A fast
trainer makes a fraction of ORIGIN_RATE updates a second, and needs minutes to make ORIGIN_BURST updates."""

ORIGIN_BYTES = 32
"""Number of bytes of a first-order update that are charged as one update (see ORIGIN_RATE). So one origin may
bring 32,768 bytes a second, as many as one link (INTAKE_RATE). Handling them takes half a percent of a
core."""

PROOF_RATE, PROOF_BURST = 0.1, 16.0
"""Maximum number of fork proofs against one origin: per second on average, and in a burst (SPEC E7). A key
that two machines use by mistake causes a few proofs, each with a lower cut than the proof before. An attacker
could make 4,096 different proofs from one segment."""


@dataclass(slots=True)
class Bucket:
    """A token bucket: it holds at most `burst` tokens and gains `rate` tokens a second."""

    level: float
    """Tokens at the time `at`."""
    at: float
    """Seconds on the caller's clock."""

    def holds(self, tokens: float, now: float, *, rate: float) -> bool:
        """Return whether the bucket holds at least `tokens` now."""
        return self.level + rate * max(0.0, now - self.at) >= tokens

    def take(self, tokens: float, now: float, *, rate: float, burst: float) -> bool:
        """Take `tokens` and return True if there are enough; otherwise take none and return False.

        `rate` and `burst` may differ from call to call, as some limits grow with the number of feeds.
        """
        self.level = min(burst, self.level + rate * max(0.0, now - self.at))
        self.at = now
        if tokens > self.level:
            return False
        self.level -= tokens
        return True

    def spend(self, tokens: float, now: float, *, rate: float, burst: float) -> None:
        """Take `tokens` that were used already; this may leave the bucket in debt."""
        self.level = min(burst, self.level + rate * (now - self.at) - tokens)
        self.at = now

    def wait(self, tokens: float, now: float, *, rate: float) -> float:
        """Return the seconds until the bucket holds `tokens`."""
        return max(0.0, (tokens - self.level) / rate - (now - self.at))


@dataclass(slots=True)
class Intake:
    """The bucket for the intake of one link. The bucket is empty when the link comes up, so that a peer gains
    nothing by opening a new link."""

    bucket: Bucket

    def charge(self, cost: float, reserve: Bucket, now: float) -> None:
        """Take `cost` tokens. If the bucket has too few, take the missing ones from the `reserve` of all
        links. If the reserve has too few, too, leave a debt."""
        self.bucket.spend(cost, now, rate=INTAKE_RATE, burst=INTAKE_BURST)
        debt = -self.bucket.level
        if debt > 0 and reserve.take(debt, now, rate=RESERVE_RATE, burst=RESERVE_BURST):
            self.bucket.level = 0.0

    @property
    def rests_until(self) -> float:
        """Time until which a link in debt rests."""
        debt = max(0.0, -self.bucket.level)
        return self.bucket.at + max(debt / INTAKE_RATE, LEAST_REST if debt else 0.0)


class OriginBuckets:
    """The buckets of origins: one for new updates and one for fork proofs, each for all incarnations of a
    key.

    A bucket is asked before a signature is checked, and charged only if the signature is valid. So forgeries
    cannot use up the tokens of the origin that they name.
    """

    def __init__(self) -> None:
        self._news: dict[bytes, Bucket] = {}
        self._proofs: dict[bytes, Bucket] = {}

    def may_bring(self, origin: bytes, now: float) -> bool:
        """Return whether news of `origin` is accepted now, that is, whether its bucket is not in debt."""
        bucket = self._news.get(origin)
        return bucket is None or bucket.holds(0.0, now, rate=ORIGIN_RATE)

    def brought(self, origin: bytes, updates: int, width: int, now: float) -> None:
        """Charge `updates` new updates of `width` bytes each, which were accepted."""
        bucket = self._news.setdefault(origin, Bucket(ORIGIN_BURST, now))
        cost = updates * max(1, width // ORIGIN_BYTES)
        bucket.spend(cost, now, rate=ORIGIN_RATE, burst=ORIGIN_BURST)

    def may_prove(self, origin: bytes, now: float) -> bool:
        """Return whether another proof against `origin` is accepted now."""
        bucket = self._proofs.get(origin)
        return bucket is None or bucket.holds(1.0, now, rate=PROOF_RATE)

    def proved(self, origin: bytes, now: float) -> None:
        """Charge a proof that was accepted, or that this node has made."""
        bucket = self._proofs.setdefault(origin, Bucket(PROOF_BURST, now))
        bucket.spend(1.0, now, rate=PROOF_RATE, burst=PROOF_BURST)


@dataclass(slots=True)
class Waste:
    """The bucket for the waste of one link; full at first."""

    bucket: Bucket = field(default_factory=lambda: Bucket(float("inf"), 0.0))

    def charge(self, cost: float, feeds: int, now: float) -> None:
        """Take `cost` tokens in a run with `feeds` feeds. Raises RemoteProtocolError if the bucket has too
        few tokens."""
        rate = WASTE_RATE + WASTE_RATE_PER_FEED * feeds
        burst = WASTE_BURST + WASTE_BURST_PER_FEED * feeds
        if not self.bucket.take(cost, now, rate=rate, burst=burst):
            raise RemoteProtocolError("L8", "more than its share of frames without news")
