"""A few real machines, their disks in memory, wires on which anything may happen: the fuzzer's playground.

A host does what the daemon's driver does, in its order (events are handled, what they admit is synced, only
then is anything sent), but when it does each of these is for the fuzzer to say. What must hold at every
moment is checked here; what must hold in the end, in `fuzz_healing`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from fuzz_stories import RUN, Stories, key_of, origin_of

from sfnode.sim.checks import SPARE, TABLES, entries
from sfnode.sim.disk import Disk
from sfnode.sim.keys import remembering
from sfprotocol import codec, forks
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Cut,
    Drop,
    Event,
    Examine,
    Examined,
    KeepCard,
    LinkDown,
    LinkUp,
    OwnUpdates,
    Received,
    Serve,
    Served,
    ShowProof,
    Transmit,
    Wake,
    Writable,
)
from sfprotocol.flood import MAX_BURST, TTL, Link
from sfprotocol.frontier import Frontier
from sfprotocol.inquiry import MAX_INQUIRIES
from sfprotocol.machine import Machine
from sfprotocol.messages import EpochScalars, Feed, Message, Proof, Summary
from sfprotocol.names import Names
from sfprotocol.sync import MAX_PULLS_PER_LINK

MAX_RECORDED = 64
"""Frames of honest hosts that the hostile peer keeps, to send them again elsewhere."""

VERIFY = remembering()
"""Stories are the same in every arena, and so are most of their signatures."""


@dataclass
class Wire:
    """One direction of a link. Without a far end the frames go to the hostile peer, or nowhere."""

    far: End | None = None
    flight: deque[bytes] = field(default_factory=deque)
    owes_writable: bool = False


@dataclass
class End:
    """What one host knows as a link."""

    number: int
    host: Host
    peer: str
    hostile: bool = False
    out: Wire = field(default_factory=Wire)
    dropped: bool = False
    """Its machine has dropped it; frames may still arrive until the runtime has closed it."""


class Host:
    """One honest node."""

    def __init__(self, arena: Arena, name: str, *, relay: bool) -> None:
        self.arena = arena
        self.name = name
        self.relay = relay
        self.disk: Disk = Disk(RUN, None)
        self.backup: Disk | None = None
        self.met = False
        self.up = False
        self.sent = 0
        """Frames."""
        self.inbox: deque[Event] = deque()
        self.undone: list[Action] = []
        """What the machine has decided and the disk has not yet synced."""
        self.ends: dict[int, End] = {}
        self.making: dict[tuple[Feed, int], tuple[EpochScalars, ...]] = {}
        """Own updates that are not on disk yet, and so unknown to anybody."""
        self.faults: list[str] = []
        """The rules for whose breach it has dropped honest neighbours."""
        self.machine: Machine
        self.start()

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        """Begin, or go on from what the disk holds (as `sfnode.sim.node`)."""
        fresh = not (self.disk.own and self.disk.stop(self.disk.own))
        if fresh and not self.relay:
            self.disk.own = Feed(origin_of(self.name), next(self.arena.incarnations))
        self.machine = Machine(
            RUN,
            self.disk.frontier(),
            own=self.disk.own,
            sign=key_of(self.name).sign,
            draw_incarnation=lambda: next(self.arena.incarnations),
            proven=fresh or not self.met,
            now=self.arena.now,
            cards=self.disk.cards.values(),
            names=Names(self.name),
            verify=VERIFY,
        )
        self.up = True

    def crash(self, *, power_cut: bool) -> None:
        """Links, memory and what waits are gone; without power also what is not yet synced."""
        if power_cut:
            self.disk.lose()
        else:
            self._sync()
        self.undone.clear()
        self.making.clear()
        self.up = False
        for end in list(self.ends.values()):
            self.arena.close(end, silent=power_cut)
        self.inbox.clear()

    def post(self, event: Event) -> None:
        if self.up:
            self.inbox.append(event)

    # -- one round, in two halves ------------------------------------------------------------------

    def decide(self, events: int) -> None:
        """Let the machine take in so many events. While a commit is under way nothing is taken in."""
        if not self.up or self.undone:
            return
        now = self.arena.now
        for _ in range(min(events, len(self.inbox))):
            self.undone += self.machine.handle(self.inbox.popleft(), now)
        if now >= self.machine.next_deadline():
            self.undone += self.machine.handle(Wake(), now)
            assert self.machine.next_deadline() > now, "a deadline that stays due after a Wake is a busy loop"
        self.disk.write(self.undone)

    def commit(self) -> None:
        """What was decided becomes durable, and is then carried out in order."""
        self._sync()
        actions, self.undone = self.undone, []
        for action in actions:
            self._do(action)

    def _sync(self) -> None:
        for admit in self.disk.sync():
            feed, first = admit.feed, admit.segment.first
            if parts := self.making.pop((feed, first), None):
                self.arena.stories.goes_on(feed, first, self.disk.head(feed, first), parts)
            self._check_admitted(admit)

    def _check_admitted(self, admit: Admit) -> None:
        """Everything on disk was signed by its origin, as one history (the disk itself refuses gaps)."""
        updates = [
            (epoch, scalar)
            for row in self.disk.shelves[admit.feed].rows
            for epoch, scalars in row.segment.parts
            for scalar in scalars
        ]
        assert self.arena.stories.told(admit.feed, updates), f"{self} admitted what was never signed: {admit}"

    def compute(self, updates: int) -> None:
        """The engine has finished so many updates, if the machine lets it make any."""
        own = self.machine.own
        if not self.up or self.undone or not self.machine.may_compute or own is None:
            return
        state, known = self.machine.frontier.state(own), self.machine.frontier.known
        updates = min(updates, RUN.update_budget - state.next)
        if not updates:
            return
        epoch = max(state.epoch, RUN.epoch_of(known))
        parts = (EpochScalars(epoch, tuple(next(self.arena.scalars) for _ in range(updates))),)
        self.making[own, state.next] = parts
        self.undone += self.machine.handle(OwnUpdates(own, state.next, parts), self.arena.now)
        self.disk.write(self.undone)

    # -- actions -----------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case Transmit(link=link, message=message):
                self._send(link, message)
            case Serve():
                self._serve(action)
            case Examine(link=link, feed=feed, against=against):
                step = against.at if isinstance(against, Proof) else against.first
                chain, ours = self.disk.past(feed, step)
                self.post(Examined(link, feed, against, chain, ours, self.disk.proof(feed)))
            case ShowProof(link=link, feed=feed):
                proof = self.disk.proof(feed)
                assert proof, "a proof that is to be shown is not on disk"
                self._send(link, proof)
            case Drop(link=link, fault=fault):
                self._drop(link, fault)
            case Cut(proof=proof):
                codec.encode(proof, RUN.scalar_bytes)
                assert forks.holds(RUN, proof, VERIFY), "a feed is cut by a proof that proves nothing"
                assert self.arena.stories.may_be_cut(proof.feed), "an honest origin is cut"
            case Admit() | KeepCard() | ContinueAs():
                pass  # on disk by now

    def _serve(self, serve: Serve) -> None:
        if serve.link not in self.ends:
            return
        segment = self.disk.read(serve.feed, serve.first)
        assert segment, f"the disk ends before step {serve.first}, which is to be served"
        assert serve.hops < TTL
        self._send(serve.link, replace(segment, hops=serve.hops))
        self.ends[serve.link].out.owes_writable = True
        self.post(Served(serve.link, serve.feed, segment.stop, serve.hops))

    def _send(self, link: int, message: Message) -> None:
        if end := self.ends.get(link):
            self.sent += 1
            end.out.flight.append(codec.encode(message, RUN.scalar_bytes))

    def _drop(self, link: int, fault: str) -> None:
        if end := self.ends.get(link):
            end.dropped = True
            if fault and not end.hostile:
                self.faults.append(fault)

    # -- what must hold at every moment --------------------------------------------------------------

    def check(self) -> None:
        if not self.up or self.undone:
            return
        frontier = self.machine.frontier
        counted = {feed: self.disk.counted(feed) for feed in self.disk.shelves}
        assert {state.feed: state.next for state in frontier} == counted, (
            "the frontier is not what is on disk"
        )
        assert frontier.known == sum(counted.values())
        if frontier.digest() != self.arena.digest_of.get(self.name):
            again: Frontier = self.disk.frontier()
            assert again.digest() == frontier.digest(), "a restart would end in another state"
            self.arena.digest_of[self.name] = frontier.digest()
        for link in self.machine.links.values():
            self._check_tables(link)
        feeds, links = len(self.arena.stories.named), len(self.machine.links)
        assert entries(self.machine) <= (links + 1) * (TABLES * feeds + SPARE)

    def _check_tables(self, link: Link) -> None:
        feeds = len(self.arena.stories.named)
        assert len(link.asked) <= MAX_PULLS_PER_LINK
        assert len(link.inquiries) <= MAX_INQUIRIES
        assert len(link.serving) <= MAX_BURST
        for name in Link.__slots__:
            table = getattr(link, name)
            if isinstance(table, dict | set):
                assert len(table) <= feeds, f"{name} of a link has {len(table)} entries of {feeds} feeds"


class Arena:
    """Hosts, wires and the clock."""

    def __init__(self, hosts: int, *, relay: bool = False) -> None:
        self.now = 0.0
        self.stories = Stories()
        self.incarnations = count(1000)
        self.scalars = (n % 1999 - 999 for n in count(7, 13))
        self.numbers = count(1)
        self.recorded: deque[bytes] = deque(maxlen=MAX_RECORDED)
        self.focus = 0
        """Which story the hostile peer tells just now."""
        self.digest_of: dict[str, bytes] = {}
        """Of hosts, the state that was last held against the disk."""
        self.hosts = [Host(self, f"host{n}", relay=relay and n == hosts - 1) for n in range(hosts)]
        for host in self.hosts:
            self.note_own(host)

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
        """A stream between two hosts that are up and have none."""
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
        """The stream ends; both sides hear of it, unless the power went out on this one."""
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
        """One frame that `end` has sent arrives: the first, or out of turn, or twice, or not at all."""
        wire = end.out
        if not wire.flight:
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
        """The hostile peer sends something; what it names has been named, also by a changed byte."""
        with suppress(RemoteProtocolError):
            match codec.decode(frame, RUN.scalar_bytes):
                case Summary(entries=entries):
                    self.stories.named.update(entry.feed for entry in entries)
                case Proof(feed=feed):
                    self.stories.named.add(feed)
        end.host.post(Received(end.number, frame))

    # -- everything --------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """All that is under way arrives, in order, and all hosts do a round; whether anything happened."""
        busy = False
        for end in self.ends:
            for _ in range(len(end.out.flight)):
                self.deliver(end)
                busy = True
        for host in self.hosts:
            host.commit()
            busy = busy or bool(host.inbox)
            host.decide(len(host.inbox))
            host.commit()
            self.note_own(host)
        for end in [end for end in self.ends if end.dropped and not end.out.flight]:
            self.close(end)
            busy = True
        return busy

    def check(self) -> None:
        for host in self.hosts:
            host.check()
