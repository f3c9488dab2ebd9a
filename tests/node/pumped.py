"""Drivers with real machines and logs but without engines, and bare links to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfnode.engine.core import Core, UpdateBatch
from sfnode.node.driver import Driver
from sfnode.store.log import Record, UpdateLog
from sfnode.store.replay import changes
from sfnode.transport.base import Link
from sfnode.transport.memory import MemoryTransport, Network
from sfprotocol import wire_codec
from sfprotocol.messages import EpochScalars, Feed, Hello, Message, Summary
from sfprotocol.weighing import Counted, once
from tests.node.helpers import machine, manifest
from tests.protocol.feeds import own_updates

RUN = manifest()


class GatedLog(UpdateLog):
    """A real log whose appends wait at a gate, on their own thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.failure: Exception | None = None

    def append(self, records: Sequence[Record], *others: Any, **options: Any) -> None:
        self.waiting.set()
        self.gate.wait()
        if self.failure:
            raise self.failure
        super().append(records, *others, **options)


class Pumped:
    """A driver with a real machine and a real log, and a record of what it applies."""

    def __init__(self, network: Network, name: str, folder: Path) -> None:
        self.transport = MemoryTransport(network, name)
        log = GatedLog.open(folder / f"{name}.sqlite", RUN.run_id)
        assert isinstance(log, GatedLog)
        self.log = log
        self.machine = machine(RUN, self.log.tails(), name, asyncio.get_running_loop().time())
        self.applied: list[UpdateBatch] = []
        """Batches added to the cores, round by round. Updates that a cut removes have negative scalars."""
        self.counted = {tail.feed: once(tail.next) for tail in self.log.tails()}
        self.remembered: list[tuple[Feed, str]] = []
        """New own feeds, each with the thread that recorded it."""
        self.driver = Driver(
            self.machine,
            self.log,
            clock=asyncio.get_running_loop().time,
            continue_as=self._continue_as,
        )
        self.driver.on_round.append(self._advanced)
        self.driver.retreat.append(self._retreat)
        self.transport.on_link(self.driver.carry)
        self.task = asyncio.create_task(self.driver.run())
        self.carrying: list[asyncio.Task[None]] = []

    @property
    def feed(self) -> Feed:
        assert self.machine.own is not None
        return self.machine.own

    def _advanced(self, feeds: Iterable[Feed]) -> None:
        for feed in feeds:
            assert self.machine.frontier.next(feed) <= self.log.stop(feed), "not durable yet"
        self._apply({feed: self.machine.counted(feed) for feed in feeds})

    async def _retreat(self, stops: Mapping[Feed, int]) -> None:
        self._apply({feed: self.machine.counted(feed, stop) for feed, stop in stops.items()})

    def _apply(self, wanted: dict[Feed, Counted]) -> None:
        self.applied += changes(self.log, self.counted, wanted)
        self.counted.update(wanted)

    def _continue_as(self, feed: Feed) -> None:
        self.remembered.append((feed, threading.current_thread().name))

    def core_digest(self) -> bytes:
        """Return the digest of a core to which everything in `applied` was added."""
        core = Core(*RUN.core_shape)
        for updates in self.applied:
            core.add(updates)
        return core.digest()

    def count(self) -> int:
        return sum(len(updates.seeds) for updates in self.applied)

    def say(self, *scalars: int) -> None:
        """Make own updates."""
        values = iter(scalars)
        made = own_updates(self.driver._host, len(scalars), lambda: next(values))
        assert made, "no updates may be made"
        self.driver.post(replace(made, parts=(EpochScalars(0, scalars),)))

    async def link_to(self, other: Pumped) -> Link:
        link = await self.transport.connect(other.transport.peer)
        self.carrying.append(asyncio.create_task(self.driver.carry(link)))
        return link


async def stranger(pumped: dict[str, Pumped], name: str = "s") -> Link:
    """Return a link to node a, on which the test itself sends and receives."""
    transport = MemoryTransport(pumped["a"].transport._network, name)
    await transport.start()
    return await transport.connect(pumped["a"].transport.peer)


async def hear(link: Link, kind: type[Message]) -> Any:
    """Return the next message of this kind."""
    async with asyncio.timeout(10):
        while True:
            message = wire_codec.decode(await link.receive())
            if isinstance(message, kind):
                return message


async def greet(link: Link) -> None:
    """Send the Hello and Summary of a node without updates."""
    hello: Hello = await hear(link, Hello)
    await link.send(wire_codec.encode(Hello(hello.version, RUN.run_id, 1, 0)))
    summary: Summary = await hear(link, Summary)
    await link.send(wire_codec.encode(Summary(False, 0, bytes(32), ())))
    assert not summary.more
