"""The two tasks of a link: both queues are bounded, and no task waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from sfnode.logging import log
from sfnode.node import link_pump as pump_module
from sfnode.node.link_pump import LinkPump
from sfnode.resources.bandwidth_limits import Bandwidth
from sfnode.transport import memory
from sfnode.transport.base import Link, LinkClosed
from sfnode.transport.memory import MemoryTransport, Network
from sfprotocol.events import Event, Received, Writable
from sfprotocol.host import MAX_UNHANDLED
from tests.node.helpers import eventually

FLOOD = MAX_UNHANDLED + memory.CAPACITY + 30
"""Number of frames: more than the machine's queue and the link hold together."""


class Ends:
    """A link with its pump, and the bare other end."""

    def __init__(self, link: Link, other: Link) -> None:
        self.events: list[Event] = []
        self.handled = 0
        """Number of frames that the machine has handled."""
        self.link, self.other = link, other
        self.pump = LinkPump(5, link, self.events.append, self.has_room, Bandwidth())
        self.life = asyncio.create_task(self.pump.finished())

    def has_room(self) -> bool:
        return len(self.received()) - self.handled < MAX_UNHANDLED

    def handle(self, frames: int) -> None:
        """Let the machine handle so many frames."""
        self.handled += frames
        self.pump.resume()

    def received(self) -> list[bytes]:
        return [event.frame for event in self.events if isinstance(event, Received)]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    network = Network(Random(0))
    a, b = MemoryTransport(network, "a"), MemoryTransport(network, "b")
    arrived: asyncio.Queue[Link] = asyncio.Queue()
    b.on_link(arrived.put)
    await a.start()
    await b.start()
    made = Ends(await a.connect("b"), await arrived.get())
    yield made
    made.pump.close()
    await made.life
    await a.stop()
    await b.stop()


async def test_a_flooding_peer_is_read_only_as_fast_as_the_machine_follows(ends: Ends) -> None:
    flood = asyncio.create_task(send_all(ends.other, FLOOD))
    await eventually(lambda: len(ends.events) == MAX_UNHANDLED)
    ends.pump.resume()  # there is no room yet
    await asyncio.sleep(0.01)
    assert len(ends.events) == MAX_UNHANDLED
    ends.handle(1)
    await eventually(lambda: len(ends.events) == MAX_UNHANDLED + 1)
    assert not flood.done()
    ends.handle(FLOOD)
    await eventually(lambda: len(ends.events) == FLOOD)
    assert ends.received() == [b"%d" % number for number in range(FLOOD)]


async def send_all(link: Link, count: int) -> None:
    for number in range(count):
        await link.send(b"%d" % number)


async def test_writable_comes_once_after_all_segments_have_been_written(ends: Ends) -> None:
    await asyncio.wait_for(ends.pump.drain(), 5)  # nothing was sent
    ends.pump.send(b"control")
    await ends.pump.drain()
    assert ends.events == []
    for number in range(memory.CAPACITY + 10):
        ends.pump.send(b"%d" % number, segment=True)
    ends.pump.send(b"control")
    await eventually(lambda: len(ends.pump._outgoing) == 11)  # the link is full
    assert ends.events == []
    for _ in range(memory.CAPACITY + 12):
        await ends.other.receive()
    await eventually(lambda: ends.events == [Writable(5)])
    ends.pump.send(b"control")
    await ends.pump.drain()
    assert ends.events == [Writable(5)]


async def test_a_peer_that_never_reads_is_dropped_and_the_log_says_why(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=log.name)
    monkeypatch.setattr(memory, "SEND_DEADLINE", 0.05)
    for _ in range(memory.CAPACITY + 1):
        ends.pump.send(b"x", segment=True)
    await asyncio.wait_for(ends.life, 5)
    assert ends.events == []
    with pytest.raises(LinkClosed):
        await ends.link.receive()
    assert "dropped the link to b, which cannot be written to: a frame was not taken within" in caplog.text


async def test_a_peer_that_does_not_read_that_many_frames_is_dropped_and_the_log_says_why(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pump_module, "MAX_QUEUED_FRAMES", 100)
    for _ in range(memory.CAPACITY + 200):
        ends.pump.send(b"x")
        assert len(ends.pump._outgoing) <= 100
    await asyncio.wait_for(ends.life, 5)
    [line] = caplog.messages
    assert line == "dropped the link to b: it does not read, 100 frames wait"


async def test_when_the_peer_hangs_up_while_we_write_both_tasks_end(ends: Ends) -> None:
    for _ in range(memory.CAPACITY + 5):
        ends.pump.send(b"x", segment=True)
    await asyncio.sleep(0)
    await ends.other.close()
    await asyncio.wait_for(ends.life, 5)
    await asyncio.wait_for(ends.pump.drain(), 5)


async def test_the_last_frames_of_a_peer_that_leaves_are_read_when_it_reads_no_more(ends: Ends) -> None:
    count = MAX_UNHANDLED + 10
    await send_all(ends.other, count)
    await ends.other.close()
    ends.pump.send(b"nobody reads this", segment=True)
    await eventually(ends.pump._writer.done)
    ends.handle(count)
    await asyncio.wait_for(ends.life, 5)
    assert ends.received() == [b"%d" % number for number in range(count)]


async def test_a_fault_of_ours_on_a_link_is_loud(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    ends.pump.send(bytes(300 * 1024))
    await asyncio.wait_for(ends.life, 5)
    assert "the link with b failed" in caplog.text
