"""Nodes of both kinds for the tests of the transport: in memory, and real p2pd processes on loopback."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from sfnode.transport.base import Link, LinkClosed, Transport
from sfnode.transport.hivemind import HivemindSettings, HivemindTransport
from sfnode.transport.memory import MemoryTransport, Network
from sfnode.transport.peerkey import ensure_key

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
KEYS = 3
Nodes = Callable[[int], Awaitable[list[Transport]]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Keys are dear (0.1 s), so the tests share three."""
    folder = tmp_path_factory.mktemp("keys")
    paths = [folder / f"key{number}" for number in range(KEYS)]
    for path in paths:
        ensure_key(path)
    return paths


@pytest.fixture
def settings(keys: list[Path]) -> Callable[..., HivemindSettings]:
    def make(number: int = 0, **changes: Any) -> HivemindSettings:
        return HivemindSettings(**{"identity_path": keys[number], "host_maddrs": LOOPBACK, **changes})

    return make


@pytest.fixture(params=["memory", "hivemind"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
async def pool(keys: list[Path]) -> AsyncIterator[list[Transport]]:
    """Real nodes are dear (0.4 s of a core), so the tests of one module share three."""
    made: list[Transport] = [
        HivemindTransport(HivemindSettings(identity_path=key, host_maddrs=LOOPBACK)) for key in keys
    ]
    yield made
    await asyncio.gather(*(node.stop() for node in made))


@pytest.fixture
async def nodes(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Nodes]:
    """`await nodes(3)`: that many running transports of the kind under test, which know each other."""
    if kind == "memory":
        network = Network(Random(0))
        made: list[Transport] = [MemoryTransport(network, f"peer{number}") for number in range(KEYS)]
    else:
        made = request.getfixturevalue("pool")

    async def start(count: int) -> list[Transport]:
        await asyncio.gather(*(run_afresh(node) for node in made[:count]))
        for node in made[1:count]:
            assert await node.bootstrap(made[0].addresses()) == 1
        return made[:count]

    yield start


async def run_afresh(node: Transport) -> None:
    """Without handlers of an earlier test, and running if that one has stopped it."""
    node.on_link(refuse)
    node.on_request(refuse)
    if not await node.healthy():
        await node.restart()


async def refuse(*question: object) -> bytes:
    """A handler as good as none."""
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
    """A roster that no other test has written into."""
    return hashlib.sha256(request.node.name.encode()).digest()


@pytest.fixture(autouse=True)
def no_complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No `Task exception was never retrieved` and the like, neither during a test nor after it."""
    yield
    gc.collect(1)  # what this test has left, not all of torch
    complaints = [r.getMessage() for when in ("setup", "call", "teardown") for r in caplog.get_records(when)
                  if r.name == "asyncio" and r.levelno >= logging.WARNING]  # fmt: skip
    assert complaints == []
