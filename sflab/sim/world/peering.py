"""Links as the daemon would have them: every node finds its neighbours with the peer manager that ships.

Carries out the actions of `peers.manager` in virtual time, as `node.network.peering` does with asyncio:
dialling takes a while, the roster is a table, and a bootstrap peer answers if it can be reached. Decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sflab.sim.world.fixed_links import Keeper
from sflab.sim.world.network import End, Endpoint, Network
from sflab.sim.world.node import MAX_RINGS, Node
from sflab.sim.world.violation import Violation
from sfnode.peers.address_book import AddressBook
from sfnode.peers.events import (
    Action,
    Announce,
    Announced,
    Bootstrap,
    BootstrapAnswered,
    Carry,
    Close,
    Dial,
    DialFailed,
    Event,
    Find,
    Found,
    LinkCount,
    LinkEnded,
    LinkId,
    LinkOpened,
    Observed,
    PeerFaulted,
    Reason,
    Remember,
    StopBootstrap,
    Wake,
)
from sfnode.peers.manager import PeerManager
from sfnode.peers.selection import MIN_OUTBOUND
from sfnode.transport.base import PeerRecord
from sfnode.transport.roster import MAX_ROSTER

EXCHANGE_TIME = 0.3
"""Seconds that a dial, a search, an announcement or a bootstrap attempt takes: three round trips."""

OWN_ACCORD = (Reason.GAVE_WAY, Reason.MUTE)
"""Reasons for giving up a link that could have been kept."""


@dataclass
class _Host:
    """One node's manager, and what outlives it."""

    given: list[str] = field(default_factory=list)
    """Addresses that the user gave; read when the node starts."""
    remembered: tuple[str, ...] = ()
    """The address book on disk."""
    running: PeerManager | None = None
    """None before the first start, and for those who are hostile."""
    life: int = 0
    """Number of starts; nothing that an earlier life has begun is reported to a later one."""
    alarm: float = float("inf")
    rang_at: float = -1.0
    rings: int = 0
    """Alarms at that moment."""
    bootstraps: dict[str, None] = field(default_factory=dict)
    """Peers from which an attempt is under way."""

    @property
    def manager(self) -> PeerManager:
        assert self.running is not None
        return self.running


@dataclass
class _Listing:
    """A record in the roster."""

    owner: Endpoint
    record: PeerRecord
    expires: float


class Managed(Keeper):
    """The links of all honest nodes, and the roster."""

    fixed = False

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__(network)
        self._seed = seed
        self._random = Random(f"{seed}/roster")
        self._hosts: dict[str, _Host] = {}
        self._roster: dict[str, _Listing] = {}
        self._addresses: dict[str, str] = {}

    @property
    def _now(self) -> float:
        return self._network.agenda.now

    # -- what happens to nodes -----------------------------------------------------------------------

    def want(self, one: Endpoint, other: Endpoint) -> None:
        """Give `one` the other's address, as its user would."""
        if not one.hostile:
            self._host(one).given.append(self._address(other))

    def came(self, one: Endpoint) -> None:
        """Start the manager of a node that is up (again), with what the user gave and the disk holds."""
        host = self._host(one)
        host.life += 1
        host.alarm = float("inf")
        host.bootstraps.clear()
        random = Random(f"{self._seed}/peers/{one.name}/{host.life}")
        book = AddressBook(one.name, host.given, host.remembered, random)
        host.running = PeerManager(one.name, book, random, self._now)
        self._set_alarm(one)

    def announce(self, one: Endpoint, address: str) -> None:
        """Put somebody without a manager into the roster, for good."""
        self._addresses[one.name] = address
        self._list(one, float("inf"))

    def forget(self, one: Endpoint) -> None:
        self._roster.pop(one.name, None)

    def neighbours(self, one: Endpoint) -> list[Endpoint]:
        return [end.far.owner for end in one.ends.values()]

    def lost(self, end: End) -> None:
        self._tell(end.owner, LinkEnded(end.number, end.heard))

    def blame(self, one: Endpoint, other: Endpoint) -> None:
        self._tell(one, PeerFaulted(other.name))

    def dial(self, stranger: Endpoint, one: Endpoint) -> End | None:
        """Offer a link that `stranger` opens to the managers of both; None unless both want it."""
        near = self._network.dial(stranger, one)
        if near is None:
            return None
        wanted_there, wanted_here = self._offer(near.far), self._offer(near)
        if wanted_there and wanted_here:
            self._network.open(near)
            return near
        for end in (near, near.far):  # one side has closed it, which the other hears
            self._tell(end.owner, LinkEnded(end.number, False))
        return None

    def _offer(self, end: End) -> bool:
        """Tell one side that a link is there; whether it wants it. The hostile want every link."""
        if self._host(end.owner).running is None:
            return True
        peer = end.far.owner
        actions = self._tell(end.owner, LinkOpened(end.number, peer.name, end.outbound, self._address(peer)))
        return any(isinstance(action, Carry) for action in actions)

    # -- what checks ask -----------------------------------------------------------------------------

    def manager(self, one: Endpoint) -> PeerManager | None:
        """Return the manager of a node; None if it has not started or is hostile."""
        return self._host(one).running

    def prospects(self, one: Endpoint) -> list[str]:
        """Return the peers that `one` may dial now and that would take the link."""
        manager = self._host(one).manager
        ready = (peer for peer in manager.book.dialable(self._now) if peer not in manager.linked)
        return [peer for peer in ready if self._would_take(peer, one)]

    def _would_take(self, peer: str, one: Endpoint) -> bool:
        listing = self._roster.get(peer)
        if listing is None or not self._network.reaches(one, listing.owner):
            return False
        manager = self._host(listing.owner).running
        return manager is None or manager.has_room_for(one.name, self._address(one), self._now)

    # -- events and actions --------------------------------------------------------------------------

    def _tell(self, one: Endpoint, event: Event) -> list[Action]:
        host = self._host(one)
        if host.running is None or not one.up:
            return []
        actions = host.running.handle(self._observed(one), self._now) + host.running.handle(event, self._now)
        self._check_own_choice(one, actions)
        for action in actions:
            self._begin(one, action)
        self._set_alarm(one)
        return actions

    def _check_own_choice(self, one: Endpoint, actions: list[Action]) -> None:
        """Raise Violation if too few links of a node's own choice remain of its own accord: of links in use
        MIN_OUTBOUND, of mute ones as many at least as are being opened instead."""
        closed = {a.link for a in actions if isinstance(a, Close) and a.reason in OWN_ACCORD}
        if not closed:
            return
        counts = [count for count in self._observed(one).links if count.link in closed]
        own = [count for count in counts if one.ends[count.link].outbound]
        if not own:
            return
        manager = self._host(one).manager
        kept = sum(standing.outbound for standing in manager.standings())
        mute = all(count.blank for count in own)
        if kept + (len(manager.dialling) if mute else 0) < MIN_OUTBOUND:
            raise Violation("outbound", f"{one.name} gives up links of its own choice", (one.name,))

    def _observed(self, one: Endpoint) -> Observed:
        links = one.machine.links if isinstance(one, Node) else {}
        counts = []
        for number, end in one.ends.items():
            known = links.get(number)
            counts.append(
                LinkCount(number, end.heard, known.useful, known.blank)
                if known
                else LinkCount(number, end.heard)
            )
        return Observed(tuple(counts), (self._address(one),))

    def _begin(self, one: Endpoint, action: Action) -> None:
        host = self._host(one)
        match action:
            case Dial(peer=peer):
                self._later(one, self._dialled, peer)
            case Bootstrap(peer=peer):
                host.bootstraps[peer] = None
                self._later(one, self._bootstrapped, peer)
            case StopBootstrap(peer=peer):
                host.bootstraps.pop(peer, None)
            case Carry(instead_of=number) | Close(link=number):
                self._hang_up(one, number)
            case Announce(ttl=ttl):
                self._list(one, self._now + ttl)
                self._later(one, self._tell, Announced((self._address(one),)))
            case Find():
                self._later(one, self._find)
            case Remember(addresses=addresses):
                host.remembered = addresses

    def _hang_up(self, one: Endpoint, number: LinkId | None) -> None:
        end = one.ends.get(number) if number else None
        if end and isinstance(one, Node):
            one.hang_up(end)

    def _dialled(self, one: Endpoint, peer: str) -> None:
        listing = self._roster.get(peer)
        if listing is None or not self._network.reaches(one, listing.owner):
            self._tell(one, DialFailed(peer))
        else:
            self.dial(one, listing.owner)

    def _bootstrapped(self, one: Endpoint, peer: str) -> None:
        host = self._host(one)
        if peer in host.bootstraps:
            del host.bootstraps[peer]
            listing = self._roster.get(peer)
            answered = listing is not None and self._network.reaches(one, listing.owner)
            self._tell(one, BootstrapAnswered(peer, answered))

    def _find(self, one: Endpoint) -> None:
        listed = [
            listing.record
            for listing in self._roster.values()
            if listing.expires > self._now and self._network.hears(listing.owner, one)
        ]
        found = listed if len(listed) <= MAX_ROSTER else self._random.sample(listed, MAX_ROSTER)
        self._tell(one, Found(tuple(found)))

    # -- time ----------------------------------------------------------------------------------------

    def _later(self, one: Endpoint, do: Callable[..., object], *arguments: Any) -> None:
        life = self._host(one).life
        self._network.agenda.later(EXCHANGE_TIME, self._if_alive, one, life, do, arguments)

    def _if_alive(self, one: Endpoint, life: int, do: Callable[..., object], arguments: Any) -> None:
        if one.up and life == self._host(one).life:
            do(one, *arguments)

    def _set_alarm(self, one: Endpoint) -> None:
        host = self._host(one)
        due = host.manager.next_deadline()
        if due < host.alarm:
            host.alarm = due
            self._network.agenda.at(due, self._ring, one, host.life, due)

    def _ring(self, one: Endpoint, life: int, due: float) -> None:
        host = self._host(one)
        if not one.up or life != host.life or due != host.alarm:
            return
        host.alarm = float("inf")
        if host.manager.next_deadline() > self._now:
            self._set_alarm(one)
            return
        host.rings = host.rings + 1 if host.rang_at == self._now else 0
        host.rang_at = self._now
        if host.rings > MAX_RINGS:
            raise Violation("timer", "a deadline of the peer manager stays due", (one.name,))
        self._tell(one, Wake())

    # -- names ---------------------------------------------------------------------------------------

    def _host(self, one: Endpoint) -> _Host:
        return self._hosts.setdefault(one.name, _Host())

    def _list(self, one: Endpoint, expires: float) -> None:
        record = PeerRecord(one.name, (self._address(one),), 0, 0)
        self._roster[one.name] = _Listing(one, record, expires)

    def _address(self, one: Endpoint) -> str:
        """Return a public address; every node is in a range of its own unless announced with another."""
        if one.name not in self._addresses:
            number = len(self._addresses)
            where = f"{20 + number // 250}.{number % 250}.0.1"
            self._addresses[one.name] = f"/ip4/{where}/tcp/1/p2p/{one.name}"
        return self._addresses[one.name]
