"""The links of one node: opens them, accepts them, and gives up those that others should replace.

Whom to link with is decided in `selection`; how to reach anybody at all is the business of `road`. What is
said over a link is none of its business, except that something must be said at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, KeysView
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sfnode.observe import log
from sfnode.runtime import selection
from sfnode.runtime.book import AddressBook
from sfnode.runtime.driver import Driver
from sfnode.runtime.selection import Standing, address_range
from sfnode.transport.base import CONNECT_DEADLINE, Link, Transport, TransportError

CHECK_INTERVAL = 2.0
"""Seconds between looks at one's links; a link that ends is looked after at once."""

RACE_WINDOW = 2 * CONNECT_DEADLINE
"""Seconds within which two links between the same peers may come from both dialling at once."""

SHORT_LIVED = 10.0
"""Seconds; a link that ends sooner was of no use: the peer is full, or of another run, or broken."""

FIRST_WORD_DEADLINE = 15.0
"""Seconds for a peer's first frame. It says Hello at once (SPEC L2): this is that over the slowest line, and
well before the silence after which any link is dropped (SPEC L7)."""


@dataclass(slots=True)
class _Carried:
    """A link that carries the protocol."""

    link: Link
    since: float
    """In the loop's time."""
    chosen: bool
    """We wanted this peer, though it may have opened the present link itself: counts as outbound."""
    blank: bool = True
    """The peer has shown nothing so far."""
    useful: float = 0.0
    counted: int = 0
    """What the machine had counted for this link when `useful` was last brought up to date..."""
    counted_at: float = 0.0
    """...and when that was."""


class Neighbours:
    """Keeps the links of one node; `run` until cancelled."""

    def __init__(
        self,
        transport: Transport,
        driver: Driver,
        *,
        book: AddressBook,
        remember: Callable[[list[str]], None],
    ) -> None:
        """`remember` stores addresses durably; called as soon as a peer was met, and when they change."""
        self._transport = transport
        self._driver = driver
        self._book = book
        self._remember = remember
        self._links: dict[str, _Carried] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._met = self._leaving = False
        self._remembered: list[str] | None = None
        transport.on_link(self.carry)
        driver.on_fault = self._blame

    @property
    def linked(self) -> KeysView[str]:
        """The peers with whom there are links."""
        return self._links.keys()

    @property
    def wanting(self) -> bool:
        """Whether links are missing."""
        return selection.missing(self.standings()) > 0

    @property
    def alone(self) -> bool:
        """Whether there is no link, and none is being opened."""
        return not (self._links or self._dialling)

    @property
    def away(self) -> bool:
        """Whether there are to be no links."""
        return self._leaving

    async def run(self) -> None:
        """Open links that are missing, at every `stir` and every CHECK_INTERVAL."""
        while True:
            self._stirred.clear()
            for peer in selection.whom_to_let_go(self.standings(), _now()):
                self._give_up(peer)
            self._open(selection.whom_to_dial(self.standings(), self._dialling, self._book, _now()))
            self._keep_book()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL):
                    await self._stirred.wait()

    def stir(self) -> None:
        """Something has changed: look at the links now."""
        self._stirred.set()

    def leave(self) -> None:
        """Open and accept no more links; those that are open stay."""
        self._leaving = True
        for task in self._dialling.values():
            task.cancel()

    def stay_away(self, away: bool) -> None:
        """Have no links from now on, or have them again."""
        self._leaving = away
        if away:
            for job in self._dialling.values():
                job.cancel()
            for carried in self._links.values():
                self._start(carried.link.close())
        self.stir()

    def rotate(self) -> None:
        """Give up the least useful link if there are more than wanted; try a peer that is no neighbour."""
        self._give_up(selection.whom_to_give_up(self.standings(), _now()))
        self._open(selection.whom_to_probe(self.standings(), self._dialling, self._book, _now()))

    def meet(self, peer: str) -> None:
        """Open a link to this peer, which has come back: beyond the target, but no more than one."""
        busy = self._links.keys() | self._dialling.keys()
        if peer not in busy and len(busy) <= selection.TARGET_LINKS and not self._book.refused(peer, _now()):
            self._open([peer])

    def standings(self) -> list[Standing]:
        """The links as `selection` sees them."""
        self._count_use()
        return [_standing(carried) for carried in self._links.values()]

    async def carry(self, link: Link) -> None:
        """Carry the protocol over a link, whoever opened it, until it ends; if it is wanted."""
        rival = self._links.get(link.peer)
        if not self._wants(link, rival):
            if link.outbound:
                self._pass_over(link, rival)
            await link.close()
            return
        chosen = link.outbound or (rival is not None and rival.chosen)
        self._links[link.peer] = carried = _Carried(link, _now(), chosen)
        log.debug("link %s %s", "to" if link.outbound else "from", link.peer)
        hello = self._start(_expect_word(link))
        try:
            if rival:
                await rival.link.close()
            if not self._met:
                self._met = True
                self._keep_book()
            await self._driver.carry(link)
        finally:
            hello.cancel()
            if self._links.get(link.peer) is carried:
                del self._links[link.peer]
                self._judge(carried)
            self.stir()

    def _wants(self, link: Link, rival: _Carried | None) -> bool:
        """Whether to keep a link that has just been opened, in place of `rival` if there is one.

        A peer opens a second link when it has lost the first, so the newer one counts. But when both dial at
        once each sees the other's link as the second; then both keep the one that the smaller id opened.
        """
        if self._leaving or self._book.refused(link.peer, _now()):
            return False
        if rival is None:
            return self._has_room(link)
        if link.outbound == rival.link.outbound or _now() - rival.since > RACE_WINDOW:
            return True
        return link.outbound == (self._transport.peer < link.peer)

    def _pass_over(self, link: Link, rival: _Carried | None) -> None:
        """About a link that we have opened and do not want."""
        if rival is not None:
            rival.chosen = True
        else:
            self._book.failed(link.peer, _now())

    def _has_room(self, link: Link) -> bool:
        """Makes some, if selection says so."""
        newcomer = _standing(_Carried(link, _now(), link.outbound))
        if link.outbound:
            return selection.may_keep(newcomer, self.standings())
        verdict = selection.whom_to_let_in(newcomer, self.standings(), self._book, _now())
        self._give_up(verdict.instead_of)
        return verdict.accept

    def _give_up(self, peer: str) -> None:
        if carried := self._links.pop(peer, None):
            log.debug("giving up the link with %s", peer)
            if carried.blank:
                self._book.misbehaved(peer, _now())
            else:
                self._book.succeeded(peer)
            self._start(carried.link.close())

    def _judge(self, ended: _Carried) -> None:
        """Whom to dial again soon, and whom not."""
        peer = ended.link.peer
        log.debug("link with %s ended", peer)
        if self._book.refused(peer, _now()):
            return
        if _now() - ended.since < SHORT_LIVED or not ended.link.bytes_received:
            self._book.failed(peer, _now())
        else:
            self._book.succeeded(peer)

    def _blame(self, peer: str) -> None:
        """The peer broke a rule of the protocol; its link is being dropped."""
        self._book.misbehaved(peer, _now())

    def _open(self, peers: Iterable[str]) -> None:
        if self._leaving:
            return
        for peer in peers:
            task = self._dialling[peer] = self._start(self._connect(peer))
            task.add_done_callback(partial(self._dialled, peer))

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

    def _dialled(self, peer: str, task: asyncio.Task[None]) -> None:
        if self._dialling.get(peer) is task:
            del self._dialling[peer]
            self.stir()

    def _start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside; asyncio itself would forget it."""
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("looking after a link failed", exc_info=error)

    def _count_use(self) -> None:
        """Take over what the machine has counted since the last time."""
        now, machine = _now(), self._driver.machine
        for link_id, pump in self._driver.pumps.items():
            carried = self._links.get(pump.link.peer)
            if carried is None or carried.link is not pump.link:
                continue
            if link_id in machine.links:
                carried.blank = machine.links[link_id].blank
            count = machine.links[link_id].useful if link_id in machine.links else carried.counted
            elapsed = now - (carried.counted_at or now)
            carried.useful = selection.decayed(carried.useful, elapsed) + count - carried.counted
            carried.counted, carried.counted_at = count, now

    def _keep_book(self) -> None:
        """Remember peers for the next start; also that there were any, before they hear of us (SPEC I2)."""
        addresses = self._book.worth_keeping(self._links)
        if self._met and addresses != self._remembered:
            self._remember(addresses)
            self._remembered = addresses


async def _expect_word(link: Link) -> None:
    """Close a link on which the peer says nothing."""
    await asyncio.sleep(FIRST_WORD_DEADLINE)
    if not link.bytes_received:
        log.debug("%s says nothing", link.peer)
        await link.close()


def _standing(carried: _Carried) -> Standing:
    link = carried.link
    where = address_range(link.address)
    return Standing(link.peer, carried.chosen, carried.since, where, carried.useful, carried.blank)


def _now() -> float:
    return asyncio.get_running_loop().time()
