"""A few nodes with real machines and hosts, disks in memory, and wires that lose, repeat and reorder frames.

A host always decides, then commits, then sends. The fuzzer chooses when each of these happens. Invariants of
every moment are checked here, those of the end in `healing`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from sflab.simulator.invariants import SPARE, TABLES, entries, tables
from sflab.simulator.world.runs import remembering
from sfprotocol import fork_proofs, wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Admit, Event, LinkDown, LinkUp, Received, Writable
from sfprotocol.fields import Names
from sfprotocol.fork_resolution import MAX_INQUIRIES
from sfprotocol.host import Advanced, Close, Commit, Effect, Send, cut_chain
from sfprotocol.host import Host as ProtocolHost
from sfprotocol.link import Link
from sfprotocol.machine import Machine
from sfprotocol.messages import Card, EpochScalars, Feed, Proof, Segment, Summary
from sfprotocol.plumtree import MAX_BURST, TTL
from sfprotocol.pulls import MAX_PULLS_PER_LINK
from tests.fuzz.stories import RUN, SAGAS, Stories, key_of, origin_of, saying
from tests.protocol.feeds import Log, own_updates

MAX_RECORDED = 64
"""Maximum number of honest frames that the hostile peer keeps, to replay them elsewhere."""

VERIFY = remembering()
"""Cache of checked signatures: stories are the same in every arena."""


@dataclass
class Wire:
    """One direction of a link. Frames without a far end go to the hostile peer, or are lost."""

    far: End | None = None
    flight: deque[bytes] = field(default_factory=deque)
    owes_writable: bool = False


@dataclass
class End:
    """One host's side of a link."""

    number: int
    host: Host
    peer: str
    hostile: bool = False
    out: Wire = field(default_factory=Wire)
    dropped: bool = False
    """Whether its machine has dropped it; frames may still arrive until the link is closed."""


@dataclass
class Disk:
    """Disk of a host, with the interface of the protocol's store."""

    own: Feed | None = None
    log: Log = field(default_factory=Log)
    cards: dict[Feed, Card] = field(default_factory=dict)

    def append(self, commit: Commit) -> None:
        for admit in commit.admits:
            self.log.append(admit)
        for cut in commit.cuts:
            self.log.cut(cut.proof, cut_chain(RUN, cut.proof))
        for feed in commit.evicted:
            self.log.evict(feed)
        self.cards.update({card.feed: card for card in commit.cards})
        self.own = commit.own or self.own

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None:
        return self.log.read(feed, first, max_updates) if first < self.log.stop(feed) else None

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        return self.log.past(RUN, feed, step)

    def label(self, feed: Feed, step: int) -> tuple[int, int]:
        return self.log.label(feed, step)

    def proof(self, feed: Feed) -> Proof | None:
        return self.log.cuts[feed][0] if feed in self.log.cuts else None

    def counted(self) -> dict[Feed, int]:
        """Return the first step of each feed that does not count."""
        feeds = [*self.log.rows, *(feed for feed in self.log.cuts if feed not in self.log.rows)]
        return {feed: min(self.log.stop(feed), self.log.cut_of(feed)) for feed in feeds}

    def copy(self) -> Disk:
        """Return a backup, without cards."""
        return Disk(self.own, self.log.copy())


class Host:
    """One honest node."""

    def __init__(self, arena: Arena, name: str, *, relay: bool) -> None:
        self.arena = arena
        self.name = name
        self.relay = relay
        self.disk = Disk()
        self.backup: Disk | None = None
        self.met = False
        self.up = False
        self.sent = 0
        """Number of frames sent."""
        self.checked = False
        """Whether it has done nothing since the last `check`."""
        self.writing: Commit | None = None
        """Commit of the current round."""
        self.ends: dict[int, End] = {}
        self.making: dict[tuple[Feed, int], tuple[EpochScalars, ...]] = {}
        """Own updates that are not on disk yet, so nobody knows them."""
        self.faults: list[str] = []
        """Broken rules for which it dropped honest neighbours."""
        self.counted: dict[Feed, int] = {}
        """First step of each feed that is not applied yet."""
        self.host: ProtocolHost
        self.start()

    def __repr__(self) -> str:
        return self.name

    @property
    def machine(self) -> Machine:
        return self.host.machine

    def start(self) -> None:
        """Begin, or continue from what the disk holds."""
        fresh = not (self.disk.own and self.disk.log.stop(self.disk.own))
        if fresh and not self.relay:
            self.disk.own = Feed(origin_of(self.name), next(self.arena.incarnations))
        machine = Machine(
            RUN,
            self.disk.log.frontier(RUN),
            own=self.disk.own,
            sign=key_of(self.name).sign,
            draw_incarnation=lambda: next(self.arena.incarnations),
            proven=fresh or not self.met,
            now=self.arena.now,
            cards=self.disk.cards.values(),
            names=Names(self.name),
            verify=VERIFY,
        )
        self.host = ProtocolHost(machine, self.disk)
        self.counted = self.disk.counted()
        self.up, self.checked = True, False

    def crash(self, *, power_cut: bool) -> None:
        """Lose links, memory and queued events; in a power cut also the commit under way."""
        if power_cut:
            self.writing = None
        self._write()
        self.making.clear()
        self.up = False
        for end in list(self.ends.values()):
            self.arena.close(end, silent=power_cut)

    def post(self, event: Event) -> None:
        if self.up:
            self.host.post(event)

    # -- one round, in two halves ------------------------------------------------------------------

    def decide(self, events: int) -> None:
        """Let the machine handle up to this many events. Handle none while a commit is under way."""
        if not self.up or self.host.busy:
            return
        self.checked = False
        self.writing = self.host.decide(self.arena.now, most=events)
        due = self.host.next_deadline()
        assert due > self.arena.now, "a deadline that stays due after a Wake is a busy loop"

    def commit(self) -> None:
        """Make the decided round durable, then carry out its effects in order."""
        if self.up and self.host.busy:
            self.checked = False
            self._write()
            for effect in self.host.carry_out():
                self._do(effect)

    def _write(self) -> None:
        commit, self.writing = self.writing, None
        if commit is None:
            return
        self.disk.append(commit)
        for admit in commit.admits:
            feed, first = admit.feed, admit.segment.first
            if parts := self.making.pop((feed, first), None):
                self.arena.stories.goes_on(feed, first, self.disk.past(feed, first)[0], parts)
        for admit in commit.admits:
            self._check_admitted(admit)
        for cut in commit.cuts:
            wire_codec.encode(cut.proof, *RUN.form)
            assert fork_proofs.holds(RUN, cut.proof, VERIFY), "a feed is cut by a proof that proves nothing"
            assert self.arena.stories.may_be_cut(cut.proof.feed), "an honest origin is cut"

    def _check_admitted(self, admit: Admit) -> None:
        """Check that everything on disk was signed by its origin, as one history. The disk itself refuses
        gaps."""
        updates = [
            (epoch, scalar)
            for segment, _ in self.disk.log.rows[admit.feed]
            for epoch, scalars in segment.parts
            for scalar in scalars
        ]
        assert self.arena.stories.told(admit.feed, updates), f"{self} admitted what was never signed: {admit}"

    def compute(self, updates: int) -> None:
        """Finish so many updates of the engine, if the machine lets it make any."""
        made = own_updates(self.host, updates, lambda: saying(next(self.arena.scalars))) if self.up else None
        if made:
            self.making[made.feed, made.first] = made.parts
            self.post(made)

    # -- effects -----------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Close(link=link, fault=fault):
                self._drop(link, fault)
            case Advanced(feed=feed, before=before, stop=stop):
                assert before == self.counted.get(feed, 0), "an update is applied twice, or one is left out"
                assert stop <= self.disk.log.stop(feed), "what is applied is not on disk"
                self.counted[feed] = stop

    def _send(self, send: Send) -> None:
        end = self.ends.get(send.link)
        if end is None:
            return
        self.sent += 1
        end.out.flight.append(send.frame)
        if isinstance(send.message, Segment):
            assert send.message.hops < TTL
            end.out.owes_writable = True

    def _drop(self, link: int, fault: str | None) -> None:
        if end := self.ends.get(link):
            end.dropped = True
            if fault and not end.hostile:
                self.faults.append(fault)

    # -- what must hold at every moment --------------------------------------------------------------

    def check(self) -> None:
        if not self.up or self.host.busy or self.checked:
            return
        self.checked = True
        frontier = self.machine.frontier
        counted = self.disk.counted()
        assert {feed: stop for feed, stop in self.counted.items() if stop} == {
            feed: stop for feed, stop in counted.items() if stop
        }, "what is applied is not what counts"
        assert {state.feed: state.next for state in frontier} == counted, (
            "the frontier is not what is on disk"
        )
        assert frontier.known == sum(counted.values())
        if frontier.digest() != self.arena.digest_of.get(self.name):
            again = self.disk.log.frontier(RUN)
            assert again.digest() == frontier.digest(), "a restart would end in another state"
            self.arena.digest_of[self.name] = frontier.digest()
        for link in self.machine.links.values():
            self._check_tables(link)
        feeds, links = len(self.arena.stories.named), len(self.machine.links)
        assert entries(self.machine) <= (links + 1) * (TABLES * feeds + SPARE)

    def _check_tables(self, link: Link) -> None:
        feeds = len(self.arena.stories.named)
        assert len(link.inbox.asked) <= MAX_PULLS_PER_LINK
        assert len(link.inquiries) <= MAX_INQUIRIES
        assert len(link.outbox.serving) <= MAX_BURST
        for name, table in tables(link):
            assert len(table) <= feeds, f"{name} of a link has {len(table)} entries of {feeds} feeds"


class Arena:
    """Hosts, wires, the clock, and the scene of the hostile peer."""

    run = RUN
    sagas = SAGAS

    def __init__(self, hosts: int, *, relay: bool = False) -> None:
        self.now = 0.0
        self.stories = Stories()
        self.named = self.stories.named
        self.incarnations = count(1000)
        self.scalars = (n % 1999 - 999 for n in count(7, 13))
        self.numbers = count(1)
        self.recorded: deque[bytes] = deque(maxlen=MAX_RECORDED)
        self.focus = 0
        self.digest_of: dict[str, bytes] = {}
        """Digest of each host's state at the last comparison with its disk, keyed by the host's name."""
        self.hosts = [Host(self, f"host{n}", relay=relay and n == hosts - 1) for n in range(hosts)]
        for host in self.hosts:
            self.note_own(host)

    @property
    def machines(self) -> list[Machine]:
        return [host.machine for host in self.hosts]

    @property
    def ends(self) -> list[End]:
        return [end for host in self.hosts for end in host.ends.values()]

    @property
    def hostile_ends(self) -> list[End]:
        return [end for end in self.ends if end.hostile]

    def note_own(self, host: Host) -> None:
        if host.machine.own:
            self.stories.named.add(host.machine.own)

    # -- links -------------------------------------------------------------------------------------

    def link(self, one: Host, other: Host) -> None:
        """Link two hosts that are up and have no link."""
        if one is other or not (one.up and other.up) or self.linked(one, other):
            return
        near, far = self._end(one, other.name), self._end(other, one.name)
        near.out.far, far.out.far = far, near
        one.met = other.met = True

    def linked(self, one: Host, other: Host) -> bool:
        return any(end.out.far and end.out.far.host is other for end in one.ends.values())

    def link_hostile(self, host: Host) -> End:
        host.met = True
        return self._end(host, "hostile", hostile=True)

    def _end(self, host: Host, peer: str, *, hostile: bool = False) -> End:
        end = End(next(self.numbers), host, peer, hostile)
        host.ends[end.number] = end
        host.post(LinkUp(end.number, peer))
        return end

    def close(self, end: End, *, silent: bool = False) -> None:
        """Close a link. The other side is told, unless this one has lost its power."""
        if end.host.ends.pop(end.number, None) is None:
            return
        end.host.post(LinkDown(end.number))
        far, end.out.far = end.out.far, None
        if far:
            far.out.far = None
            if not silent:
                self.close(far)

    # -- frames ------------------------------------------------------------------------------------

    def deliver(self, end: End, *, index: int = 0, keep: bool = False, lose: bool = False) -> None:
        """Deliver a frame that `end` has sent: the first or another, once or twice, or not at all."""
        wire = end.out
        if not wire.flight or (wire.far and not wire.far.host.host.has_room(wire.far.number)):
            return
        frame = wire.flight[index % len(wire.flight)]
        if not keep:
            del wire.flight[index % len(wire.flight)]
        self.recorded.append(frame)
        if wire.far and not lose:
            wire.far.host.post(Received(wire.far.number, frame))
        if not wire.flight and wire.owes_writable:
            wire.owes_writable = False
            end.host.post(Writable(end.number))

    def inject(self, end: End, frame: bytes) -> None:
        """Send a frame from the hostile peer. Record all feeds that it names, even by a changed byte."""
        with suppress(RemoteProtocolError):
            match wire_codec.decode(frame, *RUN.form):
                case Summary(entries=entries):
                    self.stories.named.update(entry.feed for entry in entries)
                case Proof(feed=feed):
                    self.stories.named.add(feed)
        if end.host.host.has_room(end.number):
            end.host.post(Received(end.number, frame))

    # -- everything --------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Deliver everything in order and let all hosts do a round; return whether anything happened."""
        busy = False
        for end in self.ends:
            for _ in range(len(end.out.flight)):
                self.deliver(end)
                busy = True
        for host in self.hosts:
            host.commit()
            busy = busy or bool(host.host.waiting)
            if host.host.waiting or host.host.next_deadline() <= self.now:
                host.decide(host.host.waiting)
                host.commit()
            self.note_own(host)
        for end in [end for end in self.ends if end.dropped and not end.out.flight]:
            self.close(end)
            busy = True
        return busy

    def check(self) -> None:
        for host in self.hosts:
            host.check()
