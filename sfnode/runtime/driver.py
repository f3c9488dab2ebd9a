"""Pumps the protocol machine: events in, actions out, on the event loop.

The driver is where the order "durable, then sent, then applied" is kept: all events that have arrived are
given to the machine, what it admits is appended to the log in one transaction, and only then is anything else
done. It knows links only as things that take frames, and the engine only as something that takes updates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from sfnode.engine.core import UpdateBatch
from sfnode.observe import log
from sfnode.runtime.replay import batch_of, join
from sfnode.store.log import Record, UpdateLog
from sfnode.transport.base import Link, TransportError
from sfprotocol import codec
from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Drop,
    Event,
    LinkDown,
    LinkId,
    LinkUp,
    Received,
    Serve,
    Served,
    Transmit,
    Wake,
    Writable,
)
from sfprotocol.machine import Machine

MAX_ROUND = 512
"""Events taken into one commit: bounds how long a frame waits for the disk."""

MAX_UNHANDLED = 32
"""Frames of one link that may wait for the machine; beyond that the link is not read (backpressure)."""

MAX_QUEUED_FRAMES = 1024
"""Frames waiting on one link; a peer that does not read that many control messages is dropped."""

DROP_GRACE = 1.0
"""Seconds for a last Goodbye to leave."""


class LinkPump:
    """The two tasks of one link: frames to the machine, frames to the peer."""

    def __init__(self, link_id: LinkId, link: Link, driver: Driver) -> None:
        self.id = link_id
        self.link = link
        self._driver = driver
        self._outgoing: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._unhandled = asyncio.Semaphore(MAX_UNHANDLED)
        self._owes_writable = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def send(self, frame: bytes, *, segment: bool = False) -> None:
        """Queue a frame; after a segment the machine is told when everything has been written."""
        if len(self._outgoing) >= MAX_QUEUED_FRAMES:
            self.close()
            return
        self._owes_writable |= segment
        self._outgoing.append(frame)
        self._emptied.clear()
        self._filled.set()

    def handled(self) -> None:
        """The machine has taken in one of this link's frames."""
        self._unhandled.release()

    def close(self) -> None:
        """End both tasks; the machine hears LinkDown from the reader's end."""
        for task in self._tasks:
            task.cancel()

    async def finished(self) -> None:
        """Wait until both tasks have ended, then close the stream."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()

    async def _read(self) -> None:
        with contextlib.suppress(TransportError):
            while True:
                await self._unhandled.acquire()
                self._driver.post(Received(self.id, await self.link.receive()))

    async def _write(self) -> None:
        with contextlib.suppress(TransportError):
            while True:
                await self._filled.wait()
                while self._outgoing:
                    await self.link.send(self._outgoing.popleft())
                self._filled.clear()
                self._emptied.set()
                if self._owes_writable:
                    self._owes_writable = False
                    self._driver.post(Writable(self.id))

    async def drain(self) -> None:
        """Wait until what is queued has been written, or cannot be any more."""
        emptied = asyncio.create_task(self._emptied.wait())
        await asyncio.wait([emptied, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        emptied.cancel()


@dataclass(slots=True)
class Traffic:
    """Bytes over all links since the start, links that are gone included."""

    sent: int = 0
    received: int = 0
    segment_bytes_sent: int = 0
    updates_sent: int = 0


class Driver:
    """Owns the machine; `run` pumps it until cancelled or until a local fault ends the node."""

    def __init__(
        self,
        machine: Machine,
        update_log: UpdateLog,
        *,
        clock: Callable[[], float],
        apply: Callable[[UpdateBatch], None],
        continue_as: Callable[[ContinueAs], None],
        after_round: Callable[[], None],
    ) -> None:
        """`apply` takes admitted updates; `continue_as` remembers a new own feed durably; `after_round` is
        called whenever the machine's state may have changed."""
        self.machine = machine
        self.traffic = Traffic()
        self.pumps: dict[LinkId, LinkPump] = {}
        self._log = update_log
        self._clock = clock
        self._apply = apply
        self._continue_as = continue_as
        self._after_round = after_round
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self._closing: set[asyncio.Task[None]] = set()
        self._next_link = 0

    def post(self, event: Event) -> None:
        """Hand an event to the machine (from the event loop's thread)."""
        self._events.append(event)
        self._arrived.set()

    async def carry(self, link: Link) -> None:
        """Carry the protocol over `link` until it ends."""
        self._next_link += 1
        pump = self.pumps[self._next_link] = LinkPump(self._next_link, link, self)
        self.post(LinkUp(pump.id, link.peer))
        try:
            await pump.finished()
        finally:
            pump.close()
            self.pumps.pop(pump.id, None)
            self.traffic.sent += link.bytes_sent
            self.traffic.received += link.bytes_received
            self.post(LinkDown(pump.id))

    async def close_links(self) -> None:
        """Write out what is queued and end all links."""
        await asyncio.gather(*(pump.drain() for pump in self.pumps.values()))
        for pump in list(self.pumps.values()):
            pump.close()

    async def run(self) -> None:
        """Pump until cancelled. Raises UserError (disk full) and LocalProtocolError, which end the node."""
        while True:
            await self._wait()
            await self.round()

    async def round(self) -> None:
        """Take in everything that has arrived and do what follows from it."""
        actions = self._handle_events()
        records = [Record(a.feed, a.segment, a.chain) for a in actions if isinstance(a, Admit)]
        if records:
            commit = asyncio.get_running_loop().run_in_executor(self._disk, self._log.append, records)
            await asyncio.shield(commit)  # a cancelled round must not leave memory ahead of the disk
        self._carry_out(actions)
        self._after_round()

    async def _wait(self) -> None:
        """Until an event arrives or the machine's next deadline."""
        if self._events:
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        delay = max(0.0, self.machine.next_deadline() - self._clock())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), delay)

    def _handle_events(self) -> list[Action]:
        now = self._clock()
        actions: list[Action] = []
        for _ in range(min(len(self._events), MAX_ROUND)):
            event = self._events.popleft()
            actions += self.machine.handle(event, now)
            if isinstance(event, Received) and event.link in self.pumps:
                self.pumps[event.link].handled()
        if now >= self.machine.next_deadline():
            actions += self.machine.handle(Wake(), now)
        return actions

    def _carry_out(self, actions: list[Action]) -> None:
        admitted: list[Admit] = []
        for action in actions:
            match action:
                case Admit():
                    admitted.append(action)
                case Transmit(link=link, message=message):
                    self._send(link, codec.encode(message, self.machine.run.scalar_bytes))
                case Serve():
                    self._serve(action)
                case Drop():
                    self._drop(action)
                case ContinueAs():
                    self._continue_as(action)
        if admitted:
            pieces = [batch_of(a.segment.feed_key, a.segment.first, a.segment.parts) for a in admitted]
            self._apply(join(pieces))

    def _send(self, link: LinkId, frame: bytes, *, segment: bool = False) -> None:
        pump = self.pumps.get(link)
        if pump:
            pump.send(frame, segment=segment)

    def _serve(self, action: Serve) -> None:
        segment = self._log.read(action.feed, action.first, MAX_SEGMENT_UPDATES)
        if segment is None:
            self.post(Writable(action.link))
            return
        frame = codec.encode(replace(segment, hops=action.hops), self.machine.run.scalar_bytes)
        self.traffic.segment_bytes_sent += len(frame) + 3
        self.traffic.updates_sent += segment.count
        self._send(action.link, frame, segment=True)
        served = Served(action.link, action.feed, segment.stop, action.hops)
        self.machine.handle(served, self._clock())

    def _drop(self, action: Drop) -> None:
        pump = self.pumps.get(action.link)
        if pump is None:
            return
        if action.fault:
            log.warning("dropped the link to %s, which broke rule %s", pump.link.peer, action.fault)
        self._closing.add(task := asyncio.create_task(_close_drained(pump)))
        task.add_done_callback(self._closing.discard)


async def _close_drained(pump: LinkPump) -> None:
    """A Goodbye queued before the drop should still reach the peer."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(pump.drain(), DROP_GRACE)
    pump.close()
