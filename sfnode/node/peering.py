"""The peer manager in the daemon: carries out the manager's actions with transport and driver, and reports
their results to the manager.

All decisions about peers are made in `peers.manager`. This module also restarts a transport that breaks. It
writes the address book on a separate thread. No link is carried before the latest book is on disk (SPEC I2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from math import isfinite
from random import Random
from typing import Any

from sfnode.daemon_thread import DaemonExecutor
from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.node import contacts_page, startup
from sfnode.node.driver import Driver
from sfnode.node.run_context import RunContext
from sfnode.peers import events
from sfnode.peers.address_book import AddressBook
from sfnode.peers.manager import PeerManager
from sfnode.transport.base import (
    Link,
    NotSpoken,
    PeerRecord,
    Transport,
    TransportError,
    call_off,
    serve_link,
)
from sfnode.transport.libp2p.health import keep_running

RELAY = 1
"""The role of a relay in Hello and in the roster (SPEC L2)."""

MODEL_SOURCES = 16
"""Maximum number of peers that are asked for data, the base model and bases."""

Jobs = dict[str, asyncio.Task[None]]
"""Tasks, each keyed by the peer that it concerns."""


class Peering:
    """The links and the address book of one node. `run` keeps links until it is cancelled."""

    def __init__(
        self,
        transport: Transport,
        driver: Driver,
        *,
        topic: bytes,
        book: AddressBook,
        own_record: Callable[[], PeerRecord],
        remember: Callable[[list[str]], None],
        random: Random,
        rostered: bool = True,
        contacts_url: str = "",
    ) -> None:
        """`transport` must be started. `topic` is the roster's topic, which is the run id. `own_record`
        returns the record to announce. `remember` stores addresses durably, and is called on another thread.
        `rostered` is whether the run's nodes announce themselves in the DHT and search for others there.
        `contacts_url` is the web page with the run's current contacts; empty if unknown."""
        self.manager = PeerManager(transport.peer, book, random, _now(), rostered=rostered)
        self.restarts = 0
        """Number of restarts of the transport."""
        self.roster: list[PeerRecord] = []
        """Records of nodes that the last search of the DHT found."""
        self._relays: list[str] = []
        """Peer ids of the relays that were found by the last search of the DHT that found any."""
        self.book = book
        self.contacts_url = contacts_url
        self._transport = transport
        self._driver = driver
        driver.on_fault.append(self._blame)
        driver.disk.changed.append(self._begin_anew)
        self._topic = topic
        self._rostered = rostered
        self._own_record = own_record
        self._remember = remember
        self._random = random
        self._numbers = count(1)
        self._links: dict[events.LinkId, Link] = {}
        self._dials: Jobs = {}
        self._bootstraps: Jobs = {}
        self._jobs: dict[asyncio.Task[None], None] = {}
        """Jobs in the order of their start. They are cancelled in this order, so that an execution in virtual
        time can be repeated."""
        self._carrying: set[asyncio.Task[None]] = set()
        """Tasks of the links that we opened. Links that others opened run in tasks of the transport."""
        self._posted = asyncio.Event()
        """Set when the manager has handled an event, which may have changed its next deadline."""
        self._disk = DaemonExecutor("peers")
        self._unwritten: list[str] | None = None
        """Addresses to be written next; None if there is nothing to write."""
        self._written: asyncio.Task[None] | None = None
        """The last task that writes addresses; None before the first."""
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()

    @property
    def alone(self) -> bool:
        """Whether there is no link, and none is being opened."""
        return self.manager.alone

    @property
    def deserted(self) -> bool:
        """Whether there is no link although links are allowed."""
        return self.manager.presence is events.Presence.OPEN and not self.manager.linked

    def sources(self) -> list[str]:
        """Return addresses of peers that may give data, the base model, bases or a checkpoint."""
        return self.book.nodes(MODEL_SOURCES)

    def relays(self) -> list[str]:
        """Return addresses of peers that claim to relay connections for others, neighbours first."""
        linked = [link.peer for link in self._driver.machine.links.values() if link.role == RELAY]
        return [
            address
            for peer in dict.fromkeys([*linked, *self._relays])
            for address in self.book.addresses(peer)
        ]

    def nobody_else(self) -> bool:
        """Return whether no other node exists: this node knows only plain peers of Hivemind's DHT, and the
        roster in that DHT contains only this node's record."""
        roster = {record.peer for record in self.roster}
        return self.book.plain_only and self.alone and roster == {self._transport.peer}

    def waits_for(self) -> str | None:
        """Describe what this node waits for if it knows only plain peers of Hivemind's DHT; otherwise return
        None."""
        if not self.book.plain_only or self._driver.pumps:
            return None
        if not self._rostered:
            return (
                "a node of this private run, which is in no DHT: name one with --peers (without --peers the "
                "organiser's node begins it)"
            )
        if others := len({record.peer for record in self.roster} - {self._transport.peer}):
            return f"an answer of the nodes in the DHT of these peers: {others} are named"
        return "a node of the run in the DHT of these peers: none is named yet"

    async def ask_contacts(self) -> None:
        """Ask the page with contacts for peers while there is no link, until cancelled."""
        links = self._driver.pumps
        await contacts_page.keep_company(
            self.contacts_url, self._topic, lambda: len(links), self.hear, self._random
        )

    def stay_away(self, away: bool) -> None:
        """Close all links and open none if `away`; otherwise open links again. Has no effect after
        `leave`."""
        self._tell(events.PresenceChanged(events.Presence.AWAY if away else events.Presence.OPEN))

    def hear(self, records: Sequence[PeerRecord]) -> None:
        """Add peers from another source than the roster. Like the roster's, these records are only hints."""
        self._tell(events.Found(tuple(records)))

    def leave(self) -> None:
        """Open and accept no more links; keep the open ones."""
        self._tell(events.PresenceChanged(events.Presence.LEAVING))

    async def run(self) -> None:
        """Keep links until cancelled. Raises the error of a local fault, such as UserError
        DATA_DIR_UNUSABLE."""
        self._transport.on_link(self.serve)
        self._transport.ask_for_relays(self.relays)
        self._start(self._keep_time())
        self._start(keep_running(self._transport, self._restarted, _now))
        try:
            raise await self._faults.get()
        finally:
            self.leave()
            await call_off(self._jobs)
            await self._until_written()
            self._disk.shutdown(wait=False)

    # -- events and actions ------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> list[events.Action]:
        """Hand an event to the manager and begin its actions, except for Carry, which `serve` handles."""
        actions = self.manager.handle(self._observed(), _now()) + self.manager.handle(event, _now())
        for action in actions:
            self._begin(action)
        self._posted.set()
        return actions

    def _observed(self) -> events.Observed:
        machine, counts = self._driver.machine, []
        numbers = {pump.link: number for number, pump in self._driver.pumps.items()}
        for number, link in self._links.items():
            heard, known = link.bytes_received > 0, machine.links.get(numbers.get(link, 0))
            measured = (known.useful, known.blank) if known else ()
            counts.append(events.LinkCount(number, heard, *measured))
        return events.Observed(tuple(counts), tuple(self._transport.addresses()))

    def _begin(self, action: events.Action) -> None:
        match action:
            case events.Dial(peer=peer, addresses=addresses):
                self._start_for(peer, self._dials, self._dial(peer, addresses))
            case events.StopDial(peer=peer):
                _cancel(self._dials.get(peer))
            case events.Bootstrap(peer=peer, address=address):
                self._start_for(peer, self._bootstraps, self._bootstrap(peer, address))
            case events.StopBootstrap(peer=peer):
                _cancel(self._bootstraps.get(peer))
            case events.Close(link=number, reason=reason):
                if link := self._links.get(number):
                    log.debug("closing the link with %s: %s", link.peer, reason.value)
                    self._start(link.close())
            case events.Announce(ttl=ttl):
                self._start(self._announce(ttl))
            case events.Find():
                self._start(self._find())
            case events.Remember(addresses=addresses):
                self._write(addresses)

    def _start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job in the background, and keep a reference to it, as asyncio does not."""
        task = asyncio.create_task(job)
        self._jobs[task] = None
        task.add_done_callback(self._ended)
        return task

    def _start_for(self, peer: str, table: Jobs, job: Coroutine[Any, Any, None]) -> None:
        """Start a job that may be cancelled, and keep it in `table` while it runs."""

        def ended(task: asyncio.Task[None]) -> None:
            if table.get(peer) is task:
                del table[peer]

        table[peer] = self._start(job)
        table[peer].add_done_callback(ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End `run` if a job has raised. Faults of peers are reported as events, so an error of a job is a
        local fault."""
        self._jobs.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            self._faults.put_nowait(error)

    def _blame(self, peer: str) -> None:
        self._tell(events.PeerFaulted(peer))

    # -- time --------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            self._posted.clear()
            delay = self.manager.next_deadline() - _now()
            if delay <= 0:
                self._tell(events.Wake())
                await asyncio.sleep(0)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(delay if isfinite(delay) else None):
                    await self._posted.wait()

    def _restarted(self) -> None:
        self.restarts += 1
        self._tell(events.Restarted())

    def _begin_anew(self) -> None:
        """Dial at once when the disk has room again: dials that failed while no link was carried are
        forgotten."""
        if not self._driver.disk.problem:
            self.book.forget_failures()
            self._posted.set()

    # -- links -------------------------------------------------------------------------------------

    async def serve(self, link: Link) -> None:
        """Offer a link to the manager, and carry it until it ends if the manager wants it."""
        number = next(self._numbers)
        self._links[number] = link
        try:
            actions = self._tell(events.LinkOpened(number, link.peer, link.outbound, link.address))
            for action in actions:
                if isinstance(action, events.Carry):
                    await self._carry(link, action)
            await link.close()
        finally:
            del self._links[number]
            self._tell(events.LinkEnded(number, link.bytes_received > 0))

    async def _carry(self, link: Link, carry: events.Carry) -> None:
        log.debug("link %s %s", "to" if link.outbound else "from", link.peer)
        if carry.instead_of in self._links:
            await self._links[carry.instead_of].close()
        if self._driver.disk.problem:
            log.debug("no link with %s: there is no room on the disk", link.peer)
        elif await self._until_written():
            await self._driver.carry(link)

    async def _dial(self, peer: str, addresses: tuple[str, ...]) -> None:
        try:
            link = await self._transport.connect(peer, addresses)
        except TransportError as error:
            log.debug("cannot reach %s: %s", peer, error.reason)
            self._tell(events.DialFailed(peer, plain=isinstance(error, NotSpoken)))
            return
        self._carrying.add(task := asyncio.create_task(serve_link(self.serve, link)))
        task.add_done_callback(self._carrying.discard)

    # -- the address book on disk ------------------------------------------------------------------

    def _write(self, addresses: tuple[str, ...]) -> None:
        self._unwritten = list(addresses)
        if self._written is None or self._written.done():
            self._written = asyncio.create_task(self._write_newest())
            self._start(_outcome(self._written))

    async def _write_newest(self) -> None:
        """Write the newest list of addresses, and repeat this while newer lists have come. Raises the errors
        of `remember`."""
        loop = asyncio.get_running_loop()
        while (book := self._unwritten) is not None:
            self._unwritten = None
            await self._driver.disk.patiently(
                lambda book=book: loop.run_in_executor(self._disk, self._remember, book)  # type: ignore[misc]
            )

    async def _until_written(self) -> bool:
        """Wait until the addresses that were last given are written. Return whether that has succeeded."""
        written = self._written  # another write may begin before this returns
        if written is None:
            return True
        await asyncio.wait([written])
        return not written.cancelled() and written.exception() is None

    # -- the network -------------------------------------------------------------------------------

    async def _announce(self, ttl: float) -> None:
        record = self._own_record()
        try:
            await self._transport.announce(self._topic, record, ttl)
        except TransportError as error:
            log.debug("announcing: %s", error.reason)
            self._tell(events.AnnounceFailed())
        else:
            self._tell(events.Announced(record.addresses))

    async def _find(self) -> None:
        try:
            self.roster = await self._transport.find(self._topic)
            found = [record.peer for record in self.roster if record.role == RELAY]
            self._relays = found or self._relays
        except TransportError as error:
            log.debug("searching the roster: %s", error.reason)
            self._tell(events.FindFailed())
        else:
            self._tell(events.Found(tuple(self.roster)))

    async def _bootstrap(self, peer: str, address: str) -> None:
        """Bootstrap from a single address, so that a malformed address in the roster does not affect the
        others."""
        answered = False
        with suppress(TransportError, UserError):
            answered = await self._transport.bootstrap([address]) > 0
        self._tell(events.BootstrapAnswered(peer, answered))


def peering_of(context: RunContext, driver: Driver, contacts_url: str) -> Peering:
    """Make the peering of a node that has joined its run."""
    transport, manifest, random = context.transport, context.manifest, context.outside.random
    role = 0 if context.settings.role == "trainer" else 1

    def record() -> PeerRecord:
        addresses = tuple(transport.addresses())
        return PeerRecord(transport.peer, addresses, role, context.machine.frontier.known)

    def remember(met: list[str]) -> None:
        startup.remember_peers(context.log, met)
        with suppress(UserError):
            contacts_page.keep(context.data_dir.contacts, manifest, met, contacts_url)

    given, remembered = context.settings.peers, startup.remembered_peers(context.log)
    return Peering(
        transport,
        driver,
        topic=manifest.run_id,
        book=AddressBook(transport.peer, given, remembered, random),
        own_record=record,
        remember=remember,
        random=random,
        rostered=not manifest.organised.private,
        contacts_url=contacts_url,
    )


async def _outcome(written: asyncio.Task[None]) -> None:
    """Wait for a write, and raise its error. Cancelling this coroutine does not cancel the write."""
    await asyncio.shield(written)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
