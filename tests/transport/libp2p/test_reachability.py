"""Whether somebody listens: asked of real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from sfnode.transport.libp2p import reachability
from sfnode.transport.libp2p.reachability import listening


@pytest.fixture
def listener():
    """A TCP port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"


@pytest.fixture
def closed_port():
    """A TCP port at which nobody does."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"/ip4/127.0.0.1/tcp/{unheard.getsockname()[1]}"


async def test_addresses_at_which_somebody_listens_are_kept_and_the_others_left_out(listener, closed_port):
    assert await listening([closed_port, listener, listener]) == [listener]
    assert await listening([closed_port]) == []
    assert await listening([]) == []
    name = listener.replace("/ip4/127.0.0.1", "/dns4/localhost")
    assert await listening([name]) == [name]


async def test_addresses_of_which_one_cannot_tell_are_kept():
    for address in ("/ip4/127.0.0.1/udp/1/quic", "/p2p/QmRelay/p2p-circuit"):
        assert await listening([address]) == [address]


async def test_a_relayed_address_counts_as_long_as_the_relay_is_there(listener, closed_port):
    relayed = [f"{one}/p2p/QmRelay/p2p-circuit" for one in (closed_port, listener)]
    assert await listening(relayed) == [relayed[1]]


@pytest.mark.parametrize("address", ["/ip4/127.0.0.1/tcp/99999", "/ip4/300.1.1.1/tcp/1", "/ip6/x%y/tcp/1"])
async def test_nonsense_is_left_out(address):
    assert await listening([address]) == []


async def test_a_silent_address_is_waited_for_a_while_only(monkeypatch, listener):
    monkeypatch.setattr(reachability, "TCP_DEADLINE", 0.2)
    monkeypatch.setattr(reachability, "MOMENT", 0.01)
    silent = "/ip4/192.0.2.1/tcp/4001"  # a network for documentation: nobody is there

    async with asyncio.timeout(5):
        assert await listening([silent]) == []
        assert await listening([silent, listener]) == [listener]


async def test_a_name_that_is_still_being_looked_up_is_forgotten_silently(monkeypatch, listener):
    """That asyncio complains of nothing is looked at after every test, on the loop that nodes run on."""
    monkeypatch.setattr(reachability, "MOMENT", 0)
    names = [f"/dns4/peer{number}.invalid/tcp/1" for number in range(3)]
    assert await listening([*names, listener]) == [listener]
    for name in ("localhost", "later.invalid") * 3:  # by now the questions above have been answered, too
        with suppress(OSError):
            await asyncio.get_running_loop().getaddrinfo(name, 1)


async def test_a_name_with_an_address_at_which_nobody_listens_is_tried_at_the_next_one(listener, closed_port):
    addresses = [("127.0.0.1", reachability.tcp_endpoint(one).port) for one in (closed_port, listener)]
    await reachability.try_connect(addresses)
    with pytest.raises(ConnectionRefusedError):
        await reachability.try_connect(addresses[:1])
