"""Makes every decision about peers: whom to dial and let in, when to announce, search, bootstrap and probe.

Sans-IO: `handle(event, now)` returns what to do, `next_deadline()` says when to send the next Wake. Time is
an argument (seconds of any monotonic clock), randomness is injected, and nothing here opens links, waits or
logs. `node.peering` carries the actions out, in the simulator, too.

Theory of operation. A node that is OPEN does five jobs, each when its own deadline comes:

    job        interval
    announce   ANNOUNCE_INTERVAL; LONELY_INTERVAL while our record is wrong, or nobody may have stored it
    find       FIND_INTERVAL; LONELY_INTERVAL while links are missing, doubled after each search in vain
    bootstrap  LONELY_INTERVAL; without links from any peers until one answers, else from silent given peers
    all three  LONELY_INTERVAL doubles while there is no link and the given peers are no nodes
    probe      PROBE_INTERVAL with jitter; bootstraps from strangers, gives up a link, dials somebody new
    check      CHECK_INTERVAL, and whenever a link, dial or search ends; drops mute peers, dials missing links

A job is not begun again before it has ended, unless a bootstrap peer answers after a silence: then announce
and find begin, as the peer may know others of which our part of the network has never heard. After a restart
of the transport, and when the node is OPEN again, all jobs are due at once. `peers.link_slots` decides which
links there should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass
from random import Random
from typing import Any

from sfnode.peers import events, link_slots
from sfnode.peers.address_book import AddressBook
from sfnode.peers.backoff import about, doubled
from sfnode.peers.link_slots import LinkFacts, address_range
from sfnode.transport.base import CONNECT_DEADLINE, peer_of
from sfnode.transport.roster import MAX_TTL

CHECK_INTERVAL = 2.0
"""Interval, in seconds, between checks of the links. A link that ends is replaced at once, without waiting
for a check."""

LONELY_INTERVAL = 2.0
"""Interval, in seconds, between announcements, searches and bootstraps of a node with fewer links than it
wants."""

FIND_INTERVAL = 30.0
"""Interval, in seconds, between searches of the roster when no links are missing."""

ANNOUNCE_INTERVAL = 30.0
ANNOUNCE_TTL = MAX_TTL
"""Lifetime of a record in the roster, in seconds, after which the record of a dead node is gone. Two
announcements in a row may fail before the record of a live node is gone."""

PROBE_INTERVAL = 60.0
"""Average time, in seconds, between probes. In a swarm of 20 nodes whose halves can reach each other again,
some node contacts the other half within seconds."""

BOOTSTRAPS_ALONE = 8
"""Number of peers from which a node without links bootstraps at a time."""

BOOTSTRAPS_BESIDE = 2
"""Number of peers from which a node with links bootstraps at a time: fewer, as it is in no hurry."""

RACE_WINDOW = 2 * CONNECT_DEADLINE
"""Maximum time, in seconds, between the openings of two links for which the two peers count as having dialled
each other at once. A second link that is opened later replaces the first."""

SHORT_LIVED = 10.0
"""Minimum duration, in seconds, of a link that counts as useful. A link that ends sooner counts as failed:
the peer has no room, is broken, or belongs to another run."""

FIRST_WORD_DEADLINE = 15.0
"""Deadline, in seconds, for a peer's first frame. The peer sends it, Hello, at once (SPEC L2), so the
deadline suffices for the slowest connection. It is well below the time without a frame after which any link
is dropped (SPEC L7)."""

_NEVER, _ALWAYS = float("inf"), float("-inf")


@dataclass(slots=True)
class RecurringJob:
    """The state of a job that is repeated at intervals and takes a while."""

    began: float = _ALWAYS
    running: int = 0

    def begin(self, now: float) -> None:
        self.began = now
        self.running += 1

    def end(self) -> None:
        self.running = max(0, self.running - 1)

    def due(self, interval: float) -> float:
        return _NEVER if self.running else self.began + interval


@dataclass(slots=True)
class _Neighbour:
    """A peer with a link that carries the protocol."""

    link: events.LinkId
    peer: str
    outbound: bool
    """Whether this side opened the present link."""
    chosen: bool
    """Whether this node chose the peer, even if the peer opened the present link. A link with a chosen peer
    counts as outbound."""
    since: float
    range: str | None
    heard: bool = False
    blank: bool = True
    useful: float = 0.0
    """Number of updates that the link was the first to bring; older updates count less."""
    counted: int = 0
    """Number of updates, old and new alike, that the link had been the first to bring when `useful` was last
    computed."""
    counted_at: float = 0.0

    def standing(self) -> LinkFacts:
        return LinkFacts(self.peer, self.chosen, self.since, self.range, self.useful, self.blank)


class PeerManager:
    """The links of one node, its address book, and the times of its searches."""

    def __init__(
        self, own: str, book: AddressBook, random: Random, now: float, *, rostered: bool = True
    ) -> None:
        """`own` is this node's id. `random` draws the times of probes. A node of a run that is not `rostered`
        is neither announced nor searched for: such nodes know each other from invitations and addresses (SPEC
        O1)."""
        self._rostered = rostered
        self.book = book
        self.presence = events.Presence.OPEN
        self._own = own
        self._random = random
        self._neighbours: dict[str, _Neighbour] = {}
        self._dialling: dict[str, None] = {}
        self._bootstrapping: dict[str, None] = {}
        """Peers from which the bootstrap job under way has tried to bootstrap, and that have not answered
        yet."""
        self._until_one = False
        """Whether the bootstrap job under way ends with the first answer."""
        self._announcing, self._finding, self._round = RecurringJob(), RecurringJob(), RecurringJob()
        self._checked_at = _ALWAYS
        self._probe_at = now + random.uniform(0, PROBE_INTERVAL)  # so that nodes started together differ
        self._in_vain = 0
        """Number of consecutive searches that found nobody but neighbours."""
        self._addresses: tuple[str, ...] = ()
        self._announced: tuple[str, ...] = ()
        """Our addresses in the roster; empty if it is not certain that another node has stored them."""
        self._met = False
        """Whether there has been a link since the start."""
        self._remembered: tuple[str, ...] | None = None
        self._actions: list[events.Action] = []
        self._do = self._actions.append
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            events.Wake: lambda _, now: self._wake(now),
            events.Observed: self._on_observed,
            events.LinkOpened: self._on_link_opened,
            events.LinkEnded: self._on_link_ended,
            events.DialFailed: self._on_dial_failed,
            events.Announced: self._on_announced,
            events.AnnounceFailed: lambda *_: self._announcing.end(),
            events.Found: self._on_found,
            events.FindFailed: lambda *_: self._finding.end(),
            events.BootstrapAnswered: self._on_bootstrap_answered,
            events.PeerFaulted: lambda event, now: self.book.misbehaved(event.peer, now),
            events.Restarted: self._on_restarted,
            events.PresenceChanged: self._on_presence_changed,
        }
        self._jobs: tuple[tuple[Callable[[], float], Callable[[float], None]], ...] = (
            (lambda: self._probe_at, self._probe),
            (lambda: self._checked_at + CHECK_INTERVAL, self._check),
            (self._announce_due, self._announce),
            (self._find_due, self._find),
            (lambda: self._round.due(self._lonely_interval()), self._bootstrap),
        )
        """Jobs of an OPEN node: pairs of a function that returns the due time and a function that begins the
        job. Jobs that may make other jobs due come first."""

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def linked(self) -> KeysView[str]:
        """The peers with which there are links."""
        return self._neighbours.keys()

    @property
    def dialling(self) -> KeysView[str]:
        """The peers to which links are being opened."""
        return self._dialling.keys()

    @property
    def wanting(self) -> bool:
        """Whether the node has fewer links than it should have."""
        return link_slots.missing(self.standings()) > 0

    @property
    def alone(self) -> bool:
        """Whether there is no link, and none is being opened."""
        return not (self.linked or self.dialling)

    def standings(self) -> list[LinkFacts]:
        """Return the links as `link_slots` sees them, in the order in which they were opened."""
        return [neighbour.standing() for neighbour in self._neighbours.values()]

    def has_room_for(self, peer: str, address: str, now: float) -> bool:
        """Return whether an inbound link would be accepted from this peer, with which there is no link
        yet."""
        newcomer = LinkFacts(peer, False, now, address_range(address))
        verdict = link_slots.whom_to_let_in(newcomer, self.standings(), self.book, now)
        return self.presence is events.Presence.OPEN and verdict.accept

    # -- the one entry -----------------------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
        """Return the actions that follow from `event`, to be carried out in this order."""
        self._actions.clear()
        self._handlers[type(event)](event, now)
        return self._actions.copy()

    def next_deadline(self) -> float:
        """Return the time of the next Wake; infinity if no Wake is needed."""
        deadlines = [_first_word_due(n) for n in self._neighbours.values()]
        if self.presence is events.Presence.OPEN:
            deadlines += [due() for due, _ in self._jobs]
        return min(deadlines, default=_NEVER)

    def _wake(self, now: float) -> None:
        for neighbour in list(self._neighbours.values()):
            if _first_word_due(neighbour) <= now:
                self._close(neighbour, events.Reason.SILENT)
                self.book.failed(neighbour.peer, now)
        if self.presence is events.Presence.OPEN:
            for due, job in self._jobs:
                if due() <= now:
                    job(now)

    # -- links -------------------------------------------------------------------------------------

    def _on_observed(self, event: events.Observed, now: float) -> None:
        self._addresses = event.addresses
        by_link = {neighbour.link: neighbour for neighbour in self._neighbours.values()}
        for count in event.links:
            if neighbour := by_link.get(count.link):
                _count(neighbour, count, now)

    def _on_link_opened(self, event: events.LinkOpened, now: float) -> None:
        if event.outbound:
            self._dialling.pop(event.peer, None)
        rival = self._neighbours.get(event.peer)
        if self._wants(event, rival, now):
            self._carry(event, rival, now)
            return
        self._do(events.Close(event.link, events.Reason.DOUBLE if rival else events.Reason.UNWANTED))
        if not event.outbound:
            return
        if rival:
            rival.chosen = True
        elif self.presence is events.Presence.OPEN:
            self.book.failed(event.peer, now)
        self._check(now)

    def _carry(self, event: events.LinkOpened, rival: _Neighbour | None, now: float) -> None:
        chosen = event.outbound or (rival is not None and rival.chosen)
        where = address_range(event.address)
        self._neighbours[event.peer] = _Neighbour(
            event.link, event.peer, event.outbound, chosen, now, where, counted_at=now
        )
        if not self._met:
            self._met = True
            self._keep_book()
        self._do(events.Carry(event.link, rival.link if rival else None))

    def _wants(self, event: events.LinkOpened, rival: _Neighbour | None, now: float) -> bool:
        """Decide whether to keep a link that has just been opened, in place of `rival` if there is one.

        A peer opens a second link when it has lost the first, so the newer link is kept. But when both peers
        dial at once, each sees the other's link as the second. Then both keep the link that the peer with the
        smaller id opened.
        """
        if self.presence is not events.Presence.OPEN or self.book.refused(event.peer, now):
            return False
        if rival is None:
            return self._has_room(event, now)
        if event.outbound == rival.outbound or now - rival.since > RACE_WINDOW:
            return True
        return event.outbound == (self._own < event.peer)

    def _has_room(self, event: events.LinkOpened, now: float) -> bool:
        """Return whether to keep a link of a peer that is no neighbour, after giving up another link for it
        if `link_slots` says so."""
        newcomer = LinkFacts(event.peer, event.outbound, now, address_range(event.address))
        if event.outbound:
            return link_slots.may_keep(newcomer, self.standings())
        verdict = link_slots.whom_to_let_in(newcomer, self.standings(), self.book, now)
        self._give_up(verdict.instead_of, events.Reason.GAVE_WAY, now)
        return verdict.accept

    def _give_up(self, peer: str | None, reason: events.Reason, now: float) -> None:
        """Close the link with `peer`, which is less useful than other links; do nothing if `peer` is None."""
        if peer is None:
            return
        neighbour = self._neighbours[peer]
        self._close(neighbour, reason)
        if neighbour.blank:
            self.book.was_mute(peer, now)
        else:
            self.book.succeeded(peer)

    def _close(self, neighbour: _Neighbour, reason: events.Reason) -> None:
        self._lose(neighbour.peer)
        self._do(events.Close(neighbour.link, reason))
        self._checked_at = _ALWAYS  # the next check is due at once

    def _lose(self, peer: str) -> None:
        del self._neighbours[peer]
        if not self._neighbours:
            self._in_vain = 0

    def _on_link_ended(self, event: events.LinkEnded, now: float) -> None:
        ended = next((n for n in self._neighbours.values() if n.link == event.link), None)
        if ended is None:
            return
        self._lose(ended.peer)
        if not self.book.refused(ended.peer, now):
            if now - ended.since < SHORT_LIVED or not event.heard or ended.blank:
                self.book.failed(ended.peer, now)
            else:
                self.book.succeeded(ended.peer)
        self._check(now)

    def _on_dial_failed(self, event: events.DialFailed, now: float) -> None:
        if event.peer in self._dialling:  # else the dial has been given up
            del self._dialling[event.peer]
            self.book.failed(event.peer, now)
            if event.plain:
                self.book.is_no_node(event.peer, now)
            self._check(now)

    def _check(self, now: float) -> None:
        """Drop peers that send nothing of use, dial peers while links are missing, and store the address
        book."""
        if self.presence is not events.Presence.OPEN:
            return
        for peer in link_slots.whom_to_let_go(self.standings(), self._dialling, self.book, now):
            self._give_up(peer, events.Reason.MUTE, now)
        self._checked_at = now
        self._dial(link_slots.whom_to_dial(self.standings(), self._dialling, self.book, now))
        self._keep_book()

    def _dial(self, peers: Iterable[str]) -> None:
        for peer in peers:
            self._dialling[peer] = None
            self._do(events.Dial(peer, self.book.addresses(peer)))

    def _keep_book(self) -> None:
        """Store peers for the next start. This also records that the node has met peers (SPEC I2)."""
        addresses = tuple(self.book.worth_keeping(self.linked))
        if self._met and addresses != self._remembered:
            self._remembered = addresses
            self._do(events.Remember(addresses))

    # -- the roster --------------------------------------------------------------------------------

    def _announce_due(self) -> float:
        if not self._rostered:
            return _NEVER
        settled = self._neighbours and self._addresses == self._announced
        return self._announcing.due(ANNOUNCE_INTERVAL if settled else self._lonely_interval())

    def _lonely_interval(self) -> float:
        """Return the interval between jobs of a node with too few links. The interval grows for a node that
        has no links and whose given peers do not run sfnode: another node may come only after days."""
        if self._neighbours or not self.book.plain_only:
            return LONELY_INTERVAL
        return self._backed_off()

    def _backed_off(self) -> float:
        return doubled(LONELY_INTERVAL, self._in_vain, FIND_INTERVAL)

    def _announce(self, now: float) -> None:
        self._announcing.begin(now)
        self._do(events.Announce(ANNOUNCE_TTL))

    def _on_announced(self, event: events.Announced, now: float) -> None:
        self._announcing.end()
        # While this node has no links, perhaps only it has stored the record: then it is announced again.
        self._announced = event.addresses if self._neighbours else ()

    def _find_due(self) -> float:
        """Return the time at which a search is due. In a small swarm links are always missing, and each
        search costs kilobytes. So the interval grows while the roster has nobody but neighbours."""
        if not self._rostered:
            return _NEVER
        return self._finding.due(self._backed_off() if self.wanting else FIND_INTERVAL)

    def _find(self, now: float) -> None:
        self._finding.begin(now)
        self._do(events.Find())

    def _on_found(self, event: events.Found, now: float) -> None:
        self._finding.end()
        strangers = {record.peer for record in event.records} - {self._own, *self.linked}
        promising = strangers or not (self._neighbours or self.book.plain_only)
        self._in_vain = 0 if promising else self._in_vain + 1
        self.book.note(event.records, self.linked)
        self._check(now)

    # -- bootstrapping and probes ------------------------------------------------------------------

    def _bootstrap(self, now: float) -> None:
        """Begin the bootstrap job: several attempts at once. A node without links tries any peers, until one
        answers. A node with links tries given or remembered peers that are not neighbours."""
        self._until_one = not self._neighbours
        if self._until_one:
            addresses = self.book.sample(BOOTSTRAPS_ALONE)
        else:
            addresses = self.book.due_for_bootstrap(now, self.linked, BOOTSTRAPS_BESIDE)
        self._bootstrapping = {peer_of(address): None for address in addresses}
        self._round = RecurringJob(now, running=len(addresses))
        self._bootstrap_from(addresses)

    def _bootstrap_from(self, addresses: Iterable[str]) -> None:
        self._actions += [events.Bootstrap(peer_of(address), address) for address in addresses]

    def _on_bootstrap_answered(self, event: events.BootstrapAnswered, now: float) -> None:
        if event.peer in self._bootstrapping:
            del self._bootstrapping[event.peer]
            self._round.end()
            if event.answered and self._until_one:
                self._end_round()
        back = self.book.bootstrapped(event.peer, event.answered, now)
        if back and self.presence is events.Presence.OPEN:
            # The peer may know others of which our part of the network has never heard.
            self._meet(event.peer, now)
            if self._rostered:
                self._announce(now)
                self._find(now)

    def _end_round(self) -> None:
        self._actions += map(events.StopBootstrap, self._bootstrapping)
        self._bootstrapping = {}
        self._round.running = 0

    def _meet(self, peer: str, now: float) -> None:
        """Dial a peer that has come back, even if that makes one link more than the target."""
        busy = self.linked | self.dialling
        room = len(busy) <= link_slots.TARGET_LINKS
        if room and peer not in busy and not self.book.refused(peer, now):
            self._dial([peer])

    def _probe(self, now: float) -> None:
        """Contact peers that are no neighbours. In a split swarm, nodes of each half may have enough links,
        and would otherwise never contact the other half."""
        self._probe_at = now + about(PROBE_INTERVAL, self._random)
        self._bootstrap_from(self.book.strangers(self.linked, BOOTSTRAPS_BESIDE))
        self._give_up(link_slots.whom_to_give_up(self.standings(), now), events.Reason.GAVE_WAY, now)
        self._dial(link_slots.whom_to_probe(self.standings(), self._dialling, self.book, now))

    # -- restarts and absence ----------------------------------------------------------------------

    def _on_restarted(self, event: events.Restarted, now: float) -> None:
        self.book.forget_failures()
        self._begin_anew(now)

    def _begin_anew(self, now: float) -> None:
        """Make every job due now; jobs under way become due when they have ended."""
        for job in (self._announcing, self._finding, self._round):
            job.began = _ALWAYS
        self._probe_at = min(self._probe_at, now)
        self._in_vain = 0
        self._checked_at = _ALWAYS
        self._wake(now)

    def _on_presence_changed(self, event: events.PresenceChanged, now: float) -> None:
        if self.presence in (event.presence, events.Presence.LEAVING):
            return
        self.presence = event.presence
        if event.presence is events.Presence.OPEN:
            self._begin_anew(now)
            return
        self._actions += map(events.StopDial, self._dialling)
        self._dialling.clear()
        self._end_round()
        if event.presence is events.Presence.AWAY:
            for neighbour in list(self._neighbours.values()):
                self._close(neighbour, events.Reason.AWAY)
                if not neighbour.blank:
                    self.book.succeeded(neighbour.peer)


def _first_word_due(neighbour: _Neighbour) -> float:
    return _NEVER if neighbour.heard else neighbour.since + FIRST_WORD_DEADLINE


def _count(neighbour: _Neighbour, count: events.LinkCount, now: float) -> None:
    """Add to the neighbour's `useful` the updates that were counted since the previous call."""
    neighbour.heard = neighbour.heard or count.heard
    elapsed, neighbour.counted_at = now - neighbour.counted_at, now
    neighbour.useful = link_slots.decayed(neighbour.useful, elapsed)
    if count.useful is not None:
        neighbour.blank = count.blank
        neighbour.useful += count.useful - neighbour.counted
        neighbour.counted = count.useful
