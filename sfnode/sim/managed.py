"""Links as the daemon would have them: every node finds neighbours through a roster and its address book.

Whom to dial, let in and give up is decided by `runtime.selection`, which the daemon asks the same questions;
what `runtime.links` and `runtime.road` do around it is done here in virtual time: dialling, searching the
roster, looking beyond the neighbours, and refusing those who broke a rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sfnode.runtime import selection
from sfnode.runtime.book import AddressBook
from sfnode.runtime.selection import Standing, address_range
from sfnode.sim.keepers import Keeper, linked
from sfnode.sim.network import End, Endpoint, Network
from sfnode.sim.node import Node
from sfnode.transport.base import PeerRecord

DIAL_TIME = 0.3
"""Seconds from the decision to dial until the link is there: three round trips."""

CHECK_INTERVAL, FIND_INTERVAL, PROBE_INTERVAL = 2.0, 30.0, 60.0
FIRST_WORD_DEADLINE, SHORT_LIVED = 15.0, 10.0
"""Seconds; as the daemon has them."""

ROSTER = 512
"""Records that a search returns at most."""


@dataclass
class Circle:
    """What one node knows of others, and what its links have been good for."""

    given: list[str] = field(default_factory=list)
    """What the user has said; read when the node first starts."""
    started: AddressBook | None = None
    """None before."""
    dialling: dict[str, None] = field(default_factory=dict)
    useful: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """By link: how useful, what the machine had counted then, and when that was."""
    found_at: float = float("-inf")
    turn: int = 0
    """Counts the times that it came up: what an earlier turn has planned does not happen."""

    @property
    def book(self) -> AddressBook:
        assert self.started is not None
        return self.started


class Managed(Keeper):
    """Looks after the links of all honest nodes."""

    fixed = False

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__(network)
        self._seed = seed
        self._random = Random(f"{seed}/roster")
        self._circles: dict[str, Circle] = {}
        self._roster: dict[str, tuple[Endpoint, PeerRecord]] = {}
        self._addresses: dict[str, str] = {}
        self._ranges: dict[str, str] = {}

    # -- what happens ------------------------------------------------------------------------------

    def want(self, one: Endpoint, other: Endpoint) -> None:
        """`one` was given the other's address by its user."""
        if not one.hostile:
            self._circle(one).given.append(self._address(other))

    def came(self, one: Endpoint) -> None:
        circle = self._circle(one)
        circle.turn += 1
        if circle.started is None:
            random = Random(f"{self._seed}/book/{one.name}")
            circle.started = AddressBook(one.name, circle.given, (), random)
        circle.dialling.clear()
        circle.useful.clear()
        circle.found_at = float("-inf")
        self.announce(one, self._address(one))
        self._tick(one, circle.turn)
        later = PROBE_INTERVAL * self._random.uniform(0.5, 1.5)
        self._network.agenda.later(later, self._probe, one, circle.turn)

    def announce(self, one: Endpoint, address: str) -> None:
        self._addresses[one.name] = address
        self._ranges.pop(one.name, None)
        self._roster[one.name] = (one, PeerRecord(one.name, (address,), 0, 0))

    def forget(self, one: Endpoint) -> None:
        self._roster.pop(one.name, None)

    def neighbours(self, one: Endpoint) -> list[Endpoint]:
        return [end.far.owner for end in one.ends.values()]

    def lost(self, end: End) -> None:
        one, other, now = end.owner, end.far.owner, self._network.agenda.now
        circle = self._circle(one)
        circle.useful.pop(end.number, None)
        if circle.started is None:
            return
        if now - end.since < SHORT_LIVED or not end.heard:
            circle.book.failed(other.name, now)
        else:
            circle.book.succeeded(other.name)
        self._network.agenda.later(0.0, self._look, one, circle.turn)

    def blame(self, one: Endpoint, other: Endpoint) -> None:
        self._blame(one, other.name)

    def knock(self, stranger: Endpoint, one: Endpoint) -> End | None:
        """Somebody dials `one`, who lets it in or not."""
        if not (one.up and not one.hostile) or linked(stranger, one):
            return None
        circle, now = self._circle(one), self._network.agenda.now
        if circle.started is None:
            return None
        newcomer = Standing(stranger.name, False, now, self._range(stranger))
        verdict = selection.whom_to_let_in(newcomer, self._standings(one), circle.book, now)
        if not verdict.accept:
            return None
        self._give_up(one, verdict.instead_of)
        end = self._network.connect(stranger, one)
        if end:
            self._network.agenda.later(FIRST_WORD_DEADLINE, self._expect_word, end.far)
        return end

    # -- what is done regularly --------------------------------------------------------------------

    def _tick(self, one: Endpoint, turn: int) -> None:
        circle = self._circle(one)
        if one.up and turn == circle.turn:
            self._let_go(one)
            self._find(one, circle)
            self._look(one, turn)
            self._network.agenda.later(CHECK_INTERVAL, self._tick, one, turn)

    def _let_go(self, one: Endpoint) -> None:
        """Give up peers that have nothing to say."""
        for peer in selection.whom_to_let_go(self._standings(one), self._network.agenda.now):
            self._give_up(one, peer)

    def _find(self, one: Endpoint, circle: Circle) -> None:
        """Search the roster: often while links are missing."""
        now = self._network.agenda.now
        wanting = selection.missing(self._standings(one)) > 0
        if now - circle.found_at < (CHECK_INTERVAL if wanting else FIND_INTERVAL):
            return
        circle.found_at = now
        heard = [record for other, record in self._roster.values() if self._network.hears(other, one)]
        found = heard if len(heard) <= ROSTER else self._random.sample(heard, ROSTER)
        circle.book.note(found, [end.far.owner.name for end in one.ends.values()])

    def _look(self, one: Endpoint, turn: int) -> None:
        """Dial whoever is missing."""
        circle = self._circle(one)
        if one.up and turn == circle.turn:
            now = self._network.agenda.now
            self._dial(one, selection.whom_to_dial(self._standings(one), circle.dialling, circle.book, now))

    def _probe(self, one: Endpoint, turn: int) -> None:
        """Give up the least useful link, try somebody new."""
        circle, now = self._circle(one), self._network.agenda.now
        if turn != circle.turn or not one.up:
            return
        self._give_up(one, selection.whom_to_give_up(self._standings(one), now))
        self._dial(one, selection.whom_to_probe(self._standings(one), circle.dialling, circle.book, now))
        self._network.agenda.later(PROBE_INTERVAL * self._random.uniform(0.5, 1.5), self._probe, one, turn)

    # -- links -------------------------------------------------------------------------------------

    def _dial(self, one: Endpoint, peers: list[str]) -> None:
        circle = self._circle(one)
        for peer in peers:
            circle.dialling[peer] = None
            self._network.agenda.later(DIAL_TIME, self._dialled, one, peer, circle.turn)

    def _dialled(self, one: Endpoint, peer: str, turn: int) -> None:
        circle, now = self._circle(one), self._network.agenda.now
        if turn != circle.turn or not one.up:
            return
        circle.dialling.pop(peer, None)
        other = self._roster[peer][0] if peer in self._roster else None
        if other is None or other is one or linked(one, other) or not self._reach(one, other):
            circle.book.failed(peer, now)

    def _reach(self, one: Endpoint, other: Endpoint) -> bool:
        now = self._network.agenda.now
        link = Standing(other.name, True, now, self._range(other))
        if not selection.may_keep(link, self._standings(one)):
            return False
        end = self._network.connect(one, other) if other.hostile else self.knock(one, other)
        if end:
            self._network.agenda.later(FIRST_WORD_DEADLINE, self._expect_word, end)
        return end is not None

    def _give_up(self, one: Endpoint, peer: str) -> None:
        if not peer or not isinstance(one, Node):
            return
        for end in [end for end in one.ends.values() if end.far.owner.name == peer]:
            if self._blank(one, end):
                self._blame(one, peer)
            one.hang_up(end)

    def _blame(self, one: Endpoint, peer: str) -> None:
        """Hold something against a peer, if this is a node that chooses its links."""
        if book := self._circle(one).started:
            book.misbehaved(peer, self._network.agenda.now)

    def _expect_word(self, end: End) -> None:
        if end.open and not end.heard and isinstance(end.owner, Node):
            end.owner.hang_up(end)

    def _standings(self, one: Endpoint) -> list[Standing]:
        now = self._network.agenda.now
        return [
            Standing(
                end.far.owner.name,
                end.outbound,
                end.since,
                self._range(end.far.owner),
                self._useful(one, end, now),
                self._blank(one, end),
            )
            for end in one.ends.values()
        ]

    def _blank(self, one: Endpoint, end: End) -> bool:
        link = one.machine.links.get(end.number) if isinstance(one, Node) else None
        return link is not None and link.blank

    def _useful(self, one: Endpoint, end: End, now: float) -> float:
        """What the link has brought, the older the less."""
        link = one.machine.links.get(end.number) if isinstance(one, Node) else None
        count = float(getattr(link, "useful", 0.0))
        circle = self._circle(one)
        useful, counted, since = circle.useful.get(end.number, (0.0, 0.0, now))
        useful = selection.decayed(useful, now - since) + max(0.0, count - counted)
        circle.useful[end.number] = (useful, count, now)
        return useful

    # -- names -------------------------------------------------------------------------------------

    def _circle(self, one: Endpoint) -> Circle:
        return self._circles.setdefault(one.name, Circle())

    def _range(self, one: Endpoint) -> str:
        if one.name not in self._ranges:
            self._ranges[one.name] = address_range(self._address(one))
        return self._ranges[one.name]

    def _address(self, one: Endpoint) -> str:
        """A public address; every node is in a range of its own unless it was announced with another."""
        if one.name not in self._addresses:
            number = len(self._addresses)
            where = f"{20 + number // 250}.{number % 250}.0.1"
            self._addresses[one.name] = f"/ip4/{where}/tcp/1/p2p/{one.name}"
        return self._addresses[one.name]
