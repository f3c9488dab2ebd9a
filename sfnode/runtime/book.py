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

MAX_MET = 32
"""Peers whose links were of use and which strangers in the roster cannot displace; the latest count."""

MAX_WAYS = 6
"""Addresses of one peer, the newest first; as many as a record in the roster has."""

BACKOFF_FIRST, BACKOFF_MOST = 2.0, 120.0
"""Seconds before a peer that could not be reached is tried again; doubles each time."""

FAULT_FIRST, FAULT_MOST = 60.0, 3_600.0
"""Seconds for which a peer that broke a rule gets no link, in either direction; doubles each time. A new id
costs nothing: this stops a broken program from coming back, and makes an attacker begin anew each time."""

MAX_FAULTS = 256
"""Peers whose faults are remembered; 40 KiB. Beyond that the one that is soonest forgiven is forgotten."""

KNOCK_FIRST, KNOCK_MOST = 2.0, 60.0
"""Seconds between knocks at an address that was given or remembered; doubles until it answers."""

_MOST_DOUBLINGS = 10


@dataclass(slots=True)
class _Entry:
    """One peer."""

    ways: tuple[str, ...] = ()
    """Full addresses as last heard."""
    pinned: tuple[str, ...] = ()
    """Full addresses that the user gave."""
    stays: bool = False
    """Not to be displaced: given or remembered."""
    failures: int = 0
    """In a row."""
    not_before: float = float("-inf")
    """When to try again."""
    silences: int = 0
    """Knocks in a row that were not answered."""
    knock_at: float = float("-inf")

    def all_ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.ways, *self.pinned]))


@dataclass(slots=True)
class _Fault:
    """A peer that broke a rule."""

    times: int
    until: float


class AddressBook:
    """The peers that this node has heard of; itself it does not count."""

    def __init__(self, own: str, given: Iterable[str], remembered: Iterable[str], random: Random) -> None:
        """`own`: this node's id. `given` by the user; `remembered` is what `worth_keeping` said last time.

        Raises UserError BAD_ADDRESS for what is not an address in `given`.
        """
        self._own = own
        self._random = random
        self._entries: dict[str, _Entry] = {}
        self._faults: dict[str, _Fault] = {}
        self._met: dict[str, None] = {}
        """The latest last."""
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
        spare = [peer for peer in self._entries if not self.trusted(peer) and peer not in linked]
        for peer in self._by_failures(spare)[MAX_BOOK:]:
            del self._entries[peer]

    # -- whom to dial ------------------------------------------------------------------------------

    def candidates(self, now: float) -> list[str]:
        """Peers that may be dialled now; those that failed least first, equals in random order."""
        return self._by_failures(
            peer
            for peer, entry in self._entries.items()
            if entry.not_before <= now and not self.refused(peer, now)
        )

    def trusted(self, peer: str) -> bool:
        """Whether a peer is known by more than the roster: the user gave it, or a link with it was of use."""
        entry = self._entries.get(peer)
        return peer in self._met or (entry is not None and entry.stays)

    def ways(self, peer: str) -> tuple[str, ...]:
        """How to reach a peer; nothing if it is not in the book (any more)."""
        entry = self._entries.get(peer)
        return entry.all_ways() if entry else ()

    def failed(self, peer: str, now: float) -> None:
        """The peer could not be reached, or hung up at once, or said nothing."""
        if entry := self._entries.get(peer):
            wait = min(BACKOFF_FIRST * 2 ** min(entry.failures, _MOST_DOUBLINGS), BACKOFF_MOST)
            entry.failures += 1
            entry.not_before = now + self._about(wait)

    def succeeded(self, peer: str) -> None:
        """A link with the peer was of use."""
        if entry := self._entries.get(peer):
            entry.failures, entry.not_before = 0, float("-inf")
            self._met.pop(peer, None)
            self._met[peer] = None
            if len(self._met) > MAX_MET:
                del self._met[next(iter(self._met))]

    def forgive(self) -> None:
        """Our own road was broken: what failed says nothing about peers."""
        for entry in self._entries.values():
            entry.failures, entry.not_before = 0, float("-inf")
            entry.silences, entry.knock_at = 0, float("-inf")

    # -- peers that broke a rule -------------------------------------------------------------------

    def misbehaved(self, peer: str, now: float) -> None:
        """The peer broke a rule, or had nothing to say: no link with it for a while, whoever opens it."""
        before = self._faults.pop(peer, None)
        times = before.times + 1 if before else 1
        wait = min(FAULT_FIRST * 2.0 ** min(times - 1, _MOST_DOUBLINGS), FAULT_MOST)
        self._faults[peer] = _Fault(times, now + wait)
        if len(self._faults) > MAX_FAULTS:
            del self._faults[min(self._faults, key=lambda name: self._faults[name].until)]

    def refused(self, peer: str, now: float) -> bool:
        """Whether a fault of this peer is still held against it."""
        fault = self._faults.get(peer)
        return fault is not None and now < fault.until

    # -- the way into the network ------------------------------------------------------------------

    def sample(self, count: int) -> list[str]:
        """One address each of `count` peers, through whom the others may be found; the user's first."""
        order = sorted(self._by_failures(self._entries), key=lambda peer: not self._entries[peer].pinned)
        return [self._random.choice(self.ways(peer)) for peer in order[:count]]

    def due(self, now: float, linked: Collection[str], count: int) -> list[str]:
        """One address each of at most `count` peers at whose doors to knock now: of those that the user gave
        or that were remembered, as long as they are not `linked`; the user's first."""
        waiting = [
            peer
            for peer, entry in self._entries.items()
            if entry.stays and entry.knock_at <= now and peer not in linked
        ]
        order = sorted(self._shuffled(waiting), key=lambda peer: not self._entries[peer].pinned)
        return [self._random.choice(self.ways(peer)) for peer in order[:count]]

    def strangers(self, linked: Collection[str], count: int) -> list[str]:
        """One address each of `count` peers that are not `linked`, at random: also of such as have failed for
        long, which may stand in another part of a network that has grown together again."""
        others = self._shuffled(peer for peer in self._entries if peer not in linked)
        return [self._random.choice(self.ways(peer)) for peer in others[:count]]

    def knocked(self, peer: str, answered: bool, now: float) -> bool:
        """Somebody has knocked there. Whether the peer answers after having been silent."""
        entry = self._entries.get(peer)
        if entry is None:
            return False
        back = answered and entry.silences > 0
        wait = min(KNOCK_FIRST * 2.0 ** min(entry.silences, _MOST_DOUBLINGS), KNOCK_MOST)
        entry.silences = 0 if answered else entry.silences + 1
        entry.knock_at = now + self._about(KNOCK_MOST if answered else wait)
        if back:
            entry.failures, entry.not_before = 0, float("-inf")
        return back

    def worth_keeping(self, linked: Collection[str]) -> list[str]:
        """Addresses of at most MAX_BOOK peers, for the next start: of neighbours first, then of peers met."""
        order = sorted(
            self._entries,
            key=lambda p: (p not in linked, not self.trusted(p), self._entries[p].failures, p),
        )
        return [way for peer in sorted(order[:MAX_BOOK]) for way in self.ways(peer)[:MAX_WAYS]]

    def _add(self, peer: str, ways: Iterable[str], *, stays: bool = False) -> None:
        usable = [way for way in ways if _leads_to(peer, way)]
        if peer == self._own or not usable:
            return
        entry = self._entries.setdefault(peer, _Entry(stays=stays))
        entry.ways = tuple(dict.fromkeys([*usable, *entry.ways]))[:MAX_WAYS]

    def _by_failures(self, peers: Iterable[str]) -> list[str]:
        return sorted(self._shuffled(peers), key=lambda peer: self._entries[peer].failures)

    def _shuffled(self, peers: Iterable[str]) -> list[str]:
        order = sorted(peers)
        self._random.shuffle(order)
        return order

    def _about(self, seconds: float) -> float:
        """So that nodes which lost somebody together do not come back together."""
        return seconds * self._random.uniform(0.8, 1.2)


def _leads_to(peer: str, address: str) -> bool:
    """Whether this is an address of `peer`, and can be kept in a list of words."""
    try:
        return address.split() == [address] and peer_of(address) == peer
    except UserError:
        return False
