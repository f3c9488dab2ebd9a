"""A hostile peer on the network of whole nodes: it opens links, answers requests, and writes lies into the
roster and archives with other histories of its feeds.

`powers` and `hostile` write its messages. This module delivers them: under ever new names, with or without
reading the answers, and with links that end in the middle of a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import msgpack

from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.store import archive
from sfnode.store.log import Record, UpdateLog
from sfnode.transport.base import Asker, Link, TransportError
from sfnode.transport.memory import MemoryTransport, Network
from sfprotocol import wire_codec
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import KeepControl
from sfprotocol.messages import PartReply
from tests.fuzz import hostile, powers
from tests.fuzz.choices import Choices
from tests.fuzz.decoders import mutated, seeds
from tests.fuzz.powers import Stage
from tests.fuzz.stories import HISTORY

MAX_LINKS = 8
"""Number of links at a time."""

SAYING = 0.05
"""Timeout, in seconds, for sending a frame. A resting link takes none for a while."""

MOST_SAID = 12
"""Number of messages in a row."""

GHOSTS = 8
"""Number of invented peers in one lie in the roster."""

ROSTER_TIME = 2.0
"""Seconds until a lie in the roster expires."""


class Intruder:
    """A hostile peer. Its random choices come from `choices`; only its timing depends on others."""

    def __init__(self, network: Network, victims: Sequence[str], stage: Stage, choices: Choices) -> None:
        self.names: set[str] = set()
        """All names that it has used."""
        self._network = network
        self._victims = victims
        self._stage = stage
        self._choices = choices
        self._lies = Random(choices.take(4))
        """Random choices of its answers, whose times others decide."""
        self._links: list[Link] = []
        self._ungreeted: list[Link] = []
        self._transports: list[MemoryTransport] = []
        self._readers: set[asyncio.Task[None]] = set()
        self._numbers = count(1)

    # -- what it does --------------------------------------------------------------------------------

    async def act(self) -> None:
        """Do one thing, most often send messages."""
        choices = self._choices
        self._links = [link for link in self._links if not link.closed]  # type: ignore[attr-defined]
        if choices.flip(6) or not self._links:
            await self._link()
        await self._greet()
        if choices.flip(8):
            self._stage.begin_saga(choices)
        match choices.below(16):
            case 0:
                self._announce()
            case 1:
                await self._ask()
            case 2 if self._links:
                await choices.pick(self._links).close()
            case _:
                await self._speak()

    async def be_admitted(self, names: Sequence[str]) -> None:
        """Ask for these origins to be admitted, as newcomers do."""
        transport = await self._appear()
        link = await transport.connect(self._victims[0])
        for message in powers.introduction(self._stage, names):
            await link.send(wire_codec.encode(message))

    async def leave(self) -> None:
        """Close all links and be gone, under all names."""
        for transport in self._transports:
            await transport.stop()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    # -- links -----------------------------------------------------------------------------------------

    async def _link(self) -> None:
        """Open a link, most often under a new name, and greet."""
        if len(self._links) >= MAX_LINKS:
            return
        fresh = not self._transports or not self._choices.flip(4)
        transport = await self._appear() if fresh else self._transports[-1]
        with suppress(TransportError):
            self._take(await transport.connect(self._choices.pick(self._victims)))

    async def _appear(self) -> MemoryTransport:
        transport = MemoryTransport(self._network, f"x{next(self._numbers)}")
        transport.on_link(self._serve)
        transport.on_request(self._answer)
        await transport.start()
        self._transports.append(transport)
        self.names.add(transport.peer)
        return transport

    async def _serve(self, link: Link) -> None:
        """Accept a link from an honest node. `act` decides what to send on it."""
        self._links.append(link)
        self._ungreeted.append(link)
        await self._read(link)

    def _take(self, link: Link) -> Link:
        """Serve a link that it opened, and read its frames or not."""
        self._links.append(link)
        self._ungreeted.append(link)
        if not self._choices.flip(8):
            self._readers.add(reader := asyncio.create_task(self._read(link)))
            reader.add_done_callback(self._readers.discard)
        return link

    async def _greet(self) -> None:
        links, self._ungreeted = self._ungreeted, []
        for link in links:
            for frame in hostile.greeting(self._stage, self._choices):
                await self._say(link, frame)

    async def _read(self, link: Link) -> None:
        with suppress(TransportError):
            while True:
                self._stage.recorded.append(await link.receive())

    # -- words -----------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        """Send several messages, mostly on one link and mostly about one feed."""
        if not self._links:
            return
        stage, choices = self._stage, self._choices
        stage.focus, favourite = choices.below(256), choices.pick(self._links)
        writers = choices.pick(powers.mixtures(stage.run))
        for _ in range(1 + choices.below(MOST_SAID)):
            link = choices.pick(self._links) if choices.flip(4) else favourite
            await self._say(link, powers.written(stage, choices, writers))

    async def _say(self, link: Link, frame: bytes) -> None:
        self._stage.named |= powers.names_in(frame, self._stage.run.scalar_bytes)
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(SAYING):
                await link.send(frame)

    # -- questions and answers -------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Send an honest node a request, or nonsense, on a separate stream."""
        choices = self._choices
        transport = self._transports[-1] if self._transports else await self._appear()
        frame = powers.written(self._stage, choices, (powers.exemplary, hostile.out_of_place))
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(SAYING):
                await transport.request(_address(choices.pick(self._victims)), frame)

    async def _answer(self, asker: Asker, frame: bytes) -> bytes:
        """Answer as an honest node, as a node without the answer, or with anything; or do not answer."""
        lies = self._lies
        match lies.randrange(6):
            case 0:
                raise TransportError("no")
            case 1:
                await asyncio.sleep(SAYING)
            case 2:
                return lies.randbytes(lies.randrange(300))
            case 3:
                return wire_codec.encode(PartReply(lies.choice((100, 1000, 2**32 - 1)), lies.randbytes(100)))
        others = [victim for victim in self._victims if victim != asker.peer]
        honest = await self._transports[-1].request(_address(lies.choice(others)), frame)
        return mutated(honest, Choices(lies.randbytes(40))) if lies.random() < 0.8 else honest

    # -- the roster ------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Write into the roster: itself, peers that do not exist, honest ones elsewhere, or nonsense."""
        choices, now = self._choices, asyncio.get_running_loop().time()
        own = [transport.peer for transport in self._transports[-2:]]
        ghosts = [f"ghost{choices.below(500)}" for _ in range(choices.below(GHOSTS))]
        for peer in (*own, *ghosts):
            value = [peer, [_address(peer)], choices.below(3), choices.below(9) << 60]
            if choices.flip(4):
                with suppress(Exception):  # what bytes do not say
                    value = msgpack.unpackb(mutated(choices.pick(seeds("roster")), choices))
            self._network.write(self._stage.run.run_id, peer, now + ROSTER_TIME, value)


def archive_of(stage: Stage, run: Manifest, known: UpdateLog, choices: Choices, folder: Path) -> Path | None:
    """Write an archive with all decisions of a log, and with hostile feeds only. Return None if no archive
    can be written with these."""
    file = folder / "told.sfnode"
    with UpdateLog.open(folder / "told.sqlite", run.run_id) as log:
        log.append([], control=[KeepControl(0, tuple(known.control()))], authority=known.authority())
        for saga in choices.some(stage.sagas, most=8):
            branch, stop = choices.below(len(saga.histories)), 1 + choices.below(HISTORY)
            told = Record(saga.feed, saga.segment(branch, 0, stop), saga.chain(branch, stop))
            with suppress(LocalProtocolError):  # of labels that decrease, or of a feed that is there
                log.append([told])
        try:
            archive.write(run, log, folder, file, "0")
        except UserError:
            return None
    return file


def _address(peer: str) -> str:
    return f"/memory/{peer}/p2p/{peer}"
