"""The road of a node: restarted when it breaks, tried again for ever, and looked beyond from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from runtime_helpers import PATIENCE, eventually
from runtime_town import FragileTransport, Town, reachable

from sfnode.runtime import book, links, road, selection
from sfnode.runtime.selection import MAX_INBOUND, MAX_LINKS, TARGET_LINKS
from sfnode.transport.base import Link, TransportError
from sfprotocol import codec
from sfprotocol.messages import Goodbye


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    made = Town(tmp_path)
    yield made
    for relay in made.relays.values():
        await relay.end()


# -- health ------------------------------------------------------------------------------------------


async def test_a_dead_transport_is_restarted_until_it_lives_and_links_come_back(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"])
    a.transport.restarts_to_fail = 2
    await a.transport.die()
    await eventually(lambda: a.road.restarts == 1)
    assert a.transport.restarts_to_fail == 0
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])


@pytest.mark.parametrize("name", ["announce", "find", "bootstrap", "connect"])
async def test_a_death_is_noticed_at_once_whatever_else_is_waited_for(town: Town, name: str) -> None:
    a = await town.add("a", "b", begin=False)
    waiting = asyncio.Event()

    async def hang(*_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    setattr(a.transport, name, hang)
    a.begin()
    async with asyncio.timeout(PATIENCE):
        await waiting.wait()
    await a.transport.die()
    await eventually(lambda: a.road.restarts == 1)


async def test_a_daemon_that_dies_as_soon_as_it_runs_is_not_restarted_without_a_pause(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road, "RESTART_SPACING", 0.2)
    a = await town.add("a")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(1, 4):
        await a.transport.die()
        await eventually(lambda number=number: a.road.restarts == number)  # type: ignore[misc]
    assert loop.time() - began >= 2 * 0.2


async def test_what_was_unreachable_before_a_restart_is_tried_at_once_after_it(town: Town) -> None:
    a = await town.add("a", "b")
    await eventually(lambda: a.book._entries["b"].failures)
    a.book._entries["b"].not_before = 1e9
    await town.add("b", begin=False)
    await a.transport.die()
    await eventually(lambda: "b" in a.neighbours.linked)


# -- for ever ----------------------------------------------------------------------------------------


async def test_a_peer_that_was_given_and_comes_up_late_is_met(town: Town) -> None:
    a = await town.add("a", "late")
    await eventually(lambda: len(a.transport.knocks) > 2)
    late = await town.add("late")
    await eventually(lambda: a.peers == ["late"] and late.peers == ["a"])


async def test_a_peer_that_was_given_and_comes_up_late_is_met_by_a_node_that_has_links_enough(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no roster that this node sees: it stands in a part of the network of its own."""
    monkeypatch.setattr(book, "KNOCK_FIRST", 0.1)
    crowd = [f"c{number}" for number in range(TARGET_LINKS + 1)]
    for name in crowd:
        await town.add(name, crowd[0])
    a = await town.add("a", crowd[0], "late")
    await eventually(lambda: len(a.peers) >= TARGET_LINKS and a.book._entries["late"].silences)
    late = await town.add("late")
    await eventually(lambda: "a" in late.peers)
    assert len(a.peers) <= MAX_LINKS


async def test_neighbours_are_not_knocked_at(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])
    knocks = len(b.transport.knocks)
    for _ in range(3):
        await b.road._knock()
    assert len(b.transport.knocks) == knocks


async def test_a_swarm_so_small_that_all_are_neighbours_is_searched_less_and_less(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are fewer nodes than a node wants links."""
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])
    await eventually(lambda: a.road._find_interval() >= 8 * road.LONELY_INTERVAL)
    assert a.neighbours.wanting
    await town.add("c", "b")
    await eventually(lambda: "c" in a.peers)


async def test_a_node_that_is_to_be_away_asks_nobody_until_it_may_come_back(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"])
    b.neighbours.stay_away(True)
    await eventually(lambda: a.peers == [])
    said: list[str] = []
    for name in ("announce", "find", "bootstrap", "connect"):
        calls = getattr(b.transport, name)

        async def spoken(*question: object, name: str = name, calls: Any = calls) -> Any:
            said.append(name)
            return await calls(*question)

        setattr(b.transport, name, spoken)
    await asyncio.sleep(10 * road.LONELY_INTERVAL)  # nothing happens, and there is nothing to wait for
    assert said == []
    b.neighbours.stay_away(False)
    await eventually(lambda: b.peers == ["a"])
    assert said


# -- beyond one's neighbours ---------------------------------------------------------------------------


async def test_two_halves_with_links_enough_each_grow_together_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road, "PROBE_INTERVAL", 0.3)
    monkeypatch.setattr(road, "FIND_INTERVAL", 0.1)
    halves = [[f"{half}{number}" for number in range(TARGET_LINKS + 1)] for half in "xy"]
    town.network.partition(*halves)
    for names in halves:
        for name in names:
            await town.add(name, names[0])
    relays = list(town.relays.values())
    await eventually(lambda: all(len(relay.peers) >= TARGET_LINKS for relay in relays))
    assert reachable(town, "x0") == set(halves[0])
    town.network.heal()
    await eventually(lambda: reachable(town, "x0") == {*halves[0], *halves[1]})


async def test_links_rotate_and_never_exceed_the_most(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SETTLE_TIME", 0.1)
    names = [f"n{number:02}" for number in range(16)]
    for name in names:
        await town.add(name, names[0])
    relays = list(town.relays.values())
    await eventually(lambda: all(len(relay.peers) >= TARGET_LINKS for relay in relays))
    a, seen = relays[-1], set(relays[-1].peers)
    for _ in range(5):
        a.neighbours.rotate()
        await eventually(lambda: not a.neighbours._dialling)
        assert len(a.neighbours.linked) <= MAX_LINKS
        seen |= set(a.neighbours.linked)
    assert len(seen) > TARGET_LINKS


# -- peers that are no use -----------------------------------------------------------------------------


async def test_a_peer_that_accepts_a_link_and_says_nothing_is_given_up_and_left_alone(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FIRST_WORD_DEADLINE", 0.1)
    monkeypatch.setattr(book, "BACKOFF_FIRST", 60.0)
    silent = FragileTransport(town.network, "silent")
    await silent.start()
    taken: asyncio.Queue[Link] = asyncio.Queue()
    silent.on_link(taken.put)
    a = await town.add("a", "silent")
    link = await taken.get()
    await eventually(lambda: "silent" not in a.neighbours.linked)
    assert await ended(link)
    assert a.book.candidates(now()) == []


async def test_a_peer_that_broke_a_rule_gets_no_link_in_either_direction(town: Town) -> None:
    a, bad = await town.add("a"), await town.add("bad", begin=False)
    town.write("bad")
    bad.transport.on_link(asyncio.Queue[Link]().put)
    link = await town.dial("bad", "a")
    await link.receive()
    await link.send(b"\xff")
    await eventually(lambda: a.book.refused("bad", now()))
    await eventually(lambda: "bad" not in a.neighbours.linked)
    again = await town.dial("bad", "a")
    with pytest.raises(TransportError):
        await asyncio.wait_for(again.receive(), PATIENCE)
    dials = a.transport.dials
    a.neighbours.meet("bad")
    await eventually(lambda: "bad" in a.book._entries)
    a.neighbours.stir()
    await asyncio.sleep(0)
    assert a.transport.dials == dials


async def test_a_newcomer_at_a_full_node_takes_the_place_of_one_that_brings_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SETTLE_TIME", 0.0)
    a = await town.add("a")
    opened: dict[str, Link] = {}
    for number in range(MAX_INBOUND):
        name = f"p{number}"
        await town.add(name, begin=False)
        opened[name] = await town.dial(name, "a")
        await eventually(lambda name=name: name in a.neighbours.linked)  # type: ignore[misc]
    useful = a.neighbours._links["p7"]
    useful.useful = 5.0
    await town.add("new", begin=False)
    link = await town.dial("new", "a")
    assert await link.receive()
    kept = set(a.neighbours.linked)
    assert {"new", "p0", "p1", "p2", "p7"} <= kept
    (gone,) = opened.keys() - kept
    assert await ended(opened[gone])


async def ended(link: Link) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            while not isinstance(codec.decode(await link.receive()), Goodbye):
                pass
    except TransportError:
        pass
    return True


async def test_what_the_machine_counts_for_a_link_is_taken_over_and_fades(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])
    (link,) = a.driver.machine.links.values()
    link.useful = 8
    (standing,) = a.neighbours.standings()
    assert standing.useful == pytest.approx(8.0)
    a.neighbours._links["b"].counted_at -= selection.HALF_LIFE
    (standing,) = a.neighbours.standings()
    assert standing.useful == pytest.approx(4.0, rel=0.01)


def now() -> float:
    return asyncio.get_running_loop().time()
