"""The address book of a node: peers to dial, to bootstrap from, and to remember for the next start.

Most addresses come from the roster, into which anybody can write anything. So these addresses are hints, and
the book keeps a bounded number of them. They displace neither the user's addresses nor peers whose links were
of use. The book does not know the node's links and opens none; time and randomness are passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sfnode.errors import UserError
from sfnode.peers.backoff import about, doubled
from sfnode.peers.faults import Faults
from sfnode.transport.base import PeerRecord, is_loopback, peer_of
from sfnode.transport.roster import MAX_ADDRESSES

MAX_BOOK = 64
"""Maximum number of peers known only from the roster, and of peers remembered for the next start: about ten
times the number of a node's links."""

MAX_MET = 32
"""Maximum number of peers that are remembered because their links were of use. Strangers in the roster cannot
displace these peers."""

BACKOFF_FIRST, BACKOFF_MOST = 2.0, 120.0
"""First and maximum pause, in seconds, before an unreachable peer is dialled again. The pause doubles each
time."""

BACKOFF_MOST_GIVEN = 10.0
"""Maximum pause, in seconds, before an unreachable peer that the user gave is dialled again. Attackers may
occupy every free place for a link. Then a node must dial often, and only the peers that the user gave surely
lead to honest nodes."""

BACKOFF_PLAIN = 600.0
"""Pause, in seconds, before a peer of Hivemind's DHT that is no node is dialled again. Its owner may start a
node."""

BOOTSTRAP_FIRST, BOOTSTRAP_MOST = 2.0, 60.0
"""First and maximum pause, in seconds, between attempts to bootstrap from a given or remembered address. The
pause doubles with each attempt until the peer answers."""


@dataclass(slots=True)
class _Entry:
    """Facts known about one peer."""

    heard: tuple[str, ...] = ()
    """Full addresses from the roster or remembered from earlier starts, the newest first; at most
    MAX_ADDRESSES."""
    pinned: tuple[str, ...] = ()
    """Full addresses that the user gave."""
    stays: bool = False
    """Whether the peer was given or remembered, so that strangers cannot displace it."""
    failures: int = 0
    """Number of consecutive failed dials."""
    not_before: float = float("-inf")
    """Time before which the peer is not dialled."""
    silences: int = 0
    """Number of consecutive unanswered bootstrap attempts."""
    bootstrap_at: float = float("-inf")
    """Time of the next bootstrap attempt."""
    plain: bool = False
    """Whether the peer, when last dialled, answered but was no node."""

    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.heard, *self.pinned]))


class AddressBook:
    """The peers that this node has heard of, without the node itself."""

    def __init__(self, own: str, given: Iterable[str], remembered: Iterable[str], random: Random) -> None:
        """`own` is the id of this node, `given` the user's addresses, and `remembered` the result of
        `worth_keeping` before the last stop.

        Raises UserError BAD_ADDRESS for anything in `given` that is not an address.
        """
        self._own = own
        self._random = random
        self._entries: dict[str, _Entry] = {}
        self._faults = Faults()
        self._met: dict[str, None] = {}
        """Peers whose links were of use, the latest last."""
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
        """Add peers from the roster. To make room, forget peers that are neither `linked` nor trusted: first
        those with the most failures, and at random among equals."""
        for record in records:
            self._add(record.peer, record.addresses)
        spare = [peer for peer in self._entries if not self.trusted(peer) and peer not in linked]
        for peer in self._by_failures(spare)[MAX_BOOK:]:
            del self._entries[peer]

    @property
    def plain_only(self) -> bool:
        """Whether some peers that the user gave are plain peers, and no peer that the user gave has been a
        neighbour."""
        given = {peer: entry for peer, entry in self._entries.items() if entry.pinned}
        return any(entry.plain for entry in given.values()) and not given.keys() & self._met

    # -- whom to dial ------------------------------------------------------------------------------

    def candidates(self, now: float) -> list[str]:
        """Return the peers that may be dialled now: first those with the fewest failures, and at random among
        equals."""
        return self._by_failures(self.dialable(now))

    def dialable(self, now: float) -> Iterator[str]:
        """Iterate over the peers that may be dialled now, in no particular order. Draws no random number."""
        for peer, entry in self._entries.items():
            if entry.not_before <= now and not self.refused(peer, now):
                yield peer

    def trusted(self, peer: str) -> bool:
        """Return whether this peer was given or remembered, or a link with it was of use."""
        entry = self._entries.get(peer)
        return peer in self._met or (entry is not None and entry.stays)

    def addresses(self, peer: str) -> tuple[str, ...]:
        """Return the full addresses of a peer; an empty tuple if it is not in the book."""
        entry = self._entries.get(peer)
        return entry.addresses() if entry else ()

    def failed(self, peer: str, now: float) -> None:
        """Note that the peer could not be reached, closed the link at once, or sent nothing."""
        if entry := self._entries.get(peer):
            most = BACKOFF_MOST_GIVEN if entry.pinned else BACKOFF_MOST
            wait = doubled(BACKOFF_FIRST, entry.failures, most)
            entry.failures += 1
            entry.not_before = now + about(wait, self._random)

    def is_no_node(self, peer: str, now: float) -> None:
        """Note that the peer answers and does not speak our protocol, so that at most it leads to other
        peers.

        A peer that was a node before counts as a failed dial only: it is starting, and listens before it
        answers.
        """
        entry = self._entries.get(peer)
        if entry and (peer in self._met or (entry.stays and not entry.pinned)):
            self.failed(peer, now)
        elif entry:
            entry.plain, entry.not_before = True, now + about(BACKOFF_PLAIN, self._random)

    def succeeded(self, peer: str) -> None:
        """Note that a link with the peer was of use. Forgives its earlier faults."""
        self._faults.forgive(peer)
        if entry := self._entries.get(peer):
            entry.failures, entry.not_before, entry.plain = 0, float("-inf"), False
            self._met.pop(peer, None)
            self._met[peer] = None
            if len(self._met) > MAX_MET:
                del self._met[next(iter(self._met))]

    def forget_failures(self) -> None:
        """Allow every peer to be tried at once: our own transport was broken, so the failures were not the
        peers' fault."""
        for entry in self._entries.values():
            entry.failures, entry.not_before = 0, float("-inf")
            entry.silences, entry.bootstrap_at = 0, float("-inf")

    # -- peers that broke a rule -------------------------------------------------------------------

    def was_mute(self, peer: str, now: float) -> None:
        """Note that the peer sent nothing of use. A stranger gets no link for a while. The machine of a
        trusted peer may be suspended, and must get a link when it wakes up. So for a trusted peer only our
        next dial waits."""
        if self.trusted(peer):
            self.failed(peer, now)
        else:
            self.misbehaved(peer, now)

    def misbehaved(self, peer: str, now: float) -> None:
        """Refuse the peer any link for a while, as it broke a rule."""
        self._faults.add(peer, now)

    def refused(self, peer: str, now: float) -> bool:
        """Return whether this peer gets no link at `now` because of a fault."""
        return self._faults.refused(peer, now)

    # -- bootstrapping -----------------------------------------------------------------------------

    def sample(self, count: int) -> list[str]:
        """Return one address each of at most `count` peers through which to find others. Peers that the user
        gave come first."""
        return self._sample(self._entries, count)

    def nodes(self, count: int) -> list[str]:
        """Return addresses as `sample` does, but without plain peers, which do not run sfnode."""
        return self._sample((peer for peer, entry in self._entries.items() if not entry.plain), count)

    def _sample(self, peers: Iterable[str], count: int) -> list[str]:
        order = sorted(self._by_failures(peers), key=lambda peer: not self._entries[peer].pinned)
        return self._one_address_each(order[:count])

    def due_for_bootstrap(self, now: float, linked: Collection[str], count: int) -> list[str]:
        """Return one address each of at most `count` peers to bootstrap from now. Only given or remembered
        peers that are not `linked` are returned. Peers that the user gave come first."""
        waiting = [
            peer
            for peer, entry in self._entries.items()
            if entry.stays and entry.bootstrap_at <= now and peer not in linked
        ]
        order = sorted(self._shuffled(waiting), key=lambda peer: not self._entries[peer].pinned)
        return self._one_address_each(order[:count])

    def strangers(self, linked: Collection[str], count: int) -> list[str]:
        """Return one address each of at most `count` random peers that are not `linked`. Peers that have
        failed for a long time are included: they may be in another part of a network that has healed."""
        others = self._shuffled(peer for peer in self._entries if peer not in linked)
        return self._one_address_each(others[:count])

    def bootstrapped(self, peer: str, answered: bool, now: float) -> bool:
        """Note the result of a bootstrap attempt. Return whether the peer answered after a silence."""
        entry = self._entries.get(peer)
        if entry is None:
            return False
        back = answered and entry.silences > 0
        wait = doubled(BOOTSTRAP_FIRST, entry.silences, BOOTSTRAP_MOST)
        entry.silences = 0 if answered else entry.silences + 1
        entry.bootstrap_at = now + about(BOOTSTRAP_MOST if answered else wait, self._random)
        if back:
            entry.failures, entry.not_before = 0, float("-inf")
        return back

    def worth_keeping(self, linked: Collection[str]) -> list[str]:
        """Return the addresses of at most MAX_BOOK peers for the next start: neighbours, then trusted peers,
        then others. In the result, plain peers come last, because invitations take the first peers."""
        order = sorted(
            self._entries, key=lambda p: (p not in linked, not self.trusted(p), self._entries[p].failures, p)
        )
        kept = sorted(order[:MAX_BOOK], key=lambda peer: (self._entries[peer].plain, peer))
        return [address for peer in kept for address in self.addresses(peer)[:MAX_ADDRESSES]]

    def _add(self, peer: str, addresses: Iterable[str], *, stays: bool = False) -> None:
        usable = [address for address in addresses if _is_address_of(peer, address)]
        if peer == self._own or not usable:
            return
        entry = self._entries.setdefault(peer, _Entry(stays=stays))
        entry.heard = tuple(dict.fromkeys([*usable, *entry.heard]))[:MAX_ADDRESSES]

    def _one_address_each(self, peers: Iterable[str]) -> list[str]:
        return [self._random.choice(_beyond_loopback(self.addresses(peer))) for peer in peers]

    def _by_failures(self, peers: Iterable[str]) -> list[str]:
        return sorted(self._shuffled(peers), key=lambda peer: self._entries[peer].failures)

    def _shuffled(self, peers: Iterable[str]) -> list[str]:
        order = sorted(peers)
        self._random.shuffle(order)
        return order


def _beyond_loopback(addresses: Sequence[str]) -> Sequence[str]:
    """Return the addresses that may lead beyond this machine; if there are none, all addresses. At a peer's
    loopback address, another program of this machine may listen."""
    return [address for address in addresses if not is_loopback(address)] or addresses


def _is_address_of(peer: str, address: str) -> bool:
    """Return whether this is an address of `peer` without white space, which would separate addresses in a
    list."""
    try:
        return address.split() == [address] and peer_of(address) == peer
    except UserError:
        return False
