"""Adversaries that run the real machine and alter its messages, so that they look like honest nodes.

Some of them stand in for the organiser, and lie in their statements (SPEC O22, O23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from sflab.simulator.actors import Attack
from sflab.simulator.world.computer import Computer
from sfnode.node.running import RunningNode
from sfprotocol import wire_codec
from sfprotocol.control_feed import election_message, statement_message
from sfprotocol.elections import LEAP, Elections
from sfprotocol.events import Action, LinkId, Writable
from sfprotocol.host import Effect, Send
from sfprotocol.link import Link
from sfprotocol.messages import Have, Message, Segment, Statement, Summary
from sfprotocol.seeds import feed_key

if TYPE_CHECKING:
    from sflab.simulator.world.world import World


DEGRADED_SHARE = 0.9
"""Share of all segments that a degrading node does not forward."""

DEGRADED_DELAY = 1.0
"""Delay, in seconds, of the segments that a degrading node does forward."""


class Turncoat(Computer):
    """A hostile node with the links of an honest one."""

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
        if isinstance(send.message, Segment):  # the machine waits for the event that it was sent
            self.running.driver.post(Writable(send.link))

    def tamper(self, message: Message) -> Message | None:
        """Return the message to send instead of `message`; None to send nothing."""
        return message


class Censor(Turncoat):
    """Forwards everything but the updates of one origin."""

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
    """Forwards few segments, and forwards them late."""

    def _tampered(self, send: Send) -> list[Effect]:
        if not isinstance(send.message, Segment):
            return [send]
        if self.whim.random() > DEGRADED_SHARE:
            self.world.later(DEGRADED_DELAY, self._send_late, send)
        self._keep_back(send)
        return []

    def _send_late(self, send: Send) -> None:
        if self.up and (pump := self.running.driver.pumps.get(send.link)):
            pump.send(send.frame)


class Sleeper(Turncoat):
    """Behaves well for half of the time, then forwards nothing."""

    def tamper(self, message: Message) -> Message | None:
        awake = self.world.now > self.world.faults_middle
        return None if awake and isinstance(message, (Segment, Have)) else message


FLOOD = 0.05
"""Seconds between two statements of a flooding stand-in: they come faster than nodes forward statements."""


class FalseStandIn(Turncoat):
    """A stand-in that lies in every statement, in a way that the seed chooses."""

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        super().__init__(world, number, attack, targets)
        lies = self._floods, self._elects_everybody, self._leaps, self._holds_more, self._is_silent
        self._lies: Callable[[Statement], list[Statement]] = lies[(world.seed + number) % len(lies)]
        self._number = 1 << 40
        """Number of the last false statement. It exceeds the numbers of all honest statements, so that others
        accept the false ones."""

    def _began(self, running: RunningNode) -> None:
        super()._began(running)
        elections = self._elections
        heard = elections.heard

        def heard_of_others(link: Link, said: Statement, now: float) -> list[Action]:
            return [] if said.key == elections.key else heard(link, said, now)

        elections.heard = heard_of_others  # type: ignore[method-assign]
        if self._lies == self._floods:
            self.world.later(FLOOD, self._flood)

    @property
    def _elections(self) -> Elections:
        return self.organised.control.elections

    def _tampered(self, send: Send) -> list[Effect]:
        said = send.message
        if not isinstance(said, Statement) or said.key != self._elections.key:
            return [send]
        return [self._said(send.link, lie) for lie in self._lies(said)]

    def _said(self, link: LinkId, said: Statement) -> Send:
        """Sign a statement with the next number, and return its Send."""
        self._number += 1
        said = replace(said, number=self._number)
        self._elections._beats[self._number] = self.world.now  # without this, no answer would let it organise
        message = statement_message(self.world.run.run_id, said)
        signed = replace(said, signature=self.organised.control.sign(message))
        return Send(link, signed, wire_codec.encode(signed, *self.world.run.form))

    def _flood(self) -> None:
        if not self.up:
            return
        driver, own = self.running.driver, self._elections._own
        if own and own.silent:  # while others elect
            for link in driver.pumps:
                driver._send(self._said(link, own))
        self.world.later(FLOOD, self._flood)

    # -- lies --------------------------------------------------------------------------------------

    def _floods(self, said: Statement) -> list[Statement]:
        return [said]

    def _elects_everybody(self, said: Statement) -> list[Statement]:
        """Elect all candidates or, if no stand-in is a candidate, all stand-ins heard so far."""
        others = [heard.said for heard in self._elections._heard.values()]
        standing = [one for one in others if one.candidate == one.key and one.voted > said.term]
        return [self._elects(said, one) for one in standing or others] or [said]

    def _elects(self, said: Statement, one: Statement) -> Statement:
        term = max(one.voted, said.term + 1)
        message = election_message(self.world.run.run_id, term, one.stop, one.chain, one.key)
        ballot = self.organised.control.sign(message)
        return replace(said, voted=term, candidate=one.key, ballot=ballot, silent=True)

    def _leaps(self, said: Statement) -> list[Statement]:
        """Be a candidate for the latest possible term, and answer in that term."""
        term = said.term + LEAP - 1
        message = election_message(self.world.run.run_id, term, said.stop, said.chain, said.key)
        ballot = self.organised.control.sign(message)
        return [replace(said, term=term, voted=term, candidate=said.key, ballot=ballot)]

    def _holds_more(self, said: Statement) -> list[Statement]:
        made_up = self.whim.randbytes(32)
        return [replace(said, stop=said.stop + 9, last=said.last + 1, chain=made_up, silent=True)]

    def _is_silent(self, said: Statement) -> list[Statement]:
        return [replace(said, silent=True, heard=0)]


TURNCOATS: dict[str, type[Turncoat]] = {
    "censor": Censor,
    "degrade": Degrader,
    "sleep": Sleeper,
    "stand-in": FalseStandIn,
}
