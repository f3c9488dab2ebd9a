"""The uplink of a node that sends files to others: how many bytes may be on their way, and to which peers.

At most as many bytes are on their way as the uplink carries in QUEUE seconds. A piece that has been begun is
finished before another piece is begun, because only whole pieces can be passed on by their receivers.

The uplink is divided equally among ranges of addresses, and within a range equally among its peers. The
reason is that ids cost nothing, and further addresses of one range cost little (`peers.link_slots`). A
stranger with a thousand ids in one range gets the share of one range. If only one peer asks, it gets the
whole uplink.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sfnode.peers.link_slots import address_range
from sfnode.transport.base import REQUEST_DEADLINE, Asker
from sfprotocol.rate_limit import Bucket
from sfprotocol.wire_codec import MAX_PART_BYTES

ASKING_TIME = 20.0
"""Time, in seconds, for which a peer keeps its share after its last request. A peer that must wait asks again
at least every 8 s (`download.MAX_PAUSE`)."""

MAX_RANGES, MAX_PEERS = 256, 64
"""Maximum number of ranges, and of peers of one range, whose shares are remembered. Beyond that the range or
peer whose last request is oldest is forgotten. All remembered shares together take 5 MiB."""

MAX_ON_WAY = 4 * MAX_PART_BYTES
"""Maximum bytes on their way to all peers: enough to keep a fast uplink busy during a round trip."""

QUEUE = 2.0
"""Maximum time, in seconds, that the bytes on their way may take to arrive. It is bounded because frames of
links wait behind these bytes."""

IDLE = 1.0
"""Minimum time, in seconds, for which a piece keeps its place while its receiver does not ask for the next
bytes. If four times the expected time of the last answer is longer, the piece keeps its place for that
time."""

SAMPLES = 16
"""Number of the latest answers from whose arrival the speed of the uplink is measured. The fastest of them is
used, because receivers may be slow."""

WORTH_MEASURING = 32 * 1024
"""Minimum size, in bytes, of an answer that is used to measure the speed."""

T = TypeVar("T")


class Part(NamedTuple):
    """A part on its way to a peer."""

    peer: str
    listing: bytes
    number: int


@dataclass(slots=True)
class _Answer:
    """The last answer with bytes of a part that was sent to a peer."""

    length: int
    on_way: int
    """Bytes that were on their way when the answer left, including its own bytes."""
    left_at: float
    until: float
    """Time after which the answer no longer counts as on its way."""
    ends: bool
    """Whether the answer contains the end of the part."""


class Uplink:
    """The answers that are on their way, and the speed at which they arrive.

    Requests acknowledge answers: a peer that asks for the next bytes of a part has received the bytes before
    them.
    """

    def __init__(self) -> None:
        self._answers: dict[Part, _Answer] = {}
        self._speeds: deque[float] = deque(maxlen=SAMPLES)

    @property
    def speed(self) -> float:
        """Bytes per second that the uplink carries, as measured; infinite before the first measurement."""
        return max(self._speeds, default=math.inf)

    def is_sending(self, part: Part, now: float) -> bool:
        """Return whether a part keeps its place: it was begun, and its receiver has not been silent for too
        long."""
        answer = self._answers.get(part)
        return answer is not None and answer.until > now

    def take(self, part: Part, length: int, now: float, *, ends: bool) -> bool:
        """Return whether an answer of `length` bytes may be sent: its part keeps its place, or there is room
        for another part. If so, count the answer as on its way. `ends`: whether the answer contains the end
        of the part."""
        begun = self.is_sending(part, now)
        self._note_arrivals(part, now)
        on_way = length + sum(answer.length for answer in self._answers.values() if answer.until > now)
        if not begun and on_way > max(length, min(MAX_ON_WAY, self.speed * QUEUE)):
            return False
        self._answers[part] = _Answer(length, on_way, now, now + REQUEST_DEADLINE, ends)
        return True

    def leave(self, part: Part, now: float) -> None:
        """Note that the answer that `take` has accepted is sent now."""
        if answer := self._answers.get(part):
            due = answer.on_way / self.speed if self._speeds else IDLE
            answer.left_at, answer.until = now, now + (due if answer.ends else max(IDLE, 4 * due))

    def drop(self, part: Part) -> None:
        """Note that the answer that `take` has accepted is not sent."""
        self._answers.pop(part, None)

    def _note_arrivals(self, part: Part, now: float) -> None:
        """Note which answer has arrived, as a new request for `part` shows: the last answer for this part or,
        if there is none, the answer with the end of an earlier part."""
        ended = (one for one, answer in self._answers.items() if one.peer == part.peer and answer.ends)
        arrived = part if part in self._answers else next(ended, None)
        if arrived and (answer := self._answers.pop(arrived)).length >= WORTH_MEASURING:
            self._speeds.append(answer.on_way / max(now - answer.left_at, 1e-3))
        for one in [one for one, answer in self._answers.items() if now > answer.left_at + REQUEST_DEADLINE]:
            del self._answers[one]


class _Recent(Generic[T]):
    """A value for each name that has asked lately; the latest name is the last."""

    def __init__(self, most: int, make: Callable[[], T]) -> None:
        self._most = most
        self._make = make
        self._seen: dict[str, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, name: str, now: float) -> T:
        """Return the value of `name`, which asks now; make a new value if there is none. Forget names that
        have not asked for ASKING_TIME."""
        _, kept = self._seen.pop(name, (now, None))
        self._seen[name] = now, self._make() if kept is None else kept
        while len(self._seen) > self._most or now - next(iter(self._seen.values()))[0] > ASKING_TIME:
            del self._seen[next(iter(self._seen))]
        return self._seen[name][1]


class _Range:
    """One range of addresses: the token bucket of its share, and the buckets of its peers."""

    def __init__(self) -> None:
        self.bucket = _full()
        self.peers: _Recent[Bucket] = _Recent(MAX_PEERS, _full)


def _full() -> Bucket:
    return Bucket(float("inf"), 0.0)


class Shares:
    """Token buckets that divide the uplink: one for all peers together, one for each range that asks, with an
    equal part of the rate, and one for each peer of a range."""

    def __init__(self) -> None:
        self._all = _full()
        self._ranges: _Recent[_Range] = _Recent(MAX_RANGES, _Range)

    def take(
        self, asker: Asker, tokens: float, now: float, *, rate: float, burst: float, begun: bool = False
    ) -> bool:
        """Take `tokens` from each of three buckets: that of all peers, that of the asker's range, and the
        asker's own. Return True if all three allow it. Otherwise take none and return False.

        The buckets of a range and of a peer may go into debt by one piece, so that even a bucket smaller than
        a piece lets pieces pass. If one of them is in debt, a new piece is refused, but not the rest of a
        piece that is `begun`. Peers without a public address form one range.
        """
        where = self._ranges.get(address_range(asker.address) or "", now)
        peer = where.peers.get(asker.peer, now)
        of_range = len(self._ranges)
        of_peer = of_range * len(where.peers)
        parts = (self._all, 1), (where.bucket, of_range), (peer, of_peer)
        for bucket, of in parts:
            bucket.take(0.0, now, rate=rate / of, burst=burst / of)  # adds the tokens due by now
        in_debt = min(where.bucket.level, peer.level) <= 0
        if self._all.level < tokens or (in_debt and not begun):
            return False
        for bucket, of in parts:
            bucket.spend(tokens, now, rate=rate / of, burst=burst / of)
        return True
