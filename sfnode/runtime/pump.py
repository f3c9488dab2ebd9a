"""One link in both directions: frames to the machine, frames to the peer, a bound on what waits either way.

Knows nothing of what a frame means, except that a segment is answered for: once everything has been written
the machine hears Writable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from sfnode.observe import log
from sfnode.runtime.throttle import Throttle
from sfnode.transport.base import LENGTH_BYTES, FramingFault, Link, TransportError
from sfprotocol.events import Event, LinkId, Received, Writable

MAX_UNHANDLED = 32
"""Frames of one link that may wait for the machine; beyond that the link is not read (backpressure)."""

MAX_QUEUED_FRAMES = 1024
"""Frames waiting on one link; a peer that does not read that many control messages is dropped."""

LAST_WORDS = 1.0
"""Seconds to read what a peer said before it closed the link; it lies in our own buffers."""


class LinkPump:
    """The two tasks of one link."""

    def __init__(
        self, link_id: LinkId, link: Link, post: Callable[[Event], None], throttle: Throttle | None = None
    ) -> None:
        """`post` takes what the machine is to hear; `throttle` is that of all links of the node."""
        self.id = link_id
        self.link = link
        self.fault = ""
        """The rule of framing that the peer broke, with its reason, if that is how the link ended."""
        self._post = post
        self._throttle = throttle or Throttle()
        self._outgoing: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._unhandled = asyncio.Semaphore(MAX_UNHANDLED)
        self._owes_writable = False
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

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
        """End both tasks; `finished` then returns."""
        self._reader.cancel()
        self._writer.cancel()

    async def finished(self) -> None:
        """Wait until the link has ended in one direction, end the other and close it.

        A peer that leaves closes the link after its last frames: when we cannot write any more, these may
        still be there to be read.
        """
        tasks = (self._reader, self._writer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([self._reader], timeout=LAST_WORDS)
        finally:
            self.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the link with %s failed", self.link.peer, exc_info=outcome)
        await self.link.close()

    async def drain(self) -> None:
        """Wait until what is queued has been written, or cannot be any more."""
        emptied = asyncio.create_task(self._emptied.wait())
        try:
            await asyncio.wait([emptied, self._reader, self._writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            emptied.cancel()

    async def _read(self) -> None:
        try:
            while True:
                await self._unhandled.acquire()
                await self._throttle.download.ready()
                frame = await self.link.receive()
                self._throttle.download.count(LENGTH_BYTES + len(frame))
                self._post(Received(self.id, frame))
        except FramingFault as fault:
            self.fault = fault.reason
        except TransportError:
            pass

    async def _write(self) -> None:
        with contextlib.suppress(TransportError):
            while True:
                await self._filled.wait()
                while self._outgoing:
                    await self._throttle.upload.ready()
                    frame = self._outgoing.popleft()
                    self._throttle.upload.count(LENGTH_BYTES + len(frame))
                    await self.link.send(frame)
                self._filled.clear()
                self._emptied.set()
                if self._owes_writable:
                    self._owes_writable = False
                    self._post(Writable(self.id))
