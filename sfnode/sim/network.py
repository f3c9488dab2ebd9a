"""Links between endpoints, and what the weather does to the frames on them.

An endpoint is a node or somebody who only looks like one. A link is two ends; each end is one endpoint's view
of it, with the queue of what leaves from there. Knows bytes, not what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

from sfnode.sim.agenda import Agenda
from sfnode.sim.faults import CALM, Weather
from sfnode.sim.trace import Trace, kind_of
from sfnode.sim.traffic import Traffic
from sfprotocol.codec import MAX_FRAME
from sfprotocol.messages import Message

LENGTH_BYTES = 3

MAX_WAITING = 1024
"""Frames that wait at a stalled end; a link that needs more is ended, as by the daemon."""


class Endpoint(Protocol):
    """Whoever has links."""

    name: str
    island: int
    """Partitions are between islands."""
    up: bool
    hostile: bool
    ends: dict[int, End]
    bytes_in: int
    bytes_out: int

    def linked(self, end: End) -> None:
        """A link is there."""

    def unlinked(self, end: End) -> None:
        """A link has ended, by the other side or by the network."""

    def received(self, end: End, frame: bytes) -> None:
        """A frame has arrived."""

    def written(self, end: End) -> None:
        """Everything that was given to the link has left."""


@dataclass(eq=False)
class End:
    """One endpoint's side of a link."""

    owner: Endpoint
    number: int
    outbound: bool
    since: float
    weather: Weather | None = None
    """Of what leaves from here; None for that of the network."""
    open: bool = True
    stalled: bool = False
    """Nothing leaves; frames wait here."""
    waiting: list[tuple[bytes, Message | None]] = field(default_factory=list)
    free_at: float = 0.0
    """When the line has sent what was given to it."""
    last_arrival: float = 0.0
    heard: bool = False
    """Whether anything has arrived here."""
    watched: bool = False
    """Whether somebody waits to be told that all has left."""
    far: End = field(init=False, repr=False)


class Network:
    """All links."""

    def __init__(self, agenda: Agenda, random: Random, trace: Trace, weather: Weather = CALM) -> None:
        self.agenda = agenda
        self.random = random
        self.trace = trace
        self.weather = weather
        self.traffic = Traffic()
        self.deaf: set[tuple[int, int]] = set()
        """Islands (from, to) between which nothing arrives. Only ever asked, never gone through."""
        self._numbers = count(1)

    # -- links -------------------------------------------------------------------------------------

    def connect(self, one: Endpoint, other: Endpoint) -> End | None:
        """A link that `one` opens, unless the two do not hear each other or one is away."""
        if not (one.up and other.up and self.hears(one, other) and self.hears(other, one)):
            return None
        now = self.agenda.now
        near, far = (End(who, next(self._numbers), who is one, now) for who in (one, other))
        near.far, far.far = far, near
        one.ends[near.number], other.ends[far.number] = near, far
        self.trace.note(now, one.name, "link", other.name)
        one.linked(near)
        other.linked(far)
        return near

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
        """Take a frame to the other side, if the weather lets it."""
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
        weather, random = end.weather or self.weather, self.random
        departure = self.agenda.now
        if weather.bandwidth:
            start = max(departure, end.free_at)
            departure = end.free_at = start + (len(frame) + LENGTH_BYTES) / weather.bandwidth
        if not self.hears(end.owner, end.far.owner) or (weather.loss and random.random() < weather.loss):
            self.traffic.lost += 1
            self.traffic.flying -= 1
            return
        self._fly(end, frame, departure, weather)
        if weather.clear:
            return
        if random.random() < weather.duplication:
            self._repeat(end, frame, departure, weather)
        if random.random() < weather.replay:
            self._repeat(end, frame, departure + random.uniform(0, weather.replay_within), weather)

    def _repeat(self, end: End, frame: bytes, departure: float, weather: Weather) -> None:
        self.traffic.repeated += 1
        self.traffic.flying += 1
        self.agenda.at(departure + weather.latency.draw(self.random), self._arrive, end.far, frame)

    def _fly(self, end: End, frame: bytes, departure: float, weather: Weather) -> None:
        arrival = departure + weather.latency.draw(self.random)
        if not weather.reorder:
            arrival = end.last_arrival = max(arrival, end.last_arrival)
        self.agenda.at(arrival, self._arrive, end.far, frame)

    def _latency(self, end: End) -> float:
        return (end.weather or self.weather).latency.draw(self.random)

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
        """From now on the link takes nothing."""
        end.stalled = True

    def resume(self, end: End) -> None:
        """What waited leaves now."""
        if not end.stalled:
            return
        end.stalled = False
        waiting, end.waiting = end.waiting, []
        for frame, message in waiting:
            self.send(end, frame, message)
        self.watch(end)
