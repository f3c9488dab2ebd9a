"""One link in both directions: frames to the machine, frames to the peer, a bound on what waits either way.

Knows nothing of what a frame means, except that a segment is answered for: once everything has been written
the machine hears Writable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sfnode.logging import log
from sfnode.resources.bandwidth_limits import Bandwidth
from sfnode.transport.base import FramingFault, Link, TransportError
from sfprotocol.events import Event, LinkId, Received, Writable
from sfprotocol.wire_codec import LENGTH_BYTES

MAX_QUEUED_FRAMES = 1024
"""Frames waiting on one link; a peer that does not read that many control messages is dropped."""

LAST_FRAMES = 1.0
"""Seconds to read what a peer sent before it closed the link; it lies in our own buffers."""


class LinkPump:
    """The two tasks of one link."""

    def __init__(
        self,
        link_id: LinkId,
        link: Link,
        post: Callable[[Event], None],
        has_room: Callable[[], bool],
        *,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        """`post` takes events for the machine; reading stops when after a frame `has_room()` is false.
        `bandwidth` is shared by all links of the node."""
        self.id = link_id
        self.link = link
        self.fault: str | None = None
        """The rule of framing that the peer broke, with its reason, if that is how the link ended."""
        self._post = post
        self._has_room = has_room
        self._bandwidth = bandwidth or Bandwidth()
        self._outgoing: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._owes_writable = False
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    def send(self, frame: bytes, *, segment: bool = False) -> None:
        """Queue a frame; after a segment the machine is told when everything has been written."""
        if len(self._outgoing) >= MAX_QUEUED_FRAMES:
            self._give_up()
            return
        self._owes_writable |= segment
        self._outgoing.append(frame)
        self._emptied.clear()
        self._filled.set()

    def resume(self) -> None:
        """Read on if the machine has room again for frames of this link."""
        if self._has_room():
            self._may_read.set()

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
            await asyncio.wait([self._reader], timeout=LAST_FRAMES)
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

    def _give_up(self) -> None:
        if not self._writer.cancelling():
            waiting = len(self._outgoing)
            log.warning("dropped the link to %s: it does not read, %d frames wait", self.link.peer, waiting)
        self.close()

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                await self._bandwidth.download.ready()
                frame = await self.link.receive()
                self._bandwidth.download.count(LENGTH_BYTES + len(frame))
                self._post(Received(self.id, frame))
                if not self._has_room():
                    self._may_read.clear()
        except FramingFault as fault:
            self.fault = fault.reason
        except TransportError:
            pass

    async def _write(self) -> None:
        try:
            while True:
                await self._filled.wait()
                while self._outgoing:
                    await self._bandwidth.upload.ready()
                    frame = self._outgoing.popleft()
                    self._bandwidth.upload.count(LENGTH_BYTES + len(frame))
                    await self.link.send(frame)
                self._filled.clear()
                self._emptied.set()
                if self._owes_writable:
                    self._owes_writable = False
                    self._post(Writable(self.id))
        except TransportError as error:
            log.info("dropped the link to %s, which cannot be written to: %s", self.link.peer, error.reason)
