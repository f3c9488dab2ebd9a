"""A swarm of protocol machines on a virtual clock: what the tests of the machine run in.

Real machines, real frames, real signatures; the network, the disk and the clock are simulated, and all chance
comes from one integer. The oracle is the promise itself: the set union of everything that was ever computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from feeds import RUN, Log, Told, origin_of, signing_key

from sfprotocol import codec
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
from sfprotocol.frontier import Frontier
from sfprotocol.machine import Machine
from sfprotocol.messages import Card, EpochScalars, Feed, Message, Proof, RunParameters, Segment
from sfprotocol.names import NAMELESS, Names
from sfprotocol.signing import extend

LENGTH_BYTES = 3


@dataclass(frozen=True)
class Faults:
    """What happens to every frame, independently."""

    loss: float = 0.0
    duplication: float = 0.0
    reorder: bool = False
    latency: tuple[float, float] = (0.01, 0.1)


@dataclass
class Wire:
    """One direction of one link."""

    sender: Node
    receiver: Node
    link: int
    """The sender's number of the link."""
    far: int
    """The receiver's."""
    open: bool = True
    stalled: bool = False
    """While set, frames wait here and the sender's machine hears no Writable."""
    waiting: list[bytes] = field(default_factory=list)
    last_arrival: float = 0.0


class Node:
    """A machine with its disk; `restart` makes a new machine from what the disk holds."""

    def __init__(
        self,
        name: str,
        swarm: Swarm,
        *,
        relay: bool = False,
        run: RunParameters = RUN,
        called: Names = NAMELESS,
    ) -> None:
        self.name = name
        self.swarm = swarm
        self.run = run
        self.log = Log()
        self.cards: dict[Feed, Card] = {}
        self.called = called
        self.own = None if relay else Feed(origin_of(name), swarm.random.getrandbits(32))
        self.wires: dict[int, Wire] = {}
        self.sent: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.updates_sent = 0
        self.faults: list[str] = []
        """Why links were dropped."""
        self.undone: list[Action] = []
        """What the machine has decided and the disk has not yet committed."""
        self.machine = self._machine(proven=True)

    def _machine(self, *, proven: bool) -> Machine:
        return Machine(
            self.run,
            self.log.frontier(self.run),
            own=self.own,
            sign=signing_key(self.name).sign,
            draw_incarnation=lambda: self.swarm.random.getrandbits(32),
            proven=proven,
            now=self.swarm.now,
            cards=self.cards.values(),
            names=self.called,
        )

    def restart(self) -> None:
        """As after kill -9: links, memory and what was not yet committed are gone, the disk is not."""
        self.undone.clear()
        for wire in list(self.wires.values()):
            self.swarm.cut(self, wire.receiver)
        self.machine = self._machine(proven=False)

    def compute(self, updates: int = 1) -> bool:
        """Make own updates, if the machine allows it, of the epoch that it says."""
        if not self.machine.may_compute:
            return False
        assert self.own
        state = self.machine.frontier.state(self.own)
        epoch = max(state.epoch, self.run.epoch_of(self.machine.frontier.known))
        scalars = tuple(self.swarm.random.randint(-1000, 1000) for _ in range(updates))
        self.handle(OwnUpdates(self.own, state.next, (EpochScalars(epoch, scalars),)))
        return True

    def handle(self, event: Event) -> None:
        """Give the machine an event; what it decides is carried out after the swarm's commit delay."""
        waiting = bool(self.undone)
        self.undone += self.machine.handle(event, self.swarm.now)
        if not self.swarm.commit_delay:
            self.commit()
        elif not waiting:
            self.swarm.later(self.swarm.random.uniform(0, self.swarm.commit_delay), self.commit)

    def commit(self) -> None:
        """Carry out what has been decided, in order."""
        actions, self.undone = self.undone, []
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Admit():
                self.log.append(action)
                if action.feed.origin == origin_of(self.name):
                    self.swarm.witness(action)
            case Transmit(link=link, message=message):
                self._send(link, message)
            case Serve(link=link, feed=feed, first=first, hops=hops):
                segment = replace(self.log.read(feed, first), hops=hops)
                self.updates_sent += segment.count
                self._send(link, segment)
                self.handle(Served(link, feed, segment.stop, hops))
            case Cut(proof=proof):
                self.log.cut(proof, self.machine.frontier.state(proof.feed).cut_chain)
            case ShowProof(link=link, feed=feed):
                self._send(link, self.log.cuts[feed][0])
            case Examine(link=link, feed=feed, against=against):
                step = against.at if isinstance(against, Proof) else against.first
                chain, ours = self.log.past(self.run, feed, step)
                kept = self.log.cuts[feed][0] if feed in self.log.cuts else None
                self.handle(Examined(link, feed, against, chain, ours, kept))
            case Drop(link=link, fault=fault):
                self.faults.append(fault)
                if link in self.wires:
                    self.swarm.hang_up(self.wires[link])
            case KeepCard(card=card):
                self.cards[card.feed] = card
            case ContinueAs(feed=feed):
                self.own = feed

    def _send(self, link: int, message: Message) -> None:
        if link not in self.wires:
            return
        frame = codec.encode(message, self.run.scalar_bytes)
        self.sent[type(message).__name__] += 1
        self.sent_bytes[type(message).__name__] += len(frame) + LENGTH_BYTES
        self.swarm.transmit(self.wires[link], frame, segment=isinstance(message, Segment))


class Swarm:
    """Nodes, wires, the clock and the oracle."""

    def __init__(
        self,
        names: str = "",
        *,
        seed: int = 0,
        faults: Faults = Faults(),
        commit_delay: float = 0.0,
    ) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.commit_delay = commit_delay
        """Seconds at most between the machine's decision and its execution, as with a disk in between."""
        self.now = 0.0
        self.oracle: dict[Feed, list[Told]] = {}
        self.nodes: dict[str, Node] = {}
        self._numbers = count(1)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        for name in names.split():
            self.add(name)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def add(self, name: str, *, relay: bool = False, called: Names = NAMELESS) -> Node:
        self.nodes[name] = Node(name, self, relay=relay, called=called)
        return self.nodes[name]

    # -- links -------------------------------------------------------------------------------------

    def connect(self, one: Node, other: Node) -> tuple[Wire, Wire]:
        there, back = next(self._numbers), next(self._numbers)
        out, into = Wire(one, other, there, back), Wire(other, one, back, there)
        one.wires[there], other.wires[back] = out, into
        one.handle(LinkUp(there, other.name))
        other.handle(LinkUp(back, one.name))
        return out, into

    def connect_all(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            self.connect(self[one], self[other])

    def mesh(self) -> None:
        """A link between any two nodes that have none."""
        nodes = list(self.nodes.values())
        for index, one in enumerate(nodes):
            for other in nodes[index + 1 :]:
                if not self.linked(one, other):
                    self.connect(one, other)

    def linked(self, one: Node, other: Node) -> bool:
        return any(wire.receiver is other for wire in one.wires.values())

    def cut(self, one: Node, other: Node) -> None:
        """End all links between the two; what is on its way is lost."""
        for wire in [wire for wire in one.wires.values() if wire.receiver is other]:
            self.hang_up(wire)
            one.handle(LinkDown(wire.link))

    def hang_up(self, wire: Wire) -> None:
        """The sender of `wire` ends the link: the other side hears of it at once."""
        back = wire.receiver.wires.pop(wire.far)
        del wire.sender.wires[wire.link]
        wire.open = back.open = False
        wire.receiver.handle(LinkDown(wire.far))

    def transmit(self, wire: Wire, frame: bytes, *, segment: bool) -> None:
        if wire.stalled:
            wire.waiting.append(frame)
            return
        copies = 0 if self.random.random() < self.faults.loss else 1
        copies += copies and self.random.random() < self.faults.duplication
        for _ in range(copies):
            arrival = self.now + self.random.uniform(*self.faults.latency)
            if not self.faults.reorder:
                arrival = wire.last_arrival = max(arrival, wire.last_arrival)
            self.later(arrival - self.now, partial(self._arrive, wire, frame))
        if segment:
            self.later(0.0, partial(self._written, wire))

    def _arrive(self, wire: Wire, frame: bytes) -> None:
        if wire.open:
            wire.receiver.handle(Received(wire.far, frame))

    def _written(self, wire: Wire) -> None:
        if wire.open:
            wire.sender.handle(Writable(wire.link))

    def stall(self, wire: Wire) -> None:
        wire.stalled = True

    def resume(self, wire: Wire) -> None:
        """The stalled link writes what it was given, and then says so."""
        wire.stalled = False
        waiting, wire.waiting = wire.waiting, []
        for frame in waiting:
            self.transmit(wire, frame, segment=False)
        wire.sender.handle(Writable(wire.link))

    # -- time --------------------------------------------------------------------------------------

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        heappush(self._agenda, (self.now + seconds, next(self._numbers), do))

    def run(self, seconds: float) -> None:
        """Let everything happen that is due within `seconds`."""
        end = self.now + seconds
        while self._step(end):
            pass
        self.now = end

    def _step(self, end: float) -> bool:
        node = min(self.nodes.values(), key=lambda node: node.machine.next_deadline())
        deadline = node.machine.next_deadline()
        arrival = self._agenda[0][0] if self._agenda else float("inf")
        if min(deadline, arrival) > end:
            return False
        self.now = max(self.now, min(deadline, arrival))
        if deadline < arrival:
            node.handle(Wake())
            assert node.machine.next_deadline() > self.now, "a deadline that never passes"
            return True
        heappop(self._agenda)[2]()
        return True

    def run_until_equal(self, limit: float) -> float:
        """Run until every node has the union of all updates; how many seconds that took, at most `limit`."""
        start = self.now
        while not self.converged:
            assert self.now - start < limit, self.differences()
            self.run(0.25)
        return self.now - start

    # -- the oracle --------------------------------------------------------------------------------

    def witness(self, admit: Admit) -> None:
        """An origin has made these updates, durably; or it has got them back from others."""
        told = self.oracle.setdefault(admit.feed, [])
        updates = [(part.epoch, scalar) for part in admit.segment.parts for scalar in part.scalars]
        first = admit.segment.first
        assert told[first : first + len(updates)] == updates[: len(told) - first], "an origin forked"
        told.extend(updates[len(told) - first :])

    def digest(self) -> bytes:
        """The digest of the union of everything computed, made update by update."""
        frontier = Frontier(RUN)
        for feed, told in self.oracle.items():
            chain = frontier.state(feed).chain
            for epoch, scalar in told:
                chain = extend(chain, [EpochScalars(epoch, (scalar,))])
            frontier.advance(feed, len(told), chain, told[-1][0])
        return frontier.digest()

    @property
    def converged(self) -> bool:
        known = sum(len(told) for told in self.oracle.values())
        if any(node.machine.frontier.known != known or node.undone for node in self.nodes.values()):
            return False
        digest = self.digest()
        assert all(node.log.updates() == self.oracle for node in self.nodes.values())
        return all(node.machine.frontier.digest() == digest for node in self.nodes.values())

    def differences(self) -> str:
        known = sum(len(told) for told in self.oracle.values())
        return f"of {known} updates: " + ", ".join(
            f"{node.name} has {node.machine.frontier.known}" for node in self.nodes.values()
        )

    def total(self, kind: str) -> int:
        """How many messages of this type all nodes have sent."""
        return sum(node.sent[kind] for node in self.nodes.values())

    def total_bytes(self, kind: str) -> int:
        return sum(node.sent_bytes[kind] for node in self.nodes.values())

    def forget_costs(self) -> None:
        for node in self.nodes.values():
            node.sent.clear()
            node.sent_bytes.clear()
            node.updates_sent = 0
