"""Nodes of both kinds for the tests of the transport: in memory, and real p2pd processes on loopback."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from sfnode.transport.base import Link, LinkClosed, Transport
from sfnode.transport.libp2p.keys import ensure_key
from sfnode.transport.libp2p.transport import HivemindSettings, HivemindTransport
from sfnode.transport.memory import MemoryTransport, Network
from tests.transport.helpers import POOL, no_complaints_of_asyncio

__all__ = ["no_complaints_of_asyncio"]

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
Nodes = Callable[[int], Awaitable[list[Transport]]]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Keys for the nodes of the pool, and one for a test's own node. A key takes 0.1 s, so tests share
    them."""
    folder = tmp_path_factory.mktemp("keys")
    paths = [folder / f"key{number}" for number in range(POOL + 1)]
    for path in paths:
        ensure_key(path)
    return paths


@pytest.fixture
def settings(keys: list[Path]) -> Callable[..., HivemindSettings]:
    """Make the settings of a test's own node, which is not in the pool."""

    def make(**changes: Any) -> HivemindSettings:
        return HivemindSettings(**{"identity_path": keys[POOL], "host_maddrs": LOOPBACK, **changes})

    return make


@pytest.fixture(params=["memory", "hivemind"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(keys: list[Path]) -> AsyncIterator[list[Transport]]:
    """Three real nodes, which the tests of one module share because each takes 0.4 s of a core."""
    made: list[Transport] = [
        HivemindTransport(HivemindSettings(identity_path=key, host_maddrs=LOOPBACK)) for key in keys[:POOL]
    ]
    yield made
    await asyncio.gather(*(node.stop() for node in made))


@pytest.fixture
def nodes(kind: str, pool: list[Transport]) -> Nodes:
    """`await nodes(3)`: that many running transports of the kind under test, which know each other."""
    network = Network(Random(0))
    in_memory = [MemoryTransport(network, f"peer{number}") for number in range(POOL)]

    async def start(count: int) -> list[Transport]:
        chosen = (in_memory if kind == "memory" else pool)[:count]
        await asyncio.gather(*(run_afresh(node) for node in chosen))
        for node in chosen[1:]:
            # libp2p does not dial for 5 s whom it missed while another test had stopped them: try both ways.
            assert await meets(node, chosen[0]) or await meets(chosen[0], node)
        return list(chosen)

    return start


async def meets(node: Transport, other: Transport) -> bool:
    return await node.bootstrap(other.addresses()) == 1


async def run_afresh(node: Transport) -> None:
    """Remove the handlers and counts of an earlier test, and start the node if it was stopped."""
    if isinstance(node, HivemindTransport):
        node._board._wasted.clear()
    node.on_link(refuse)
    node.on_request(refuse)
    if not await node.healthy():
        await node.restart()


async def refuse(*question: object) -> bytes:
    """Refuse every link and request."""
    raise LinkClosed("no handler in this test")


@pytest.fixture
def inbound() -> Callable[[Transport], asyncio.Queue[Link]]:
    """`inbound(node)`: a queue of the links that others open to it."""

    def collect(node: Transport) -> asyncio.Queue[Link]:
        links: asyncio.Queue[Link] = asyncio.Queue()
        node.on_link(links.put)
        return links

    return collect


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> bytes:
    """The topic of a roster that no other test uses."""
    return hashlib.sha256(request.node.name.encode()).digest()
