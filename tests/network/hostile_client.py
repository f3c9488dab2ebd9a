"""A hostile libp2p peer with its p2pd: opens streams to a node and writes what an attack wants.

It uses `hivemind.P2P` directly and does not interpret what it writes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from sfprotocol import wire_codec
from sfprotocol.messages import OLDEST_VERSION, Hello

LINK, REQUEST, PING = "/sfnode/link/1", "/sfnode/request/1", "DHTProtocol.rpc_ping"
FAILURES = (P2PDaemonError, OSError, EOFError, TimeoutError)
"""Exceptions of a stream that the other end closed or refused."""

PATIENCE = 3.0
"""Timeout, in seconds, for opening a stream."""

REFUSAL_PAUSE = 0.02
"""Pause, in seconds, after a refused stream, because opening refused streams is not the attack."""

CHUNK = os.urandom(1 << 16)
ENOUGH = 256 << 20
"""Number of bytes on one stream after which writing stops: the other end evidently reads everything."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(3, "big") + message


class Client:
    """A hostile peer, connected to the victim. It has one identity, with a p2pd, at a time."""

    def __init__(self, address: str, run_id: bytes) -> None:
        """`address` is the victim's multiaddr."""
        where, _, peer = address.rpartition("/p2p/")
        self._where, self.peer = Multiaddr(where), PeerID.from_base58(peer)
        self.run_id, self.until = run_id, 0.0
        self.did: Counter[str] = Counter()
        self.p2p: P2P

    async def connect(self) -> None:
        """Connect to the victim with a new identity."""
        self.p2p = await P2P.create(dht_mode="client", auto_nat=False, nat_port_map=False)
        self.did["identities"] += 1
        await self.p2p._client.connect(self.peer, [self._where])

    async def renew(self) -> None:
        """Reconnect with a new identity."""
        await self.p2p.shutdown()
        await self.connect()

    @property
    def on_time(self) -> bool:
        return time.monotonic() < self.until

    async def open(self, protocol: str) -> Stream | None:
        """Open and return a stream; None if it was refused."""
        try:
            async with asyncio.timeout(PATIENCE):
                _, reader, writer = await self.p2p.call_binary_stream_handler(self.peer, protocol)
        except FAILURES:
            self.did["refused"] += 1
            await asyncio.sleep(REFUSAL_PAUSE)
            return None
        self.did["opened"] += 1
        return reader, writer

    def hello(self) -> bytes:
        return framed(wire_codec.encode(Hello(OLDEST_VERSION, self.run_id, 0, 0)))

    async def pour(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        """Write a chunk repeatedly, for as long as the other end reads it."""
        poured = 0
        while self.on_time and poured < ENOUGH:
            async with asyncio.timeout(max(0.1, self.until - time.monotonic())):
                writer.write(chunk)
                await writer.drain()
            poured += len(chunk)
            self.did["bytes"] += len(chunk)

    async def again_and_again(self, protocol: str, say: Callable[[Stream], Awaitable[None]]) -> None:
        """Open a stream and call `say` with it until it is closed, then repeat this with a new stream."""
        while self.on_time:
            if stream := await self.open(protocol):
                with suppress(*FAILURES):
                    if protocol == LINK:
                        await self.be_greeted(stream[0])
                    await say(stream)
                await hang_up(stream)

    async def be_greeted(self, reader: asyncio.StreamReader) -> None:
        """Read the node's Hello. Raises one of FAILURES if the node closes the link instead."""
        async with asyncio.timeout(PATIENCE):
            await reader.readexactly(int.from_bytes(await reader.readexactly(3), "big"))
        self.did["greeted"] += 1


async def hang_up(stream: Stream) -> None:
    stream[1].transport.abort()
    await asyncio.sleep(0)
