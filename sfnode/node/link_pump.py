"""Moves the frames of one link in both directions, to the machine and to the peer, and bounds both queues.

A pump does not interpret frames. The caller says which frames to send are segments: once the queue with a
segment is written, the machine gets the event Writable.
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
"""Maximum number of frames queued on one link. A peer that leaves this many control messages unread is
dropped."""

LAST_FRAMES = 1.0
"""Maximum time, in seconds, for reading the frames that a peer sent before it closed the link. These frames
are in our own buffers already."""


class LinkPump:
    """The tasks that read and write the frames of one link."""

    def __init__(
        self,
        link_id: LinkId,
        link: Link,
        post: Callable[[Event], None],
        has_room: Callable[[], bool],
        bandwidth: Bandwidth,
    ) -> None:
        """`post` takes events for the machine. Reading stops while `has_room()` is false. `bandwidth` is
        shared by all links of the node."""
        self.id = link_id
        self.link = link
        self.fault: str | None = None
        """The framing rule that the peer broke, with the reason; None if the link ended otherwise."""
        self._post = post
        self._has_room = has_room
        self._bandwidth = bandwidth
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
        """Queue a frame. After a `segment` the machine gets Writable once the queue is written."""
        if len(self._outgoing) >= MAX_QUEUED_FRAMES:
            self._give_up()
            return
        self._owes_writable |= segment
        self._outgoing.append(frame)
        self._emptied.clear()
        self._filled.set()

    def resume(self) -> None:
        """Continue reading if the machine again has room for frames of this link."""
        if not self._may_read.is_set() and self._has_room():
            self._may_read.set()

    def close(self) -> None:
        """End both tasks; `finished` then returns."""
        self._reader.cancel()
        self._writer.cancel()

    async def finished(self) -> None:
        """Wait until the link has ended in one direction, end the other direction and close the link.

        A peer that leaves closes the link after its last frames. These frames may still be readable when we
        cannot write any more.
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
        """Wait until the queue is written or the link has ended."""
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
