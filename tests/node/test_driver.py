"""The order of the driver: updates are durable, then sent, then applied."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.node import disk_wait
from sfnode.node import driver as driver_module
from sfnode.node.driver import handed_over
from sfnode.store.log import UpdateLog
from sfnode.store.replay import frontier_of
from sfnode.store.verification import verify_log
from sfnode.transport import memory
from sfnode.transport.base import LinkClosed
from sfnode.transport.memory import Network
from sfprotocol import host as host_module
from sfprotocol import wire_codec
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import Admit, OwnUpdates
from sfprotocol.host import Commit
from sfprotocol.messages import (
    OLDEST_VERSION,
    Authority,
    Claim,
    EpochScalars,
    Feed,
    Goodbye,
    Hello,
    Position,
    Segment,
    Summary,
    Want,
)
from sfprotocol.signing import work
from tests.node.helpers import batch, eventually, feed_of, machine, record
from tests.node.pumped import RUN, Pumped, greet, hear, stranger


@pytest.fixture
async def pumped(tmp_path: Path) -> AsyncIterator[dict[str, Pumped]]:
    """Two drivers, a and b, without links."""
    network = Network(Random(0))
    made = {name: Pumped(network, name, tmp_path) for name in "ab"}
    for one in made.values():
        await one.transport.start()
    yield made
    for one in made.values():
        one.log.gate.set()
        one.driver.finish()
        with suppress(UserError, LocalProtocolError, asyncio.CancelledError):
            await one.task
        await one.driver.close_links(0.1)
        await asyncio.gather(*one.carrying, return_exceptions=True)
        await one.transport.stop()
        one.log.close()


# -- durable, sent, applied ----------------------------------------------------------------------------


async def test_nothing_is_sent_or_applied_before_it_is_on_disk(pumped: dict[str, Pumped]) -> None:
    a = pumped["a"]
    link = await stranger(pumped)
    await greet(link)
    await eventually(lambda: any(peer.synced for peer in a.machine.links.values()))
    a.log.gate.clear()
    a.say(7)
    await eventually(a.log.waiting.is_set)
    assert a.machine.frontier.known == 1  # decided, and nobody knows
    assert a.count() == a.log.updates() == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hear(link, Segment), 0.1)
    a.log.gate.set()
    segment: Segment = await hear(link, Segment)
    assert a.log.updates() == 1
    assert segment.parts == (EpochScalars(0, (7,)),)
    await eventually(lambda: a.count() == 1)


async def test_between_rounds_nothing_is_half_done(pumped: dict[str, Pumped]) -> None:
    a = pumped["a"]
    a.log.gate.clear()
    a.say(1)
    await eventually(a.log.waiting.is_set)
    waiting = asyncio.create_task(a.driver.between_rounds.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    a.log.gate.set()
    await waiting
    assert a.machine.frontier.known == a.log.updates() == a.count() == 1
    a.driver.between_rounds.release()


async def test_while_the_disk_is_full_links_are_kept_and_nothing_is_sent_or_applied(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", 0.01)
    monkeypatch.setattr(driver_module, "KEEP_INTERVAL", 0.0)
    a = pumped["a"]
    link = await stranger(pumped)
    await greet(link)
    await eventually(lambda: any(peer.synced for peer in a.machine.links.values()))
    full = a.log.failure = UserError(Code.DISK_FULL, "full", "")
    a.say(1)
    await eventually(lambda: a.driver.disk.problem is full)
    async with asyncio.timeout(10):
        heard = [wire_codec.decode(await link.receive()) for _ in range(5)]
    assert {(type(one), one.known) for one in heard if isinstance(one, Summary)} == {(Summary, 0)}, heard
    assert a.count() == a.log.updates() == 0
    a.log.failure = None
    segment: Segment = await hear(link, Segment)
    assert segment.parts == (EpochScalars(0, (1,)),)
    await eventually(lambda: a.count() == a.log.updates() == 1)
    assert a.driver.disk.problem is None


async def test_everything_posted_before_the_end_is_done(pumped: dict[str, Pumped]) -> None:
    a = pumped["a"]
    for number in range(host_module.MAX_ROUND * 2):
        a.driver.post(OwnUpdates(a.feed, number, (EpochScalars(0, (number % 100,)),)))
    a.driver.finish()
    a.driver.post(OwnUpdates(a.feed, 10**6, (EpochScalars(0, (1,)),)))  # too late to be looked at
    await a.task
    assert a.log.updates() == a.count() == host_module.MAX_ROUND * 2
    await eventually(lambda: not any(thread.name.startswith("disk") for thread in threading.enumerate()))


async def test_a_round_does_not_keep_the_loop_for_long(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "ROUND_TIME", -1.0)
    a = pumped["a"]
    for number in range(5):
        a.driver.post(OwnUpdates(a.feed, number, (EpochScalars(0, (1,)),)))
    await eventually(lambda: a.count() == 5)
    assert len(a.applied) == 5


async def test_before_the_end_every_neighbour_is_sent_what_it_can_take(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = pumped["a"]
    link = await stranger(pumped)
    await greet(link)
    await eventually(lambda: any(peer.synced for peer in a.machine.links.values()))
    monkeypatch.setattr(memory, "CAPACITY", 1)
    for number in range(3):
        a.say(number)
        await eventually(lambda number=number: a.count() == number + 1)  # type: ignore[misc]
    await asyncio.wait_for(a.driver.hand_over(0.05), 5)  # the wait is bounded
    assert not handed_over(a.machine)
    handing = asyncio.create_task(a.driver.hand_over(10))
    heard = 0
    while heard < 3:
        segment: Segment = await hear(link, Segment)
        heard = segment.stop
    await handing
    assert handed_over(a.machine)


async def test_a_round_that_is_cancelled_while_it_writes_leaves_a_whole_log(
    pumped: dict[str, Pumped], tmp_path: Path
) -> None:
    a = pumped["a"]
    a.say(1, 2)
    await eventually(lambda: a.count() == 2)
    a.log.waiting.clear()
    a.log.gate.clear()
    a.say(3)
    await eventually(a.log.waiting.is_set)
    a.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await a.task
    a.log.gate.set()
    await eventually(lambda: a.log.updates() == 3)
    assert a.count() == 2  # not applied: this process is at its end, the next one replays the log
    with UpdateLog.open(tmp_path / "a.sqlite", RUN.run_id, read_only=True) as log:
        assert machine(RUN, log.tails(), "a").frontier.digest() == a.machine.frontier.digest()


async def test_a_new_own_feed_is_remembered_on_the_disk_thread_before_it_is_used(
    pumped: dict[str, Pumped],
) -> None:
    """An fsync on the event loop would delay every link. And a feed must be recorded before others hear of
    it."""
    a = pumped["a"]
    a.say(1, 2)
    await eventually(lambda: a.count() == 2)
    link = await stranger(pumped)
    await greet(link)
    old = a.feed
    more = record(RUN, "a", [3, 4], before=[1, 2], incarnation=1).segment  # from a copy of this folder
    a.log.waiting.clear()
    a.log.gate.clear()
    await link.send(wire_codec.encode(more))
    await eventually(a.log.waiting.is_set)
    assert a.feed != old
    assert [feed for feed, _ in a.remembered] == [a.feed]
    assert all(thread.startswith("disk") for _, thread in a.remembered)
    a.log.gate.set()
    await eventually(lambda: a.count() == 4)


# -- links that misbehave ------------------------------------------------------------------------------


async def test_a_goodbye_waits_until_the_peer_reads(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CAPACITY", 1)
    link = await stranger(pumped)
    await link.send(wire_codec.encode(Hello(OLDEST_VERSION, bytes(32), 0, 0)))
    await eventually(lambda: pumped["a"].driver._dropping)
    await hear(link, Hello)
    goodbye: Goodbye = await hear(link, Goodbye)
    assert goodbye.reason == "another run"
    with pytest.raises(LinkClosed):
        await link.receive()


async def test_a_peer_that_never_reads_holds_nobody_up_and_is_dropped_in_the_end(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pumped["a"], pumped["b"]
    await a.link_to(b)
    link = await stranger(pumped)
    await greet(link)
    (deaf,) = [pump for pump in a.driver.pumps.values() if pump.link.peer == "s"]
    monkeypatch.setattr(memory, "CAPACITY", 4)
    monkeypatch.setattr(memory, "SEND_DEADLINE", 0.3)
    for number in range(30):
        a.say(number)
        await eventually(lambda number=number: b.count() == number + 1)  # type: ignore[misc]
        assert len(deaf._outgoing) < 20
    await eventually(lambda: deaf.id not in a.driver.pumps)
    assert deaf.id not in a.machine.links


async def test_a_link_that_dies_while_it_is_served_leaves_nothing_behind(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = pumped["a"]
    for start in range(0, 40_000, 4_000):
        a.say(*[1] * 4_000)
        await eventually(lambda start=start: a.count() == start + 4_000)  # type: ignore[misc]
    monkeypatch.setattr(memory, "CAPACITY", 1)
    link = await stranger(pumped)
    await greet(link)
    await link.send(wire_codec.encode(Want((Position(a.feed, 0),))))
    await hear(link, Segment)
    await link.close()
    await eventually(lambda: not a.driver.pumps and not a.machine.links)
    late = await stranger(pumped, "t")
    await greet(late)
    await late.send(wire_codec.encode(Want((Position(a.feed, 0),))))
    segment: Segment = await hear(late, Segment)
    assert segment.first == 0


async def test_an_origin_with_two_histories_is_cut_everywhere_and_its_updates_are_subtracted(
    pumped: dict[str, Pumped],
) -> None:
    a, b = pumped["a"], pumped["b"]
    common, ours, theirs = [5, 6], [7, 8, 9], [70]
    for one, rest in ((a, ours), (b, theirs)):
        link = await stranger({"a": one}, f"liar to {one.transport.peer}")
        await greet(link)
        feed = feed_of("liar")
        await link.send(wire_codec.encode(Summary(False, 0, bytes(32), (Claim(feed, 0, bytes(4)),))))
        await link.send(wire_codec.encode(record(RUN, "liar", common).segment))
        await link.send(wire_codec.encode(record(RUN, "liar", rest, before=common).segment))
        await eventually(lambda one=one, rest=rest: one.count() == 2 + len(rest))  # type: ignore[misc]
        await link.close()
    await a.link_to(b)
    await eventually(lambda: all(one.machine.frontier.is_cut(feed) for one in (a, b)))
    await eventually(lambda: a.machine.frontier.digest() == b.machine.frontier.digest())
    expected = Core(2, 4)
    expected.add(batch(a.machine.frontier.state(feed).key, 0, [EpochScalars(0, tuple(common))]))
    for one in (a, b):  # to the bit as if the rest had never been said
        await eventually(lambda one=one: one.core_digest() == expected.digest())  # type: ignore[misc]
        assert verify_log(RUN, one.log).digest == one.machine.frontier.digest().hex()
        assert verify_log(RUN, one.log).core_digest == expected.digest().hex()


async def test_a_feed_that_makes_room_is_subtracted_and_stays_away_after_a_restart(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfprotocol.frontier.MAX_FEEDS", 2)
    a = pumped["a"]
    names = sorted(("eve", "joe", "sue"), key=lambda name: work(RUN.run_id, *feed_of(name)), reverse=True)
    link = await stranger(pumped, "postman")
    await greet(link)
    for name in names:  # the last one has the lowest work
        claim = Claim(feed_of(name), 0, bytes(4))
        await link.send(wire_codec.encode(Summary(False, 0, bytes(32), (claim,))))
        await link.send(wire_codec.encode(record(RUN, name, [5, 6]).segment))
    await eventually(lambda: a.log.evicted() == [feed_of(names[0])])
    await eventually(lambda: len(a.machine.frontier) == 2)
    expected = Core(2, 4)
    for name in names[1:]:
        expected.add(batch(a.machine.frontier.state(feed_of(name)).key, 0, [EpochScalars(0, (5, 6))]))
    await eventually(lambda: a.core_digest() == expected.digest())  # to the bit as if it had never come
    assert a.log.updates() == a.machine.frontier.known == 4
    again = frontier_of(RUN.parameters(), a.log)
    assert again.digest() == a.machine.frontier.digest()
    assert verify_log(RUN, a.log).digest == again.digest().hex()
    assert verify_log(RUN, a.log).core_digest == expected.digest().hex()
    monkeypatch.undo()
    with pytest.raises(UserError, match="there is room"):
        verify_log(RUN, a.log)


async def test_the_bytes_of_links_that_are_gone_are_still_counted(pumped: dict[str, Pumped]) -> None:
    a, b = pumped["a"], pumped["b"]
    link = await a.link_to(b)
    a.say(1)
    await eventually(lambda: b.count() == 1)
    await link.close()
    await eventually(lambda: not a.driver.pumps)
    assert a.driver.traffic.sent == link.bytes_sent > 200
    assert a.driver.traffic.received == link.bytes_received > 0


@pytest.mark.parametrize("ticks", range(4))
async def test_a_cancelled_driver_ends_although_an_event_arrives_as_well(
    pumped: dict[str, Pumped], ticks: int
) -> None:
    """Python 3.11's wait_for loses a cancellation that comes together with the awaited event."""
    a = pumped["a"]
    await eventually(lambda: a.driver._arrived._waiters)
    a.driver._arrived.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    a.task.cancel()
    await asyncio.wait([a.task], timeout=5)
    assert a.task.cancelled()


async def test_nobody_needs_updates_any_more_when_others_take_their_place_on_disk(
    pumped: dict[str, Pumped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one round a feed may lose steps and grow again. Only the commit shows that."""
    a = pumped["a"]
    a.say(1, 2, 3, 4)
    await eventually(lambda: a.count() == 4)
    told: list[tuple[dict[Feed, int], int]] = []
    release = asyncio.Event()

    async def retreat(stops: Mapping[Feed, int]) -> None:
        told.append((dict(stops), a.log.stop(a.feed)))
        await release.wait()

    monkeypatch.setattr(a.driver, "retreat", [retreat])
    run = replace(a.machine.run, organised=Authority(RUN.run_id, bytes(32), (), 1))
    monkeypatch.setattr(a.driver._store, "_run", run)
    others = [record(RUN, "b", [5]), record(RUN, "a", [1, 7, 8, 9], incarnation=1)]
    later = record(RUN, "a", [6, 6], before=[1], incarnation=1)
    admits = tuple(Admit(*kept, kept.segment.count) for kept in (*others, later))
    monkeypatch.setattr(a.driver._host, "decide", lambda *_, **__: Commit(admits))
    monkeypatch.setattr(a.driver._host, "carry_out", list)
    a.log.waiting.clear()
    a.driver._arrived.set()
    await eventually(lambda: told)
    assert told == [({a.feed: 0}, 4)]
    assert not a.log.waiting.is_set()
    monkeypatch.setattr(a.driver._host, "decide", lambda *_, **__: None)
    release.set()
    await eventually(lambda: a.log.stop(a.feed) == 3)
