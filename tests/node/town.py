"""Nodes without engines, for tests of their links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from sfnode.node.driver import Driver
from sfnode.node.peering import Peering
from sfnode.peers.address_book import AddressBook
from sfnode.store.log import UpdateLog
from sfnode.transport.base import Link, PeerRecord, Transport, TransportError
from sfnode.transport.memory import MemoryTransport
from tests.node.helpers import machine, manifest
from tests.transport.split import SplitNetwork

RUN = manifest()
TOPIC = RUN.run_id


def address(name: str) -> str:
    return f"/memory/{name}/p2p/{name}"


class FragileTransport(MemoryTransport):
    """A memory transport whose daemon can die."""

    def __init__(self, network: SplitNetwork, peer: str) -> None:
        super().__init__(network, peer)
        self.bootstraps: list[str] = []
        """Addresses of all bootstrap attempts."""
        self.dials = 0
        self.restarts_to_fail = 0

    async def die(self) -> None:
        await super().stop()

    async def restart(self) -> None:
        if self.restarts_to_fail:
            self.restarts_to_fail -= 1
            raise TransportError("no daemon")
        await super().restart()

    async def connect(self, peer: str, addresses: object = ()) -> Link:
        self.dials += 1
        return await super().connect(peer)

    async def bootstrap(self, addresses: object) -> int:
        assert isinstance(addresses, list)
        self.bootstraps += addresses
        return await super().bootstrap(addresses)


T = TypeVar("T", bound=Transport)


class Relay(Generic[T]):
    """Links, driver and transport of one node without an engine; the transport has been started."""

    def __init__(self, transport: T, folder: Path, known: tuple[str, ...] = ()) -> None:
        name = transport.peer
        self.transport = transport
        self.log = UpdateLog.open(folder / f"{name}.sqlite", RUN.run_id)
        clock = asyncio.get_running_loop().time
        self.driver = Driver(
            machine(RUN, self.log.tails(), now=clock()),
            self.log,
            clock=clock,
            continue_as=lambda _: None,
        )
        self.book = AddressBook(name, known, (), Random(name))
        self.remembered: list[str] | None = None
        self.peering = Peering(
            self.transport,
            self.driver,
            topic=TOPIC,
            book=self.book,
            own_record=lambda: PeerRecord(name, tuple(self.transport.addresses()), 1, 0),
            remember=self._remember,
            random=Random(name),
        )
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        return self.transport.peer

    @property
    def peers(self) -> list[str]:
        """The peers of the machine's links, one entry for each link."""
        return sorted(link.peer for link in self.driver.machine.links.values() if link.greeted)

    @property
    def linked(self) -> list[str]:
        """The peers of the manager's links."""
        return sorted(self.peering.manager.linked)

    def begin(self) -> None:
        jobs = (self.driver.run, self.peering.run)
        self.tasks = [asyncio.create_task(job()) for job in jobs]

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.driver.close_links(0.1)
        await self.transport.stop()
        self.log.close()

    def _remember(self, addresses: list[str]) -> None:
        self.remembered = addresses


class Town:
    """Relays in one network."""

    def __init__(self, folder: Path) -> None:
        self.network = SplitNetwork(Random(3))
        self.folder = folder
        self.relays: dict[str, Relay[FragileTransport]] = {}

    async def add(self, name: str, *known: str, begin: bool = True) -> Relay[FragileTransport]:
        transport = FragileTransport(self.network, name)
        await transport.start()
        relay = self.relays[name] = Relay(transport, self.folder, tuple(map(address, known)))
        if begin:
            relay.begin()
            await asyncio.sleep(0)  # it listens
        return relay

    async def dial(self, one: str, other: str) -> Link:
        """Open a link that no node serves at its outbound end."""
        return await self.relays[one].transport.connect(other)

    def write(self, *names: str) -> None:
        """Put peers that do not exist into the roster."""
        for name in names:
            self.network.write(TOPIC, name, 1e9, [name, [address(name)], 0, 0])


def reachable(town: Town, start: str) -> set[str]:
    """Return the nodes that a chain of links connects with `start`."""
    found, fresh = {start}, [start]
    while fresh:
        fresh = [peer for name in fresh for peer in town.relays[name].peers if peer not in found]
        found |= set(fresh)
    return found
