"""A node: the real machine, a simulated disk, and between them what the daemon's driver does.

The order is the driver's: events are handled, what they admit is synced, and only then is anything sent or
applied. While the disk or the processor is busy, events wait. A crash can come at any moment in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.sim.applied import Applied
from sfnode.sim.disk import Disk
from sfnode.sim.failures import Violation
from sfnode.sim.faults import Hardware
from sfnode.sim.inbox import Compute, Inbox
from sfnode.sim.keys import origin_of
from sfnode.sim.network import End
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
    Serve,
    Served,
    ShowProof,
    Transmit,
    Wake,
    Writable,
)
from sfprotocol.machine import Machine
from sfprotocol.messages import EpochScalars, Feed, Message, Proof, Segment
from sfprotocol.names import Names

if TYPE_CHECKING:
    from sfnode.sim.world import World

MAX_ROUND = 512
"""Events taken into one commit (as `runtime.driver`)."""

HOP_LIMIT = 16
"""No segment is sent with so many hops (SPEC FL3). Written down here once more, as the machine may be
wrong."""

MAX_ROUNDS = 10_000
"""Rounds of one node at one moment: each comes from what the one before has done. More are a loop."""

MAX_RINGS = 100
"""Alarms of one node at one moment of virtual time; more are a loop."""

ROUNDING = 1e-9
"""Seconds by which an alarm may come too early when a clock has leapt."""


class Node:
    """One honest node."""

    hostile = False

    def __init__(self, world: World, name: str, key: Ed25519PrivateKey, hardware: Hardware) -> None:
        self.world = world
        self.name = name
        self.key = key
        self.hardware = hardware
        self.random = Random(f"{world.seed}/{name}")
        self.disk = Disk(world.run, None)
        self.met = False
        """Whether this disk's node ever had a neighbour (SPEC I2); as durable as the disk."""
        self.copied = False
        """The disk is a copy and the node knows it (SPEC I1)."""
        self.up = False
        self.up_since = 0.0
        self.island = 0
        self.ends: dict[int, End] = {}
        self.bytes_in = self.bytes_out = 0
        self.faults: list[str] = []
        """The rules for whose breach it has dropped links."""
        self.machine: Machine
        self.applied: Applied
        self._numbers = count(1)
        self._life = 0
        self._inbox = Inbox()
        self._busy = False
        self._offset = 0.0
        self._reading = 0.0
        self._alarm = float("inf")
        self._rings, self._rang_at = 0, -1.0
        self._served = Segment(0, 0, (), b"")
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        """The last message and its bytes: most go to several links."""
        self._making: dict[tuple[Feed, int], float] = {}

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on from what the disk holds."""
        fresh = self.copied or not self.disk.stop(self.disk.own) if self.disk.own else True
        if fresh:
            self.disk.own = Feed(origin_of(self.key), self._draw())
        self.copied = False
        self.machine = self.world.make_machine(
            self.world.run,
            self.disk.frontier(),
            own=self.disk.own,
            sign=self.key.sign,
            draw_incarnation=self._draw,
            proven=fresh or not self.met,
            now=self.clock(),
            cards=self.disk.cards.values(),
            names=Names(self.name),
            verify=self.world.verify,
        )
        self.applied = Applied(self.disk, self.world.oracle)
        self.up, self.up_since = True, self.world.agenda.now
        self._note("starts", self.machine.frontier.known)
        self._set_alarm()

    def crash(self, *, power_cut: bool = False) -> None:
        """The end, at any moment. Without its power the disk loses what was not synced."""
        if not self.up:
            return
        self._note("power cut" if power_cut else "killed")
        if power_cut:
            self.disk.lose()
        else:
            self._sync()
        self.up, self._busy = False, False
        self._life += 1
        self._alarm = float("inf")
        self._inbox.clear()
        self._making.clear()
        for end in list(self.ends.values()):
            self.world.network.close(end, silent=power_cut)

    def forgets(self) -> None:
        """Its disk is not what it was, or no longer the only one: from here on its key may contradict
        itself."""
        self.world.oracle.may_fork.add(origin_of(self.key))

    def clock(self) -> float:
        """This node's monotonic clock."""
        self._reading = max(self._reading, self.world.agenda.now + self._offset)
        return self._reading

    def leap(self, seconds: float) -> None:
        """The clock goes forward by so much; or, if negative, stands still for so long."""
        self._note("clock", f"{seconds:+.1f} s")
        self._offset += seconds
        if self.up and not self._busy:
            self._set_alarm()

    def compute(self, updates: int) -> None:
        """Make so many updates, as soon as the machine allows it; if it does not, none."""
        self._put(Compute(updates))

    @property
    def quiet(self) -> bool:
        """Whether nothing waits for the machine or the disk."""
        return not self._busy and not self._inbox

    def _draw(self) -> int:
        return self.random.getrandbits(32)

    def _note(self, what: str, detail: object = None, other: str = "") -> None:
        self.world.trace.note(self.world.agenda.now, self.name, what, other, detail)

    # -- links -------------------------------------------------------------------------------------

    def linked(self, end: End) -> None:
        self.met = True
        for rival in [e for e in self.ends.values() if e is not end and e.far.owner is end.far.owner]:
            self.hang_up(rival)
        self._put(LinkUp(end.number, end.far.owner.name))

    def unlinked(self, end: End) -> None:
        self._forget(end)
        self.world.keeper.lost(end)

    def hang_up(self, end: End) -> None:
        """End this link for reasons of our own."""
        self.world.network.close(end)
        self._forget(end)

    def received(self, end: End, frame: bytes) -> None:
        self._inbox.put_frame(end.number, frame)
        if not self._busy:
            self._pump()

    def written(self, end: End) -> None:
        self._put(Writable(end.number))

    def _forget(self, end: End) -> None:
        self._inbox.forget(end.number)
        self._put(LinkDown(end.number))

    # -- rounds ------------------------------------------------------------------------------------

    def _put(self, event: Event | Compute) -> None:
        if self.up:
            self._inbox.put(event)
            if not self._busy:
                self._pump()

    def _pump(self) -> None:
        rounds = 0
        while self._inbox and not self._busy and self.up:
            self._round()
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise Violation("timer", f"{rounds} rounds at one moment", (self.name,))
        if self.up and not self._busy:
            self._set_alarm()

    def _round(self) -> None:
        self._busy = True
        now = self.clock()
        actions: list[Action] = []
        events = min(len(self._inbox), MAX_ROUND)
        for _ in range(events):
            actions += self._handle(self._inbox.take(), now)
        if now >= self.machine.next_deadline():
            actions += self._wake(now)
        delay = events * self.hardware.work
        if self.disk.write(actions):
            delay += self.random.uniform(*self.hardware.commit)
        if delay:
            self.world.agenda.later(delay, self._done, self._life, actions)
        else:
            self._busy = False
            self._carry_out(actions)

    def _done(self, life: int, actions: list[Action]) -> None:
        if life != self._life:
            return
        self._sync()
        self._carry_out(actions)
        self._busy = False
        self._pump()

    def _handle(self, event: Event | Compute, now: float) -> list[Action]:
        if not isinstance(event, Compute):
            return self.machine.handle(event, now)
        if not self.machine.may_compute or self.machine.own is None:
            return []
        state = self.machine.frontier.state(self.machine.own)
        epoch = max(state.epoch, self.world.run.epoch_of(self.machine.frontier.known))
        limit = self.world.run.scalar_limit
        room = min(event.updates, self.world.run.update_budget - state.next)
        scalars = tuple(self.random.randint(-limit, limit) for _ in range(room))
        self._making[state.feed, state.next] = self.world.agenda.now
        return self.machine.handle(OwnUpdates(state.feed, state.next, (EpochScalars(epoch, scalars),)), now)

    # -- time --------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        due = self.machine.next_deadline() - self._offset
        if due < self._alarm:
            self._alarm = due
            self.world.agenda.at(due, self._ring, self._life, due)

    def _ring(self, life: int, due: float) -> None:
        if life != self._life or due != self._alarm:
            return
        self._alarm = float("inf")
        if self._busy:
            return  # whoever ends the round looks at the clock
        self._rings = self._rings + 1 if self._rang_at == self.world.agenda.now else 0
        self._rang_at = self.world.agenda.now
        if self._rings > MAX_RINGS:
            raise Violation("timer", f"{self._rings} alarms at one moment", (self.name,))
        now, deadline = self.clock(), self.machine.next_deadline()
        if now < deadline <= now + ROUNDING:
            self._reading = deadline
        if self._reading >= deadline:
            self._put(Wake())
        else:
            self._set_alarm()

    def _wake(self, now: float) -> list[Action]:
        actions = self.machine.handle(Wake(), now)
        if self.machine.next_deadline() <= now:
            raise Violation("timer", "a deadline that stays due after a Wake", (self.name,))
        return actions

    # -- actions -----------------------------------------------------------------------------------

    def _sync(self) -> None:
        """What the round admitted is durable; the oracle and the frontier must agree with it."""
        for admit in self.disk.sync():
            since = self._making.pop((admit.feed, admit.segment.first), None)
            self.world.became_durable(self, admit, since)
            counted, ours = self.disk.counted(admit.feed), self.machine.frontier.next(admit.feed)
            if counted != ours:
                raise Violation("frontier", f"a frontier says {ours} where the disk has {counted} updates")

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Admit():
                    self.applied.admit(action)
                    self.world.trace.note(self.world.agenda.now, self.name, "admits", "", action.segment)
                case Transmit(link=link, message=message):
                    self._send(link, message)
                case Serve():
                    self._serve(action)
                case Examine():
                    self._examine(action)
                case ShowProof(link=link, feed=feed):
                    self._show_proof(link, feed)
                case Cut():
                    self.applied.cut(action)
                    self._note("cuts", action.proof)
                case Drop():
                    self._drop(action)
                case ContinueAs(feed=feed):
                    self._note("renews", feed.incarnation)
                case KeepCard(card=card):
                    self._note("is told a name", card.name)

    def _send(self, link: int, message: Message) -> None:
        if end := self.ends.get(link):
            if message is not self._encoded[0]:
                self._encoded = message, codec.encode(message, self.world.run.scalar_bytes)
            self.world.network.send(end, self._encoded[1], message)

    def _serve(self, serve: Serve) -> None:
        end = self.ends.get(serve.link)
        if end is None:
            return
        segment = self.disk.read(serve.feed, serve.first)
        if segment is None:
            raise Violation(
                "log", f"step {serve.first} of a feed is to be served and not on disk", (self.name,)
            )
        if serve.hops >= HOP_LIMIT:
            raise Violation("hops", f"a segment is forwarded with hop count {serve.hops}", (self.name,))
        self.world.network.traffic.copies_sent += segment.count
        self._send(serve.link, self._with_hops(serve, segment))
        self._inbox.put(Served(serve.link, serve.feed, segment.stop, serve.hops))
        self.world.network.watch(end)

    def _with_hops(self, serve: Serve, segment: Segment) -> Segment:
        """The same object for all links that are served the same, one after the other."""
        if segment.hops == serve.hops:
            return segment
        last = self._served
        if (last.feed_key, last.first, last.signature, last.hops) != (
            segment.feed_key,
            segment.first,
            segment.signature,
            serve.hops,
        ):
            self._served = replace(segment, hops=serve.hops)
        return self._served

    def _examine(self, examine: Examine) -> None:
        feed, against = examine.feed, examine.against
        step = against.at if isinstance(against, Proof) else against.first
        chain, ours = self.disk.past(feed, step)
        self._inbox.put(Examined(examine.link, feed, against, chain, ours, self.disk.proof(feed)))

    def _show_proof(self, link: int, feed: Feed) -> None:
        proof = self.disk.proof(feed)
        if proof is None:
            raise Violation("log", "a proof is to be shown and not on disk", (self.name,))
        self._send(link, proof)

    def _drop(self, drop: Drop) -> None:
        end = self.ends.get(drop.link)
        if end is None:
            return
        if drop.fault:
            self.faults.append(drop.fault)
            self.world.keeper.blame(self, end.far.owner)
        self._note("drops", drop.fault, end.far.owner.name)
        self.world.network.close(end)
        self._inbox.forget(drop.link)
        self._inbox.put(LinkDown(drop.link))
        self.world.keeper.lost(end)
