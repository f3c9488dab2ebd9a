"""Helpers of several tests of the transport."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sfnode.transport.base import Link, LinkClosed

POOL = 3
"""Number of real nodes that the tests of one module share."""


@pytest.fixture(autouse=True)
def no_complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test if asyncio logs a warning, such as `Task exception was never retrieved`."""
    yield
    gc.collect(1)  # what this test has left, not all of torch
    complaints = [r.getMessage() for when in ("setup", "call", "teardown") for r in caplog.get_records(when)
                  if r.name == "asyncio" and r.levelno >= logging.WARNING]  # fmt: skip
    assert complaints == []


@asynccontextmanager
async def plain_peer() -> AsyncIterator[Any]:
    """Yield what `hivemind-dht` runs: a `DHTNode` of hivemind that knows nothing of sfnode."""
    from hivemind.dht.node import DHTNode

    with warnings.catch_warnings(action="ignore"):  # of how it finds p2pd
        # it would not ask a peer that was too slow twice for 15 s, and longer each time
        peer = await DHTNode.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"], backoff_rate=1.0)
    try:
        yield peer
    finally:
        await peer.shutdown()


async def read_all(link: Link) -> list[bytes]:
    """Return the frames that arrive until the link ends."""
    frames = []
    try:
        while True:
            frames.append(await link.receive())
    except LinkClosed:
        return frames


async def eventually(probe: Callable[[], Awaitable[object]]) -> None:
    """Wait until `probe` returns something true, by polling: other processes send no events."""
    give_up = asyncio.get_running_loop().time() + 20
    while not await probe():
        assert asyncio.get_running_loop().time() < give_up
        await asyncio.sleep(0.01)
