"""The peer manager in the daemon: its actions over an event loop, a transport and a driver.

Decisions are tested in `tests.peers.test_manager`, in virtual time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node import disk_wait, readiness
from sfnode.organising import organiser
from sfnode.peers import address_book, manager
from sfnode.peers.link_slots import MAX_LINKS, TARGET_LINKS, WANTED_OUTBOUND
from sfnode.schema.node_state import NodeState, Wait
from sfnode.transport.base import Link, PeerRecord, TransportError
from sfnode.transport.libp2p import health
from sfnode.transport.roster import pack_record
from tests.node.helpers import PATIENCE, Node, Swarm, eventually, manifest, organised
from tests.node.town import TOPIC, FragileTransport, Relay, Town, address, reachable
from tests.peers.inn import PlainPeer
from tests.transport.helpers import read_all


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    made = Town(tmp_path)
    yield made
    await asyncio.gather(*(relay.end() for relay in made.relays.values()))


async def rounds(relay: Relay[FragileTransport], count: int = 5) -> None:
    """Wait until the node has checked its links `count` more times."""
    for _ in range(count):
        before = relay.peering.manager._checked_at
        await eventually(lambda before=before: relay.peering.manager._checked_at > before)  # type: ignore[misc]


async def test_relays_are_neighbours_that_say_so_and_those_of_the_roster(town: Town) -> None:
    town.write("trainer")
    town.network.write(TOPIC, "far", 1e9, ["far", [address("far")], 1, 0])
    here = await town.add("a")
    await town.add("b", "a")
    await eventually(lambda: here.peering.relays() == [address("b"), address("far")])


# -- one link a peer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_peer_that_comes_back_replaces_the_link_that_its_death_left(town: Town, names: str) -> None:
    """The machine of the peer vanished, so our end of the old link still looks alive."""
    here = await town.add(names[0])
    await town.add(names[1], begin=False)
    swallowed: list[Link] = []

    async def swallow(link: Link) -> None:
        swallowed.append(link)

    town.relays[names[1]].transport.on_link(swallow)
    for _ in range(2):
        await town.dial(names[1], names[0])
        await eventually(lambda: names[1] in here.linked)
    old = here.peering.manager._neighbours[names[1]]
    await town.dial(names[1], names[0])
    await eventually(lambda: here.peering.manager._neighbours[names[1]] is not old)
    await eventually(lambda: len(here.driver.pumps) == 1)


async def test_a_node_that_leaves_takes_no_more_links_and_opens_none_whatever_its_owner_wishes(
    town: Town,
) -> None:
    a = await town.add("a")
    await town.add("b", begin=False)
    a.peering.leave()
    a.peering.stay_away(False)
    link = await town.dial("b", "a")
    with pytest.raises(TransportError):
        await asyncio.wait_for(link.receive(), 5)
    town.write("b")
    await asyncio.sleep(5 * manager.LONELY_INTERVAL)  # nothing happens, and there is nothing to wait for
    assert a.transport.dials == 0


# -- finding them ------------------------------------------------------------------------------------


async def test_twenty_nodes_form_one_graph_with_four_to_twelve_links_each(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PROBE_INTERVAL", 1e6)  # a probe is one link more than wanted, for a while
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
    """Return the number of links of the node's own choice."""
    return sum(standing.outbound for standing in relay.peering.manager.standings())


async def test_a_node_that_is_cut_off_comes_back_by_itself(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_book, "BACKOFF_FIRST", 0.05)
    monkeypatch.setattr(address_book, "BACKOFF_MOST", 0.2)
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: b.peers == ["a"] and a.peers == ["b"])
    town.network.partition("a", "b")
    for link in list(b.peering._links.values()):
        await link.close()
    await eventually(lambda: not a.linked and not b.linked)
    before = len(b.transport.bootstraps)
    await eventually(lambda: len(b.transport.bootstraps) > before)
    assert b.peers == []
    town.network.heal()
    await eventually(lambda: b.peers == ["a"] and a.peers == ["b"])


# -- a hostile roster ----------------------------------------------------------------------------------


async def test_an_address_that_only_looks_like_one_does_not_end_a_lonely_node(town: Town) -> None:
    """The transport raises UserError for it, although it comes from the roster and not from the user."""
    a = await town.add("a", begin=False)
    town.write("dead")

    async def refuse(addresses: object) -> int:
        raise UserError(Code.BAD_ADDRESS, "not an address", "")

    a.transport.bootstrap = refuse  # type: ignore[method-assign]
    a.begin()
    await rounds(a, 4)
    assert not any(task.done() for task in a.tasks)


# -- remembering -------------------------------------------------------------------------------------


async def test_that_a_peer_was_met_is_durable_before_the_first_frame_and_written_off_the_loop(
    town: Town,
) -> None:
    a, b = await town.add("a", begin=False), await town.add("b", "a", begin=False)
    order: list[object] = []
    release = threading.Event()
    threads: set[int] = set()
    carry, remember = b.driver.carry, b.peering._remember

    def slowly(addresses: list[str]) -> None:
        threads.add(threading.get_ident())
        assert release.wait(PATIENCE)
        remember(addresses)
        order.append(tuple(addresses))

    async def observed(link: Link) -> None:
        order.append("carried")
        await carry(link)

    b.peering._remember = slowly
    b.driver.carry = observed  # type: ignore[method-assign]
    a.begin()
    b.begin()
    await eventually(lambda: threads and b.linked == ["a"])
    await asyncio.sleep(0.05)  # the loop goes on
    assert (order, b.peers, a.peers) == ([], [], [])
    release.set()
    await eventually(lambda: b.peers == ["a"])
    assert order[:2] == [(address("a"),), "carried"]
    assert threading.get_ident() not in threads
    assert len(threads) == 1
    await eventually(lambda: a.remembered == [address("b")])  # found in the roster since


async def test_address_books_are_written_in_the_order_in_which_they_were_to_be(town: Town) -> None:
    a = await town.add("a", begin=False)
    written: list[list[str]] = []
    a.peering._remember = written.append
    wanted = [(address(f"p{number}"),) for number in range(50)]
    for addresses in wanted:
        a.peering._write(addresses)
    assert await a.peering._until_written()
    assert written == sorted(written, key=lambda book: int(book[0].rpartition("p")[2]))
    assert written[-1] == list(wanted[-1])


async def test_a_write_that_begins_while_a_link_waits_for_another_does_not_end_that_link(town: Town) -> None:
    a = await town.add("a", begin=False)
    books: list[list[str]] = []
    a.peering._remember = books.append
    a.peering._write((address("b"),))
    first = a.peering._written
    first.add_done_callback(lambda _: a.peering._write((address("c"),)))
    assert await a.peering._until_written()
    assert a.peering._written is not first
    assert await a.peering._until_written()
    assert books == [[address("b")], [address("c")]]


async def test_a_book_that_finds_no_room_carries_no_link_before_there_is_some(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", 0.01)
    a, b = await town.add("a", begin=False), await town.add("b", "a", begin=False)
    room = threading.Event()

    def remember(addresses: list[str]) -> None:
        if not room.is_set():
            raise UserError(Code.DISK_FULL, "no space left", "")

    b.peering._remember = remember
    a.begin()
    b.begin()
    await eventually(lambda: b.driver.disk.problem)
    await asyncio.sleep(0.1)
    assert not b.driver.pumps
    room.set()
    await eventually(lambda: b.peers == ["a"])


async def test_a_book_that_cannot_be_written_ends_the_node_and_carries_no_link(town: Town) -> None:
    a, b = await town.add("a", begin=False), await town.add("b", "a", begin=False)

    def refuse(addresses: list[str]) -> None:
        raise UserError(Code.DATA_DIR_UNUSABLE, "no space left", "")

    b.peering._remember = refuse
    a.begin()
    running = asyncio.create_task(b.peering.run())
    with pytest.raises(UserError, match="no space left"):
        await asyncio.wait_for(running, PATIENCE)
    assert not b.driver.pumps


# -- health ------------------------------------------------------------------------------------------


async def test_a_dead_transport_is_restarted_until_it_lives_and_links_come_back(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"])
    a.transport.restarts_to_fail = 2
    await a.transport.die()
    await eventually(lambda: a.peering.restarts == 1)
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
    await eventually(lambda: a.peering.restarts == 1)


async def test_a_daemon_that_dies_as_soon_as_it_runs_is_not_restarted_without_a_pause(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "RESTART_SPACING", 0.2)
    a = await town.add("a")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(1, 4):
        await a.transport.die()
        await eventually(lambda number=number: a.peering.restarts == number)  # type: ignore[misc]
    assert loop.time() - began >= 2 * 0.2


# -- for ever ----------------------------------------------------------------------------------------


async def test_a_peer_that_was_given_and_comes_up_late_is_met(town: Town) -> None:
    a = await town.add("a", "late")
    await eventually(lambda: len(a.transport.bootstraps) > 2)
    late = await town.add("late")
    await eventually(lambda: a.peers == ["late"] and late.peers == ["a"])


async def test_a_node_that_is_to_be_away_asks_nobody_until_it_may_come_back(town: Town) -> None:
    a = await town.add("a")
    assert a.peering.deserted
    b = await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"])
    assert not a.peering.deserted
    b.peering.stay_away(True)
    await eventually(lambda: a.peers == [] and a.peering.deserted)
    assert not b.peering.deserted, "b's owner wants no links"
    asked = b.transport.dials, len(b.transport.bootstraps)
    await asyncio.sleep(10 * manager.LONELY_INTERVAL)  # nothing happens, and there is nothing to wait for
    assert (b.transport.dials, len(b.transport.bootstraps)) == asked
    b.peering.stay_away(False)
    await eventually(lambda: b.peers == ["a"])


# -- beyond one's neighbours ---------------------------------------------------------------------------


async def test_two_halves_with_links_enough_each_grow_together_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PROBE_INTERVAL", 0.3)
    monkeypatch.setattr(manager, "FIND_INTERVAL", 0.1)
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


# -- peers that are no use -----------------------------------------------------------------------------


async def test_a_peer_that_accepts_a_link_and_says_nothing_is_given_up_and_left_alone(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "FIRST_WORD_DEADLINE", 0.1)
    monkeypatch.setattr(address_book, "BACKOFF_FIRST", 60.0)
    silent = FragileTransport(town.network, "silent")
    await silent.start()
    taken: asyncio.Queue[Link] = asyncio.Queue()
    silent.on_link(taken.put)
    a = await town.add("a", "silent")
    link = await taken.get()
    await eventually(lambda: "silent" not in a.linked)
    async with asyncio.timeout(PATIENCE):
        await read_all(link)
    assert a.book.candidates(now()) == []


async def test_what_the_machine_counts_for_a_link_is_taken_over(town: Town) -> None:
    a, b = await town.add("a"), await town.add("b", "a")
    await eventually(lambda: a.peers == ["b"] and b.peers == ["a"])
    (link,) = a.driver.machine.links.values()
    link.inbox.useful = 8
    await rounds(a, 1)
    (standing,) = a.peering.manager.standings()
    assert standing.useful == pytest.approx(8.0, rel=0.01)


def now() -> float:
    return asyncio.get_running_loop().time()


# -- peers of Hivemind's DHT --------------------------------------------------------------------


PLAIN = "/memory/plain/p2p/plain"
ALONE = 0.4
"""Seconds that replace BEGIN_ALONE."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "BEGIN_ALONE", ALONE)
    monkeypatch.setattr(organiser, "FIRST_TIME", 0.1)


Beside = Callable[..., Awaitable[Swarm]]


@pytest.fixture
def beside(swarm_of: Callable[..., Swarm]) -> Beside:
    """`await beside(run)`: a swarm of that run in a network with a plain peer."""

    async def start(run: Manifest | None = None, clock: float = 0.0) -> Swarm:
        swarm = swarm_of(run or manifest())
        await PlainPeer(swarm.network, "plain", clock).start()
        return swarm

    return start


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def waits(node: Node) -> str | None:
    """Return the text of the node's wait for other nodes."""
    status = node.node.status()
    return status.wait.text if status.wait and status.wait.reason is Wait.NODES else None


def trains(node: Node) -> bool:
    return node.known > 0


async def test_the_organiser_begins_alone_after_a_stated_time_and_others_find_it(
    beside: Beside, keys: Path
) -> None:
    swarm = await beside(organised(manifest(), keys))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await a.until(lambda: waits(a))
    assert f"it begins the run, {ALONE} s after its start" in str(waits(a))
    await a.until(lambda: trains(a))
    assert waits(a) is None
    b = await swarm.node("b").start(run_id=swarm.run.run_id.hex(), peers=(PLAIN,))
    await b.until(lambda: trains(b))
    assert b.node.manifest == swarm.run


async def test_others_wait_for_the_organiser_and_say_so(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys))
    b = await swarm.first("b", peers=(PLAIN,))
    await b.until(lambda: waits(b))
    await b.until(lambda: b.node.status().state is NodeState.WAITING)
    await asyncio.sleep(2 * ALONE)
    assert waits(b) == "it waits for a node of the run in the DHT of these peers: none is named yet"
    assert not trains(b)
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await b.until(lambda: trains(b))
    assert (waits(a), waits(b)) == (None, None)


async def test_an_open_run_begins_with_whoever_is_there(beside: Beside) -> None:
    swarm = await beside()
    a = await swarm.first(peers=(PLAIN,))
    await a.until(lambda: trains(a))


@pytest.mark.parametrize("why", ["others are named", "the clock is wrong"])
async def test_nobody_begins_a_run_that_others_may_have(beside: Beside, why: str) -> None:
    """An organiser that lost its folder would sign a second history, which freezes the run."""
    swarm = await beside(clock=3_600.0 if why == "the clock is wrong" else 0.0)
    if why == "others are named":
        record = PeerRecord("gone", ("/memory/gone/p2p/gone",), 0, 0)
        swarm.network.write(swarm.run.run_id, "gone", float("inf"), pack_record(record))
    a = await swarm.first(peers=(PLAIN,))
    await a.node.clock_check.compare()
    await asyncio.sleep(2 * ALONE)
    assert not trains(a)
    if why == "others are named":
        assert str(waits(a)).startswith("it waits for an answer of the nodes in the DHT of these peers: 1")
        assert "it does not begin the run while others are named" in str(waits(a))


async def test_its_owner_has_the_organiser_begin_all_the_same(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys))
    record = PeerRecord("gone", ("/memory/gone/p2p/gone",), 0, 0)
    swarm.network.write(swarm.run.run_id, "gone", float("inf"), pack_record(record))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys, alone=True)
    await a.until(lambda: trains(a))


async def test_a_private_run_is_put_into_no_dht_and_says_what_it_needs(beside: Beside, keys: Path) -> None:
    swarm = await beside(organised(manifest(), keys, private=True))
    a = await swarm.first(peers=(PLAIN,), organise=True, keys_dir=keys)
    await a.until(lambda: waits(a))
    await asyncio.sleep(2 * ALONE)
    assert "private run, which is in no DHT: name one with --peers" in str(waits(a))
    assert "after its start" not in str(waits(a))
    assert swarm.network.read(swarm.run.run_id, "plain", 0.0) == []
    assert not trains(a)


async def test_a_plain_peer_is_asked_for_no_part_of_a_model(beside: Beside) -> None:
    swarm = await beside()
    a = await swarm.first(peers=(PLAIN,), role="relay")
    await a.until(lambda: waits(a))
    b = await swarm.node("b").start(peers=(PLAIN, a.address))
    await b.until(lambda: trains(b))
    await a.until(lambda: a.node.peering.sources() == [b.address])
