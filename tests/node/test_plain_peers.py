"""Whole nodes that know nobody but a peer of Hivemind's DHT: who begins the run, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.node import readiness
from sfnode.organising import organiser
from sfnode.schema.node_state import NodeState, Wait
from sfnode.transport.base import PeerRecord
from sfnode.transport.memory import MemoryTransport
from sfnode.transport.roster import pack_record
from tests.node.helpers import Node, Swarm, manifest, organised

PLAIN = "/memory/plain/p2p/plain"
ALONE = 0.4
"""Seconds instead of BEGIN_ALONE."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "BEGIN_ALONE", ALONE)
    monkeypatch.setattr(organiser, "FIRST_TIME", 0.1)


Beside = Callable[..., Awaitable[Swarm]]


@pytest.fixture
def beside(swarm_of: Callable[..., Swarm]) -> Beside:
    """`await beside(run)`: a swarm of that run in a network with a plain peer."""

    async def start(run: Manifest | None = None, clock: float = 0.0) -> Swarm:
        swarm = swarm_of(run or manifest())
        await MemoryTransport(swarm.network, "plain", clock, plain=True).start()
        return swarm

    return start


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def waits(node: Node) -> str | None:
    """Return what a node waits for, for want of others."""
    status = node.node.status()
    return status.wait.text if status.wait and status.wait.reason is Wait.NODES else None


def trains(node: Node) -> bool:
    return node.known > 0


async def test_the_organiser_begins_alone_after_a_stated_time_and_others_find_it(
    beside: Beside, keys: Path
) -> None:
    swarm = await beside(organised(manifest(), keys))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await a.until(lambda: waits(a))
    assert f"it begins the run, {ALONE} s after its start" in str(waits(a))
    await a.until(lambda: trains(a))
    assert waits(a) is None
    b = await swarm.node("b").start(run_id=swarm.run.run_id.hex(), peers=(PLAIN,))
    await b.until(lambda: trains(b))
    assert b.node.manifest == swarm.run


async def test_others_wait_for_the_organiser_and_say_so(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys))
    b = await swarm.first("b", peers=(PLAIN,))
    await b.until(lambda: waits(b))
    await b.until(lambda: b.node.status().state is NodeState.WAITING)
    await asyncio.sleep(2 * ALONE)
    assert waits(b) == "it waits for a node of the run in the DHT of these peers: none is named yet"
    assert not trains(b)
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await b.until(lambda: trains(b))
    assert (waits(a), waits(b)) == (None, None)


async def test_an_open_run_begins_with_whoever_is_there(beside: Beside) -> None:
    swarm = await beside()
    a = await swarm.first(peers=(PLAIN,))
    await a.until(lambda: trains(a))


@pytest.mark.parametrize("why", ["others are named", "the clock is wrong"])
async def test_nobody_begins_a_run_that_others_may_have(beside: Beside, why: str) -> None:
    """An organiser that has lost its folder would freeze the run by what it signs."""
    swarm = await beside(clock=3_600.0 if why == "the clock is wrong" else 0.0)
    if why == "others are named":
        record = PeerRecord("gone", ("/memory/gone/p2p/gone",), 0, 0)
        swarm.network.write(swarm.run.run_id, "gone", float("inf"), pack_record(record))
    a = await swarm.first(peers=(PLAIN,))
    await a.node.clock_check.compare()
    await asyncio.sleep(2 * ALONE)
    assert not trains(a)
    if why == "others are named":
        assert str(waits(a)).startswith("it waits for an answer of the nodes in the DHT of these peers: 1")
        assert "it does not begin the run while others are named" in str(waits(a))


async def test_its_owner_has_the_organiser_begin_all_the_same(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys))
    record = PeerRecord("gone", ("/memory/gone/p2p/gone",), 0, 0)
    swarm.network.write(swarm.run.run_id, "gone", float("inf"), pack_record(record))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys, alone=True)
    await a.until(lambda: trains(a))


async def test_a_private_run_is_put_into_no_dht_and_says_what_it_needs(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys, private=True))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await a.until(lambda: waits(a))
    await asyncio.sleep(2 * ALONE)
    assert "private run, which is in no DHT: name one with --peers" in str(waits(a))
    assert "after its start" not in str(waits(a))
    assert swarm.network.read(swarm.run.run_id, "plain", 0.0) == []
    assert not trains(a)


async def test_a_plain_peer_is_asked_for_no_part_of_a_model(beside: Beside) -> None:
    swarm = await beside()
    a = await swarm.first(peers=(PLAIN,), role="relay")
    await a.until(lambda: waits(a))
    b = await swarm.node("b").start(peers=(PLAIN, a.address))
    await b.until(lambda: trains(b))
    await a.until(lambda: a.node.peering.sources() == [b.address])
