"""Which neighbours a node keeps, and how it finds new ones when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from runtime_helpers import PATIENCE, eventually
from runtime_town import TOPIC, FragileTransport, Relay, Town, address, reachable

from sfnode.errors import Code, UserError
from sfnode.runtime import book, links, road
from sfnode.runtime.book import AddressBook
from sfnode.runtime.selection import MAX_INBOUND, MAX_LINKS, TARGET_LINKS, WANTED_OUTBOUND
from sfnode.transport.base import Link, TransportError


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    made = Town(tmp_path)
    yield made
    for relay in made.relays.values():
        await relay.end()


async def rounds(relay: Relay[FragileTransport], count: int = 5) -> None:
    """Let it look after its links a few more times."""
    keep_book = relay.neighbours._keep_book
    looks = asyncio.Semaphore(0)

    def observed() -> None:
        keep_book()
        looks.release()

    relay.neighbours._keep_book = observed  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE):
        for _ in range(count):
            await looks.acquire()
    relay.neighbours._keep_book = keep_book  # type: ignore[method-assign]


# -- one link a peer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["a", "b"])
async def test_two_nodes_that_dial_each_other_at_once_end_with_one_link(town: Town, first: str) -> None:
    order = [first, "b" if first == "a" else "a"]
    for name, other in zip(order, reversed(order), strict=True):
        await town.add(name, other, begin=False)
    for name in order:
        town.relays[name].begin()
    a, b = town.relays["a"], town.relays["b"]
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])
    await rounds(a)
    assert (a.peers, b.peers) == (["b"], ["a"])
    (link,) = a.neighbours._links.values()
    (mirror,) = b.neighbours._links.values()
    assert link.link.outbound != mirror.link.outbound


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_of_two_links_opened_at_once_both_sides_keep_the_one_of_the_smaller_id(
    town: Town, names: str, ours_first: bool
) -> None:
    """Driven by hand: `names[0]` is the node that is looked at, in both orders of arrival."""
    here, there = await town.add(*names, begin=False), await town.add(names[1], begin=False)
    here.tasks = [asyncio.create_task(here.driver.run())]
    from_there: asyncio.Queue[Link] = asyncio.Queue()
    here.transport.on_link(from_there.put)
    there.transport.on_link(asyncio.Queue[Link]().put)
    ours, theirs = await town.dial(here.name, there.name), await town.dial(there.name, here.name)
    arrived = await from_there.get()
    assert theirs.outbound
    for link in (ours, arrived) if ours_first else (arrived, ours):
        here.tasks.append(asyncio.create_task(here.neighbours.carry(link)))
    keeps_ours = here.name < there.name
    await eventually(lambda: (arrived if keeps_ours else ours).closed)  # type: ignore[attr-defined]
    kept = ours if keeps_ours else arrived
    assert here.neighbours._links[there.name].link is kept
    assert not kept.closed  # type: ignore[attr-defined]
    assert here.neighbours.standings()[0].outbound  # we chose this peer all the same
    assert here.book.candidates(asyncio.get_running_loop().time()) == [there.name]  # and it did nothing wrong


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_peer_that_comes_back_replaces_the_link_that_its_death_left(town: Town, names: str) -> None:
    """It was killed, its machine vanished, and our side of the old link still looks alive."""
    here = await town.add(names[0])
    await town.add(names[1], begin=False)
    swallowed: list[Link] = []

    async def swallow(link: Link) -> None:
        swallowed.append(link)

    town.relays[names[1]].transport.on_link(swallow)
    for _ in range(2):
        await town.dial(names[1], names[0])
        await eventually(lambda: names[1] in here.neighbours._links)
    old = here.neighbours._links[names[1]]
    await town.dial(names[1], names[0])
    await eventually(lambda: here.neighbours._links[names[1]] is not old)
    await eventually(lambda: len(here.driver.pumps) == 1)


async def test_an_old_link_of_our_own_gives_way_to_a_peer_that_comes_back(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await town.add("a", "b"), await town.add("b", begin=False)
    b.transport.on_link(asyncio.Queue[Link]().put)
    await eventually(lambda: "b" in a.neighbours._links)
    old = a.neighbours._links["b"]
    assert old.link.outbound
    await town.dial("b", "a")
    await rounds(a)
    assert a.neighbours._links["b"] is old  # might be a race, which the smaller id wins
    monkeypatch.setattr(links, "RACE_WINDOW", 0.0)
    await town.dial("b", "a")
    await eventually(lambda: not a.neighbours._links["b"].link.outbound)
    assert a.neighbours.standings()[0].outbound  # we chose this peer, whoever opened the present link


async def test_more_than_the_most_inbound_links_are_refused(town: Town) -> None:
    a = await town.add("a")
    for number in range(MAX_INBOUND + 3):
        name = f"p{number:02}"
        await town.add(name, begin=False)
        link = await town.dial(name, "a")
        if number >= MAX_INBOUND:
            with pytest.raises(TransportError):
                await asyncio.wait_for(link.receive(), 5)
    assert len(a.neighbours._links) == MAX_INBOUND
    again = await town.dial("p00", "a")
    assert await again.receive()  # a Hello: it replaces its own link, for which there is room


async def test_a_node_that_leaves_takes_no_more_links_and_opens_none(town: Town) -> None:
    a = await town.add("a")
    await town.add("b", begin=False)
    a.neighbours.leave()
    link = await town.dial("b", "a")
    with pytest.raises(TransportError):
        await asyncio.wait_for(link.receive(), 5)
    town.write("b")
    await rounds(a)
    assert a.transport.dials == 0


# -- finding them ------------------------------------------------------------------------------------


async def test_twenty_nodes_form_one_graph_with_four_to_twelve_links_each(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road, "PROBE_INTERVAL", 1e6)  # a probe is one link more than wanted, for a while
    names = [f"n{number:02}" for number in range(20)]
    await town.add(names[0])
    for name in names[1:]:
        await town.add(name, names[0])
    relays = list(town.relays.values())
    await eventually(lambda: all(len(relay.peers) >= TARGET_LINKS for relay in relays))
    await eventually(lambda: all(outbound(relay) >= WANTED_OUTBOUND for relay in relays))
    await rounds(relays[-1])
    for relay in relays:
        assert 4 <= len(relay.peers) <= MAX_LINKS
        assert len(set(relay.peers)) == len(relay.peers)
        assert outbound(relay) <= TARGET_LINKS
    assert len(reachable(town, names[0])) == 20


def outbound(relay: Relay[FragileTransport]) -> int:
    """Links that the node has chosen itself."""
    return sum(standing.outbound for standing in relay.neighbours.standings())


async def test_four_nodes_link_with_all_others(town: Town) -> None:
    await town.add("a")
    for name in "bcd":
        await town.add(name, "a")
    await eventually(lambda: all(len(relay.peers) == 3 for relay in town.relays.values()))


async def test_neighbours_that_vanish_are_replaced(town: Town) -> None:
    for name in "abcdefghij":
        await town.add(name, *([] if name == "a" else ["a"]))
    j = town.relays["j"]
    await eventually(lambda: len(j.peers) >= TARGET_LINKS)
    gone = j.peers[:3]
    for name in gone:
        await town.relays.pop(name).end()
    await eventually(lambda: not set(gone) & set(j.peers) and len(j.peers) >= TARGET_LINKS)


async def test_a_node_that_is_cut_off_comes_back_by_itself(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "BACKOFF_FIRST", 0.05)
    monkeypatch.setattr(book, "BACKOFF_MOST", 0.2)
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: b.peers == ["a"] and a.peers == ["b"])
    town.network.partition("a", "b")
    for link in [standing.link for standing in b.neighbours._links.values()]:
        await link.close()
    await eventually(lambda: not a.neighbours._links and not b.neighbours._links)
    knocked = len(b.transport.knocks)
    await eventually(lambda: len(b.transport.knocks) > knocked)
    assert b.peers == []
    town.network.heal()
    await eventually(lambda: b.peers == ["a"] and a.peers == ["b"])


async def test_a_peer_that_hangs_up_at_once_is_not_dialled_again_and_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "BACKOFF_FIRST", 60.0)
    a = await town.add("a", "b")
    full = FragileTransport(town.network, "b")
    await full.start()

    async def refuse(link: Link) -> None:
        await link.close()

    full.on_link(refuse)
    await eventually(lambda: a.transport.dials)
    await rounds(a, 5)
    assert a.transport.dials == 1
    assert a.book.candidates(asyncio.get_running_loop().time()) == []


# -- a hostile roster ----------------------------------------------------------------------------------


async def test_a_roster_full_of_garbage_does_no_harm(town: Town) -> None:
    await town.add("a")
    await town.add("b", "a")
    for number in range(600):
        name = f"x{number:03}"
        ways = [f"/nowhere/{number} /p2p/{name}", f"/p2p/{name}", f"/dead/p2p/{name}"]
        town.network.write(TOPIC, name, 1e9, [name, ways, 0, 0])
    town.network.write(TOPIC, "odd", 1e9, {"not": "a record"})
    late = await town.add("z", "b")
    await eventually(lambda: "b" in late.peers)
    await rounds(late, 5)
    assert len(late.book) <= book.MAX_BOOK + 8
    assert late.remembered is not None
    AddressBook("z", late.remembered, (), Random(0))  # all of it can be read again
    for relay in town.relays.values():
        assert not any(task.done() for task in relay.tasks)


async def test_an_address_that_only_looks_like_one_does_not_end_a_lonely_node(town: Town) -> None:
    """The transport refuses it as a user's mistake, which a record in the roster is not."""
    a = await town.add("a", begin=False)
    town.write("dead")

    async def refuse(addresses: object) -> int:
        raise UserError(Code.BAD_ADDRESS, "not an address", "")

    a.transport.bootstrap = refuse  # type: ignore[method-assign]
    a.begin()
    await rounds(a, 4)
    assert not any(task.done() for task in a.tasks)


# -- remembering -------------------------------------------------------------------------------------


async def test_a_node_that_has_met_a_peer_remembers_it_before_the_first_frame(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    met: list[bool] = []
    carry = b.driver.carry

    async def observed(link: Link) -> None:
        met.append(b.remembered == [address("a")])
        await carry(link)

    b.driver.carry = observed  # type: ignore[method-assign]
    await eventually(lambda: b.peers == ["a"])
    assert met == [True]
    await eventually(lambda: a.remembered == [address("b")])  # found in the roster since


async def test_a_node_that_others_found_remembers_at_least_that(town: Town) -> None:
    a = await town.add("a", begin=False)
    a.tasks = [asyncio.create_task(a.driver.run())]
    await town.add("b", begin=False)
    await town.dial("b", "a")
    await eventually(lambda: a.remembered == [])
