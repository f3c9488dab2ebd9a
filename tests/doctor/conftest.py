"""Peers for the doctor to visit: libp2p on loopback, sockets, and a time server."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from sfnode.manifest import Manifest
from sfnode.preparing.manifest import build
from sfnode.transport.base import Asker
from sfnode.transport.libp2p.transport import HivemindSettings, HivemindTransport
from sfprotocol import wire_codec
from sfprotocol.messages import ManifestReply
from tests.doctor.helpers import Peer, TimeServer

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


@pytest.fixture(scope="session")
def run() -> Manifest:
    return build({"loss": "plain"})  # of which there may be a version 1


@pytest_asyncio.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    async with AsyncExitStack() as stack:

        async def start(manifest: bytes | None) -> str:
            key = tmp_path / f"key{time.monotonic_ns()}"
            settings = HivemindSettings(identity_path=key, host_maddrs=LOOPBACK, circuit_relay=True)
            transport = HivemindTransport(settings)
            stack.push_async_callback(transport.stop)
            await transport.start()

            async def answer(_: Asker, __: bytes) -> bytes:
                return b"hello" if manifest is None else wire_codec.encode(ManifestReply(manifest))

            transport.on_request(answer)
            return transport.addresses()[0]

        yield start


@pytest.fixture
def mute() -> Iterator[int]:
    """Yield a port at which a program listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def closed() -> int:
    """Return a port at which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest_asyncio.fixture
async def gibberish() -> AsyncIterator[int]:
    """Yield a port at which a web server answers every request."""

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


class _TimeServer(asyncio.DatagramProtocol):
    def __init__(self, ahead: float, stratum: int) -> None:
        self._ahead = ahead
        self._stratum = stratum

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: object) -> None:
        assert data[0] & 7 == 3, "a client asks"
        now = time.time() + self._ahead + 2_208_988_800
        stamp = struct.pack("!II", int(now), int(now % 1 * 2**32))
        answer = bytes([0x24, self._stratum]) + bytes(38) + stamp
        self._transport.sendto(answer, address)  # type: ignore[attr-defined]


@pytest_asyncio.fixture
async def time_server() -> AsyncIterator[TimeServer]:
    running: list[asyncio.BaseTransport] = []

    async def start(ahead: float, stratum: int = 2) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _TimeServer(ahead, stratum), local_addr=("127.0.0.1", 0)
        )
        running.append(transport)
        return transport.get_extra_info("sockname")[:2]

    yield start
    for transport in running:
        transport.close()
