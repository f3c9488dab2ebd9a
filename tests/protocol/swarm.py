"""A swarm of protocol machines on a virtual clock, for tests.

Machines, frames and signatures are real. Network, disk and clock are simulated, and one integer determines
all random choices. The oracle is the union of all updates that were computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from sfprotocol import messages
from sfprotocol.control_sync import Kept
from sfprotocol.events import Admit, Event, JoinRequested, LinkDown, LinkUp, Received, Writable
from sfprotocol.fields import NAMELESS, Names, Values
from sfprotocol.frontier import Frontier
from sfprotocol.host import Advanced, Close, Commit, Effect, Host, Send, cut_chain
from sfprotocol.machine import Machine
from sfprotocol.own_feed import FIRST_INCARNATION, fresh
from sfprotocol.run_state import Span
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.signing import extend
from sfprotocol.wire_codec import LENGTH_BYTES
from tests.protocol.feeds import RUN, Log, Told, origin_of, own_updates, signing_key


@dataclass(frozen=True)
class Faults:
    """Faults of the network, applied to each frame independently."""

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
    """The receiver's number of the link."""
    open: bool = True
    stalled: bool = False
    """Whether frames wait here, so that the sender's machine gets no Writable."""
    waiting: list[bytes] = field(default_factory=list)
    last_arrival: float = 0.0


class Node:
    """A host with its disk. `restart` makes a new machine from the contents of the disk."""

    def __init__(
        self,
        name: str,
        swarm: Swarm,
        *,
        relay: bool = False,
        run: messages.RunParameters = RUN,
        called: Names = NAMELESS,
        key: str = "",
        waiting: bool = False,
    ) -> None:
        """`waiting`: the node waits for a checkpoint to begin with."""
        self.name = name
        self.swarm = swarm
        self.run = run
        self.log = Log(organised=run.organised is not None)
        self.cards: dict[messages.Feed, messages.Card] = {}
        self.called = called
        drawn = swarm.random.getrandbits(32)
        if run.organised and not key:
            drawn = FIRST_INCARNATION
        self.own = None if relay else fresh(Frontier(run), origin_of(key or name), drawn)
        self.key = key or name
        self.decided: list[messages.Entry] = []
        """The stored control feed."""
        self.authority: list[messages.HigherWord] = []
        self.statement: messages.Statement | None = None
        """The stored statement of this node as a stand-in."""
        self.join_requests: list[messages.JoinRequest | messages.Offer] = []
        """Join requests that were shown to the organiser at this node."""
        self.wires: dict[int, Wire] = {}
        self.sent: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.updates_sent = 0
        self.faults: list[str] = []
        """The faults for which links were dropped; empty for an ordinary parting."""
        self.counted: dict[messages.Feed, tuple[Span, ...]] = {}
        """The spans of each feed at its last Advanced effect."""
        self.due = float("inf")
        """The deadline of the host after its last round."""
        self.host = self._host(proven=True, waiting=waiting)

    @property
    def machine(self) -> Machine:
        return self.host.machine

    @property
    def is_twin(self) -> bool:
        """Whether this node has the key of another node, so that its updates make a fork."""
        return self.key != self.name

    def _host(self, *, proven: bool, waiting: bool = False) -> Host:
        frontier = self.log.frontier(self.run)
        frontier.waiting = waiting
        machine = Machine(
            self.run,
            frontier,
            own=self.own,
            sign=signing_key(self.key).sign,
            draw_incarnation=lambda: self.swarm.random.getrandbits(32),
            proven=proven,
            now=self.swarm.now,
            cards=self.cards.values(),
            names=self.called,
            control=Kept(tuple(self.decided), tuple(self.authority), self.statement),
        )
        if machine.organised and self.name == self.swarm.organiser:
            machine.organised.control.hold(
                origin_of("organiser"), signing_key("organiser").sign, self.swarm.now
            )
        if machine.organised and self.name in self.swarm.stand_ins:
            key = f"{self.name} stands in"
            machine.organised.control.hold(origin_of(key), signing_key(key).sign, self.swarm.now)
        return Host(machine, self)

    def restart(self) -> None:
        """Restart as after kill -9: links, memory and an unfinished commit are lost, the disk stays."""
        for wire in list(self.wires.values()):
            self.swarm.cut(self, wire.receiver)
        self.host = self._host(proven=False)

    def compute(self, updates: int = 1) -> bool:
        """Make own updates of the machine's epoch if the machine allows it."""
        made = own_updates(self.host, updates, self._measured)
        if made:
            self.handle(made)
        return made is not None

    def _measured(self) -> Values:
        limit, cells = self.run.scalar_limit, self.run.cells
        drawn = tuple(self.swarm.random.randint(-limit, limit) for _ in range(cells or 1))
        return drawn if cells else drawn[0]

    # -- rounds ------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Give the machine an event. A commit takes no time."""
        self.host.post(event)
        self.pump()

    def pump(self) -> None:
        """Run rounds until no event waits."""
        self.due = self.host.next_deadline()
        while (self.host.waiting or self.due <= self.swarm.now) and not self.host.busy:
            commit = self.host.decide(self.swarm.now)
            self._finish(commit)
            self.due = self.host.next_deadline()
            assert self.due > self.swarm.now, "a deadline that never passes"

    def _finish(self, commit: Commit | None) -> None:
        if commit:
            self.append(commit)
        for effect in self.host.carry_out():
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Close(link=link, fault=fault):
                self.faults.append(fault or "")
                if link in self.wires:
                    self.swarm.hang_up(self.wires[link])
            case JoinRequested(join_request=join_request):
                self.join_requests.append(join_request)
            case Advanced(feed=feed):
                self.counted[feed] = self.machine.spans(feed)

    def _send(self, send: Send) -> None:
        if send.link not in self.wires:
            return
        kind = type(send.message).__name__
        self.sent[kind] += 1
        self.sent_bytes[kind] += len(send.frame) + LENGTH_BYTES
        if isinstance(send.message, messages.Segment):
            self.updates_sent += send.message.count
        self.swarm.transmit(
            self.wires[send.link], send.frame, segment=isinstance(send.message, messages.Segment)
        )

    # -- the store ---------------------------------------------------------------------------------

    def append(self, commit: Commit) -> None:
        for kept in commit.control:
            self.decided[kept.first :] = kept.entries
        self.authority += commit.authority
        self.statement = commit.statement or self.statement
        for admit in commit.admits:
            self.log.append(admit)
            if admit.feed.origin == origin_of(self.key) and not self.is_twin:
                self.swarm.witness(admit)
        for cut in commit.cuts:
            self.log.cut(cut.proof, cut_chain(self.run, cut.proof))
        for feed in commit.evicted:
            self.log.evict(feed)
        if commit.rebase:
            self.log.rebase(commit.rebase)
        self.cards.update({card.feed: card for card in commit.cards})
        self.own = commit.own or self.own

    def read(self, feed: messages.Feed, first: int, max_updates: int) -> messages.Segment | None:
        assert 0 < max_updates <= MAX_SEGMENT_UPDATES
        return self.log.read(feed, first, max_updates)

    def past(self, feed: messages.Feed, step: int) -> tuple[bytes, messages.Segment]:
        return self.log.past(self.run, feed, step)

    def label(self, feed: messages.Feed, step: int) -> tuple[int, int]:
        return self.log.label(feed, step)

    def proof(self, feed: messages.Feed) -> messages.Proof | None:
        return self.log.cuts[feed][0] if feed in self.log.cuts else None


class Swarm:
    """Nodes, wires, the clock and the oracle."""

    def __init__(
        self,
        names: str = "",
        *,
        seed: int = 0,
        faults: Faults = Faults(),
        run: messages.RunParameters = RUN,
        organiser: str = "",
        stand_ins: str = "",
    ) -> None:
        """`organiser` is the node with the organiser's key in an organised run. Each of the `stand_ins`
        has a key of its own to stand in with."""
        self.stand_ins = stand_ins.split()
        self.parameters = run
        self.organiser = organiser
        self.random = Random(seed)
        self.faults = faults
        self.now = 0.0
        self.oracle: dict[messages.Feed, list[Told]] = {}
        self.nodes: dict[str, Node] = {}
        self._numbers = count(1)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        for name in names.split():
            self.add(name)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def add(self, name: str, *, relay: bool = False, called: Names = NAMELESS, waiting: bool = False) -> Node:
        self.nodes[name] = Node(name, self, relay=relay, called=called, run=self.parameters, waiting=waiting)
        return self.nodes[name]

    def twin(self, name: str) -> Node:
        """Add a node with the key and the feed of another one."""
        twin = Node(f"{name}'s twin", self, run=self.parameters, key=name)
        twin.own = self[name].own
        twin.decided, twin.authority = list(self[name].decided), list(self[name].authority)
        twin.host = twin._host(proven=True)
        self.nodes[twin.name] = twin
        return twin

    def drop(self, node: Node) -> None:
        """Take a node away for good."""
        for wire in list(node.wires.values()):
            self.cut(node, wire.receiver)
        del self.nodes[node.name]

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
        """Connect each pair of nodes that has no link."""
        nodes = list(self.nodes.values())
        for index, one in enumerate(nodes):
            for other in nodes[index + 1 :]:
                if not self.linked(one, other):
                    self.connect(one, other)

    def linked(self, one: Node, other: Node) -> bool:
        return any(wire.receiver is other for wire in one.wires.values())

    def cut(self, one: Node, other: Node) -> None:
        """End all links between the two nodes; frames in flight are lost."""
        for wire in [wire for wire in one.wires.values() if wire.receiver is other]:
            self.hang_up(wire)
            one.handle(LinkDown(wire.link))

    def hang_up(self, wire: Wire) -> None:
        """End the link of `wire`, whose other side is told at once."""
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
            self._at(arrival, partial(self._arrive, wire, frame))
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
        """Write the waiting frames of a stalled link, and report Writable."""
        wire.stalled = False
        waiting, wire.waiting = wire.waiting, []
        for frame in waiting:
            self.transmit(wire, frame, segment=False)
        wire.sender.handle(Writable(wire.link))

    # -- time --------------------------------------------------------------------------------------

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self._at(self.now + seconds, do)

    def _at(self, time: float, do: Callable[[], None]) -> None:
        heappush(self._agenda, (time, next(self._numbers), do))

    def run(self, seconds: float) -> None:
        """Handle everything that is due within `seconds`."""
        end = self.now + seconds
        for node in self.nodes.values():  # a test may have changed anything since
            node.due = node.host.next_deadline()
        while self._step(end):
            pass
        self.now = end

    def _step(self, end: float) -> bool:
        first = min(self.nodes.values(), key=lambda node: node.due, default=None)
        deadline = first.due if first else float("inf")
        arrival = self._agenda[0][0] if self._agenda else float("inf")
        if min(deadline, arrival) > end:
            return False
        self.now = max(self.now, min(deadline, arrival))
        if first and deadline < arrival:
            first.pump()
            return True
        heappop(self._agenda)[2]()
        return True

    def run_until_equal(self, limit: float) -> float:
        """Run until every node has the union of all updates. Return the seconds that it took, at most
        `limit`."""
        start = self.now
        while not self.converged:
            assert self.now - start < limit, self.differences()
            self.run(0.25)
        return self.now - start

    # -- the oracle --------------------------------------------------------------------------------

    def witness(self, admit: Admit) -> None:
        """Record updates that an origin has made durably, or has got back from others."""
        told = self.oracle.setdefault(admit.feed, [])
        updates = [(part.epoch, scalar) for part in admit.segment.parts for scalar in part.scalars]
        first = admit.segment.first
        assert told[first : first + len(updates)] == updates[: len(told) - first], "an origin forked"
        told.extend(updates[len(told) - first :])

    def digest(self) -> bytes:
        """Return the digest of the union of all computed updates, built update by update."""
        frontier = Frontier(RUN)
        for feed, told in self.oracle.items():
            chain = frontier.state(feed).chain
            for epoch, scalar in told:
                chain = extend(chain, [messages.EpochScalars(epoch, (scalar,))])
            frontier.advance(feed, len(told), chain, told[-1][0])
        return frontier.digest()

    @property
    def converged(self) -> bool:
        known = sum(len(told) for told in self.oracle.values())
        if any(node.machine.frontier.known != known or node.host.busy for node in self.nodes.values()):
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
        """Return the number of messages of this type that all nodes have sent."""
        return sum(node.sent[kind] for node in self.nodes.values())

    def total_bytes(self, kind: str) -> int:
        return sum(node.sent_bytes[kind] for node in self.nodes.values())

    def forget_costs(self) -> None:
        for node in self.nodes.values():
            node.sent.clear()
            node.sent_bytes.clear()
            node.updates_sent = 0
