"""Whether somebody listens: asked of real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from sfnode.transport import reach
from sfnode.transport.reach import listening


@pytest.fixture
def door():
    """A TCP port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"


@pytest.fixture
def wall():
    """A TCP port at which nobody does."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"/ip4/127.0.0.1/tcp/{unheard.getsockname()[1]}"


async def test_ways_to_somebody_who_listens_are_kept_and_the_others_left_out(door, wall):
    assert await listening([wall, door, door]) == [door]
    assert await listening([wall]) == []
    assert await listening([]) == []
    name = door.replace("/ip4/127.0.0.1", "/dns4/localhost")
    assert await listening([name]) == [name]


async def test_ways_of_which_one_cannot_tell_are_kept():
    for way in ("/ip4/127.0.0.1/udp/1/quic", "/p2p/QmRelay/p2p-circuit"):
        assert await listening([way]) == [way]


async def test_a_way_through_a_relay_is_one_as_long_as_the_relay_is_there(door, wall):
    ways = [f"{place}/p2p/QmRelay/p2p-circuit" for place in (wall, door)]
    assert await listening(ways) == [ways[1]]


@pytest.mark.parametrize("way", ["/ip4/127.0.0.1/tcp/99999", "/ip4/300.1.1.1/tcp/1", "/ip6/x%y/tcp/1"])
async def test_nonsense_is_nobody(way):
    assert await listening([way]) == []


async def test_somebody_who_is_silent_is_waited_for_a_while_only(monkeypatch, door):
    monkeypatch.setattr(reach, "KNOCK_DEADLINE", 0.2)
    monkeypatch.setattr(reach, "MOMENT", 0.01)
    silent = "/ip4/192.0.2.1/tcp/4001"  # a network for documentation: nobody is there

    async with asyncio.timeout(5):
        assert await listening([silent]) == []
        assert await listening([silent, door]) == [door]


async def test_a_name_that_is_still_being_looked_up_is_forgotten_without_a_word(monkeypatch, door):
    """That asyncio complains of nothing is looked at after every test, on the loop that nodes run on."""
    monkeypatch.setattr(reach, "MOMENT", 0)
    names = [f"/dns4/peer{number}.invalid/tcp/1" for number in range(3)]
    assert await listening([*names, door]) == [door]
    for name in ("localhost", "later.invalid") * 3:  # by now the questions above have been answered, too
        with suppress(OSError):
            await asyncio.get_running_loop().getaddrinfo(name, 1)


async def test_a_name_with_an_address_at_which_nobody_listens_is_tried_at_the_next_one(door, wall):
    doors = [("127.0.0.1", reach.place_of(way).port) for way in (wall, door)]
    await reach.knock(doors)
    with pytest.raises(ConnectionRefusedError):
        await reach.knock(doors[:1])
