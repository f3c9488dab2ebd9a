"""Reachability of addresses, tested with real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from sfnode.transport.libp2p import reachability
from sfnode.transport.libp2p.reachability import Names, TcpEndpoint, listening


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
    assert await listening([closed_port, listener, listener], Names()) == [listener]
    assert await listening([closed_port], Names()) == []
    assert await listening([], Names()) == []
    name = listener.replace("/ip4/127.0.0.1", "/dns4/localhost")
    assert await listening([name], Names()) == [listener]


async def test_addresses_of_which_one_cannot_tell_are_kept():
    for address in ("/ip4/127.0.0.1/udp/1/quic", "/p2p/QmRelay/p2p-circuit"):
        assert await listening([address], Names()) == [address]


async def test_a_relayed_address_counts_as_long_as_the_relay_is_there(listener, closed_port):
    relayed = [f"{one}/p2p/QmRelay/p2p-circuit" for one in (closed_port, listener)]
    assert await listening(relayed, Names()) == [relayed[1]]


@pytest.mark.parametrize("address", ["/ip4/127.0.0.1/tcp/99999", "/ip4/300.1.1.1/tcp/1", "/ip6/x%y/tcp/1"])
async def test_nonsense_is_left_out(address):
    assert await listening([address], Names()) == []


async def test_a_silent_address_is_waited_for_a_while_only(monkeypatch, listener):
    monkeypatch.setattr(reachability, "TCP_DEADLINE", 0.2)
    monkeypatch.setattr(reachability, "MOMENT", 0.01)
    silent = "/ip4/192.0.2.1/tcp/4001"  # a network for documentation: nobody is there

    async with asyncio.timeout(5):
        assert await listening([silent], Names()) == []
        assert await listening([silent, listener], Names()) == [listener]


OWN = ("/ip4/192.168.1.2/tcp/4001", "/ip4/127.0.0.1/tcp/4001")


@pytest.mark.parametrize(
    ("addresses", "kept"),
    [
        (["/ip4/5.1.0.1/tcp/4001", "/ip4/127.0.0.1/tcp/4001"], ["/ip4/5.1.0.1/tcp/4001"]),
        (["/ip4/5.1.0.1/tcp/4001", "/ip4/127.0.0.1/tcp/4002"], ["/ip4/5.1.0.1/tcp/4001"]),
        (["/ip4/192.168.1.2/tcp/4001", "/ip4/127.0.0.1/tcp/4001"], []),
        (
            2 * ["/ip4/192.168.1.2/tcp/4002"] + ["/ip4/127.0.0.1/tcp/4002"],
            ["/ip4/192.168.1.2/tcp/4002", "/ip4/127.0.0.1/tcp/4002"],
        ),
        (["/ip4/127.0.0.1/tcp/4002"], ["/ip4/127.0.0.1/tcp/4002"]),
        (["/ip4/5.1.0.2/tcp/1/p2p/QmRelay/p2p-circuit"], ["/ip4/5.1.0.2/tcp/1/p2p/QmRelay/p2p-circuit"]),
    ],
    ids=["same port", "other program", "same private address", "same machine", "loopback only", "relayed"],
)
def test_a_peer_is_not_looked_for_where_this_node_or_another_program_listens(addresses, kept):
    assert reachability.elsewhere(addresses, OWN) == kept


async def test_a_relay_with_a_name_is_dialled_at_its_number(listener):
    named = listener.replace("/ip4/127.0.0.1", "/dns/localhost")
    assert await listening([f"{named}/p2p/QmRelay/p2p-circuit"], Names()) == [
        f"{listener}/p2p/QmRelay/p2p-circuit"
    ]


class NameServers:
    """Name servers that answer after a while, or refuse."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.refuse = False
        self.asked = 0

    async def look_up(self, endpoint: TcpEndpoint) -> list[tuple[str, int]]:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if self.refuse:
            raise socket.gaierror("no name server")
        return [("127.0.0.1", endpoint.port)]


async def test_a_name_may_take_longer_than_a_connection(monkeypatch, listener):
    monkeypatch.setattr(reachability, "TCP_DEADLINE", 0.3)
    servers = NameServers()
    servers.seconds = 0.5
    name = listener.replace("/ip4/127.0.0.1", "/dns4/peer.example.org")
    assert await listening([name], Names(servers.look_up)) == [listener]


async def test_a_name_is_asked_for_again_after_a_while_and_its_last_address_serves_meanwhile(
    monkeypatch, listener
):
    servers = NameServers()
    names = Names(servers.look_up)
    name = listener.replace("/ip4/127.0.0.1", "/dns4/peer.example.org")
    assert [await listening([name], names) for _ in range(3)] == 3 * [[listener]]
    assert servers.asked == 1
    monkeypatch.setattr(reachability, "NAME_FRESH", 0.0)
    servers.refuse = True
    assert await listening([name], names) == [listener]
    servers.seconds = 60.0
    monkeypatch.setattr(reachability, "NAME_DEADLINE", 0.1)
    assert await listening([name], names) == [listener]
    assert servers.asked == 3
    monkeypatch.setattr(reachability, "NAME_KEPT", 0.0)
    assert await listening([name], names) == []


async def test_a_name_that_is_still_being_looked_up_is_forgotten_silently(monkeypatch, listener):
    """A fixture checks after every test that asyncio has logged no warning."""
    monkeypatch.setattr(reachability, "MOMENT", 0)
    names = [f"/dns4/peer{number}.invalid/tcp/1" for number in range(3)]
    assert await listening([*names, listener], Names()) == [listener]
    for name in ("localhost", "later.invalid") * 3:  # by now the questions above have been answered, too
        with suppress(OSError):
            await asyncio.get_running_loop().getaddrinfo(name, 1)


async def test_a_name_with_an_address_at_which_nobody_listens_is_tried_at_the_next_one(listener, closed_port):
    addresses = [("127.0.0.1", reachability.tcp_endpoint(one).port) for one in (closed_port, listener)]
    await reachability.try_connect(addresses)
    with pytest.raises(ConnectionRefusedError):
        await reachability.try_connect(addresses[:1])
