"""Links inside one process, behind the same interface as real ones: for tests, examples and local swarms.

The network is perfect by default. `Conditions` lose, repeat, delay and reorder frames; `hears` separates
peers; links can stall, or end without notice. All randomness comes from the generator that is passed in, and
all time from the running loop. So a run in virtual time can be repeated from one seed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Literal, TypeVar

from sfnode.transport.base import (
    REQUEST_DEADLINE,
    SEND_DEADLINE,
    Asker,
    FramingFault,
    Link,
    LinkClosed,
    LinkHandler,
    PeerRecord,
    RequestHandler,
    TransportError,
    answer,
    call_off,
    peer_of,
    serve_link,
)
from sfnode.transport.roster import pack_record, read_record, sample
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME

HALF_ROUND_TRIP = 0.05
"""Default latency in one direction, in seconds. The round trip of 100 ms is typical between continents."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Distribution of a link's latency in one direction, which is drawn anew for every frame."""

    kind: Literal["constant", "uniform", "lognormal"] = "constant"
    typical: float = HALF_ROUND_TRIP
    """Typical latency, in seconds: the constant, the middle of the uniform distribution, or the median of the
    lognormal one."""
    spread: float = 0.0
    """Half the width of the uniform distribution, as a fraction of its middle; or sigma of the lognormal
    distribution."""
    most: float = 10.0
    """Maximum, in seconds, of a latency drawn from the lognormal distribution."""

    def draw(self, random: Random) -> float:
        """Draw the latency of one frame, in seconds."""
        if self.kind == "constant":
            return self.typical
        if self.kind == "uniform":
            return self.typical * (1 + self.spread * (2 * random.random() - 1))
        return min(self.typical * random.lognormvariate(0, self.spread), self.most)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Effects of the network on every frame that it carries."""

    latency: Latency = Latency()
    loss: float = 0.0
    """Probability that the frame never arrives."""
    duplication: float = 0.0
    """Probability that the frame arrives twice."""
    replay: float = 0.0
    """Probability that the frame arrives once more, at most `replay_within` seconds later."""
    replay_within: float = 5.0
    reorder: bool = False
    """Whether frames of one link may overtake each other."""
    bandwidth: float = 0.0
    """Maximum bytes a second of one direction of a link; 0 means no limit."""

    @property
    def clear(self) -> bool:
        """Whether every frame arrives exactly once."""
        return not (self.loss or self.duplication or self.replay)


CALM = Conditions()
"""Conditions with round trips of 100 ms. Frames are neither lost nor repeated, and bandwidth is unlimited."""

PERFECT = Conditions(Latency(typical=0.0))
"""Conditions without any effect: every frame arrives at once."""


T = TypeVar("T")

CAPACITY = 64
"""Maximum number of frames on their way in one direction. At this number send() waits, as it does when the
buffers of a real connection are full."""


TRIPS = 3
"""Number of round trips of a dial, a request or a search: one to connect, one to shake hands, one to ask."""


class Network:
    """The network that connects memory transports: its members, which of them hear each other, and the shared
    roster."""

    def __init__(self, generator: Random, conditions: Conditions = PERFECT) -> None:
        self.conditions = conditions
        """Conditions of all links that have no conditions of their own."""
        self.generator = generator
        self.pairs: set[frozenset[str]] | None = None
        """Pairs of members that can reach each other; None if all members can."""
        self.on_frame: Callable[[str, str, bytes], None] = lambda sender, receiver, frame: None
        """A function that is called with (sender, receiver, frame) for every frame that is sent."""
        self._members: dict[str, MemoryTransport] = {}
        self._roster: dict[bytes, dict[str, tuple[float, object]]] = {}

    def hears(self, one: str, other: str) -> bool:
        """Return whether `other` receives frames from `one`. If not, links between them stay open, but lose
        these frames. Networks with partitions override this method."""
        return True

    def may_reach(self, caller: str, peer: str) -> bool:
        """Return whether two different peers hear each other and are one of the `pairs` that can reach each
        other."""
        there = self.pairs is None or frozenset((caller, peer)) in self.pairs
        return caller != peer and there and self.hears(caller, peer) and self.hears(peer, caller)

    def join(self, member: MemoryTransport) -> None:
        if self._members.setdefault(member.peer, member) is not member:
            raise ValueError(f"two transports are called {member.peer}")

    def leave(self, member: MemoryTransport) -> None:
        if self._members.get(member.peer) is member:
            del self._members[member.peer]

    def reaches(self, caller: str, peer: str) -> bool:
        """Return whether both peers are up and may reach each other."""
        return {caller, peer} <= self._members.keys() and self.may_reach(caller, peer)

    def reach(self, caller: str, peer: str) -> MemoryTransport:
        """Return the transport of `peer`. Raises TransportError."""
        if not self.reaches(caller, peer):
            raise TransportError(f"{peer} cannot be reached")
        return self._members[peer]

    def is_up(self, peer: str) -> bool:
        """Return whether a member of this name is up."""
        return peer in self._members

    async def exchange(self, trips: int = TRIPS) -> None:
        """Wait for the time of `trips` round trips."""
        if seconds := 2 * trips * self.conditions.latency.draw(self.generator):
            await asyncio.sleep(seconds)

    def write(self, topic: bytes, peer: str, expiry: float, value: object) -> None:
        """Put a value into the roster until the loop's time is `expiry`. The value need not be
        well-formed."""
        self._roster.setdefault(topic, {})[peer] = (expiry, value)

    def read(self, topic: bytes, reader: str, now: float) -> list[tuple[str, object]]:
        """Return the (peer, value) pairs that `reader` finds in the roster: `reader`'s own value, and those
        of peers that `reader` can reach."""
        entries = sorted(self._roster.get(topic, {}).items())
        return [
            (peer, value)
            for peer, (expiry, value) in entries
            if expiry > now and (peer == reader or self.may_reach(peer, reader))
        ]


class Pipe:
    """One direction of a link, with the conditions of the network. The conditions never lose, repeat or
    reorder the first frame of a pipe: without it (a Hello) there would be no link."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self.closed = False
        self.gone = False
        """Whether the receiver has stopped reading without the sender's knowledge."""
        self.conditions: Conditions | None = None
        """Conditions of this direction; None for the network's conditions."""
        self._stalled = False
        self._network = network
        self._ends = sender, receiver
        self._flying: list[tuple[float, int, bytes]] = []
        self._arrived: deque[bytes] = deque()
        self._numbers = count()
        self._changed = asyncio.Event()
        self._free_at = self._not_before = 0.0
        """`_free_at` is the time at which the line has sent all frames so far; `_not_before` is the earliest
        time at which a further frame arrives."""

    @property
    def takes(self) -> bool:
        """Whether a sender need not wait: the pipe accepts a frame now, or is closed, so that waiting is in
        vain."""
        full = len(self._flying) + len(self._arrived) >= CAPACITY
        busy = self._free_at > asyncio.get_running_loop().time()
        return self.closed or not (full or busy or self._stalled)

    def stall(self, stalled: bool) -> None:
        """Stop accepting frames, or continue."""
        self._stalled = stalled
        self._changed.set()

    async def taken(self) -> None:
        """Wait until `takes` is true."""
        loop = asyncio.get_running_loop()
        while not self.takes:
            if self._free_at > loop.time():
                await asyncio.sleep(self._free_at - loop.time())
            else:
                await self._change()

    def put(self, frame: bytes) -> None:
        """Send a frame; `takes` must be true."""
        if self.closed:
            raise LinkClosed("the link is closed")
        sender, receiver = self._ends
        self._network.on_frame(sender, receiver, frame)
        conditions = self.conditions or self._network.conditions
        departure = asyncio.get_running_loop().time()
        if conditions.bandwidth:
            departure = self._free_at = departure + (len(frame) + LENGTH_BYTES) / conditions.bandwidth
        draw, first = self._network.generator, not self._not_before
        if not self._network.hears(sender, receiver):
            return
        if conditions.loss and not first and draw.random() < conditions.loss:
            return
        arrival = self._arrival(departure)
        if first or not conditions.reorder:
            self._not_before = arrival
        self._fly(frame, arrival)
        if first or conditions.clear:
            return
        if draw.random() < conditions.duplication:
            self._fly(frame, self._arrival(departure))
        if draw.random() < conditions.replay:
            self._fly(frame, self._arrival(departure + draw.uniform(0, conditions.replay_within)))

    def _arrival(self, departure: float) -> float:
        """Return the time at which a frame arrives. It is not earlier than the arrival of the first frame or,
        unless `reorder` is set, of the previous frame."""
        conditions = self.conditions or self._network.conditions
        return max(departure + conditions.latency.draw(self._network.generator), self._not_before)

    def _fly(self, frame: bytes, arrival: float) -> None:
        loop = asyncio.get_running_loop()
        heappush(self._flying, (arrival, next(self._numbers), frame))
        if arrival > loop.time():
            loop.call_at(arrival, self._land)
        else:
            self._land()

    async def get(self) -> bytes:
        while not self._arrived:
            if self.closed and not self._flying:
                raise LinkClosed("the link is closed")
            await self._change()
        self._changed.set()
        return self._arrived.popleft()

    def close(self) -> None:
        """Accept no more frames. Frames on their way still arrive."""
        self.closed = True
        self._changed.set()

    def _land(self) -> None:
        # One call for each frame, in the order of arrival. Frames of equal times keep the order of sending.
        frame = heappop(self._flying)[2]
        if not self.gone:
            self._arrived.append(frame)
        elif self._network.is_up(self._ends[1]):  # its system resets the connection, which it does not know
            self.close()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class MemoryLink:
    """One end of a link: a pipe out and a pipe in."""

    def __init__(self, peer: str, address: str, outbound: bool, out: Pipe, into: Pipe) -> None:
        self.peer = peer
        self.outbound = outbound
        self.address = address
        self.bytes_sent = 0
        self.bytes_received = 0
        self.out = out
        self.into = into
        self.closed = False

    async def send(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a frame of {len(frame)} bytes is above the limit of {MAX_FRAME}")
        if self.closed:
            raise LinkClosed("the link is closed")
        try:
            if not self.out.takes:  # a deadline for each frame costs more than the frame
                async with asyncio.timeout(SEND_DEADLINE):
                    await self.out.taken()
        except TimeoutError:
            await self.close()
            raise LinkClosed(f"a frame was not taken within {SEND_DEADLINE:g} s") from None
        self.out.put(frame)
        self.bytes_sent += LENGTH_BYTES + len(frame)

    async def receive(self) -> bytes:
        if self.closed:
            raise LinkClosed("the link is closed")
        try:
            frame = await self.into.get()
        except LinkClosed:
            await self.close()
            raise
        if len(frame) > MAX_FRAME:  # nothing after such a length can be read
            await self.close()
            raise FramingFault(f"F2: a frame of {len(frame)} bytes")
        self.bytes_received += LENGTH_BYTES + len(frame)
        return frame

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """End the link for both sides."""
        if not self.closed:
            self.closed = True
            self.out.close()
            self.into.close()

    def vanish(self) -> None:
        """End without notice, as in a power cut. The other side notices the end when it sends a frame after
        this side's node has started again."""
        self.closed = self.into.gone = True


class MemoryTransport:
    """A `Transport` for one member of a `Network`. Its addresses look like /memory/NAME/p2p/NAME."""

    def __init__(self, network: Network, peer: str, clock: float = 0.0, *, address: str = "") -> None:
        """`peer` is the node's name. `clock` is the number of seconds by which its clock is ahead of the
        right time. `address`, without /p2p/ID, replaces /memory/NAME."""
        self.peer = peer
        self.clock = clock
        self.address = address or f"/memory/{peer}"
        self.links: list[MemoryLink] = []
        """Open links, and perhaps some that have just ended."""
        self._network = network
        self._running = self._dead = False
        self._stopped = asyncio.Event()
        self._context = copy_context()
        """Context variables of the node. Work that other members cause at this node also runs with them."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._link_handler: LinkHandler | None = None
        self._request_handler: RequestHandler | None = None

    async def start(self) -> None:
        if self._dead:
            raise TransportError("its process is no more")
        self._network.join(self)
        self._running = True
        self._context = copy_context()
        self._stopped.clear()

    async def stop(self) -> None:
        self._leave()
        for link in self.links:
            await link.close()
        self.links.clear()
        await call_off(self._tasks)

    def die(self, *, silently: bool) -> None:
        """End for good, as if the process had died. Its links are closed for both sides, unless `silently` is
        set."""
        self._dead = True
        self._leave()
        for link in self.links:
            link.vanish() if silently else link.cut()

    def _leave(self) -> None:
        self._running = False
        self._stopped.set()
        self._network.leave(self)

    async def healthy(self) -> bool:
        return self._running

    async def broken(self) -> str:
        if self._running:
            await self._stopped.wait()
        return "it has been stopped"

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def addresses(self) -> list[str]:
        return [f"{self.address}/p2p/{self.peer}"]

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Find the peer by name; `addresses` are ignored."""
        await self._exchange()
        other = self._network.reach(self.peer, peer)
        there, back = Pipe(self._network, self.peer, peer), Pipe(self._network, peer, self.peer)
        other._accept(MemoryLink(self.peer, self.address, outbound=False, out=back, into=there))
        return self._keep(MemoryLink(peer, other.address, outbound=True, out=there, into=back))

    async def request(self, address: str, frame: bytes) -> bytes:
        peer = peer_of(address)
        self._network.reach(self.peer, peer)
        try:
            async with asyncio.timeout(REQUEST_DEADLINE):
                await self._exchange()
                reply = await self._network.reach(self.peer, peer)._reply(self, frame)
        except TimeoutError:
            reply = None
        if reply is None:
            raise TransportError(f"{peer} gave no response")
        return reply

    def on_link(self, handler: LinkHandler) -> None:
        self._link_handler = handler

    def on_request(self, handler: RequestHandler) -> None:
        self._request_handler = handler

    def ask_for_relays(self, known: Callable[[], Sequence[str]]) -> None:
        """Do nothing, as no node in memory needs a relay."""

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        await self._exchange()
        expiry = asyncio.get_running_loop().time() + ttl
        self._network.write(topic, self.peer, expiry, pack_record(record))

    async def find(self, topic: bytes) -> list[PeerRecord]:
        await self._exchange()
        entries = self._network.read(topic, self.peer, asyncio.get_running_loop().time())
        records = (read_record(peer, value) for peer, value in entries)
        return sample((record for record in records if record is not None), self._network.generator)

    async def clock_ahead(self, address: str) -> float:
        return self._network.reach(self.peer, peer_of(address)).clock - self.clock

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        await self._exchange()
        peers = {address.rpartition("/p2p/")[2] for address in addresses} - {self.peer}
        return sum(self._network.reaches(self.peer, peer) for peer in peers)

    async def _exchange(self) -> None:
        """Wait for as long as a request to another peer takes. Raises TransportError if this node has ended
        meanwhile."""
        await self._network.exchange()
        if not self._running:
            raise TransportError("it has been stopped")

    async def _reply(self, asker: MemoryTransport, frame: bytes) -> bytes | None:
        """Return the response to a request; None if this node ends before it has answered."""
        task = self._begin(answer(self._request_handler, Asker(asker.peer, asker.address), frame))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return None if task.cancelled() else task.result()

    def _accept(self, link: MemoryLink) -> None:
        self._begin(serve_link(self._link_handler, self._keep(link)))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that another member has caused, in this node's context."""
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _keep(self, link: MemoryLink) -> MemoryLink:
        self.links = [kept for kept in self.links if not kept.closed]
        self.links.append(link)
        return link
