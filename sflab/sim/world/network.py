"""Links between endpoints, and what the network conditions do to the frames on them.

An endpoint is a node or an adversary. A link is two ends; each end is one endpoint's view of it, with the
queue of what leaves from there. Knows bytes, not what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

from sflab.sim.world.clock import Agenda
from sflab.sim.world.conditions import CALM, Conditions
from sflab.sim.world.trace import Trace, kind_of
from sflab.sim.world.traffic import Traffic
from sfprotocol.messages import Message
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME

MAX_WAITING = 1024
"""Frames that wait at a stalled end; a link that needs more is closed, as by the daemon."""


class Endpoint(Protocol):
    """A node or adversary: whatever has links."""

    name: str
    island: int
    """Number of the group that partitions separate from others."""
    up: bool
    hostile: bool
    ends: dict[int, End]
    bytes_in: int
    bytes_out: int

    def linked(self, end: End) -> None:
        """Use a new link."""

    def unlinked(self, end: End) -> None:
        """Note that a link has ended, by the other side or by the network."""

    def received(self, end: End, frame: bytes) -> None:
        """Take a frame."""

    def written(self, end: End) -> None:
        """Note that everything that was given to the link has left."""


@dataclass(eq=False)
class End:
    """One endpoint's side of a link."""

    owner: Endpoint
    number: int
    outbound: bool
    since: float
    conditions: Conditions | None = None
    """Conditions of what leaves from here; None for those of the network."""
    open: bool = True
    stalled: bool = False
    """Whether nothing leaves; frames wait here."""
    waiting: list[tuple[bytes, Message | None]] = field(default_factory=list)
    free_at: float = 0.0
    """Time at which the line will have sent what was given to it."""
    last_arrival: float = 0.0
    heard: bool = False
    """Whether anything has arrived here."""
    watched: bool = False
    """Whether the owner waits to be told that all has left."""
    far: End = field(init=False, repr=False)


class Network:
    """All links of one run."""

    def __init__(self, agenda: Agenda, random: Random, trace: Trace, conditions: Conditions = CALM) -> None:
        self.agenda = agenda
        self.random = random
        self.trace = trace
        self.conditions = conditions
        self.traffic = Traffic()
        self.deaf: set[tuple[int, int]] = set()
        """Islands (from, to) between which nothing arrives. Only asked for membership, never iterated."""
        self._numbers = count(1)

    # -- links -------------------------------------------------------------------------------------

    def connect(self, one: Endpoint, other: Endpoint) -> End | None:
        """Open a link from `one`; None if the two do not hear each other or one is down."""
        near = self.dial(one, other)
        if near:
            self.open(near)
        return near

    def dial(self, one: Endpoint, other: Endpoint) -> End | None:
        """Return the near end of a link from `one` that carries nothing before `open`, or None."""
        if not self.reaches(one, other):
            return None
        now = self.agenda.now
        near, far = (End(who, next(self._numbers), who is one, now) for who in (one, other))
        near.far, far.far = far, near
        return near

    def open(self, near: End) -> None:
        """Let both owners use the link."""
        one, other = near.owner, near.far.owner
        one.ends[near.number], other.ends[near.far.number] = near, near.far
        self.trace.note(self.agenda.now, one.name, "link", other.name)
        one.linked(near)
        other.linked(near.far)

    def reaches(self, one: Endpoint, other: Endpoint) -> bool:
        """Tell whether the two are up and hear each other."""
        return one.up and other.up and self.hears(one, other) and self.hears(other, one)

    def hears(self, sender: Endpoint, receiver: Endpoint) -> bool:
        return not self.deaf or (sender.island, receiver.island) not in self.deaf

    def close(self, end: End, *, silent: bool = False) -> None:
        """The owner ends the link; the other side hears of it in a moment, unless the end is `silent`."""
        if not end.open:
            return
        end.open = False
        del end.owner.ends[end.number]
        self.trace.note(self.agenda.now, end.owner.name, "close", end.far.owner.name)
        if not silent:
            self._tell_end(end)

    def _tell_end(self, end: End) -> None:
        if end.far.open and self.hears(end.owner, end.far.owner):
            arrival = max(end.last_arrival, self.agenda.now + self._latency(end))
            self.agenda.at(arrival, self._ended, end.far)

    def _ended(self, end: End) -> None:
        if end.open:
            end.open = False
            del end.owner.ends[end.number]
            self.trace.note(self.agenda.now, end.owner.name, "unlinked", end.far.owner.name)
            end.owner.unlinked(end)

    # -- frames ------------------------------------------------------------------------------------

    def send(self, end: End, frame: bytes, message: Message | None = None) -> None:
        """Carry a frame to the other side, as the conditions allow."""
        if not end.open:
            return
        if len(frame) > MAX_FRAME:  # nobody reads on behind such a length (SPEC F2)
            self._overlong(end, frame)
            return
        if end.stalled:
            end.waiting.append((frame, message))
            if len(end.waiting) > MAX_WAITING:
                self.close(end)
                end.owner.unlinked(end)
            return
        self._account(end, frame, message)
        self._launch(end, frame, message)

    def _overlong(self, end: End, frame: bytes) -> None:
        self.trace.note(self.agenda.now, end.owner.name, "overlong", end.far.owner.name, frame)
        self.agenda.later(self._latency(end), self._refuse, end.far)

    def _refuse(self, end: End) -> None:
        if end.open:
            self.close(end)
            end.owner.unlinked(end)

    def _account(self, end: End, frame: bytes, message: Message | None) -> None:
        now, size, traffic = self.agenda.now, len(frame) + LENGTH_BYTES, self.traffic
        self.trace.note(now, end.owner.name, "sends", end.far.owner.name, message or frame)
        self.trace.frame(now, frame)
        traffic.sent += 1
        traffic.flying += 1
        end.owner.bytes_out += size
        if not end.owner.hostile:
            kind = kind_of(message)
            traffic.messages[kind] += 1
            traffic.bytes[kind] += size

    def _launch(self, end: End, frame: bytes, message: Message | None) -> None:
        conditions, random = end.conditions or self.conditions, self.random
        departure = self.agenda.now
        if conditions.bandwidth:
            start = max(departure, end.free_at)
            departure = end.free_at = start + (len(frame) + LENGTH_BYTES) / conditions.bandwidth
        if not self.hears(end.owner, end.far.owner) or (
            conditions.loss and random.random() < conditions.loss
        ):
            self.traffic.lost += 1
            self.traffic.flying -= 1
            return
        self._fly(end, frame, departure, conditions)
        if conditions.clear:
            return
        if random.random() < conditions.duplication:
            self._repeat(end, frame, departure, conditions)
        if random.random() < conditions.replay:
            self._repeat(end, frame, departure + random.uniform(0, conditions.replay_within), conditions)

    def _repeat(self, end: End, frame: bytes, departure: float, conditions: Conditions) -> None:
        self.traffic.repeated += 1
        self.traffic.flying += 1
        self.agenda.at(departure + conditions.latency.draw(self.random), self._arrive, end.far, frame)

    def _fly(self, end: End, frame: bytes, departure: float, conditions: Conditions) -> None:
        arrival = departure + conditions.latency.draw(self.random)
        if not conditions.reorder:
            arrival = end.last_arrival = max(arrival, end.last_arrival)
        self.agenda.at(arrival, self._arrive, end.far, frame)

    def _latency(self, end: End) -> float:
        return (end.conditions or self.conditions).latency.draw(self.random)

    def _arrive(self, end: End, frame: bytes) -> None:
        self.traffic.flying -= 1
        if end.open:
            self.traffic.arrived += 1
            end.heard = True
            end.owner.bytes_in += len(frame) + LENGTH_BYTES
            end.owner.received(end, frame)
            return
        self.traffic.dropped += 1
        if end.owner.up:  # whose system answers that it knows of no such connection
            self._tell_end(end)

    # -- queues ------------------------------------------------------------------------------------

    def watch(self, end: End) -> None:
        """Tell the owner once everything has left that was given to `end` until then."""
        if not end.watched and not end.stalled:
            end.watched = True
            self.agenda.at(end.free_at, self._look, end)

    def _look(self, end: End) -> None:
        if end.open and end.free_at > self.agenda.now:
            self.agenda.at(end.free_at, self._look, end)
            return
        end.watched = False
        if end.open and not end.stalled:
            end.owner.written(end)

    def stall(self, end: End) -> None:
        """Stall the link: frames given to it wait from now on."""
        end.stalled = True

    def resume(self, end: End) -> None:
        """End the stall of the link, and send the frames that waited."""
        if not end.stalled:
            return
        end.stalled = False
        waiting, end.waiting = end.waiting, []
        for frame, message in waiting:
            self.send(end, frame, message)
        self.watch(end)
