"""Nodes of both kinds for the tests of the transport: in memory, and real p2pd processes on loopback."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from sfnode.transport.base import Link, Transport
from sfnode.transport.hivemind import HivemindSettings, HivemindTransport
from sfnode.transport.memory import MemoryTransport, Network
from sfnode.transport.peerkey import ensure_key

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
KEYS = 3


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


@pytest.fixture
async def nodes(kind: str, settings: Callable[..., HivemindSettings]) -> AsyncIterator[Any]:
    """`await nodes(3)`: that many running transports of the kind under test, which know each other."""
    started: list[Transport] = []
    network = Network(Random(0))

    async def start(count: int) -> list[Transport]:
        for number in range(count):
            started.append(
                MemoryTransport(network, f"peer{number}")
                if kind == "memory"
                else HivemindTransport(settings(number))
            )
        await asyncio.gather(*(node.start() for node in started))
        for node in started[1:]:
            assert await node.bootstrap(started[0].addresses()) == 1
        return started

    yield start
    await asyncio.gather(*(node.stop() for node in started))


@pytest.fixture
def inbound() -> Callable[[Transport], asyncio.Queue[Link]]:
    """`inbound(node)`: a queue of the links that others open to it."""

    def collect(node: Transport) -> asyncio.Queue[Link]:
        links: asyncio.Queue[Link] = asyncio.Queue()
        node.on_link(links.put)
        return links

    return collect


@pytest.fixture(autouse=True)
def no_complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No `Task exception was never retrieved` and the like, neither during a test nor after it."""
    yield
    gc.collect(1)  # what this test has left, not all of torch
    complaints = [r.getMessage() for when in ("setup", "call", "teardown") for r in caplog.get_records(when)
                  if r.name == "asyncio" and r.levelno >= logging.WARNING]  # fmt: skip
    assert complaints == []
