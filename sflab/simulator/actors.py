"""Adversaries with their own implementation of the protocol.

`Actor` is the common base: it greets, listens, and returns under a new name when its links are closed. Each
kind of attack is a class below. Adversaries that run the real machine and alter its messages are in
`turncoats`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Literal

import msgpack

from sflab.simulator.world.runs import origin_of, signing_key
from sfnode.transport.base import Link, LinkClosed, TransportError
from sfnode.transport.memory import MemoryLink, MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import (
    MAX_SIGNED_BYTES,
    Ahead,
    Claim,
    EpochScalars,
    Feed,
    Have,
    Hello,
    Message,
    Position,
    Prune,
    Segment,
    Summary,
    Want,
)
from sfprotocol.seeds import feed_key
from sfprotocol.signing import extend, genesis, head_message

if TYPE_CHECKING:
    from sflab.simulator.world.world import World

Target = Literal["all", "one", "newcomer", "publisher"]

INVENTED = 25
"""Number of invented feeds in one Summary of a spammer."""

PATIENCE = (3.0, 8.0)
"""Minimum and maximum seconds until an actor dials a refusing node again."""

MAX_MEMORY = 200
"""Maximum number of frames that a replayer keeps."""

HONEST_FORM = 0.5
"""Share of a misshaper's segments that have the run's form. The first segment without that form ends the
link."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Number, kind and targets of a scenario's adversaries."""

    kind: str
    """A name in `KINDS` or in `turncoats.TURNCOATS`."""
    target: Target = "all"
    actors: int = 40
    """Number of adversaries in the whole network."""
    links: int = 6
    """Number of links that each adversary tries to have."""
    start: float = 0.0
    """Time of the adversaries' start, in seconds after the faults begin; negative: before the first honest
    node."""
    every: float = 0.5
    """Seconds between two attacks of one adversary."""
    renames: bool = True
    """Whether an adversary without links returns under another name."""
    ranges: int = 8
    """Number of address ranges that the attacker owns."""


class Actor:
    """An adversary with one identity and some links. This base class is mute: it listens, greets with
    Summaries and forwards nothing."""

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        self.world = world
        self.number = number
        self.attack = attack
        self.targets = targets
        self.links: dict[MemoryLink, None] = {}
        self.random = Random(f"{world.seed}/actor/{number}")
        self.known: dict[Feed, int] = {}
        """Feeds that the adversary knows, with their next steps."""
        self.name = ""
        self._lives = count(1)
        self._transport: MemoryTransport

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.world.begin(self._live())

    async def _live(self) -> None:
        await self._take_name()
        self.world.begin(self._act())
        while True:
            self._dial()
            await asyncio.sleep(self.random.uniform(*PATIENCE))

    async def _take_name(self) -> None:
        self.name = f"evil{self.number}-{next(self._lives)}"
        self.world.others[self.name] = self
        where = f"{150 + self.number % self.attack.ranges}.{self.number % 250}.1.{1 + self.number % 200}"
        self._transport = MemoryTransport(self.world.network, self.name, address=f"/ip4/{where}/tcp/1")
        self._transport.on_link(self._carry)
        await self._transport.start()
        self.world.announce(self.name, self._transport.addresses())

    def _dial(self) -> None:
        """Dial enough targets for the wanted number of links."""
        linked = {link.peer for link in self.links}
        away = [name for name in self.targets if name not in linked]
        self.random.shuffle(away)
        for name in away[: max(0, self.attack.links - len(self.links))]:
            self.world.begin(self._open(name))

    async def _open(self, name: str) -> None:
        try:
            link = await self._transport.connect(name)
        except TransportError:
            return
        await self._carry(link)

    async def _carry(self, link: Link) -> None:
        assert isinstance(link, MemoryLink)
        self.links[link] = None
        self._greet(link)
        try:
            while True:
                self._receive(link, await link.receive())
        except LinkClosed:
            pass
        finally:
            self.links.pop(link, None)
        if self.attack.renames and not self.links:
            await self._change_name()

    async def _change_name(self) -> None:
        self.world.others.pop(self.name, None)
        self.world.network.write(self.world.run.run_id, self.name, 0.0, None)
        self._transport.die(silently=False)
        await self._take_name()

    def _greet(self, link: MemoryLink) -> None:
        self.say(link, Hello(self.world.run.version, self.world.run.run_id, 0, sum(self.known.values())))
        self.say(link, self.summary())

    def _receive(self, link: MemoryLink, frame: bytes) -> None:
        try:
            message = wire_codec.decode(frame, *self.world.run.form)
        except RemoteProtocolError:
            return
        if isinstance(message, Summary):
            for entry in message.entries:
                self.known[entry.feed] = max(entry.next, self.known.get(entry.feed, 0))
        self.hear(link, message, frame)

    # -- messages ----------------------------------------------------------------------------------

    def say(self, end: MemoryLink, message: Message) -> None:
        self.raw(end, wire_codec.encode(message, *self.world.run.form))

    def raw(self, end: MemoryLink, frame: bytes) -> None:
        """Send a frame if the link accepts one, without waiting."""
        if end.out.takes and not end.out.closed:
            end.out.put(frame)

    def summary(self) -> Summary:
        """Return the Summary that the adversary sends as a greeting. It claims no updates."""
        return Summary(False, 0, bytes(32), ())

    def hear(self, end: MemoryLink, message: Message, frame: bytes) -> None:
        """Receive a decoded message."""

    def misbehave(self, end: MemoryLink) -> None:
        """Attack this link. Called every `Attack.every` seconds or so."""
        self.say(end, self.summary())

    async def _act(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.attack.every))
        while True:
            for link in list(self.links):
                self.misbehave(link)
            await asyncio.sleep(self.attack.every * self.random.uniform(0.5, 1.5))


class Silent(Actor):
    """Opens a link and never sends anything."""

    def say(self, end: MemoryLink, message: Message) -> None:
        pass


class Promiser(Actor):
    """Claims more updates of every feed than exist, and delivers none."""

    def summary(self) -> Summary:
        return Summary(False, 10**6, self.random.randbytes(32), self._claims())

    def _claims(self) -> tuple[Claim, ...]:
        more = ((feed, following + 1 + self.random.randrange(50)) for feed, following in self.known.items())
        return tuple(Claim(feed, following, self.random.randbytes(4)) for feed, following in sorted(more))


class Forger(Promiser):
    """Claims more updates than exist, as a Promiser does, and delivers segments with invalid signatures."""

    def misbehave(self, end: MemoryLink) -> None:
        super().misbehave(end)
        for feed in sorted(self.known)[:8]:
            self.say(end, self._forged(feed, self.known[feed]))

    def hear(self, end: MemoryLink, message: Message, frame: bytes) -> None:
        if isinstance(message, Want):
            for entry in message.entries[:8]:
                self.say(end, self._forged(entry.feed, entry.next))

    def _forged(self, feed: Feed, first: int) -> Segment:
        parts = (EpochScalars(0, tuple(self.random.randint(-9, 9) for _ in range(4))),)
        key = feed_key(self.world.run.run_id, *feed)
        return Segment(key, first, parts, self.random.randbytes(64), self.random.randrange(16))


class Spammer(Actor):
    """Sends as many control messages as it can: invented feeds, Wants for everything, announcements,
    prunes."""

    def misbehave(self, end: MemoryLink) -> None:
        for _ in range(4):
            self.say(end, self._message())

    def _message(self) -> Message:
        feeds = sorted(self.known)
        keys = sorted({feed_key(self.world.run.run_id, *feed) for feed in feeds})
        match self.random.randrange(4):
            case 0:
                invented = sorted(Feed(self.random.randbytes(32), 1) for _ in range(INVENTED))
                return Summary(False, 5, bytes(32), tuple(Claim(feed, 1, bytes(4)) for feed in invented))
            case 1:
                return Want(tuple(Position(feed, 0) for feed in feeds))
            case 2:
                return Have(tuple(Ahead(key, 10**6) for key in keys))
            case _:
                return Prune(tuple(keys))


class Replayer(Actor):
    """Sends frames that it received to all its neighbours, again and again."""

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        super().__init__(world, number, attack, targets)
        self._memory: list[bytes] = []

    def hear(self, end: MemoryLink, message: Message, frame: bytes) -> None:
        if not isinstance(message, Hello):
            self._memory.append(frame)
            del self._memory[:-MAX_MEMORY]

    def misbehave(self, end: MemoryLink) -> None:
        for _ in range(min(10, len(self._memory))):
            self.raw(end, self.random.choice(self._memory))


class Malformer(Actor):
    """Sends frames that are too long, truncated, or no messages."""

    def misbehave(self, end: MemoryLink) -> None:
        whole = wire_codec.encode(self.summary())
        self.raw(
            end,
            self.random.choice(
                [
                    bytes(wire_codec.MAX_FRAME + 1),
                    whole[:-1],
                    whole + b"\x00",
                    self.random.randbytes(self.random.randrange(1, 200)),
                    b"\xdd\xff\xff\xff\xff",
                    b"",
                ]
            ),
        )


class Misshaper(Forger):
    """Claims more updates than exist, as a Promiser does, and delivers segments whose updates are huge or do
    not have the run's form."""

    def _forged(self, feed: Feed, first: int) -> Segment:
        most = 2 ** (8 * self.world.run.scalar_bytes - 1)
        update = tuple(self.random.randrange(-most, most) for _ in range(self.world.run.cells or 1))
        key = feed_key(self.world.run.run_id, *feed)
        parts = (EpochScalars(0, (update if self.world.run.cells else update[0],)),)
        return Segment(key, first, parts, self.random.randbytes(64), self.random.randrange(16))

    def say(self, end: MemoryLink, message: Message) -> None:
        if not isinstance(message, Segment) or self.random.random() < HONEST_FORM:
            super().say(end, message)
            return
        form = self.world.run.form
        size = self.random.choice(
            (0, 1, form.width - 1, form.width + 1, MAX_SIGNED_BYTES + form.width, 200_000)
        )
        fields = [1, message.hops, message.feed_key, message.first, [[0, self.random.randbytes(size)]]]
        self.raw(end, bytes(msgpack.packb([*fields, message.signature], use_bin_type=True)))


class Equivocator(Actor):
    """Signs two histories of one feed with its own key. Every second neighbour gets the second history."""

    def __init__(self, world: World, number: int, attack: Attack, targets: list[str]) -> None:
        super().__init__(world, number, attack, targets)
        self._key = signing_key(world.seed, f"evil{number}")
        self._feed = Feed(origin_of(self._key), number)
        self._chains = [genesis(world.run.run_id, self._feed)] * 2
        self._next = 0

    def misbehave(self, end: MemoryLink) -> None:
        """Extend both histories by one step per turn, however many links there are."""
        if self.world.now > self.world.faults_end or end is not next(iter(self.links), None):
            return
        segments = [self._step(side) for side in (0, 1)]
        for number, to in enumerate(list(self.links)):
            self.say(to, Summary(False, 1, bytes(32), (Claim(self._feed, 0, bytes(4)),)))
            self.say(to, segments[number % 2])
        self._next += 1

    def _step(self, side: int) -> Segment:
        parts = (EpochScalars(0, (1 + self._next % 100 + (side if self._next >= 3 else 0),)),)
        self._chains[side] = extend(self._chains[side], parts)
        head = head_message(self.world.run.run_id, self._feed, self._next + 1, self._chains[side])
        key = feed_key(self.world.run.run_id, *self._feed)
        return Segment(key, self._next, parts, self._key.sign(head))


KINDS: dict[str, type[Actor]] = {
    "mute": Actor,
    "silent": Silent,
    "promise": Promiser,
    "forge": Forger,
    "spam": Spammer,
    "replay": Replayer,
    "malform": Malformer,
    "misshape": Misshaper,
    "equivocate": Equivocator,
}
