"""Open runs: work of feeds (SPEC S7), the limit of 65,536 feeds (S8), and the quota of a feed (U6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol import frontier as frontier_module
from sfprotocol import signing
from sfprotocol.events import Action, Cut, Evict, OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, Position
from sfprotocol.own_feed import fresh
from tests.protocol.feeds import RUN, forked, origin_of, signed
from tests.protocol.scripted import ANN, NEW_INCARNATION, Scripted, admits, continued, drops, said, wants
from tests.protocol.swarm import Swarm

ROOM = 3
NAMES = ("bob", "eve", "joe", "sue", "tim")


def work(feed: Feed) -> int:
    return signing.work(RUN.run_id, *feed)


def feed_of(name: str) -> Feed:
    return Feed(origin_of(name), 1)


BY_WORK = sorted(NAMES, key=lambda name: work(feed_of(name)))
"""The names by ascending work of their feeds. There is always room for the first ones."""


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_module, "MAX_FEEDS", ROOM)


def evictions(actions: list[Action]) -> list[tuple[Feed, int]]:
    return [(action.feed, action.stop) for action in actions if isinstance(action, Evict)]


def hearing(*names: str, host: Scripted | None = None) -> tuple[Scripted, list[Action]]:
    """Return a relay that hears two updates of each of these origins in turn, and its actions."""
    host = host or Scripted()
    actions = [] if host.machine.links else host.link(1)
    for name in names:
        actions += host.name(1, feed_of(name))
        actions += host.hear(1, said(name, 0, 2))
    return host, actions


def without_room() -> Feed:
    """Return a feed of ann for which the first feeds by work leave no room."""
    feeds = (Feed(origin_of("ann"), number) for number in range(1000))
    return next(feed for feed in feeds if work(feed) > work(feed_of(BY_WORK[ROOM - 1])))


# -- room (S8) ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("little_room")
def test_all_orders_of_arrival_end_with_the_same_feeds_and_the_same_digest() -> None:
    # They used to end with those that came first, so that honest nodes differed for good.
    ends = {hearing(*order)[0].machine.frontier.digest() for order in permutations(NAMES)}
    assert len(ends) == 1
    host, _ = hearing(*NAMES)
    assert [state.feed for state in host.machine.frontier] == sorted(map(feed_of, BY_WORK[:ROOM]))
    assert host.machine.frontier.known == 2 * ROOM


@pytest.mark.usefixtures("little_room")
def test_a_proof_is_as_good_as_an_update_and_both_are_forgotten_together() -> None:
    ends = set()
    for order in permutations(NAMES):
        host = Scripted()
        host.link(1)
        for name in order:
            host.name(1, feed_of(name))
            host.hear(1, forked(name) if name in ("eve", "sue") else said(name, 0, 2))
        ends.add(host.machine.frontier.digest())
    assert len(ends) == 1


@pytest.mark.usefixtures("little_room")
def test_what_makes_room_is_told_with_all_that_counted_and_never_comes_back() -> None:
    host, actions = hearing(*BY_WORK[::-1])
    last, middle = BY_WORK[-1], BY_WORK[-2]
    assert evictions(actions) == [(feed_of(last), 2), (feed_of(middle), 2)]
    digest = host.machine.frontier.digest()
    host.link(2, Position(feed_of(last), 2), Position(feed_of(middle), 9))
    later = [*host.hear(2, said(last, 0, 2), said(middle, 2, 3), forked(last)), *host.wait(5.0)]
    assert not admits(later)
    assert not wants(later)
    assert not [action for action in later if isinstance(action, Cut | Evict)]
    assert host.machine.frontier.digest() == digest
    assert host.machine.lacking == 0


@pytest.mark.usefixtures("little_room")
def test_what_a_full_run_excludes_costs_no_signature() -> None:
    checked: list[Feed] = []
    host = Scripted()
    host.link(1)
    host.name(1, feed_of(BY_WORK[-1]))  # while there is room
    hearing(*BY_WORK[:ROOM], host=host)
    host.machine._verify = lambda run_id, feed, stop, chain, signature: bool(checked.append(feed))
    actions = host.hear(1, said(BY_WORK[-1], 0, 2), forked(BY_WORK[-1]))
    assert (checked, admits(actions), drops(actions)) == ([], [], [])


@pytest.mark.usefixtures("little_room")
def test_an_own_feed_that_makes_room_is_followed_by_one_with_less_work() -> None:
    own = without_room()
    host = Scripted(own)
    host.event(OwnUpdates(own, 0, (EpochScalars(0, (5, 6)),)))
    _, actions = hearing(*BY_WORK[:ROOM], host=host)
    assert evictions(actions) == [(own, 2)]
    [new] = continued(actions)
    assert work(new) < host.machine.frontier.highest_work
    assert host.machine.may_compute


@pytest.mark.usefixtures("little_room")
def test_an_empty_own_feed_for_which_there_is_no_room_any_more_is_replaced_too() -> None:
    own = without_room()
    host = Scripted(own)
    _, actions = hearing(*BY_WORK[:ROOM], host=host)
    assert continued(actions) == []
    assert not host.machine.may_compute
    assert continued(host.event(OwnUpdates(own, 0, (EpochScalars(0, (5,)),)))) or continued(host.wait(2.0))
    assert host.machine.may_compute


@pytest.mark.usefixtures("little_room")
def test_nodes_that_have_met_different_feeds_agree_once_they_meet() -> None:
    swarm = Swarm()
    nodes = [swarm.add(name) for name in ("ann", "bob", "cat", "dan", "eve", "fay")]
    for node in nodes:
        node.compute(3)
    swarm.connect_all(("ann", "bob"), ("bob", "cat"), ("dan", "eve"), ("eve", "fay"))
    swarm.run(20.0)
    swarm.connect_all(("cat", "dan"))
    swarm.run(120.0)
    feeds = [{state.feed for state in node.machine.frontier} for node in nodes]
    assert len({node.machine.frontier.digest() for node in nodes}) == 1
    assert len(feeds[0]) == ROOM
    assert all(node.faults == [] for node in nodes)


FEEDS = [Feed(bytes([number]) * 32, number) for number in range(8)]
MOVES = st.lists(st.tuples(st.sampled_from(FEEDS), st.integers(1, 4)), max_size=30)


@settings(max_examples=50)
@given(MOVES, MOVES)
def test_the_digest_is_that_of_the_feeds_held_whatever_was_held_before(
    one: list[tuple[Feed, int]], other: list[tuple[Feed, int]]
) -> None:
    def reached(moves: list[tuple[Feed, int]]) -> Frontier:
        frontier = Frontier(RUN)
        for feed, steps in moves:
            if frontier.excludes(feed):
                continue
            stop = max(frontier.next(feed), steps)
            frontier.advance(feed, stop, bytes([stop]) * 32, 0)
            frontier.evict()
            frontier.digest()
        return frontier

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier_module, "MAX_FEEDS", ROOM)
        there, back = reached([*one, *other]), reached([*other, *one])
        assert there.digest() == back.digest()
        assert there.claims() == back.claims()
        assert there.known == back.known == sum(state.next for state in there)
        lowest = sorted({feed for feed, _ in (*one, *other)}, key=work)[:ROOM]
        assert [state.feed for state in there] == sorted(lowest)


# -- work (S7) ---------------------------------------------------------------------------------------


def test_a_feed_without_work_is_neither_asked_for_nor_taken_and_is_no_fault() -> None:
    host = Scripted(run=replace(RUN, work_bits=200))
    actions = host.link(1, Position(feed_of("bob"), 2))
    actions += host.hear(1, said("bob", 0, 2), forked("bob"))
    actions += host.wait(3.0)
    assert (admits(actions), wants(actions), drops(actions)) == ([], [], [])
    assert len(host.machine.frontier) == host.machine.lacking == 0
    assert not host.machine.links[1].names.taught


def test_a_fresh_feed_has_the_work_that_the_run_asks_for() -> None:
    run = replace(RUN, work_bits=8)
    feeds = {fresh(Frontier(run), origin_of("ann"), drawn) for drawn in (0, 2**32 - 1, 12345)}
    assert len(feeds) > 1, "what is drawn says where the search begins"
    assert all(work(feed) < signing.work_bound(8) for feed in feeds)
    assert all(feed.incarnation < 2**32 for feed in feeds)


def test_a_fresh_feed_is_none_that_is_here() -> None:
    frontier = Frontier(replace(RUN, work_bits=4))
    for _ in range(20):
        feed = fresh(frontier, origin_of("ann"), 0)
        assert feed not in frontier
        frontier.advance(feed, 1, bytes(32), 0)


# -- the quota of a feed, and labels that nobody can go behind (U6, I3) ------------------------------


def test_no_feed_has_more_than_its_quota() -> None:
    run = replace(RUN, quota=3)
    host = Scripted(run=run)
    host.link(1)
    host.name(1, feed_of("bob"))
    assert admits(host.hear(1, said("bob", 0, 3)))
    assert not admits(host.hear(1, said("bob", 3, 4)))
    assert drops(host.link(2, Position(feed_of("bob"), 4)))[0].fault.startswith("U6")


def test_a_node_that_has_used_up_its_quota_makes_no_more_updates() -> None:
    host = Scripted(ANN, run=replace(RUN, quota=3))
    assert host.machine.room == 3
    host.event(OwnUpdates(ANN, 0, (EpochScalars(0, (5, 6, 7)),)))
    assert (host.machine.room, host.machine.may_compute, host.machine.complete) == (0, False, False)


def test_who_fills_a_run_and_forks_its_feed_leaves_nobody_in_the_last_epoch() -> None:
    run = replace(RUN, epoch_updates=10, update_budget=1000)
    host = Scripted(ANN, run=run)
    host.link(1)
    host.name(1, feed_of("bob"))
    filling = (EpochScalars(0, tuple(range(995))),)
    host.hear(1, signed("bob", 1, 0, filling))
    assert host.machine.epoch == 99
    host.event(OwnUpdates(ANN, 0, (EpochScalars(99, (1,)),)))
    assert continued(host.hear(1, forked("bob"))) == [Feed(ANN.origin, NEW_INCARNATION)]
    assert host.machine.epoch == 0


def test_a_fork_of_few_updates_renews_nobody() -> None:
    run = replace(RUN, epoch_updates=10, update_budget=1000)
    host = Scripted(ANN, run=run)
    host.link(1)
    host.name(1, feed_of("bob"))
    host.hear(1, said("bob", 0, 12))
    host.event(OwnUpdates(ANN, 0, (EpochScalars(1, (1,)),)))
    assert host.machine.own == ANN
    assert continued(host.hear(1, forked("bob"))) == []
