"""Recovery of nodes, without engines, whose p2pd processes are killed or hang."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sfnode.peers import manager
from sfnode.transport.libp2p import health
from sfnode.transport.libp2p.transport import HivemindSettings, HivemindTransport
from tests.node.helpers import eventually
from tests.node.town import Relay

Node = Relay[HivemindTransport]

NOTICED = 2.0
"""Seconds within which a dead or hung daemon must be noticed."""

RESTARTED = 10.0
"""Seconds within which the daemon must run again."""


def transport(folder: Path, name: str) -> HivemindTransport:
    key, host = folder / f"{name}.key", "/ip4/127.0.0.1/tcp/0"
    return HivemindTransport(HivemindSettings(identity_path=key, host_maddrs=(host,)))


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes with a link between them, at the speed at which a user runs them."""
    monkeypatch.undo()
    transports = [transport(tmp_path, name) for name in "ab"]
    await asyncio.gather(*(each.start() for each in transports))
    a = Relay(transports[0], tmp_path)
    b = Relay(transports[1], tmp_path, tuple(transports[0].addresses()))
    for relay in (a, b):
        relay.begin()
    await eventually(lambda: a.peers == [b.name] and b.peers == [a.name])
    await eventually(lambda: a.book.addresses(b.name))  # from the roster
    yield a, b
    for relay in (a, b):
        await relay.end()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_daemon_that_dies_or_hangs_is_replaced_and_the_link_comes_back(
    pair: tuple[Node, Node], blow: signal.Signals
) -> None:
    assert (manager.CHECK_INTERVAL, health.RESTART_SPACING) == (2.0, 5.0)
    a, b = pair
    before = a.transport.addresses()
    noticed = asyncio.create_task(a.transport.broken())
    await asyncio.sleep(0)  # it watches
    struck_at = now()
    os.kill(daemon_of(a), blow)
    await noticed
    assert now() - struck_at < NOTICED
    await eventually(lambda: a.peering.restarts == 1)
    assert now() - struck_at < RESTARTED
    assert a.transport.addresses() == before
    await eventually(lambda: a.peers == [b.name] and b.peers == [a.name])
    assert now() - struck_at < NOTICED + RESTARTED


def daemon_of(node: Node) -> int:
    return node.transport._session.p2pd.pid


def now() -> float:
    return asyncio.get_running_loop().time()
