"""Links inside one process, behind the same interface as real ones: for tests, examples and local swarms.

The network is perfect unless told otherwise: `Faults` lose, duplicate and delay frames (frames with
different delays overtake each other), `partition` separates peers. All chance comes from the generator that
is passed in and all time from the running loop, so a run under a virtual clock repeats from one seed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

from sfnode.transport.base import (
    REQUEST_DEADLINE,
    SEND_DEADLINE,
    Asker,
    Link,
    LinkClosed,
    LinkHandler,
    NotSpoken,
    PeerRecord,
    RequestHandler,
    TransportError,
    answer,
    peer_of,
    serve_link,
)
from sfnode.transport.roster import pack_record, read_record, sample
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME

CAPACITY = 64
"""Frames on their way in one direction before send() waits, as the buffers of a real connection do."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Effects of a network on each frame, independently of others."""

    loss: float = 0.0
    """Probability that a frame never arrives."""
    duplication: float = 0.0
    """Probability that a frame arrives twice."""
    delay: tuple[float, float] = (0.0, 0.0)
    """Seconds, drawn uniformly for every copy."""


class Network:
    """The medium of memory transports: its members, partitions between them, and the shared roster."""

    def __init__(self, generator: Random, faults: Faults = Faults()) -> None:
        self.faults = faults
        self.generator = generator
        self._members: dict[str, MemoryTransport] = {}
        self._blocked: set[frozenset[str]] = set()
        self._roster: dict[bytes, dict[str, tuple[float, object]]] = {}

    def partition(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Separate the peers of `one` from those of `other`: links stay open but swallow frames."""
        others = tuple(other)
        self._blocked |= {frozenset((a, b)) for a in one for b in others}

    def heal(self) -> None:
        """End all partitions; what was swallowed stays lost."""
        self._blocked.clear()

    def hears(self, one: str, other: str) -> bool:
        """Tell whether no partition separates the two."""
        return frozenset((one, other)) not in self._blocked

    def join(self, member: MemoryTransport) -> None:
        if self._members.setdefault(member.peer, member) is not member:
            raise ValueError(f"two transports are called {member.peer}")

    def leave(self, member: MemoryTransport) -> None:
        self._members.pop(member.peer, None)

    def reaches(self, caller: str, peer: str) -> bool:
        """Tell whether two different members are up and hear each other."""
        both = {caller, peer}
        return len(both) == 2 and both <= self._members.keys() and self.hears(caller, peer)

    def reach(self, caller: str, peer: str) -> MemoryTransport:
        """Return the transport of `peer`. Raises TransportError."""
        if not self.reaches(caller, peer):
            raise TransportError(f"{peer} cannot be reached")
        return self._members[peer]

    def node(self, caller: str, peer: str) -> MemoryTransport:
        """Return the same if it is that of a node. Raises NotSpoken."""
        other = self.reach(caller, peer)
        if other.plain:
            raise NotSpoken(f"{peer} does not speak sfnode")
        return other

    def fates(self, sender: str, receiver: str) -> list[float]:
        """Return the delay in seconds of each copy of one frame that arrives; none if it is lost."""
        faults, draw = self.faults, self.generator
        if draw.random() < faults.loss or not self.hears(sender, receiver):
            return []
        copies = 2 if draw.random() < faults.duplication else 1
        return [draw.uniform(*faults.delay) for _ in range(copies)]

    def write(self, topic: bytes, peer: str, expiry: float, value: object) -> None:
        """Put a value into the roster, well-formed or not, until the loop's time is `expiry`."""
        self._roster.setdefault(topic, {})[peer] = (expiry, value)

    def read(self, topic: bytes, reader: str, now: float) -> list[tuple[str, object]]:
        """Return what `reader` finds in the roster, which a partition splits, too."""
        entries = sorted(self._roster.get(topic, {}).items())
        return [(p, value) for p, (expiry, value) in entries if expiry > now and self.hears(reader, p)]


class _Pipe:
    """One direction of a link."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self.closed = False
        self._network = network
        self._ends = sender, receiver
        self._flying: list[tuple[float, int, bytes]] = []
        self._arrived: deque[bytes] = deque()
        self._numbers = count()
        self._changed = asyncio.Event()

    async def put(self, frame: bytes) -> None:
        while not self.closed and len(self._flying) + len(self._arrived) >= CAPACITY:
            await self._change()
        if self.closed:
            raise LinkClosed("the link is closed")
        loop = asyncio.get_running_loop()
        for delay in self._network.fates(*self._ends):
            heappush(self._flying, (loop.time() + delay, next(self._numbers), frame))
            if delay:
                loop.call_later(delay, self._land)
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
        """Take no more frames; those on their way still arrive."""
        self.closed = True
        self._changed.set()

    def _land(self) -> None:
        # One call for each frame, in the order in which they are due: equal times keep the order of sending.
        self._arrived.append(heappop(self._flying)[2])
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class MemoryLink:
    """One end of a link: a pipe out and a pipe in."""

    def __init__(self, peer: str, outbound: bool, out: _Pipe, into: _Pipe) -> None:
        self.peer = peer
        self.outbound = outbound
        self.address = f"/memory/{peer}"
        self.bytes_sent = 0
        self.bytes_received = 0
        self._out = out
        self._in = into
        self.closed = False

    async def send(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a frame of {len(frame)} bytes is above the limit of {MAX_FRAME}")
        try:
            async with asyncio.timeout(SEND_DEADLINE):
                await self._out.put(frame)
        except TimeoutError:
            await self.close()
            raise LinkClosed(f"a frame was not taken within {SEND_DEADLINE:g} s") from None
        self.bytes_sent += LENGTH_BYTES + len(frame)

    async def receive(self) -> bytes:
        if self.closed:
            raise LinkClosed("the link is closed")
        try:
            frame = await self._in.get()
        except LinkClosed:
            await self.close()
            raise
        self.bytes_received += LENGTH_BYTES + len(frame)
        return frame

    async def close(self) -> None:
        self.closed = True
        self._out.close()
        self._in.close()


class MemoryTransport:
    """A `Transport` for one member of a `Network`. Its addresses look like /memory/NAME/p2p/NAME."""

    def __init__(self, network: Network, peer: str, clock: float = 0.0, *, plain: bool = False) -> None:
        """Take the medium, a name, and how far this node's clock is ahead of the right time, in seconds. A
        `plain` one is no node: others find the roster through it, and nothing else."""
        self.peer = peer
        self.plain = plain
        self.clock = clock
        self._network = network
        self._running = False
        self._stopped = asyncio.Event()
        self._links: list[MemoryLink] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._link_handler: LinkHandler | None = None
        self._request_handler: RequestHandler | None = None

    async def start(self) -> None:
        self._network.join(self)
        self._running = True
        self._stopped.clear()

    async def stop(self) -> None:
        self._running = False
        self._stopped.set()
        self._network.leave(self)
        for link in self._links:
            await link.close()
        self._links.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
        return [f"/memory/{self.peer}/p2p/{self.peer}"]

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Find the peer by name; `addresses` are ignored."""
        other = self._network.node(self.peer, peer)
        there, back = _Pipe(self._network, self.peer, peer), _Pipe(self._network, peer, self.peer)
        other._accept(MemoryLink(self.peer, outbound=False, out=back, into=there))
        return self._keep(MemoryLink(peer, outbound=True, out=there, into=back))

    async def request(self, address: str, frame: bytes) -> bytes:
        other = self._network.node(self.peer, peer_of(address))
        try:
            async with asyncio.timeout(REQUEST_DEADLINE):
                asker = Asker(self.peer, f"/memory/{self.peer}")
                reply = await answer(other._request_handler, asker, frame)
        except TimeoutError:
            reply = None
        if reply is None:
            raise TransportError(f"{other.peer} gave no response")
        return reply

    def on_link(self, handler: LinkHandler) -> None:
        self._link_handler = handler

    def on_request(self, handler: RequestHandler) -> None:
        self._request_handler = handler

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        expiry = asyncio.get_running_loop().time() + ttl
        self._network.write(topic, self.peer, expiry, pack_record(record))

    async def find(self, topic: bytes) -> list[PeerRecord]:
        entries = self._network.read(topic, self.peer, asyncio.get_running_loop().time())
        records = (read_record(peer, value) for peer, value in entries)
        return sample((record for record in records if record is not None), self._network.generator)

    async def clock_ahead(self, address: str) -> float:
        return self._network.reach(self.peer, peer_of(address)).clock - self.clock

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        peers = {address.rpartition("/p2p/")[2] for address in addresses} - {self.peer}
        return sum(self._network.reaches(self.peer, peer) for peer in peers)

    def _accept(self, link: MemoryLink) -> None:
        task = asyncio.get_running_loop().create_task(serve_link(self._link_handler, self._keep(link)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep(self, link: MemoryLink) -> MemoryLink:
        self._links = [kept for kept in self._links if not kept.closed]
        self._links.append(link)
        return link
