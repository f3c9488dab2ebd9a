"""Frames over bare sockets: a peer that breaks SPEC F1 loses its link and gains nothing."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from sfnode.transport.base import LinkClosed
from sfnode.transport.libp2p import streams
from sfnode.transport.libp2p.streams import StreamLink, Switchboard
from sfprotocol.wire_codec import MAX_FRAME
from tests.transport.helpers import read_all

CALLER = SimpleNamespace(peer_id="somebody", addr="/ip4/192.0.2.7/tcp/4001")
ANOTHER = SimpleNamespace(peer_id="another", addr="")


@pytest.fixture
async def wire():
    """A link, and the bare socket at its other end."""
    ends, far = await pair()
    link = StreamLink("somebody", False, *ends)
    yield link, far
    await link.close()
    far.close()


class Board(Switchboard):
    """A switchboard that records which peers it disconnects, and which links its handler serves."""

    def __init__(self):
        super().__init__(self._note)
        self.link_handler = self._hold
        self.gone = []
        self.served = asyncio.Queue()

    async def _note(self, peer):
        self.gone.append(peer)

    async def _hold(self, link):
        self.served.put_nowait((link.peer, link.address))
        await read_all(link)
        await link.close()


async def pair():
    """Return the streams of one end of a connection, and the bare socket at its other end."""
    near, far = socket.socketpair()
    far.setblocking(False)
    return await asyncio.open_connection(sock=near), far


async def send_much(link):
    for _ in range(512):
        await link.send(bytes(MAX_FRAME))


async def write(far, data):
    await asyncio.get_running_loop().sock_sendall(far, data)


async def read(far, size):
    return await asyncio.get_running_loop().sock_recv(far, size)


@pytest.mark.parametrize("size", [MAX_FRAME + 1, (1 << 24) - 1])
async def test_a_length_above_the_limit_ends_the_link_before_any_byte_of_the_frame(wire, size):
    link, far = wire
    await write(far, size.to_bytes(3, "big"))
    with pytest.raises(LinkClosed, match=f"{size} bytes were announced"):
        await link.receive()
    assert await read(far, 1) == b""
    assert link.bytes_received == 0


async def test_a_frame_may_arrive_byte_by_byte(wire):
    link, far = wire
    for byte in b"\x00\x00\x03abc":
        await write(far, bytes([byte]))
    assert await link.receive() == b"abc"


async def test_a_receive_that_is_cancelled_inside_a_frame_loses_nothing(wire):
    link, far = wire
    await write(far, b"\x00\x00\x03ab")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.receive(), timeout=0.05)
    await write(far, b"c\x00\x00\x01d")
    assert [await link.receive(), await link.receive()] == [b"abc", b"d"]


@pytest.mark.parametrize("rest", [b"\x00", b"\x00\x00\x03", b"\x00\x00\x03ab"])
async def test_an_end_inside_a_frame_is_told_from_an_end_between_frames(wire, rest):
    link, far = wire
    await write(far, b"\x00\x00\x01a" + rest)
    far.close()
    assert await link.receive() == b"a"
    with pytest.raises(LinkClosed, match="inside a frame"):
        await link.receive()


async def test_a_promised_frame_that_does_not_come_ends_the_link(wire, monkeypatch):
    monkeypatch.setattr(streams, "BODY_DEADLINE", 0.01)
    link, far = wire
    await write(far, b"\x00\x00\x03ab")
    with pytest.raises(LinkClosed, match="not complete"):
        await link.receive()


async def test_a_receiver_that_never_reads_ends_the_link_at_the_deadline(wire, monkeypatch):
    monkeypatch.setattr(streams, "SEND_DEADLINE", 0.05)
    link, _ = wire
    with pytest.raises(LinkClosed, match="was not taken"):
        await send_much(link)
    with pytest.raises(LinkClosed, match="the link is closed"):
        await link.send(b"")


async def test_closing_does_not_wait_for_a_receiver_that_never_reads(wire, monkeypatch):
    monkeypatch.setattr(streams, "CLOSE_DEADLINE", 0.01)
    link, far = wire
    sending = asyncio.gather(*(link.send(bytes(MAX_FRAME)) for _ in range(20)), return_exceptions=True)
    await read(far, 1)
    await link.close()
    assert any(isinstance(outcome, LinkClosed) for outcome in await sending)


async def test_senders_that_meet_do_not_mix_their_frames(wire):
    link, far = wire
    frames = [bytes([number]) * 50_000 for number in range(8)]
    reader, writer = await asyncio.open_connection(sock=far.dup())
    other = StreamLink("other", True, reader, writer)
    got = asyncio.create_task(read_all(other))
    await asyncio.gather(*(link.send(frame) for frame in frames))
    await link.close()
    assert sorted(await got) == frames
    await other.close()


async def assert_refused(accept):
    """Assert that a stream of CALLER is closed without a word, and that no handler sees it."""
    ends, far = await pair()
    await accept(CALLER, *ends)
    async with asyncio.timeout(5):
        assert await read(far, 1) == b""
    far.close()


async def test_one_peer_has_a_few_streams_at_most_and_leaves_room_for_others(wire, monkeypatch):
    monkeypatch.setattr(streams, "MAX_INBOUND_STREAMS_OF_PEER", 1)
    board = Board()
    first = asyncio.create_task(board.accept_link(CALLER, *await streams_of(wire[1])))
    assert await board.served.get() == ("somebody", CALLER.addr)
    await assert_refused(board.accept_link)
    ends, far = await pair()
    second = asyncio.create_task(board.accept_link(ANOTHER, *ends))
    assert await board.served.get() == ("another", "")
    far.close()
    await second
    await board.hang_up()
    await first
    assert not board._inbound_of


async def test_slow_requests_of_many_peers_leave_room_for_links(wire, monkeypatch):
    monkeypatch.setattr(streams, "MAX_REQUESTS", 1)
    monkeypatch.setattr(streams, "ARRIVAL_DEADLINE", 0.2)
    board = Board()
    slow = asyncio.create_task(board.accept_request(CALLER, *await streams_of(wire[1])))
    await asyncio.sleep(0)
    await assert_refused(board.accept_request)
    ends, far = await pair()
    link = asyncio.create_task(board.accept_link(CALLER, *ends))
    async with asyncio.timeout(5):
        await board.served.get()
        await slow  # it is given up
        far.close()
        await link


async def test_what_a_peer_said_before_it_left_is_heard_though_nothing_can_be_sent_any_more(wire):
    link, far = wire
    await write(far, b"\x00\x00\x03abc\x00\x00\x03def\x00\x00")
    assert await link.receive() == b"abc"
    far.close()
    with pytest.raises(LinkClosed):
        await send_much(link)
    assert await link.receive() == b"def"
    with pytest.raises(LinkClosed):
        await link.receive()


async def test_hanging_up_does_not_wait_for_a_handler_that_ignores_its_link(wire):
    board, served = Board(), asyncio.Event()

    async def stubborn(link):
        served.set()
        await asyncio.Event().wait()

    board.link_handler = stubborn
    serving = asyncio.create_task(board.accept_link(CALLER, *await streams_of(wire[1])))
    await served.wait()
    await board.hang_up()
    assert serving.cancelled()


async def streams_of(far):
    return await asyncio.open_connection(sock=far.dup())


async def waste(board, caller, count):
    """Open streams that end before any byte is sent."""
    for _ in range(count):
        ends, far = await pair()
        far.close()
        await board.accept_link(caller, *ends)


async def test_a_peer_that_opens_streams_for_nothing_loses_its_connection(monkeypatch):
    monkeypatch.setattr(streams, "WASTE_BURST", 5.0)
    board = Board()
    await waste(board, CALLER, 5)
    assert board.gone == []
    await waste(board, CALLER, 1)
    assert board.gone == ["somebody"]
    await waste(board, ANOTHER, 5)
    assert board.gone == ["somebody"]


async def test_streams_for_which_others_have_taken_the_room_are_no_waste(wire, monkeypatch):
    monkeypatch.setattr(streams, "WASTE_BURST", 2.0)
    board = Board()
    first = asyncio.create_task(board.accept_link(ANOTHER, *await streams_of(wire[1])))
    await board.served.get()
    monkeypatch.setattr(streams, "MAX_INBOUND_STREAMS", 1)
    monkeypatch.setattr(streams, "MAX_REQUESTS", 0)
    for _ in range(5):
        await assert_refused(board.accept_link)
        await assert_refused(board.accept_request)
    assert board.gone == []
    await board.hang_up()
    await first


async def test_what_a_peer_wastes_is_forgiven_with_time_and_no_list_of_peers_grows(monkeypatch):
    monkeypatch.setattr(streams, "WASTE_BURST", 1.0)
    monkeypatch.setattr(streams, "WASTE_RATE", 100.0)
    monkeypatch.setattr(streams, "MAX_WASTEFUL", 3)
    board = Board()
    for _ in range(5):
        await waste(board, CALLER, 1)
        await asyncio.sleep(0.02)
    assert board.gone == []
    for number in range(9):
        await waste(board, SimpleNamespace(peer_id=f"p{number}", addr=""), 1)
    assert set(board._wasted) == {"p6", "p7", "p8"}


async def test_requests_count_as_wasted_only_when_they_get_no_response(monkeypatch):
    monkeypatch.setattr(streams, "WASTE_BURST", 3.0)
    board = Board()

    async def answer_some(peer, question):
        return b"yes" if question == b"abc" else None

    board.request_handler = answer_some

    async def asked(question):
        ends, far = await pair()
        await write(far, len(question).to_bytes(3, "big") + question)
        await board.accept_request(CALLER, *ends)
        far.close()

    for _ in range(10):
        await asked(b"abc")
    assert board.gone == []
    for _ in range(4):
        await asked(b"xyz")
    assert board.gone == ["somebody"]
