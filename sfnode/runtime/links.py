"""Which neighbours a node keeps: finds them, opens links, accepts links, replaces those that go.

Aims at TARGET_LINKS, or all peers if there are fewer. Also keeps the road itself in order: announces the node
in the roster of its run, bootstraps again when it stands alone, and restarts a transport that has died. What
is said over a link is none of its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from sfnode.observe import log
from sfnode.runtime.driver import Driver
from sfnode.transport.base import Link, PeerRecord, Transport, TransportError, peer_of

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

BACKOFF_FIRST, BACKOFF_MOST = 4.0, 120.0
"""Seconds before a peer that could not be reached is tried again; doubles each time."""

MAX_BOOK = 64
"""Addresses of peers remembered across restarts."""


class Neighbours:
    """Keeps the links of one node; `run` until cancelled."""

    def __init__(
        self,
        transport: Transport,
        driver: Driver,
        *,
        topic: bytes,
        book: Iterable[str],
        own_record: Callable[[], PeerRecord],
        remember: Callable[[list[str]], None],
        random: Random,
    ) -> None:
        """`book`: full addresses to start from. `remember` stores addresses of neighbours durably."""
        self._transport = transport
        self._driver = driver
        self._topic = topic
        self._book = {peer_of(address): address for address in book}
        self._own_record = own_record
        self._remember = remember
        self._random = random
        self._links: dict[str, Link] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By peer: failures in a row, and when to try again."""
        self._found_at = self._announced_at = float("-inf")
        transport.on_link(self.accept)

    async def run(self) -> None:
        """Look after links and road every CHECK_INTERVAL."""
        while True:
            if not await self._transport.healthy():
                await self._revive()
            await self._announce()
            await self._find()
            self._dial()
            await asyncio.sleep(CHECK_INTERVAL)

    def stop(self) -> None:
        for task in self._dialling.values():
            task.cancel()

    async def accept(self, link: Link) -> None:
        """Carry the protocol over an inbound link, if there is room for it."""
        if len(self._links) < MAX_LINKS or link.peer in self._links:
            await self._carry(link)
        else:
            await link.close()

    async def _carry(self, link: Link) -> None:
        """At most one link a peer: of two opened at once, both sides keep the one of the smaller peer id."""
        rival = self._links.get(link.peer)
        if rival is not None:
            ours_counts = self._transport.peer < link.peer
            if link.outbound != ours_counts:
                await link.close()
                return
            await rival.close()
        self._links[link.peer] = link
        self._failures.pop(link.peer, None)
        log.debug("link %s %s", "to" if link.outbound else "from", link.peer)
        try:
            await self._driver.carry(link)
        finally:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
            log.debug("link with %s ended", link.peer)

    def _dial(self) -> None:
        """Open as many links as are missing, to peers chosen at random."""
        missing = TARGET_LINKS - len(self._links) - len(self._dialling)
        candidates = sorted(peer for peer in self._book if self._may_dial(peer))
        self._random.shuffle(candidates)
        for peer in candidates[: max(missing, 0)]:
            task = asyncio.create_task(self._connect(peer))
            self._dialling[peer] = task
            task.add_done_callback(partial(self._dialled, peer))

    def _dialled(self, peer: str, task: asyncio.Task[None]) -> None:
        if self._dialling.get(peer) is task:
            del self._dialling[peer]

    def _may_dial(self, peer: str) -> bool:
        if peer == self._transport.peer or peer in self._links or peer in self._dialling:
            return False
        _, not_before = self._failures.get(peer, (0, 0.0))
        return _now() >= not_before

    async def _connect(self, peer: str) -> None:
        try:
            link = await self._transport.connect(peer, [self._book[peer]])
        except TransportError as error:
            failures = self._failures.get(peer, (0, 0.0))[0] + 1
            wait = min(BACKOFF_FIRST * 2 ** (failures - 1), BACKOFF_MOST) * self._random.uniform(0.8, 1.2)
            self._failures[peer] = (failures, _now() + wait)
            log.debug("cannot reach %s: %s", peer, error.reason)
            return
        # the link lives longer than the dialling, which counts against the target
        self._dialling.pop(peer, None)
        await self._carry(link)

    async def _find(self) -> None:
        """Look for peers: in the roster, and, when alone, through everybody ever met."""
        enough = len(self._links) >= TARGET_LINKS
        if _now() - self._found_at < (FIND_INTERVAL if enough else CHECK_INTERVAL):
            return
        self._found_at = _now()
        try:
            if not self._links and self._book:
                await self._transport.bootstrap(sorted(self._book.values()))
            records = await self._transport.find(self._topic)
        except TransportError as error:
            log.debug("searching peers: %s", error.reason)
            return
        self._note(records)

    def _note(self, records: list[PeerRecord]) -> None:
        fresh = {r.peer: r.addresses[0] for r in records if r.addresses and r.peer != self._transport.peer}
        if all(self._book.get(peer) == address for peer, address in fresh.items()):
            return
        for peer, address in fresh.items():
            if self._book.get(peer) != address:
                self._failures.pop(peer, None)
            self._book[peer] = address
        for peer in [peer for peer in self._book if peer not in fresh and peer not in self._links]:
            if len(self._book) > MAX_BOOK:
                del self._book[peer]
        self._remember(sorted(self._book.values())[:MAX_BOOK])

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

    async def _revive(self) -> None:
        log.warning("the network daemon does not answer; restarting it")
        try:
            await self._transport.restart()
        except TransportError as error:
            log.warning("restarting the network daemon failed: %s", error.reason)
        self._found_at = self._announced_at = float("-inf")
        self._failures.clear()


def _now() -> float:
    return asyncio.get_running_loop().time()
