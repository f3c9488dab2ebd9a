"""Keeps the road in order: watches and restarts the transport, announces the node, finds peers, and looks for
parts of the network that it has lost sight of.

Each of these waits for others at times, so each is a task of its own. Which links there are is none of its
business; it only fills the address book and says when to look into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from sfnode.errors import UserError
from sfnode.observe import log
from sfnode.runtime.book import AddressBook
from sfnode.runtime.links import Neighbours
from sfnode.transport.base import PeerRecord, Transport, TransportError, peer_of

LONELY_INTERVAL = 2.0
"""Seconds between attempts of a node that has no links, or fewer than it wants."""

FIND_INTERVAL = 30.0
"""Seconds between searches of the roster when there are links enough."""

ANNOUNCE_INTERVAL = 30.0
ANNOUNCE_TTL = 90.0
"""A node that dies is gone from the roster after this; two announcements may fail before."""

PROBE_INTERVAL = 60.0
"""Seconds, give or take, between looks beyond one's neighbours. In two halves of a swarm of 20 nodes that can
reach each other again somebody then knocks on the other side within seconds."""

KNOCKS = 8
"""Peers that a node which stands alone bootstraps from at a time."""

KNOCKS_BESIDE = 2
"""The same for one that has links, which has time."""

_MOST_DOUBLINGS = 10
"""Of the interval between searches: it has long been FIND_INTERVAL then."""

RESTART_PAUSE, RESTART_PAUSE_MOST = 0.5, 15.0
"""Seconds before a daemon is started that could not be started the last time; doubles."""

RESTART_SPACING = 5.0
"""Seconds between two restarts at least, should a daemon die as soon as it runs."""


class Road:
    """Keeps the road of one node in order; `run` until cancelled."""

    def __init__(
        self,
        transport: Transport,
        neighbours: Neighbours,
        *,
        topic: bytes,
        book: AddressBook,
        own_record: Callable[[], PeerRecord],
        random: Random,
    ) -> None:
        self.restarts = 0
        """Of the transport, since the start."""
        self.roster: list[PeerRecord] = []
        """What the roster said when we last looked."""
        self._transport = transport
        self._neighbours = neighbours
        self._topic = topic
        self._book = book
        self._own_record = own_record
        self._random = random
        self._announced: tuple[str, ...] = ()
        """Where we are, as the roster has it."""
        self._in_vain = 0
        """Searches in a row that named nobody but neighbours."""
        self._restored = asyncio.Event()
        """Set at every restart, for those who wait; then a new one takes its place."""

    async def run(self) -> None:
        jobs = [
            asyncio.create_task(job)
            for job in (
                self._watch(),
                self._repeat(self._announce, self._announce_interval),
                self._repeat(self._find, self._find_interval),
                self._repeat(self._knock, lambda: LONELY_INTERVAL),
                self._probe_regularly(),
            )
        ]
        try:
            await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    # -- health ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Restart the transport whenever it breaks; nothing else is awaited here."""
        restarted_at = float("-inf")
        while True:
            why = await self._transport.broken()
            await asyncio.sleep(restarted_at + RESTART_SPACING - _now())
            restarted_at = _now()
            log.warning("the network daemon %s; restarting it", why)
            await self._restart()
            log.info("the network daemon is back after %.1f s", _now() - restarted_at)

    async def _restart(self) -> None:
        """Until it works."""
        pause = RESTART_PAUSE
        while not await self._restarted():
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_PAUSE_MOST)
        self.restarts += 1
        self._book.forgive()
        self._neighbours.stir()
        self._restored.set()
        self._restored = asyncio.Event()

    async def _restarted(self) -> bool:
        try:
            await self._transport.restart()
            return True
        except (TransportError, UserError) as error:
            log.warning("restarting the network daemon failed: %s", error)
            return False

    # -- the roster --------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """Tell the roster that we are here."""
        record = self._own_record()
        try:
            await self._transport.announce(self._topic, record, ANNOUNCE_TTL)
            # Told while alone it may have reached nobody but ourselves: then it is told again.
            self._announced = record.addresses if self._neighbours.linked else ()
        except TransportError as error:
            log.debug("announcing: %s", error.reason)

    def _announce_interval(self) -> float:
        """Soon again while nobody is there to hear it, and when it has become wrong."""
        settled = self._neighbours.linked and self._own_record().addresses == self._announced
        return ANNOUNCE_INTERVAL if settled else LONELY_INTERVAL

    async def _find(self) -> None:
        """Look for peers in the roster."""
        try:
            records = await self._transport.find(self._topic)
        except TransportError as error:
            log.debug("searching peers: %s", error.reason)
            return
        self.roster = records
        strangers = {record.peer for record in records} - {self._transport.peer, *self._neighbours.linked}
        promising = strangers or not self._neighbours.linked
        self._in_vain = 0 if promising else min(self._in_vain + 1, _MOST_DOUBLINGS)
        self._book.note(records, self._neighbours.linked)
        self._neighbours.stir()

    def _find_interval(self) -> float:
        """Soon again while links are missing; but less and less while all whom the roster names are
        neighbours: a search costs kilobytes, and in a small swarm links are always missing."""
        if not self._neighbours.wanting:
            return FIND_INTERVAL
        return min(LONELY_INTERVAL * 2.0**self._in_vain, FIND_INTERVAL)

    # -- the way into the network ------------------------------------------------------------------

    async def _knock(self) -> None:
        """Join the network through whoever answers: anybody while alone, and for ever those peers that the
        user gave or that were met in an earlier life, unless they are neighbours anyway."""
        if linked := self._neighbours.linked:
            await self._knock_at(self._book.due(_now(), linked, KNOCKS_BESIDE))
        else:
            await self._knock_at(self._book.sample(KNOCKS), until_one=True)

    async def _probe_regularly(self) -> None:
        """A swarm that fell apart, or two that started apart: each part may have links enough and see no
        reason to look further. So every node does, from time to time, at a random moment."""
        await self._pause(self._random.uniform(0, PROBE_INTERVAL))
        while True:
            if not self._neighbours.away:
                await self._knock_at(self._book.strangers(self._neighbours.linked, KNOCKS_BESIDE))
                self._neighbours.rotate()
            await self._pause(PROBE_INTERVAL * self._random.uniform(0.8, 1.2))

    async def _knock_at(self, addresses: list[str], *, until_one: bool = False) -> None:
        knocks = [asyncio.create_task(self._knock_once(address)) for address in addresses]
        try:
            for knock in asyncio.as_completed(knocks):
                if await knock and until_one:
                    return
        finally:
            for knocking in knocks:
                knocking.cancel()
            await asyncio.gather(*knocks, return_exceptions=True)

    async def _knock_once(self, address: str) -> bool:
        """One at a time, so that what somebody wrote wrongly into the roster spoils only itself."""
        answered = False
        with suppress(TransportError, UserError):
            answered = await self._transport.bootstrap([address]) > 0
        peer = peer_of(address)
        if self._book.knocked(peer, answered, _now()):
            # Where it stands there may be others that our part of the network has never heard of.
            self._neighbours.meet(peer)
            await self._announce()
            await self._find()
        return answered

    # -- time --------------------------------------------------------------------------------------

    async def _repeat(self, job: Callable[[], Awaitable[None]], interval: Callable[[], float]) -> None:
        """Do the job now, when the interval is over (which may shrink meanwhile), and after every restart;
        but not while this node is to be away."""
        while True:
            began, restored = _now(), self._restored
            if not self._neighbours.away:
                await job()
            while not restored.is_set() and (left := began + interval() - _now()) > 0:
                await self._pause(min(left, LONELY_INTERVAL))

    async def _pause(self, seconds: float) -> None:
        """At most that long: a restart of the transport ends it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._restored.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
