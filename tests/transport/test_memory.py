"""Faults of the memory transport: each has its stated effect, and repeats from a seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode import virtual_time
from sfnode.transport.base import LinkClosed, PeerRecord, TransportError
from sfnode.transport.memory import CALM, PERFECT, Conditions, Latency, MemoryTransport
from tests.transport.split import SplitNetwork

FRAMES = [bytes([number]) for number in range(60)]

WILD = Latency("lognormal", 0.1, 1.0)


async def members(network, count=2):
    everybody = [MemoryTransport(network, f"peer{number}") for number in range(count)]
    for member in everybody:
        await member.start()
    return everybody


async def linked(network):
    """Return two members and both ends of a link between them."""
    host, guest = await members(network)
    arriving = asyncio.Queue()
    host.on_link(arriving.put)
    there = await guest.connect(host.peer)
    return host, guest, there, await arriving.get()


async def arrivals(seed, conditions, frames=FRAMES):
    """Return the frames that arrive, each with its time of arrival."""
    *_, there, here = await linked(SplitNetwork(Random(seed), conditions))
    began, got = asyncio.get_running_loop().time(), []

    async def read():
        with suppress(LinkClosed):
            while True:
                got.append((await here.receive(), asyncio.get_running_loop().time() - began))

    reading = asyncio.create_task(read())
    for frame in frames:
        await there.send(frame)
    await there.close()
    await reading
    return got


def heard(conditions, seed=1, frames=FRAMES):
    return [frame for frame, _ in virtual_time.run(arrivals(seed, conditions, frames))]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), loss=st.floats(0, 1), duplication=st.floats(0, 1), reorder=st.booleans())
def test_frames_are_lost_doubled_and_mixed_up_but_never_invented(seed, loss, duplication, reorder):
    conditions = Conditions(WILD, loss, duplication, reorder=reorder)
    got = heard(conditions, seed)
    assert all(got.count(frame) <= 2 for frame in got)
    assert set(got) <= set(FRAMES)
    assert got == heard(conditions, seed)


def test_loss_duplication_and_replay_are_as_frequent_as_said():
    frames = [number.to_bytes(2, "big") for number in range(4000)]
    got = heard(Conditions(loss=0.3, duplication=0.5, replay=0.5, reorder=True), frames=frames)
    times = Counter(Counter(got).values())
    assert 0.28 < 1 - sum(times.values()) / 4000 < 0.32
    assert times[3] == pytest.approx(4000 * 0.7 / 4, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_a_link_that_is_up_has_carried_its_first_frame_once_and_before_all_others(seed):
    rough = Conditions(WILD, loss=0.5, duplication=0.5, replay=0.5, reorder=True)
    first, *others = heard(rough, seed)
    assert first == FRAMES[0]
    assert first not in others


def test_a_perfect_network_takes_no_time():
    got = virtual_time.run(arrivals(1, PERFECT))
    assert [(frame, round(when, 3)) for frame, when in got] == [(frame, 0.0) for frame in FRAMES]


def test_a_calm_link_is_in_order_and_takes_half_a_round_trip():
    got = virtual_time.run(arrivals(1, CALM, FRAMES[:9]))
    assert [frame for frame, _ in got] == FRAMES[:9]
    assert {round(when, 3) for _, when in got} == {0.05}


@pytest.mark.parametrize("reorder", [False, True])
def test_frames_overtake_each_other_only_where_that_is_said(reorder):
    got = heard(Conditions(WILD, reorder=reorder))
    assert (got == FRAMES) is not reorder
    assert sorted(got) == FRAMES


def test_a_narrow_line_takes_as_long_as_its_bytes():
    got = virtual_time.run(arrivals(1, Conditions(bandwidth=1000), [bytes(97)] * 10))
    assert [when for _, when in got] == pytest.approx(
        [0.05 + 0.1 * number for number in range(1, 11)], abs=0.001
    )


async def stalled():
    *_, there, here = await linked(SplitNetwork(Random(0)))
    there.out.stall(True)
    sending = asyncio.create_task(there.send(b"x"))
    await asyncio.sleep(5)
    assert not sending.done()
    there.out.stall(False)
    return await here.receive()


def test_a_stalled_link_takes_a_frame_when_it_goes_on():
    assert virtual_time.run(stalled()) == b"x"


async def deaf():
    network = SplitNetwork(Random(0))
    host, guest, there, here = await linked(network)
    network.partition([host.peer], [guest.peer], one_way=True)
    await here.send(b"lost")
    await there.send(b"heard")
    assert await here.receive() == b"heard"
    network.heal()
    await here.send(b"later")
    return await there.receive()


def test_a_partition_can_be_deaf_on_one_side_only():
    assert virtual_time.run(deaf()) == b"later"


async def after_a_power_cut():
    host, _, there, here = await linked(network := SplitNetwork(Random(0)))
    host.die(silently=True)
    await there.send(b"nobody answers")
    assert not there.out.closed
    await MemoryTransport(network, host.peer).start()
    await there.send(b"who is this?")
    with pytest.raises(LinkClosed):
        await there.send(b"more")
    assert here.closed
    return True


def test_a_link_that_ended_in_a_power_cut_ends_here_when_the_other_side_is_back():
    assert virtual_time.run(after_a_power_cut())


async def test_a_partition_separates_two_groups_and_nobody_else():
    network = SplitNetwork(Random(0))
    a, b, c = await members(network, 3)
    network.partition([a.peer], [b.peer])
    for one, other in ((a, b), (b, a)):
        with pytest.raises(TransportError):
            await one.connect(other.peer)
        assert await one.bootstrap(other.addresses()) == 0
    assert await a.bootstrap(c.addresses()) == await b.bootstrap(c.addresses()) == 1


async def test_a_partition_splits_the_roster():
    network = SplitNetwork(Random(0))
    a, b = await members(network)
    for member in (a, b):
        await member.announce(b"run", PeerRecord(member.peer, tuple(member.addresses()), 0, 0), ttl=60)
    network.partition([a.peer], [b.peer])
    assert [record.peer for record in await a.find(b"run")] == [a.peer]
    network.heal()
    assert [record.peer for record in await a.find(b"run")] == [a.peer, b.peer]


async def test_a_record_is_gone_when_its_time_is_over():
    (member,) = await members(SplitNetwork(Random(0)), 1)
    await member.announce(b"run", PeerRecord(member.peer, (), 0, 0), ttl=0)
    assert await member.find(b"run") == []


async def test_what_strangers_write_into_the_roster_is_passed_over():
    network = SplitNetwork(Random(0))
    (member,) = await members(network, 1)
    for peer, value in (("one", None), ("two", ["three", [], 0, 0]), ("four", ["four", ["nowhere"], 0, 0])):
        network.write(b"run", peer, float("inf"), value)
    network.write(b"run", "five", float("inf"), ["five", [], 0, 0])
    assert await member.find(b"run") == [PeerRecord("five", (), 0, 0)]


async def test_two_members_cannot_have_one_name():
    network = SplitNetwork(Random(0))
    await members(network, 1)
    with pytest.raises(ValueError, match="peer0"):
        await members(network, 1)
