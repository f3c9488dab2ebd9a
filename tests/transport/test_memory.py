"""The faults of the network in memory: each does what it says, and again from the same seed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.transport.base import PeerRecord, TransportError
from sfnode.transport.memory import Faults, MemoryTransport, Network
from tests.transport.helpers import read_all

FRAMES = [bytes([number]) for number in range(60)]


async def members(network, count=2):
    everybody = [MemoryTransport(network, f"peer{number}") for number in range(count)]
    for member in everybody:
        await member.start()
    return everybody


async def linked(network):
    """Two members and both ends of a link between them."""
    host, guest = await members(network)
    arriving = asyncio.Queue()
    host.on_link(arriving.put)
    there = await guest.connect(host.peer)
    return host, guest, there, await arriving.get()


async def arrivals(seed, faults):
    """What becomes of FRAMES."""
    *_, there, here = await linked(Network(Random(seed), faults))
    reading = asyncio.create_task(read_all(here))
    for frame in FRAMES:
        await there.send(frame)
    await there.close()
    return await reading


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    loss=st.floats(0, 1),
    duplication=st.floats(0, 1),
    longest=st.sampled_from([0.0, 0.002]),
)
def test_frames_are_lost_doubled_and_mixed_up_but_never_invented(seed, loss, duplication, longest):
    faults = Faults(loss, duplication, delay=(0.0, longest))
    got = asyncio.run(arrivals(seed, faults))
    assert all(got.count(frame) <= 2 for frame in got)
    assert set(got) <= set(FRAMES)
    if not longest:
        assert got == sorted(got)
        assert got == asyncio.run(arrivals(seed, faults))


async def test_a_network_that_loses_everything_delivers_nothing():
    assert await arrivals(1, Faults(loss=1.0)) == []


async def test_a_network_that_doubles_everything_delivers_each_frame_twice():
    assert await arrivals(1, Faults(duplication=1.0)) == [frame for frame in FRAMES for _ in range(2)]


async def test_frames_with_different_delays_overtake_each_other():
    got = await arrivals(1, Faults(delay=(0.0, 0.02)))
    assert got != FRAMES
    assert sorted(got) == FRAMES


async def test_frames_with_the_same_delay_keep_their_order():
    assert await arrivals(1, Faults(delay=(0.005, 0.005))) == FRAMES


async def test_a_partition_swallows_frames_until_it_heals():
    network = Network(Random(0))
    host, guest, there, here = await linked(network)
    network.partition([host.peer], [guest.peer])
    await there.send(b"lost")
    network.heal()
    await there.send(b"heard")
    assert await here.receive() == b"heard"


async def test_a_partition_separates_two_groups_and_nobody_else():
    network = Network(Random(0))
    a, b, c = await members(network, 3)
    network.partition([a.peer], [b.peer])
    for one, other in ((a, b), (b, a)):
        with pytest.raises(TransportError):
            await one.connect(other.peer)
        assert await one.bootstrap(other.addresses()) == 0
    assert await a.bootstrap(c.addresses()) == await b.bootstrap(c.addresses()) == 1


async def test_a_partition_splits_the_roster():
    network = Network(Random(0))
    a, b = await members(network)
    for member in (a, b):
        await member.announce(b"run", PeerRecord(member.peer, tuple(member.addresses()), 0, 0), ttl=60)
    network.partition([a.peer], [b.peer])
    assert [record.peer for record in await a.find(b"run")] == [a.peer]
    network.heal()
    assert [record.peer for record in await a.find(b"run")] == [a.peer, b.peer]


async def test_a_record_is_gone_when_its_time_is_over():
    (member,) = await members(Network(Random(0)), 1)
    await member.announce(b"run", PeerRecord(member.peer, (), 0, 0), ttl=0)
    assert await member.find(b"run") == []


async def test_what_strangers_write_into_the_roster_is_passed_over():
    network = Network(Random(0))
    (member,) = await members(network, 1)
    for peer, value in (("one", None), ("two", ["three", [], 0, 0]), ("four", ["four", ["nowhere"], 0, 0])):
        network.write(b"run", peer, float("inf"), value)
    network.write(b"run", "five", float("inf"), ["five", [], 0, 0])
    assert await member.find(b"run") == [PeerRecord("five", (), 0, 0)]


async def test_two_members_cannot_have_one_name():
    network = Network(Random(0))
    await members(network, 1)
    with pytest.raises(ValueError, match="peer0"):
        await members(network, 1)
