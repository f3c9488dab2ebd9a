"""Adversaries that run the real machine and tamper with what it sends: hard to tell from honest nodes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sflab.simulator.adversaries.actors import Attack
from sflab.simulator.world.computer import Computer
from sfprotocol import wire_codec
from sfprotocol.events import Writable
from sfprotocol.host import Effect, Send
from sfprotocol.messages import Have, Message, Segment, Summary
from sfprotocol.seeds import feed_key

if TYPE_CHECKING:
    from sflab.simulator.world.world import World

DEGRADED_SHARE = 0.9
"""Share of all segments that a degrading node does not pass on."""

DEGRADED_DELAY = 1.0
"""Seconds by which it delays the others."""


class Turncoat(Computer):
    """A node that is linked with everybody as others are, and means harm."""

    hostile = True

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        super().__init__(world, f"evil{number}", world.hardware)
        self.targets = targets
        self.whim = Random(f"{world.seed}/whim/{number}")
        where = f"{150 + number % attack.ranges}.{number % 250}.1.1"
        self.address = f"/ip4/{where}/tcp/1"
        self.contacts = [f"{world[name].address}/p2p/{name}" for name in targets if name in world.nodes]

    def start(self) -> None:
        self.world.others[self.name] = self
        super().start()

    def tampered(self, effects: list[Effect]) -> list[Effect]:
        carried: list[Effect] = []
        for effect in effects:
            carried += self._tampered(effect) if isinstance(effect, Send) else [effect]
        return carried

    def _tampered(self, send: Send) -> list[Effect]:
        message = self.tamper(send.message)
        if message is send.message:
            return [send]
        if message is None:
            self._keep_back(send)
            return []
        return [Send(send.link, message, wire_codec.encode(message, *self.world.run.form))]

    def _keep_back(self, send: Send) -> None:
        if isinstance(send.message, Segment):  # the machine waits to hear that it has left
            self.running.driver.post(Writable(send.link))

    def tamper(self, message: Message) -> Message | None:
        """Return what is sent instead; None for nothing."""
        return message


class Censor(Turncoat):
    """Passes on everything but the updates of one origin."""

    def tamper(self, message: Message) -> Message | None:
        node = self.world.nodes[self.targets[0]]
        victim = node.machine.own if node.up else None
        if victim is None:
            return message
        if isinstance(message, Segment):
            return None if message.feed_key == feed_key(self.world.run.run_id, *victim) else message
        if isinstance(message, Summary):
            kept = tuple(entry for entry in message.entries if entry.feed != victim)
            return Summary(message.more, message.known, message.digest, kept)
        if isinstance(message, Have):
            key = feed_key(self.world.run.run_id, *victim)
            kept_keys = tuple(entry for entry in message.entries if entry.feed_key != key)
            return Have(kept_keys) if kept_keys else None
        return message


class Degrader(Turncoat):
    """Passes on few segments, and those late."""

    def _tampered(self, send: Send) -> list[Effect]:
        if not isinstance(send.message, Segment):
            return [send]
        if self.whim.random() > DEGRADED_SHARE:
            self.world.agenda.later(DEGRADED_DELAY, self._send_late, send)
        self._keep_back(send)
        return []

    def _send_late(self, send: Send) -> None:
        if self.up and (pump := self.running.driver.pumps.get(send.link)):
            pump.send(send.frame)


class Sleeper(Turncoat):
    """Behaves well until half of the time is over; then none of them passes on anything."""

    def tamper(self, message: Message) -> Message | None:
        awake = self.world.now > self.world.faults_middle
        return None if awake and isinstance(message, (Segment, Have)) else message


TURNCOATS: dict[str, type[Turncoat]] = {"censor": Censor, "degrade": Degrader, "sleep": Sleeper}
