"""Token buckets as data, and those that bound what links and origins may cost us (SPEC L8-L9, FL11, E7).

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

INTAKE_RATE, INTAKE_BURST = 32_768.0, 131_072.0
"""Bytes of signed messages that are taken from a link in a second and at once (SPEC L9). At that rate a link
brings 16,000 updates in long segments or 340 in segments of one, for 2 to 10 % of a core and about 3 GB a
day; a burst of an honest peer (FL7) takes 4 s, less than the time after which a pull has failed."""

LEAST_REST = 0.1
"""Seconds that a link in debt rests at least: its frames come some at a time, as each time costs a commit."""

RESERVE_RATE, RESERVE_BURST = 8192.0, 33_554_432.0
"""Bytes that all links together may bring beyond their rates. At once: a history of 16 million updates, whose
hashing takes some 10 s; in a second: as much as fills it again within about an hour."""

ORIGIN_RATE, ORIGIN_BURST = 1024.0, 65_536.0
"""Updates of one origin that are taken as news in a second and at once (SPEC FL11): several times what a fast
trainer makes, and minutes of its work."""

ORIGIN_BYTES = 32
"""Bytes of a first-order run's update that count as one of these: an origin then brings as much as a link,
for half a percent of a core."""

PROOF_RATE, PROOF_BURST = 0.1, 16.0
"""Fork proofs that are taken against an origin in a second and at once (SPEC E7). A key that is in use twice
causes a few, each lower than the one before; 4,096 from one segment would be possible."""


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
class Intake:
    """The bucket of what one link may bring; empty when the link comes up, so coming back gains nothing."""

    bucket: Bucket

    def charge(self, cost: float, reserve: Bucket, now: float) -> None:
        """Take `cost` tokens: what is not there from the `reserve` of all links, else as a debt."""
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
    """The buckets of origins, all incarnations of a key together; asked before a signature is checked.

    They are charged only once it holds: forgeries must not use up what is their victim's.
    """

    def __init__(self) -> None:
        self._news: dict[bytes, Bucket] = {}
        self._proofs: dict[bytes, Bucket] = {}

    def may_bring(self, origin: bytes, now: float) -> bool:
        """Return whether news of `origin` are taken now: it is not in debt."""
        bucket = self._news.get(origin)
        return bucket is None or bucket.holds(0.0, now, rate=ORIGIN_RATE)

    def brought(self, origin: bytes, updates: int, width: int, now: float) -> None:
        """Charge news that were taken, of so many bytes each."""
        bucket = self._news.setdefault(origin, Bucket(ORIGIN_BURST, now))
        cost = updates * max(1, width // ORIGIN_BYTES)
        bucket.spend(cost, now, rate=ORIGIN_RATE, burst=ORIGIN_BURST)

    def may_prove(self, origin: bytes, now: float) -> bool:
        """Return whether another proof against `origin` is taken now."""
        bucket = self._proofs.get(origin)
        return bucket is None or bucket.holds(1.0, now, rate=PROOF_RATE)

    def proved(self, origin: bytes, now: float) -> None:
        """Charge a proof that was taken or made."""
        bucket = self._proofs.setdefault(origin, Bucket(PROOF_BURST, now))
        bucket.spend(1.0, now, rate=PROOF_RATE, burst=PROOF_BURST)


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
