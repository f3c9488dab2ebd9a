"""Which neighbours a node keeps: finds them, opens links, accepts links, replaces those that go.

Aims at TARGET_LINKS, or all peers if there are fewer. Also keeps the road itself in order: announces the node
in the roster of its run, bootstraps again when it stands alone, and restarts a transport that has died. What
is said over a link is none of its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sfnode.errors import UserError
from sfnode.observe import log
from sfnode.runtime.book import AddressBook
from sfnode.runtime.driver import Driver
from sfnode.transport.base import CONNECT_DEADLINE, Link, PeerRecord, Transport, TransportError

TARGET_LINKS = 6
"""Enough for a random graph of any size to hang together when a third of all nodes vanish."""

MAX_LINKS = 12
"""Inbound links are accepted up to here, so that newcomers find room everywhere."""

CHECK_INTERVAL = 2.0
"""Seconds between looks at one's links and at the health of the transport."""

FIND_INTERVAL = 30.0
"""Seconds between searches of the roster when there are links enough; CHECK_INTERVAL when there are not."""

ANNOUNCE_INTERVAL = 30.0
ANNOUNCE_TTL = 90.0
"""A node that dies is gone from the roster after this; two announcements may fail before."""

KNOCKS = 8
"""Peers that a node which stands alone bootstraps from at a time."""

RACE_WINDOW = 2 * CONNECT_DEADLINE
"""Seconds within which two links between the same peers may come from both dialling at once."""

SHORT_LIVED = 10.0
"""Seconds; a link that ends sooner was of no use: the peer is full, or of another run, or broken."""


class Standing(NamedTuple):
    """A link, and since when (in the loop's time) it has been there."""

    link: Link
    since: float


class Neighbours:
    """Keeps the links of one node; `run` until cancelled."""

    def __init__(
        self,
        transport: Transport,
        driver: Driver,
        *,
        topic: bytes,
        book: AddressBook,
        own_record: Callable[[], PeerRecord],
        remember: Callable[[list[str]], None],
    ) -> None:
        """`remember` stores addresses durably; called as soon as a peer was met, and when they change."""
        self._transport = transport
        self._driver = driver
        self._topic = topic
        self._book = book
        self._own_record = own_record
        self._remember = remember
        self._links: dict[str, Standing] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._outbound: set[asyncio.Task[None]] = set()
        self._met = self._leaving = False
        self._remembered: list[str] | None = None
        self._found_at = self._announced_at = float("-inf")
        transport.on_link(self.carry)

    async def run(self) -> None:
        """Look after links and road every CHECK_INTERVAL."""
        while True:
            if not await self._transport.healthy():
                await self._revive()
            self._dial()
            await self._announce()
            await self._find()
            self._dial()
            self._keep_book()
            await asyncio.sleep(CHECK_INTERVAL)

    def leave(self) -> None:
        """Open and accept no more links; those that are open stay."""
        self._leaving = True
        for task in self._dialling.values():
            task.cancel()

    # -- links -------------------------------------------------------------------------------------

    async def carry(self, link: Link) -> None:
        """Carry the protocol over a link, whoever opened it, until it ends; if it is wanted."""
        rival = self._links.get(link.peer)
        if not self._wants(link, rival):
            await link.close()
            return
        self._links[link.peer] = standing = Standing(link, _now())
        log.debug("link %s %s", "to" if link.outbound else "from", link.peer)
        try:
            if rival:
                await rival.link.close()
            if not self._met:
                self._met = True
                self._keep_book()
            await self._driver.carry(link)
        finally:
            if self._links.get(link.peer) is standing:
                del self._links[link.peer]
                self._judge(standing)

    def _wants(self, link: Link, rival: Standing | None) -> bool:
        """Whether to keep a link that has just been opened, in place of `rival` if there is one.

        A peer opens a second link when it has lost the first, so the newer one counts. But when both dial at
        once each sees the other's link as the second; then both keep the one that the smaller id opened.
        """
        if self._leaving:
            return False
        if rival is None:
            return len(self._links) < MAX_LINKS
        if link.outbound == rival.link.outbound or _now() - rival.since > RACE_WINDOW:
            return True
        return link.outbound == (self._transport.peer < link.peer)

    def _judge(self, ended: Standing) -> None:
        """Whom to dial again soon, and whom not."""
        log.debug("link with %s ended", ended.link.peer)
        if _now() - ended.since < SHORT_LIVED:
            self._book.failed(ended.link.peer, _now())
        else:
            self._book.succeeded(ended.link.peer)

    def _dial(self) -> None:
        """Open as many links as are missing, to peers chosen at random."""
        missing = TARGET_LINKS - len(self._links) - len(self._dialling)
        if self._leaving or missing <= 0:
            return
        busy = self._links.keys() | self._dialling.keys()
        candidates = [peer for peer in self._book.candidates(_now()) if peer not in busy]
        for peer in candidates[:missing]:
            task = asyncio.create_task(self._connect(peer))
            self._dialling[peer] = task
            self._outbound.add(task)
            task.add_done_callback(partial(self._ended, peer))

    async def _connect(self, peer: str) -> None:
        try:
            link = await self._transport.connect(peer, self._book.ways(peer))
        except TransportError as error:
            self._book.failed(peer, _now())
            log.debug("cannot reach %s: %s", peer, error.reason)
            return
        # the link lives longer than the dialling, which counts against the target
        self._dialling.pop(peer, None)
        await self.carry(link)

    def _ended(self, peer: str, task: asyncio.Task[None]) -> None:
        self._outbound.discard(task)
        if self._dialling.get(peer) is task:
            del self._dialling[peer]
        if not task.cancelled() and (error := task.exception()):
            log.error("the link to %s failed", peer, exc_info=error)

    # -- the road ----------------------------------------------------------------------------------

    async def _find(self) -> None:
        """Look for peers in the roster."""
        enough = len(self._links) >= TARGET_LINKS
        if _now() - self._found_at < (FIND_INTERVAL if enough else CHECK_INTERVAL):
            return
        self._found_at = _now()
        try:
            if not self._links:
                await self._rejoin()
            records = await self._transport.find(self._topic)
        except TransportError as error:
            log.debug("searching peers: %s", error.reason)
            return
        self._book.note(records, self._links)

    async def _rejoin(self) -> None:
        """Alone: join the roster's network again, through whoever answers first."""
        knocks = [asyncio.create_task(self._knock(address)) for address in self._book.sample(KNOCKS)]
        try:
            for knock in asyncio.as_completed(knocks):
                if await knock:
                    return
        finally:
            for knocking in knocks:
                knocking.cancel()

    async def _knock(self, address: str) -> bool:
        """One at a time, so that what somebody wrote wrongly into the roster spoils only itself."""
        try:
            return await self._transport.bootstrap([address]) > 0
        except (TransportError, UserError):
            return False

    async def _announce(self) -> None:
        """Tell the roster, and tell it soon again while nobody is there to hear it."""
        interval = ANNOUNCE_INTERVAL if self._links else CHECK_INTERVAL
        if _now() - self._announced_at < interval:
            return
        self._announced_at = _now()
        try:
            await self._transport.announce(self._topic, self._own_record(), ANNOUNCE_TTL)
        except TransportError as error:
            log.debug("announcing: %s", error.reason)

    def _keep_book(self) -> None:
        """Remember peers for the next start; also that there were any, before they hear of us (SPEC I2)."""
        addresses = self._book.worth_keeping(self._links)
        if self._met and addresses != self._remembered:
            self._remember(addresses)
            self._remembered = addresses

    async def _revive(self) -> None:
        log.warning("the network daemon does not answer; restarting it")
        try:
            await self._transport.restart()
        except (TransportError, UserError) as error:
            log.warning("restarting the network daemon failed: %s", error)
        self._found_at = self._announced_at = float("-inf")
        self._book.forgive()


def _now() -> float:
    return asyncio.get_running_loop().time()
