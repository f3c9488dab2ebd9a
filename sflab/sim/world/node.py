"""A node: the real host and machine, a simulated disk, processor, clock and links.

Rounds are the host's (`sfprotocol.host`), as in the daemon; here is how long they take and what may happen
meanwhile. While the disk or the processor is busy, events wait. A crash can come at any moment in between.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.sim.world.applied import Applied
from sflab.sim.world.checkpoints import Checkpoints
from sflab.sim.world.conditions import Hardware
from sflab.sim.world.disk import Disk
from sflab.sim.world.keys import origin_of
from sflab.sim.world.network import End
from sflab.sim.world.organising import Organising
from sflab.sim.world.violation import Violation
from sfprotocol import decisions
from sfprotocol.decisions import Decision
from sfprotocol.events import (
    CheckpointKept,
    Event,
    LinkDown,
    LinkId,
    LinkUp,
    OwnDecision,
    OwnPetition,
    OwnSuccession,
    Received,
    Writable,
)
from sfprotocol.host import Advanced, Close, Commit, Effect, Host, Send
from sfprotocol.joining import Joining
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, Petition, Segment, Succession
from sfprotocol.names import Names
from sfprotocol.organised import Organised
from sfprotocol.own_feed import FIRST_INCARNATION, fresh
from sfprotocol.petitions import petition_message

if TYPE_CHECKING:
    from sflab.sim.world.world import World

HOP_LIMIT = 16
"""Hops that no segment is sent with (SPEC FL3). Written down here once more, as the machine may be wrong."""

MAX_UNREAD = 4096
"""Frames of one link that wait in buffers of the system while the host has no room; no more are kept."""

MAX_ROUNDS = 10_000
"""Rounds of one node at one moment, each caused by the one before. More are a loop."""

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
        self.control_key: Ed25519PrivateKey | None = None
        """An organiser's key, if it is here."""
        self.organising: Organising | None = None
        self.checkpoints: Checkpoints | None = None
        """None in an open run."""
        self.prunes = False
        """Whether it keeps nothing before the newest checkpoint that it has compared."""
        self.begins_with_checkpoint = False
        """Whether it waits for a checkpoint at its next start, to begin with what it counts."""
        self.met = False
        """Whether this disk's node ever had a neighbour (SPEC I2); as durable as the disk."""
        self.copied = False
        """Whether the disk is a copy and the node knows it (SPEC I1)."""
        self.up = False
        self.up_since = 0.0
        self.island = 0
        self.ends: dict[int, End] = {}
        self.bytes_in = self.bytes_out = 0
        self.faults: list[str] = []
        """Rules for whose breach it has dropped links."""
        self.host: Host
        self.applied: Applied
        self._joining: Joining | None = None
        """Finished updates that are not signed yet, lost in a crash; None before the first."""
        self._writing: Commit | None = None
        """Commit that the round under way writes to disk."""
        self._unread: dict[LinkId, deque[bytes]] = {}
        """Frames for which the host has no room; none of them empty."""
        self._making: dict[tuple[Feed, int], float] = {}
        """Times at which own updates not yet on disk were handed to the machine, by feed and first step."""
        self._life = 0
        """Counts crashes: what was planned in an earlier life does not happen."""
        self._carrying_out = False
        self._offset = 0.0
        self._reading = 0.0
        self._alarm = float("inf")
        self._rings, self._rang_at = 0, -1.0

    @property
    def machine(self) -> Machine:
        return self.host.machine

    @property
    def organised(self) -> Organised:
        """The part of the machine that an organised run has."""
        assert self.machine.organised
        return self.machine.organised

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or continue from what the disk holds."""
        frontier = self.disk.frontier()
        frontier.waiting = self.begins_with_checkpoint
        anew = self.copied or not self.disk.stop(self.disk.own) if self.disk.own else True
        if anew:
            is_first = self.disk.own is None and not self.copied
            drawn = FIRST_INCARNATION if is_first else self._draw()
            self.disk.own = fresh(frontier, origin_of(self.key), drawn)
        self.copied = False
        machine = self.world.make_machine(
            self.world.run,
            frontier,
            own=self.disk.own,
            sign=self.key.sign,
            draw_incarnation=self._draw,
            proven=anew or not self.met,
            now=self.clock(),
            cards=self.disk.cards.values(),
            names=Names(self.name),
            verify=self.world.verify,
            control=self.disk.kept(),
            sign_control=self.control_key.sign if self.control_key else None,
        )
        self.host = self.world.make_host(machine, self.disk)
        self.applied = Applied(self.disk, self.world.oracle, machine)
        self.up, self.up_since = True, self.world.agenda.now
        self._note("starts", self.machine.frontier.known)
        self._set_alarm()
        if machine.organised:
            self.checkpoints = Checkpoints(self)
            if self.control_key:
                self.organising = Organising(self, self.control_key)
            self._ask_to_be_admitted()

    def _ask_to_be_admitted(self) -> None:
        if self.machine.frontier.may_hold(Feed(origin_of(self.key), 0)):
            return
        petition = Petition(origin_of(self.key), 0, 0, b"", b"")
        message = petition_message(self.world.run.run_id, petition)
        self._post(OwnPetition(replace(petition, signature=self.key.sign(message))))

    def crash(self, *, power_cut: bool = False) -> None:
        """End at once, at any moment. In a power cut a commit under way is lost; else it still happens."""
        if not self.up:
            return
        self._note("power cut" if power_cut else "killed")
        if power_cut:
            self._writing = None
        self._commit()
        self.up = self._carrying_out = False
        self.organising = self.checkpoints = None
        self._life += 1
        self._alarm = float("inf")
        self._unread.clear()
        self._making.clear()
        self._joining = None
        for end in list(self.ends.values()):
            self.world.network.close(end, silent=power_cut)

    def forgets(self) -> None:
        """Let its key contradict itself from here on: its disk is not what it was, or not the only one."""
        self.world.oracle.may_fork.add(origin_of(self.key))

    def clock(self) -> float:
        """Return the time by this node's monotonic clock."""
        self._reading = max(self._reading, self.world.agenda.now + self._offset)
        return self._reading

    def leap(self, seconds: float) -> None:
        """Move the clock forward by so much; or, if negative, let it stand still for so long."""
        self._note("clock", f"{seconds:+.1f} s")
        self._offset += seconds
        if self.up and not self.host.busy:
            self._set_alarm()

    def compute(self, updates: int) -> None:
        """Finish so many own updates, if the machine allows any; they are signed when due (SPEC I4)."""
        if not self.up:
            return
        limit, joining = self.world.run.scalar_limit, self._joining
        waiting = joining.waiting if joining else None
        made = self.host.own_updates(updates, lambda: self.random.randint(-limit, limit), waiting)
        if made is None:
            return
        if joining is None or made.feed != joining.feed:
            joining = self._joining = Joining(self.machine.frontier, made.feed)
        joining.add(made.parts)
        self._pump()

    def decide(self, decision: Decision) -> None:
        """Sign a decision, as whoever has the organiser's key here."""
        self._post(OwnDecision(decisions.encode(decision)))

    def keep_checkpoint(self, kept: CheckpointKept) -> None:
        """Begin with a checkpoint, or keep nothing before it from now on."""
        self._post(kept)

    def begin_with_checkpoint(self) -> None:
        """Start anew, and wait for a checkpoint."""
        if self.up and not self.begins_with_checkpoint:
            self.crash()
            self.begins_with_checkpoint = True
            self.start()
            self.world.keeper.came(self)

    def pass_on(self, succession: Succession) -> None:
        """Bring what the deputies have signed."""
        self._post(OwnSuccession(succession))

    def flush(self) -> None:
        """Sign all own updates that are finished, as a node does that pauses."""
        self._sign()
        self._pump()

    @property
    def quiet(self) -> bool:
        """Whether nothing waits for the machine or the disk."""
        return not self.host.busy and not self.host.waiting

    @property
    def synced(self) -> bool:
        """Whether everything that was decided is on disk."""
        return self._writing is None

    def _draw(self) -> int:
        return self.random.getrandbits(32)

    def _note(self, what: str, detail: object = None, other: str = "") -> None:
        self.world.trace.note(self.world.agenda.now, self.name, what, other, detail)

    # -- links -------------------------------------------------------------------------------------

    def linked(self, end: End) -> None:
        self.met = True
        for rival in [e for e in self.ends.values() if e is not end and e.far.owner is end.far.owner]:
            self.hang_up(rival)
        self._post(LinkUp(end.number, end.far.owner.name))

    def unlinked(self, end: End) -> None:
        self._forget(end)
        self.world.keeper.lost(end)

    def hang_up(self, end: End) -> None:
        """End this link for reasons of our own."""
        self.world.network.close(end)
        self._forget(end)

    def received(self, end: End, frame: bytes) -> None:
        if self.host.has_room(end.number) and end.number not in self._unread:
            self._post(Received(end.number, frame))
            return
        unread = self._unread.setdefault(end.number, deque())
        if len(unread) < MAX_UNREAD:
            unread.append(frame)

    def written(self, end: End) -> None:
        self._post(Writable(end.number))

    def _forget(self, end: End) -> None:
        self._unread.pop(end.number, None)
        self._post(LinkDown(end.number))

    def _read_on(self) -> None:
        """Read frames of links for which the host has room again."""
        for link, unread in list(self._unread.items()):
            while unread and self.host.has_room(link):
                self.host.post(Received(link, unread.popleft()))
            if not unread:
                del self._unread[link]

    # -- rounds ------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        if self.up:
            self.host.post(event)
            self._pump()

    def _pump(self, *, woken: bool = False) -> None:
        """Do rounds until nothing waits, or one takes time. With `woken` the machine is due."""
        if self._carrying_out:
            return
        rounds = 0
        while self.up and not self.host.busy:
            if self._joining and self._joining.deadline() <= self.clock():
                self._sign()
            if not (self.host.waiting or woken):
                break
            self._round(woken)
            woken = False
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise Violation("timer", f"{rounds} rounds at one moment", (self.name,))
        if self.up and not self.host.busy:
            self._set_alarm()

    def _sign(self) -> None:
        """Hand the finished updates to the machine."""
        if self._joining and (updates := self._joining.take(self.clock())):
            self._making[updates.feed, updates.first] = self.world.agenda.now
            self.host.post(updates)

    def _round(self, woken: bool) -> None:
        now = self.clock()
        self._writing = self.host.decide(now)
        if self.machine.next_deadline() <= now:
            raise Violation("timer", "a deadline that stays due after a Wake", (self.name,))
        delay = (self.host.taken + woken) * self.hardware.work
        if self._writing:
            delay += self.random.uniform(*self.hardware.commit)
        self._read_on()
        if delay:
            self.world.agenda.later(delay, self._done, self._life)
        else:
            self._carry_out()

    def _done(self, life: int) -> None:
        if life == self._life:
            self._commit()
            self._carry_out()
            self._pump()

    def _commit(self) -> None:
        """Let the commit under way be durable; the oracle and the frontier must agree with it."""
        commit, self._writing = self._writing, None
        if commit is None:
            return
        self.disk.append(commit)
        for admit in commit.admits:
            since = self._making.pop((admit.feed, admit.segment.first), None)
            self.world.became_durable(self, admit, since)
            self._check_frontier(admit.feed)
            self._note("admits", admit.segment)
        if commit.control:
            self.world.decided(self)
            self._note("decisions", len(self.disk.decided))
        for message in commit.authority:
            self._note("authority", message)
        for cut in commit.cuts:
            self._note("cuts", cut.proof)
        for card in commit.cards:
            self._note("is told a name", card.name)
        if commit.own:
            self._note("renews", commit.own.incarnation)

    def _check_frontier(self, feed: Feed) -> None:
        """Check that the disk has what the machine says; in an organised run it may have more."""
        state, counted = self.machine.frontier.state(feed), self.disk.counted(feed)
        if state.next > self.disk.stop(feed) or (counted != state.next and not self.machine.organised):
            raise Violation("frontier", f"a frontier says {state.next} where the disk has {counted} updates")
        if self.machine.organised and self.disk.head(feed, state.next) != state.chain:
            raise Violation("frontier", "the disk has another history than the frontier", (self.name,))

    # -- time --------------------------------------------------------------------------------------

    def _next_deadline(self) -> float:
        joining = self._joining.deadline() if self._joining else float("inf")
        return min(self.host.next_deadline(), joining)

    def _set_alarm(self) -> None:
        due = self._next_deadline() - self._offset
        if due < self._alarm:
            self._alarm = due
            self.world.agenda.at(due, self._ring, self._life, due)

    def _ring(self, life: int, due: float) -> None:
        if life != self._life or due != self._alarm:
            return
        self._alarm = float("inf")
        if self.host.busy:
            return  # the end of the round looks at the clock
        self._rings = self._rings + 1 if self._rang_at == self.world.agenda.now else 0
        self._rang_at = self.world.agenda.now
        if self._rings > MAX_RINGS:
            raise Violation("timer", f"{self._rings} alarms at one moment", (self.name,))
        now, deadline = self.clock(), self._next_deadline()
        if now < deadline <= now + ROUNDING:
            self._reading = deadline
        if self._reading >= deadline:
            self._pump(woken=self._reading >= self.machine.next_deadline())
        else:
            self._set_alarm()

    # -- effects -----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        self._carrying_out = True  # what comes of it is for the next round
        effects = self.host.carry_out()
        for effect in effects:
            self._do(effect)
        if self.organising:
            self.organising.carried_out(effects)
        if self.checkpoints:
            self.checkpoints.look()
        self._carrying_out = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Close():
                self._close(effect)
            case Advanced():
                self.applied.advance(effect)

    def _send(self, send: Send) -> None:
        end, message = self.ends.get(send.link), send.message
        if end is None:
            return
        if not isinstance(message, Segment):
            self._transmit(end, send)
            return
        if message.hops >= HOP_LIMIT:
            raise Violation("hops", f"a segment is forwarded with hop count {message.hops}", (self.name,))
        self.world.network.traffic.copies_sent += message.count
        self._transmit(end, send)
        self.world.network.watch(end)

    def _transmit(self, end: End, send: Send) -> None:
        self.world.network.send(end, send.frame, send.message)

    def _close(self, close: Close) -> None:
        end = self.ends.get(close.link)
        if end is None:
            return
        if close.fault:
            self.faults.append(close.fault)
            self.world.keeper.blame(self, end.far.owner)
        self._note("drops", close.fault or "", end.far.owner.name)
        self.world.network.close(end)
        self._forget(end)
        self.world.keeper.lost(end)
