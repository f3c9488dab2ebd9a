"""Frames over a pair of asyncio streams: the length prefix, its cap, backpressure and deadlines (SPEC F1).

Also keeps track of a node's links and of requests from other peers. Does not know where the streams come
from: p2pd's sockets, or a bare client in a test.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from sfnode import descriptors
from sfnode.transport.base import (
    REQUEST_DEADLINE,
    SEND_DEADLINE,
    Asker,
    FramingFault,
    LinkClosed,
    LinkHandler,
    RequestHandler,
    TransportError,
    answer,
    serve_link,
)
from sfnode.transport.libp2p.calls import cancel, wait_briefly
from sfprotocol.rate_limit import Bucket
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME

BODY_DEADLINE = SEND_DEADLINE
"""Deadline, in seconds, from the arrival of a frame's length to the end of the frame. Otherwise a peer could
announce a frame, send nothing, and occupy the stream."""

CLOSE_DEADLINE = 0.3
"""Deadline, in seconds, for the last bytes to leave after close(). A node that stops closes several links at
once."""

HANDLER_DEADLINE = 0.2
"""Deadline, in seconds, for the handlers of inbound streams to end once their links are closed."""

MAX_INBOUND_STREAMS = 256
"""Maximum number of inbound streams. p2pd has no limit of its own, and each stream costs a task and
buffers."""

MAX_REQUESTS = 128
"""Maximum number of inbound streams that are requests. Even if many ids send requests slowly, half of the
inbound streams are left for links, which the peer manager accepts or closes at once."""

USUAL = 1024
"""Number of file descriptors that many systems allow a process. Inbound streams may take a quarter of them
(MAX_INBOUND_STREAMS)."""

ARRIVAL_DEADLINE = 5.0
"""Deadline, in seconds, from the opening of a stream to the arrival of the whole request, which has a few
bytes."""

MAX_INBOUND_STREAMS_OF_PEER = 4
"""Maximum number of inbound streams of one peer: a link, the link that replaces it, and two requests."""

WASTE_RATE, WASTE_BURST = 1.0, 32.0
"""Maximum number of wasted streams of one peer: per second on average, and at once. A stream is wasted if it
exceeds a limit, or if a direction carries no frame. A peer that wastes more is disconnected, as the handshake
of a new connection costs the peer more than this node."""

MAX_WASTEFUL = 1024
"""Maximum number of peers whose wasted streams are remembered. Beyond that, the peer whose last wasted stream
is oldest is forgotten."""

log = logging.getLogger(__name__)


def _share(most: int) -> int:
    """Return `most` streams, or proportionally fewer if this process may have fewer than USUAL file
    descriptors. Each stream takes one descriptor."""
    return min(most, most * descriptors.limit() // USUAL)


class StreamLink:
    """A `Link` over an asyncio reader and writer, which it owns."""

    def __init__(
        self,
        peer: str,
        outbound: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str = "",
    ) -> None:
        self.peer = peer
        self.outbound = outbound
        self.address = address
        self.bytes_sent = 0
        self.bytes_received = 0
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self.closed = False
        """Whether nothing more can be sent."""
        self._deaf = False
        """Whether nothing more can be received. It may be False after a failure to send: the last frames of a
        peer that leaves may still be in the buffers."""
        self._promised: int | None = None
        """Length of the frame that is being read, kept for the next receive() if this one is cancelled."""
        # With this limit, drain() waits until every byte is in the kernel: so send() has backpressure.
        writer.transport.set_write_buffer_limits(high=0)

    async def send(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a frame of {len(frame)} bytes is above the limit of {MAX_FRAME}")
        try:
            async with asyncio.timeout(SEND_DEADLINE), self._sending:
                if self.closed:
                    raise LinkClosed("the link is closed")
                self._writer.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
                await self._writer.drain()
        except TimeoutError:
            raise self._cannot_send(f"a frame was not taken within {SEND_DEADLINE:g} s") from None
        except OSError as error:
            raise self._cannot_send(f"the connection broke: {error}") from None
        self.bytes_sent += LENGTH_BYTES + len(frame)

    async def receive(self) -> bytes:
        if self._deaf:
            raise LinkClosed("the link is closed")
        self._keep_what_arrived()
        try:
            if self._promised is None:
                self._promised = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            if self._promised > MAX_FRAME:
                self._broken("the peer announced too much")
                raise FramingFault(f"F2: {self._promised} bytes were announced, the limit is {MAX_FRAME}")
            async with asyncio.timeout(BODY_DEADLINE):
                frame = await self._reader.readexactly(self._promised)
        except asyncio.IncompleteReadError as error:
            inside = " inside a frame" if error.partial or self._promised else ""
            raise self._broken(f"the connection ended{inside}") from None
        except TimeoutError:
            raise self._broken(f"a frame was not complete after {BODY_DEADLINE:g} s") from None
        except OSError as error:
            raise self._broken(f"the connection broke: {error}") from None
        self._promised = None
        self.bytes_received += LENGTH_BYTES + len(frame)
        return frame

    def abort(self) -> None:
        """Close without flushing, and without waiting."""
        self.closed = self._deaf = True
        self._writer.transport.abort()

    async def close(self) -> None:
        self.closed = self._deaf = True
        self._writer.close()
        # Not wait_for: cancelling wait_closed() would make every later one raise CancelledError.
        flushed = asyncio.create_task(self._writer.wait_closed())
        if await wait_briefly([flushed], CLOSE_DEADLINE):
            self._writer.transport.abort()

    def _keep_what_arrived(self) -> None:
        """Treat a broken connection as an ordinary end, so that the bytes that have arrived can still be
        read; otherwise asyncio discards them."""
        if self._reader.exception() is not None:
            self._reader.set_exception(None)  # type: ignore[arg-type]
            self._reader.feed_eof()

    def _cannot_send(self, reason: str) -> LinkClosed:
        """Abort the connection, because no frame can follow one that was sent in part; return the error."""
        self.closed = True
        self._writer.transport.abort()
        return LinkClosed(reason)

    def _broken(self, reason: str) -> LinkClosed:
        self._deaf = True
        return self._cannot_send(reason)


class Caller(Protocol):
    """The fields of hivemind's StreamInfo that are used here."""

    peer_id: object
    """Id of the peer that opened the stream, in its string form."""
    addr: object
    """Address of the peer that opened the stream, as seen from here, in its string form."""


def seen_at(caller: Caller) -> str:
    """Return the address of the other end of a stream; empty if hivemind cannot print its kind."""
    try:
        return str(caller.addr)
    except Exception:  # hivemind's multiaddr may raise anything
        return ""


class Switchboard:
    """The open links of one node, and the handlers of its inbound streams."""

    def __init__(self, disconnect: Callable[[str], Awaitable[None]]) -> None:
        """`disconnect` ends the connection with a peer, and with it all its streams."""
        self.link_handler: LinkHandler | None = None
        self.request_handler: RequestHandler | None = None
        self._disconnect = disconnect
        self._wasted: dict[str, Bucket] = {}
        self._disconnecting: set[str] = set()
        self._links: set[StreamLink] = set()
        self._inbound: set[asyncio.Task[Any]] = set()
        self._inbound_of: Counter[str] = Counter()
        self._requests = 0

    def keep(self, link: StreamLink) -> StreamLink:
        """Register a link, so that `hang_up` closes it; return the link."""
        self._links = {kept for kept in self._links if not kept.closed}
        self._links.add(link)
        return link

    async def accept_link(
        self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve an inbound link in the current task; return when its handler does."""
        link = StreamLink(str(caller.peer_id), False, reader, writer, seen_at(caller))
        await self._serve(serve_link(self.link_handler, link), link)

    async def accept_request(
        self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the single request on an inbound stream in the current task."""
        link = StreamLink(str(caller.peer_id), False, reader, writer, seen_at(caller))
        if self._requests >= _share(MAX_REQUESTS):
            link.abort()  # not this peer's waste: other peers have taken the room
            return
        self._requests += 1
        try:
            await self._serve(self._answer(link), link)
        finally:
            self._requests -= 1

    async def hang_up(self) -> None:
        """Close every link, and wait for the handlers of inbound links."""
        await asyncio.gather(*(link.close() for link in self._links))
        others = self._inbound - {asyncio.current_task()}
        await cancel(await wait_briefly(others, HANDLER_DEADLINE))

    async def _serve(self, serving: Coroutine[Any, Any, None], link: StreamLink) -> None:
        task = asyncio.current_task()
        if task is None or len(self._inbound) >= _share(MAX_INBOUND_STREAMS) or not self._has_room(link.peer):
            serving.close()
            link.abort()
            if len(self._inbound) < _share(MAX_INBOUND_STREAMS):  # otherwise others have taken the room
                await self._note_waste(link.peer)
            return
        self.keep(link)
        self._inbound.add(task)
        self._inbound_of[link.peer] += 1
        try:
            await serving
        finally:
            self._inbound.discard(task)
            self._inbound_of -= Counter([link.peer])  # keeps no zeros
            if not (link.bytes_received and link.bytes_sent):
                await self._note_waste(link.peer)

    async def _note_waste(self, peer: str) -> None:
        """Count a wasted stream of this peer: the stream exceeded a limit, or carried no frame in one
        direction or both. Disconnect the peer if it wastes too many."""
        now = asyncio.get_running_loop().time()
        bucket = self._wasted.pop(peer, None) or Bucket(WASTE_BURST, now)
        self._wasted[peer] = bucket
        if len(self._wasted) > MAX_WASTEFUL:
            del self._wasted[next(iter(self._wasted))]
        if bucket.take(1.0, now, rate=WASTE_RATE, burst=WASTE_BURST) or peer in self._disconnecting:
            return
        log.debug("%s opens streams for nothing and is disconnected", peer)
        self._disconnecting.add(peer)
        try:
            await self._disconnect(peer)
        finally:
            self._disconnecting.discard(peer)

    def _has_room(self, peer: str) -> bool:
        """Return whether a peer may have one more stream: it has neither too many open streams nor wasted too
        many."""
        spent = self._wasted.get(peer)
        if spent and not spent.holds(1.0, asyncio.get_running_loop().time(), rate=WASTE_RATE):
            return False
        return self._inbound_of[peer] < MAX_INBOUND_STREAMS_OF_PEER

    async def _answer(self, link: StreamLink) -> None:
        try:
            async with asyncio.timeout(ARRIVAL_DEADLINE):
                request = await link.receive()
            async with asyncio.timeout(REQUEST_DEADLINE):
                reply = await answer(self.request_handler, Asker(link.peer, link.address), request)
                if reply is not None:
                    await link.send(reply)
        except (TransportError, TimeoutError) as error:
            log.debug("request of %s: %s", link.peer, error)
        finally:
            await link.close()


async def ask(link: StreamLink, frame: bytes) -> bytes:
    """Send a request on a stream of its own and return the response. Raises TransportError."""
    try:
        async with asyncio.timeout(REQUEST_DEADLINE):
            await link.send(frame)
            return await link.receive()
    except TimeoutError:
        raise TransportError(f"no answer from {link.peer} within {REQUEST_DEADLINE:g} s") from None
    finally:
        await link.close()
