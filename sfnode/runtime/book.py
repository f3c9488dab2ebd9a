"""Peers of a run and the ways to reach them, as far as a node has heard: whom to dial, whom to remember.

Most addresses come from the roster, into which anybody can write anything. So they are hints, there is room
for a bounded number of them, and they displace neither what the user said nor peers that were met before.
Knows no links and opens none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random

from sfnode.errors import UserError
from sfnode.transport.base import PeerRecord, peer_of

MAX_BOOK = 64
"""Peers known from the roster alone, and peers remembered: ten times the links that a node looks for."""

MAX_WAYS = 6
"""Addresses of one peer, the newest first; as many as a record in the roster has."""

BACKOFF_FIRST, BACKOFF_MOST = 2.0, 120.0
"""Seconds before a peer that could not be reached is tried again; doubles each time."""

_MOST_DOUBLINGS = 10


@dataclass(slots=True)
class _Entry:
    """One peer."""

    ways: tuple[str, ...] = ()
    """Full addresses as last heard."""
    pinned: tuple[str, ...] = ()
    """Full addresses that the user gave."""
    stays: bool = False
    """Not to be displaced."""
    failures: int = 0
    """In a row."""
    not_before: float = float("-inf")
    """When to try again."""

    def all_ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.ways, *self.pinned]))


class AddressBook:
    """The peers that this node has heard of; itself it does not count."""

    def __init__(self, own: str, given: Iterable[str], remembered: Iterable[str], random: Random) -> None:
        """`own`: this node's id. `given` by the user; `remembered` is what `worth_keeping` said last time.

        Raises UserError BAD_ADDRESS for what is not an address in `given`.
        """
        self._own = own
        self._random = random
        self._entries: dict[str, _Entry] = {}
        for address in reversed(list(remembered)):  # the newest are added last
            self._add(address.rpartition("/")[2], [address], stays=True)
        for address in given:
            peer = peer_of(address)
            entry = self._entries.setdefault(peer, _Entry(stays=True))
            entry.pinned = (*entry.pinned, address)
        self._entries.pop(own, None)

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, records: Iterable[PeerRecord], linked: Collection[str]) -> None:
        """Take in what the roster says. Makes room at the cost of peers that are neither `linked` nor known
        otherwise: of those that could not be reached first, then at random."""
        for record in records:
            self._add(record.peer, record.addresses)
        spare = [peer for peer, entry in self._entries.items() if not entry.stays and peer not in linked]
        for peer in self._by_failures(spare)[MAX_BOOK:]:
            del self._entries[peer]

    def candidates(self, now: float) -> list[str]:
        """Peers that may be dialled now; those that failed least first, equals in random order."""
        return self._by_failures(peer for peer, entry in self._entries.items() if entry.not_before <= now)

    def ways(self, peer: str) -> tuple[str, ...]:
        """How to reach a peer; nothing if it is not in the book (any more)."""
        entry = self._entries.get(peer)
        return entry.all_ways() if entry else ()

    def sample(self, count: int) -> list[str]:
        """One address each of `count` peers, through whom the others may be found; the user's first."""
        order = sorted(self._by_failures(self._entries), key=lambda peer: not self._entries[peer].pinned)
        return [self._random.choice(self.ways(peer)) for peer in order[:count]]

    def failed(self, peer: str, now: float) -> None:
        """The peer could not be reached, or hung up at once."""
        if entry := self._entries.get(peer):
            wait = min(BACKOFF_FIRST * 2 ** min(entry.failures, _MOST_DOUBLINGS), BACKOFF_MOST)
            entry.failures += 1
            entry.not_before = now + wait * self._random.uniform(0.8, 1.2)

    def succeeded(self, peer: str) -> None:
        """A link with the peer was of use."""
        if entry := self._entries.get(peer):
            entry.failures, entry.not_before = 0, float("-inf")

    def forgive(self) -> None:
        """Our own road was broken: what failed says nothing about peers."""
        for peer in self._entries:
            self.succeeded(peer)

    def worth_keeping(self, linked: Collection[str]) -> list[str]:
        """Addresses of at most MAX_BOOK peers, for the next start: of neighbours first."""
        order = sorted(self._entries, key=lambda p: (p not in linked, self._entries[p].failures, p))
        return [way for peer in sorted(order[:MAX_BOOK]) for way in self.ways(peer)[:MAX_WAYS]]

    def _add(self, peer: str, ways: Iterable[str], *, stays: bool = False) -> None:
        usable = [way for way in ways if _leads_to(peer, way)]
        if peer == self._own or not usable:
            return
        entry = self._entries.setdefault(peer, _Entry(stays=stays))
        entry.ways = tuple(dict.fromkeys([*usable, *entry.ways]))[:MAX_WAYS]

    def _by_failures(self, peers: Iterable[str]) -> list[str]:
        order = sorted(peers)
        self._random.shuffle(order)
        return sorted(order, key=lambda peer: self._entries[peer].failures)


def _leads_to(peer: str, address: str) -> bool:
    """Whether this is an address of `peer`, and can be kept in a list of words."""
    try:
        return address.split() == [address] and peer_of(address) == peer
    except UserError:
        return False
