"""What every transport promises (sfnode.transport.base), checked on the one in memory and on libp2p."""

from __future__ import annotations

import asyncio

import pytest

from sfnode.errors import Code
from sfnode.transport.base import CONNECT_DEADLINE, LinkClosed, PeerRecord, TransportError
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME
from tests.refusals import fails_with
from tests.transport.helpers import read_all

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def pair(nodes, inbound):
    """Two nodes and both ends of a link from the second to the first."""
    host, guest = await nodes(2)
    arriving = inbound(host)
    there = await guest.connect(host.peer, host.addresses())
    return host, guest, there, await arriving.get()


async def test_frames_arrive_in_order_in_both_directions(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    frames = [number.to_bytes(2, "big") * number for number in range(200)]

    async def send_all(link):
        for frame in frames:
            await link.send(frame)

    async def receive_all(link):
        return [await link.receive() for _ in frames]

    got = await asyncio.gather(receive_all(there), receive_all(here), send_all(there), send_all(here))
    assert got[:2] == [frames, frames]


async def test_both_ends_know_whom_they_talk_to_and_who_opened(nodes, inbound):
    host, guest, there, here = await pair(nodes, inbound)
    assert (there.peer, there.outbound) == (host.peer, True)
    assert (here.peer, here.outbound) == (guest.peer, False)


async def test_the_largest_and_the_smallest_frame_pass_and_are_counted(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    largest = bytes(range(256)) * (MAX_FRAME // 256)
    await there.send(largest)
    await there.send(b"")
    assert [await here.receive(), await here.receive()] == [largest, b""]
    assert there.bytes_sent == here.bytes_received == MAX_FRAME + 2 * LENGTH_BYTES


async def test_a_frame_above_the_limit_is_our_own_mistake_and_costs_nothing(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    with pytest.raises(ValueError, match="above the limit"):
        await there.send(bytes(MAX_FRAME + 1))
    await there.send(b"next")
    assert await here.receive() == b"next"


async def test_the_other_side_reads_what_was_sent_and_then_sees_the_close(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    await there.send(b"goodbye")
    await there.close()
    await there.close()
    assert await read_all(here) == [b"goodbye"]
    with pytest.raises(LinkClosed):
        await here.send(b"anybody?")


async def test_a_closed_link_neither_sends_nor_receives(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    await here.send(b"unread")
    waiting = asyncio.create_task(read_all(there))
    await there.close()
    await waiting
    for attempt in (there.send(b"x"), there.receive()):
        with pytest.raises(LinkClosed):
            await attempt


async def test_a_sender_waits_for_a_receiver_that_does_not_read(nodes, inbound):
    _, _, there, here = await pair(nodes, inbound)
    frame = bytes(MAX_FRAME)

    async def send_much():
        for _ in range(512):
            await there.send(frame)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(send_much(), timeout=0.7)
    sent = there.bytes_sent
    while here.bytes_received < sent:
        assert await here.receive() == frame


async def test_a_request_gets_its_response(nodes):
    host, guest = await nodes(2)

    async def echo(asker, frame):
        assert asker.address
        return asker.peer.encode() + frame

    host.on_request(echo)
    address = host.addresses()[0]
    answers = await asyncio.gather(*(guest.request(address, bytes([n])) for n in range(4)))
    assert answers == [guest.peer.encode() + bytes([n]) for n in range(4)]


async def test_a_handler_that_fails_costs_its_request_and_nothing_else(nodes, caplog):
    host, guest = await nodes(2)

    async def broken(asker, frame):
        if frame == b"?":
            raise KeyError("a mistake in the handler")
        return bytes(MAX_FRAME + 1) if frame == b"!" else frame

    host.on_request(broken)
    for request in (b"?", b"!"):
        with pytest.raises(TransportError):
            await guest.request(host.addresses()[0], request)
    assert caplog.text.count("the handler of a request") == 2
    assert await guest.request(host.addresses()[0], b".") == b"."


async def test_a_handler_that_fails_costs_its_link_and_nothing_else(nodes, inbound, caplog):
    host, guest = await nodes(2)

    async def broken(link):
        raise KeyError("a mistake in the handler")

    host.on_link(broken)
    link = await guest.connect(host.peer, host.addresses())
    assert await read_all(link) == []
    assert "the handler of a link" in caplog.text

    arriving = inbound(host)
    await (await guest.connect(host.peer)).send(b"still there")
    assert await (await arriving.get()).receive() == b"still there"


async def test_a_link_and_a_request_that_nobody_handles_are_refused(nodes):
    host, guest = await nodes(2)
    host.on_link(None)
    host.on_request(None)
    assert await read_all(await guest.connect(host.peer, host.addresses())) == []
    with pytest.raises(TransportError):
        await guest.request(host.addresses()[0], b"anybody?")


async def test_a_peer_that_is_gone_is_reported_within_the_deadline(nodes):
    host, guest = await nodes(2)
    address = host.addresses()[0]
    await host.stop()
    async with asyncio.timeout(2 * CONNECT_DEADLINE):
        for attempt in (guest.request(address, b"?"), guest.connect(host.peer, [address])):
            with pytest.raises(TransportError):
                await attempt
        assert await guest.bootstrap([address]) == 0
    await guest.restart()  # libp2p would not dial that address again for 5 s, and other tests need it


async def test_nobody_dials_himself(nodes):
    (node,) = await nodes(1)
    with pytest.raises(TransportError):
        await node.connect(node.peer, node.addresses())
    assert await node.bootstrap(node.addresses()) == 0


async def test_an_address_that_leads_to_no_peer_is_a_mistake_of_the_user(nodes):
    (node,) = await nodes(1)
    for address in (
        "",
        "nonsense",
        "/ip4/127.0.0.1/tcp/1",
        "/p2p/QmX",
        "/ip4/127.0.0.1/tcp/1/p2p/",
        "/ip4/x/p2p/a b",
    ):
        with fails_with(Code.BAD_ADDRESS):
            await node.request(address, b"?")


async def test_a_malformed_address_in_the_book_does_not_keep_a_node_from_the_others(nodes):
    node, other = await nodes(2)
    assert await node.bootstrap(["nonsense", "/ip4/x/p2p/a b", *other.addresses()]) == 1


async def test_three_nodes_find_each_other_in_the_roster(topic, nodes):
    everybody = await nodes(3)
    records = [PeerRecord(node.peer, tuple(node.addresses()), 1, 40 + n) for n, node in enumerate(everybody)]
    for node, record in zip(everybody, records, strict=True):
        await node.announce(topic, record, ttl=60)
    for node in everybody:
        assert await node.find(topic) == sorted(records)
        assert await node.find(b"another run") == []


async def test_a_later_record_replaces_the_earlier_one(topic, nodes):
    host, guest = await nodes(2)
    for known in (5, 6):
        await host.announce(topic, PeerRecord(host.peer, tuple(host.addresses()), 0, known), ttl=60 + known)
    assert [record.known for record in await guest.find(topic)] == [6]


async def test_a_record_from_the_roster_is_enough_to_connect(topic, nodes, inbound):
    _, guest, third = await nodes(3)
    arriving = inbound(guest)
    await guest.announce(topic, PeerRecord(guest.peer, tuple(guest.addresses()), 0, 0), ttl=60)
    (record,) = await third.find(topic)
    link = await third.connect(record.peer, record.addresses)
    assert (await arriving.get()).peer == third.peer
    assert link.peer == guest.peer


async def test_a_stopped_node_is_silent_and_its_links_end(nodes, inbound):
    host, guest, there, here = await pair(nodes, inbound)
    await guest.stop()
    assert await read_all(here) == []
    assert not await guest.healthy()
    for attempt in (guest.connect(host.peer), guest.request(host.addresses()[0], b"?")):
        with pytest.raises(TransportError):
            await attempt
    with pytest.raises(LinkClosed):
        await there.send(b"x")
    await guest.stop()


async def test_a_restart_loses_links_and_keeps_everything_else(nodes, inbound):
    host, guest, there, _ = await pair(nodes, inbound)
    peer, addresses = host.peer, host.addresses()
    await host.restart()
    assert await read_all(there) == []
    assert (host.peer, host.addresses()) == (peer, addresses)
    assert await host.healthy()

    arriving = inbound(host)
    assert await host.bootstrap(guest.addresses()) == 1
    await (await guest.connect(peer, addresses)).send(b"again")
    assert await (await arriving.get()).receive() == b"again"
