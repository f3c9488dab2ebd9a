"""Adversaries that run the real machine and tamper with what it sends: hard to tell from honest nodes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sflab.sim.adversaries.actors import DIALLING, PATIENCE, Attack
from sflab.sim.world.keys import signing_key
from sflab.sim.world.network import End
from sflab.sim.world.node import Node
from sfprotocol import wire_codec
from sfprotocol.host import Send
from sfprotocol.messages import Have, Message, Segment, Summary
from sfprotocol.seeds import feed_key

if TYPE_CHECKING:
    from sflab.sim.world.world import World

DEGRADED_SHARE = 0.9
"""Share of all segments that a degrading node does not pass on."""

DEGRADED_DELAY = 1.0
"""Seconds by which it delays the others."""


class Turncoat(Node):
    """An adversary that dials like an actor and speaks like a node."""

    hostile = True

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        name = f"evil{number}"
        super().__init__(world, name, signing_key(world.seed, name), world.hardware)
        self.attack = attack
        self.targets = targets
        self.number = number
        self.whim = Random(f"{world.seed}/whim/{number}")

    def start(self) -> None:
        super().start()
        self.world.others[self.name] = self
        where = f"{150 + self.number % self.attack.ranges}.{self.number % 250}.1.1"
        self.world.keeper.announce(self, f"/ip4/{where}/tcp/1/p2p/{self.name}")
        self._dial()

    def _dial(self) -> None:
        linked = {end.far.owner.name for end in self.ends.values()}
        away = [name for name in self.targets if name not in linked]
        self.whim.shuffle(away)
        for name in away[: max(0, self.attack.links - len(self.ends))]:
            if node := self.world.nodes.get(name):
                self.world.agenda.later(DIALLING, self.world.keeper.dial, self, node)
        self.world.agenda.later(self.whim.uniform(*PATIENCE), self._dial)

    def _transmit(self, end: End, send: Send) -> None:
        tampered = self.tamper(send.message)
        if tampered is send.message:
            super()._transmit(end, send)
        elif tampered is not None:
            frame = wire_codec.encode(tampered, self.world.run.scalar_bytes)
            super()._transmit(end, Send(send.link, tampered, frame))

    def tamper(self, message: Message) -> Message | None:
        """Return what is sent instead; None for nothing."""
        return message


class Censor(Turncoat):
    """Passes on everything but the updates of one origin."""

    def tamper(self, message: Message) -> Message | None:
        victim = self.world.nodes[self.targets[0]].disk.own
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

    def _transmit(self, end: End, send: Send) -> None:
        if not isinstance(send.message, Segment):
            Node._transmit(self, end, send)
        elif self.whim.random() > DEGRADED_SHARE:
            self.world.agenda.later(DEGRADED_DELAY, Node._transmit, self, end, send)


class Sleeper(Turncoat):
    """Behaves well until half of the time is over; then none of them passes on anything."""

    def tamper(self, message: Message) -> Message | None:
        awake = self.world.now > self.world.faults_middle
        return None if awake and isinstance(message, (Segment, Have)) else message


TURNCOATS: dict[str, type[Turncoat]] = {"censor": Censor, "degrade": Degrader, "sleep": Sleeper}
