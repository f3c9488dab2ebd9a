"""Fair shares of what a node sends of its model: for every range of addresses, and within it for every peer.

Ids cost nothing and addresses of one range little (`peers.selection`), so those who ask are first counted by
range: a stranger with a thousand ids gets what one range gets. Who asks alone gets everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sfnode.peers.selection import address_range
from sfnode.transport.base import Asker
from sfprotocol.rate_limit import Bucket

ASKING_TIME = 20.0
"""Seconds after its last request for which somebody has a share; one who waits asks again every 8 s
(`download.MAX_PAUSE`)."""

MAX_RANGES, MAX_PEERS = 256, 64
"""Most ranges, and most peers of one range, whose shares are remembered; beyond that the one that has not
asked for longest is forgotten. All together take 5 MiB."""

T = TypeVar("T")


class _Recent(Generic[T]):
    """Those who have asked lately, the last one at the end."""

    def __init__(self, most: int, make: Callable[[], T]) -> None:
        self._most = most
        self._make = make
        self._seen: dict[str, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, name: str, now: float) -> T:
        """Return what is kept of `name`, who asks now, after forgetting those who ask no longer."""
        _, kept = self._seen.pop(name, (now, None))
        self._seen[name] = now, self._make() if kept is None else kept
        while len(self._seen) > self._most or now - next(iter(self._seen.values()))[0] > ASKING_TIME:
            del self._seen[next(iter(self._seen))]
        return self._seen[name][1]


class _Range:
    """One range of addresses: its share, and those of its peers."""

    def __init__(self) -> None:
        self.bucket = _full()
        self.peers: _Recent[Bucket] = _Recent(MAX_PEERS, _full)


def _full() -> Bucket:
    return Bucket(float("inf"), 0.0)


class Shares:
    """A token bucket for all together, and one for everybody who asks: an equal part of the whole."""

    def __init__(self) -> None:
        self._all = _full()
        self._ranges: _Recent[_Range] = _Recent(MAX_RANGES, _Range)

    def take(self, asker: Asker, tokens: float, now: float, *, rate: float, burst: float) -> bool:
        """Take `tokens` if all three buckets allow it; otherwise take nothing and return False.

        A share may go into debt by one request, so that it works however small it is. Peers without a public
        address are one range.
        """
        where = self._ranges.get(address_range(asker.address) or "", now)
        peer = where.peers.get(asker.peer, now)
        of_range = len(self._ranges)
        of_peer = of_range * len(where.peers)
        parts = (self._all, 1), (where.bucket, of_range), (peer, of_peer)
        for bucket, of in parts:
            bucket.take(0.0, now, rate=rate / of, burst=burst / of)  # what has come back since
        if self._all.level < tokens or min(where.bucket.level, peer.level) <= 0:
            return False
        for bucket, of in parts:
            bucket.spend(tokens, now, rate=rate / of, burst=burst / of)
        return True
