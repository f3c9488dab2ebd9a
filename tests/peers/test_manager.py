"""The peer manager: every decision about peers, in virtual time."""

from __future__ import annotations

import os
from itertools import pairwise
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.peers import link_slots
from sfnode.peers.address_book import BACKOFF_FIRST, BOOTSTRAP_MOST, AddressBook
from sfnode.peers.backoff import JITTER
from sfnode.peers.events import (
    Action,
    Announce,
    Announced,
    AnnounceFailed,
    Bootstrap,
    BootstrapAnswered,
    Carry,
    Close,
    Dial,
    DialFailed,
    Event,
    Find,
    FindFailed,
    Found,
    LinkCount,
    LinkEnded,
    LinkOpened,
    Observed,
    PeerFaulted,
    Presence,
    PresenceChanged,
    Reason,
    Remember,
    Restarted,
    StopBootstrap,
    StopDial,
    Wake,
)
from sfnode.peers.faults import FAULT_FIRST
from sfnode.peers.manager import (
    ANNOUNCE_INTERVAL,
    ANNOUNCE_TTL,
    BOOTSTRAPS_ALONE,
    CHECK_INTERVAL,
    FIND_INTERVAL,
    FIRST_WORD_DEADLINE,
    LONELY_INTERVAL,
    PROBE_INTERVAL,
    RACE_WINDOW,
    SHORT_LIVED,
    PeerManager,
)
from sfnode.transport.base import PeerRecord

DEPTH = int(os.environ.get("SFNODE_DEPTH", "0"))
"""Each step doubles the number of random stories."""

A = TypeVar("A", bound=Action)
OWN = ("/ip4/10.9.9.9/tcp/1/p2p/me",)


def address(peer: str) -> str:
    return f"/ip4/10.0.0.1/tcp/1/p2p/{peer}"


def record(peer: str) -> PeerRecord:
    return PeerRecord(peer, (address(peer),), 0, 0)


def names(count: int, letter: str = "p") -> list[str]:
    return [f"{letter}{number:02}" for number in range(count)]


class Node:
    """A manager with a clock. Nothing answers by itself."""

    def __init__(
        self, *given: str, own: str = "me", remembered: tuple[str, ...] = (), rostered: bool = True
    ) -> None:
        random = Random(1)
        self.now = 100.0
        self.book = AddressBook(own, map(address, given), remembered, random)
        self.manager = PeerManager(own, self.book, random, self.now, rostered=rostered)
        self.log: list[tuple[float, Action]] = []
        self.links = 0
        self.tell(Observed((), OWN))

    def tell(self, event: Event) -> list[Action]:
        actions = self.manager.handle(event, self.now)
        self.log += [(self.now, action) for action in actions]
        return actions

    def wake(self) -> list[Action]:
        """Let time pass until something is due, and do it."""
        self.now = max(self.now, self.manager.next_deadline())
        return self.tell(Wake())

    def run_until(self, when: float) -> None:
        """Do whatever is due before or at `when`."""
        while self.manager.next_deadline() <= when:
            self.wake()
        self.now = when

    def opened(self, peer: str, *, outbound: bool = False, link: str | None = None) -> list[Action]:
        self.links += 1
        return self.tell(LinkOpened(self.links, peer, outbound, address(peer) if link is None else link))

    def count(self, useful: int = 0, *, blank: bool = False, only: int | None = None) -> None:
        """Report counts of all links, or of one."""
        links = [only] if only else [neighbour.link for neighbour in self.manager._neighbours.values()]
        self.tell(Observed(tuple(LinkCount(link, True, useful, blank) for link in links), OWN))

    def told(self, kind: type[A]) -> list[tuple[float, A]]:
        """Return the actions of this kind, each with its time."""
        return [(when, action) for when, action in self.log if isinstance(action, kind)]

    @property
    def dialled(self) -> list[str]:
        return [dial.peer for _, dial in self.told(Dial)]

    @property
    def linked(self) -> set[str]:
        return set(self.manager.linked)


def of(actions: list[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def settled(links: int = link_slots.TARGET_LINKS) -> Node:
    """Return a node with useful links of its own choice, and without jobs under way."""
    node = Node()
    node.tell(Wake())
    node.tell(Found(tuple(map(record, names(links)))))
    for peer in names(links):
        node.opened(peer, outbound=True)
    node.count()
    node.tell(Announced(OWN))
    node.log.clear()
    return node


# -- time --------------------------------------------------------------------------------------------


def test_everything_is_done_at_once_in_the_beginning_but_the_probe() -> None:
    node = Node("a")
    actions = node.tell(Wake())
    assert node.now < node.manager.next_deadline() <= node.now + CHECK_INTERVAL
    assert actions == [
        Dial("a", (address("a"),)),
        Announce(ANNOUNCE_TTL),
        Find(),
        Bootstrap("a", address("a")),
    ]
    assert node.tell(Wake()) == [], "it is woken too early"


EVENTS = st.one_of(
    st.just(Wake()),
    st.builds(LinkOpened, st.integers(1, 30), st.sampled_from(names(20)), st.booleans(), st.just("")),
    st.builds(LinkEnded, st.integers(1, 30), st.booleans()),
    st.builds(DialFailed, st.sampled_from(names(20))),
    st.builds(PeerFaulted, st.sampled_from(names(20))),
    st.builds(BootstrapAnswered, st.sampled_from(names(20)), st.booleans()),
    st.just(Restarted()),
    st.builds(PresenceChanged, st.sampled_from([Presence.OPEN, Presence.AWAY])),
    st.builds(lambda n, blank: Observed(tuple(LinkCount(i, True, n, blank) for i in range(1, 31)), OWN),
              st.integers(0, 9), st.booleans()),
)  # fmt: skip


@settings(max_examples=50 << DEPTH, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 40)), max_size=60), st.integers(0, 2**16))
def test_whatever_happens_limits_hold_and_no_deadline_stays_due(
    story: list[tuple[Event, float]], seed: int
) -> None:
    random = Random(seed)
    book = AddressBook("me", map(address, names(3)), (), random)
    manager, now, used = PeerManager("me", book, random, 0.0), 0.0, 0
    book.note(map(record, names(20)), ())
    for event, pause in story:
        now += pause
        if isinstance(event, LinkOpened):  # a number is used once
            used += 1
            event = LinkOpened(used, event.peer, event.outbound, event.address)
        pending = manager.handle(event, now)
        outbound = sum(standing.outbound for standing in manager.standings())
        for action in manager.handle(Wake(), now):
            pending.append(action)
        if isinstance(event, LinkOpened):
            assert len([a for a in pending if isinstance(a, Carry | Close) and a.link == event.link]) == 1
        assert len(manager.linked) <= link_slots.MAX_LINKS
        assert len(manager.standings()) - outbound <= link_slots.MAX_INBOUND
        assert manager.next_deadline() > now


# -- finding peers -----------------------------------------------------------------------------------


def test_a_record_is_announced_again_soon_until_somebody_may_have_heard_it_and_then_seldom() -> None:
    node = Node("a")
    node.tell(Wake())
    node.tell(Announced(OWN))  # alone: nobody but ourselves has it
    node.run_until(node.now + LONELY_INTERVAL)
    assert [when for when, _ in node.told(Announce)] == [100.0, 100.0 + LONELY_INTERVAL]
    node.opened("a", outbound=True)
    node.count()
    node.tell(Announced(OWN))
    node.run_until(node.now + ANNOUNCE_INTERVAL - 0.1)
    assert len(node.told(Announce)) == 2
    node.run_until(node.now + 0.1)
    assert len(node.told(Announce)) == 3


def test_a_private_run_is_neither_announced_nor_searched_for() -> None:
    node = Node("a", rostered=False)
    node.tell(Wake())
    node.tell(BootstrapAnswered("a", answered=True))
    node.run_until(node.now + 2 * ANNOUNCE_INTERVAL)
    node.opened("a", outbound=True)
    node.run_until(node.now + 2 * ANNOUNCE_INTERVAL)
    assert "a" in node.dialled
    assert not node.told(Announce)
    assert not node.told(Find)


def test_a_record_that_has_become_wrong_is_announced_soon() -> None:
    node = settled()
    node.run_until(node.now + 10)
    assert not node.told(Announce)
    node.tell(Observed((), ("/ip4/10.8.8.8/tcp/1/p2p/me",)))
    assert node.manager.next_deadline() <= node.now
    node.tell(Wake())
    assert node.told(Announce)


def test_an_announcement_that_failed_is_made_again() -> None:
    node = Node()
    node.tell(Wake())
    node.run_until(node.now + 60)
    assert len(node.told(Announce)) == 1  # it is still under way
    node.tell(AnnounceFailed())
    node.tell(Wake())
    assert len(node.told(Announce)) == 2


def test_the_roster_is_searched_seldom_when_no_links_are_missing() -> None:
    node = settled()
    began = node.manager._finding.began
    while len(node.told(Find)) < 3:
        if of(node.wake(), Find):
            node.tell(Found(()))
    assert [when - before for before, when in pairwise([began, *(when for when, _ in node.told(Find))])] == [
        FIND_INTERVAL
    ] * 3


def test_a_swarm_so_small_that_all_are_neighbours_is_searched_less_and_less_until_somebody_comes() -> None:
    node = settled(links=1)
    while len(node.told(Find)) < 7:
        if of(node.wake(), Find):
            node.tell(Found((record("p00"), record("me"))))
    waits = [after - before for (before, _), (after, _) in pairwise(node.told(Find))]
    assert waits == [min(LONELY_INTERVAL * 2**n, FIND_INTERVAL) for n in range(1, 7)]
    assert node.manager.wanting
    while not of(node.wake(), Find):
        pass
    node.log.clear()
    node.tell(Found((record("new"),)))
    assert node.dialled == ["new"]
    node.run_until(node.now + LONELY_INTERVAL)
    assert node.told(Find)


def test_a_search_that_failed_is_made_again_and_says_nothing_about_the_swarm() -> None:
    node = Node()
    node.tell(Wake())
    node.tell(FindFailed())
    node.run_until(node.now + LONELY_INTERVAL)
    assert len(node.told(Find)) == 2


def test_a_lonely_node_bootstraps_from_a_few_peers_at_a_time_until_one_answers() -> None:
    node = Node(*names(20))
    first = of(node.tell(Wake()), Bootstrap)
    assert len({attempt.peer for attempt in first}) == BOOTSTRAPS_ALONE
    node.run_until(node.now + 60)
    assert len(node.told(Bootstrap)) >= BOOTSTRAPS_ALONE  # the round is not over; a probe may have come
    actions = node.tell(BootstrapAnswered(first[0].peer, True))
    assert {stop.peer for stop in of(actions, StopBootstrap)} == {attempt.peer for attempt in first[1:]}
    node.log.clear()
    node.tell(Wake())
    assert len(node.told(Bootstrap)) == BOOTSTRAPS_ALONE


def test_a_round_in_which_nobody_answers_ends_with_the_last_failure() -> None:
    node = Node("a", "b")
    node.tell(Wake())
    node.tell(BootstrapAnswered("a", False))
    node.run_until(node.now + LONELY_INTERVAL)
    assert len(node.told(Bootstrap)) == 2
    node.tell(BootstrapAnswered("b", False))
    node.tell(Wake())
    assert len(node.told(Bootstrap)) == 4


def test_neighbours_are_not_bootstrapped_from_and_silent_given_peers_are_for_ever() -> None:
    node = Node("a", "late")
    node.tell(Wake())
    node.opened("a", outbound=True)
    node.count()
    node.tell(BootstrapAnswered("a", True))
    node.manager._probe_at = float("inf")
    node.log.clear()
    while node.now < 1000:
        for attempt in of(node.wake(), Bootstrap):
            node.tell(BootstrapAnswered(attempt.peer, False))
    attempts = node.told(Bootstrap)
    assert {attempt.peer for _, attempt in attempts} == {"late"}
    assert len(attempts) > 1000 / (1.2 * BOOTSTRAP_MOST + LONELY_INTERVAL)


def test_a_given_peer_that_answers_after_a_silence_is_dialled_and_others_are_looked_for() -> None:
    node = Node("late")
    node.tell(Wake())
    node.tell(DialFailed("late"))
    node.tell(BootstrapAnswered("late", False))
    for peer in names(link_slots.TARGET_LINKS):
        node.opened(peer, outbound=True)
    node.count()
    actions = node.tell(BootstrapAnswered("late", True))
    assert actions == [Dial("late", (address("late"),)), Announce(ANNOUNCE_TTL), Find()]
    node.tell(BootstrapAnswered("late", False))
    assert not of(node.tell(BootstrapAnswered("late", True)), Dial)  # it is being dialled
    node.opened("late", outbound=True)
    node.tell(BootstrapAnswered("late", False))
    assert not of(node.tell(BootstrapAnswered("late", True)), Dial)  # it is a neighbour


# -- dialling ----------------------------------------------------------------------------------------


def test_a_node_dials_as_many_as_it_wants_and_no_more_while_it_waits() -> None:
    node = Node()
    node.tell(Found(tuple(map(record, names(20)))))
    assert len(set(node.dialled)) == link_slots.TARGET_LINKS
    node.run_until(node.now + CHECK_INTERVAL)
    assert len(node.dialled) == link_slots.TARGET_LINKS
    assert node.manager.alone is False


def test_a_peer_that_cannot_be_reached_is_left_alone_for_a_while_and_another_is_dialled() -> None:
    node = Node()
    node.tell(Found(tuple(map(record, names(link_slots.TARGET_LINKS + 1)))))
    failed = node.dialled[0]
    node.tell(DialFailed(failed))
    assert len(node.dialled) == link_slots.TARGET_LINKS + 1
    assert len(set(node.dialled)) == link_slots.TARGET_LINKS + 1
    assert failed not in node.book.candidates(node.now)


def test_a_peer_that_hangs_up_at_once_is_not_dialled_again_and_again() -> None:
    node = Node("a")
    node.tell(Wake())
    node.opened("a", outbound=True)
    node.now += SHORT_LIVED - 0.1
    node.count()
    node.tell(LinkEnded(1, heard=True))
    assert node.dialled == ["a"]
    node.run_until(node.now + 0.8 * BACKOFF_FIRST - 0.1)
    assert node.dialled == ["a"]
    node.run_until(node.now + CHECK_INTERVAL + BACKOFF_FIRST)
    assert node.dialled == ["a", "a"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_link_that_was_of_use_is_opened_again_at_once(heard: bool) -> None:
    node = Node("a")
    node.tell(Wake())
    node.opened("a", outbound=True)
    node.count()
    node.now += SHORT_LIVED
    dials = of(node.tell(LinkEnded(1, heard)), Dial)
    assert [dial.peer for dial in dials] == (["a"] if heard else [])
    assert node.book.trusted("a")


def test_links_that_vanish_are_replaced_at_once() -> None:
    node = settled()
    node.tell(Found(tuple(map(record, names(20)))))
    node.now += SHORT_LIVED
    for link in range(1, 4):
        node.tell(LinkEnded(link, heard=True))
    assert len(node.dialled) == 3


# -- one link a peer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(("own", "peer"), [("a", "b"), ("b", "a")])
def test_of_two_links_opened_at_once_both_sides_keep_the_one_of_the_smaller_id(
    own: str, peer: str, ours_first: bool
) -> None:
    node = Node(own=own)
    node.tell(Found((record(peer),)))
    for outbound in (ours_first, not ours_first):
        node.opened(peer, outbound=outbound)
    ours = 1 if ours_first else 2
    kept = ours if own < peer else 3 - ours
    assert [action.link for _, action in node.told(Carry)][-1] == kept
    ends = {action.link for _, action in node.told(Close)} | {a.instead_of for _, a in node.told(Carry)}
    assert ends - {None} == {3 - kept}
    assert node.linked == {peer}
    assert node.manager.standings()[0].outbound  # we chose this peer all the same
    assert node.book.candidates(node.now) == [peer]  # and it did nothing wrong


@pytest.mark.parametrize(("own", "peer"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("outbound", [True, False])
def test_a_newer_link_of_the_same_making_replaces_the_one_that_a_death_has_left(
    own: str, peer: str, outbound: bool
) -> None:
    node = Node(own=own)
    node.opened(peer, outbound=outbound)
    assert node.opened(peer, outbound=outbound) == [Carry(2, instead_of=1)]
    assert node.tell(LinkEnded(1, heard=True)) == []  # the old one is history
    assert node.linked == {peer}


def test_after_a_dial_that_turned_out_double_another_peer_is_dialled_at_once() -> None:
    node = Node(own="b")
    node.tell(Wake())
    node.tell(Found((record("a"),)))
    node.opened("a")  # while our own dial to it is under way
    node.tell(Found(tuple(map(record, names(link_slots.TARGET_LINKS)))))
    assert len(node.dialled) == link_slots.TARGET_LINKS - 1  # as if both links to the peer would last
    actions = node.opened("a", outbound=True)
    assert of(actions, Close) == [Close(2, Reason.DOUBLE)]
    assert len(of(actions, Dial)) == 1


def test_an_old_link_of_our_own_gives_way_to_a_peer_that_comes_back() -> None:
    node = Node(own="a")
    node.opened("b", outbound=True)
    node.now += RACE_WINDOW
    assert node.opened("b") == [Close(2, Reason.DOUBLE)]  # might be a race, which the smaller id wins
    node.now += 0.1
    assert node.opened("b") == [Carry(3, instead_of=1)]
    assert node.manager.standings()[0].outbound  # we chose this peer, whoever opened the present link


# -- letting in and giving up ------------------------------------------------------------------------


def test_more_than_the_most_inbound_links_are_refused_but_a_neighbour_may_replace_its_own() -> None:
    node = Node()
    for peer in names(link_slots.MAX_INBOUND):
        assert of(node.opened(peer), Carry)
    node.count()
    assert node.opened("late") == [Close(link_slots.MAX_INBOUND + 1, Reason.UNWANTED)]
    assert "late" not in node.linked
    assert of(node.opened("p00"), Carry) == [Carry(link_slots.MAX_INBOUND + 2, instead_of=1)]
    assert not node.manager.has_room_for("late", address("late"), node.now)


def test_a_newcomer_at_a_full_node_takes_the_place_of_one_that_brings_nothing() -> None:
    node = Node()
    for peer in names(link_slots.MAX_INBOUND):
        node.opened(peer)
        node.now += 0.1
    node.count()
    node.count(5, only=8)
    node.now += link_slots.SETTLE_TIME
    actions = node.opened("new")
    (closed,) = of(actions, Close)
    assert closed == Close(7, Reason.GAVE_WAY)  # the youngest; the eighth has been of use
    assert {"new", "p00", "p01", "p02", "p07"} <= node.linked
    assert of(actions, Carry) == [Carry(link_slots.MAX_INBOUND + 1)]
    assert not node.book.refused(f"p{closed.link - 1:02}", node.now)


def test_a_peer_that_broke_a_rule_gets_no_link_in_either_direction_for_a_while() -> None:
    node = Node("bad")
    node.opened("bad")
    node.now += SHORT_LIVED
    node.tell(PeerFaulted("bad"))
    assert node.tell(LinkEnded(1, heard=True)) == []
    assert node.opened("bad") == [Close(2, Reason.UNWANTED)]
    node.tell(BootstrapAnswered("bad", False))
    assert not of(node.tell(BootstrapAnswered("bad", True)), Dial)  # not even when it comes back
    node.run_until(node.now + FAULT_FIRST - 0.1)
    assert node.dialled == []
    node.run_until(node.now + 0.1 + CHECK_INTERVAL)
    assert node.dialled == ["bad"]


def test_a_link_that_brought_nothing_earns_no_trust() -> None:
    node = Node()
    node.tell(Found((record("blank"), record("useful"))))
    node.opened("blank")
    node.opened("useful")
    node.count(2, only=2)
    node.now += SHORT_LIVED
    node.tell(LinkEnded(1, heard=True))
    node.tell(LinkEnded(2, heard=True))
    assert [peer for peer in ("blank", "useful") if node.book.trusted(peer)] == ["useful"]


def test_a_peer_that_says_nothing_is_given_up_and_left_alone() -> None:
    node = Node("silent")
    node.tell(Wake())
    node.opened("silent", outbound=True)
    node.run_until(node.now + FIRST_WORD_DEADLINE - 0.1)
    assert node.linked == {"silent"}  # there is nobody else
    node.run_until(node.now + 0.1)
    assert node.linked == set()
    assert (node.now, Close(1, Reason.SILENT)) in node.log
    assert node.book.candidates(node.now) == []


def test_a_link_closed_for_its_silence_is_replaced_at_once() -> None:
    node = Node()
    node.opened("silent")
    for link, peer in enumerate(names(link_slots.TARGET_LINKS - 1), 2):
        node.opened(peer, outbound=True)
        node.count(only=link)
    closed_at = node.now + FIRST_WORD_DEADLINE
    node.run_until(closed_at - CHECK_INTERVAL / 2)
    node.tell(Found((record("other"),)))  # checks the links, so that the next check is not due by then
    assert node.dialled == []
    node.run_until(closed_at)
    assert (closed_at, Close(1, Reason.SILENT)) in node.log
    assert node.linked == set(names(link_slots.TARGET_LINKS - 1)), "those that speak stay"
    assert [(when, dial.peer) for when, dial in node.told(Dial)] == [(closed_at, "other")]


def test_the_links_are_checked_at_once_after_one_has_given_way_to_a_newcomer() -> None:
    node = Node()
    for peer in names(link_slots.MAX_INBOUND):
        node.opened(peer)
    node.count()
    node.now += link_slots.SETTLE_TIME
    node.tell(Wake())
    node.tell(Found(tuple(map(record, names(link_slots.MAX_INBOUND)))))
    assert node.dialled == []  # all are neighbours
    (closed,) = of(node.opened("new"), Close)
    assert closed.reason is Reason.GAVE_WAY
    given_way_at = node.now
    assert [dial.peer for dial in of(node.wake(), Dial)] == [f"p{closed.link - 1:02}"]
    assert node.now == given_way_at


def test_mute_peers_of_our_choice_make_room_for_others_and_are_refused_for_a_while() -> None:
    node = settled()
    node.count(blank=True, only=1)
    node.tell(Found((record("other"),)))
    node.run_until(node.now + link_slots.BLANK_TIME + CHECK_INTERVAL)
    assert node.told(Close)[0][1] == Close(1, Reason.MUTE)
    assert node.book.refused("p00", node.now)
    assert "other" in node.dialled


# -- probes ------------------------------------------------------------------------------------------


def test_probes_come_at_random_moments_about_a_minute_apart() -> None:
    node = settled()
    node.tell(Found(tuple(map(record, names(20)))))
    first, *probes = [node.manager._probe_at]
    while len(probes) < 20:
        node.wake()
        if node.manager._probe_at != (probes or [first])[-1]:
            probes.append(node.manager._probe_at)
    waits = [after - before for before, after in pairwise([first, *probes])]
    assert 100.0 <= first <= 100.0 + PROBE_INTERVAL
    low, high = (factor * PROBE_INTERVAL for factor in JITTER)
    assert all(low <= wait <= high for wait in waits)
    assert len(set(waits)) == len(waits)


def test_a_probe_looks_beyond_the_neighbours_and_gives_up_the_least_useful_link() -> None:
    node = settled(links=link_slots.TARGET_LINKS + 1)
    node.count(1)
    for link in range(1, link_slots.TARGET_LINKS + 1):
        node.count(9, only=link)
    node.tell(Found(tuple(map(record, ["x", "y", "z"]))))
    node.now += link_slots.SETTLE_TIME
    node.manager._probe_at = node.now
    node.log.clear()
    actions = node.tell(Wake())
    assert {attempt.peer for attempt in of(actions, Bootstrap)} < {"x", "y", "z"}
    assert of(actions, Close) == [Close(link_slots.TARGET_LINKS + 1, Reason.GAVE_WAY)]
    assert len([dial for dial in of(actions, Dial) if dial.peer in "xyz"]) == 1
    assert len(node.linked) == link_slots.TARGET_LINKS


@given(st.integers(0, 2**16))
@settings(max_examples=5 << DEPTH, deadline=None)
def test_probing_for_an_hour_never_exceeds_the_most_links_nor_falls_below_those_of_our_choice(
    seed: int,
) -> None:
    draw = Random(seed)
    node = settled()
    node.tell(Found(tuple(map(record, names(30)))))
    for _ in range(600):
        node.now += draw.uniform(0, 12)
        for action in node.tell(Wake()):
            if isinstance(action, Dial):
                node.opened(action.peer, outbound=True)
            elif isinstance(action, Find):
                node.tell(Found(tuple(map(record, names(30)))))
        node.count(draw.randrange(9))
        assert len(node.linked) <= link_slots.MAX_LINKS
        assert sum(standing.outbound for standing in node.manager.standings()) >= link_slots.WANTED_OUTBOUND
    assert node.told(Close)


# -- the address book --------------------------------------------------------------------------------


def test_that_there_was_a_neighbour_is_remembered_before_it_is_carried_and_only_then() -> None:
    node = Node("a")
    node.tell(Wake())
    assert not node.told(Remember)
    assert node.opened("a", outbound=True) == [Remember((address("a"),)), Carry(1)]
    late = Node()
    assert late.opened("b") == [Remember(()), Carry(1)]  # found by others, at least that


def test_the_book_is_written_again_only_when_it_has_changed() -> None:
    node = Node("a")
    node.opened("a")
    node.run_until(node.now + 10 * CHECK_INTERVAL)
    assert len(node.told(Remember)) == 1
    node.tell(Found((record("b"),)))
    assert node.told(Remember)[-1][1] == Remember((address("a"), address("b")))


def test_a_refused_link_is_not_remembered() -> None:
    node = Node()
    node.tell(PeerFaulted("bad"))
    assert node.opened("bad") == [Close(1, Reason.UNWANTED)]


# -- restarts and absence ----------------------------------------------------------------------------


def test_after_a_restart_everything_is_done_at_once_and_failures_before_it_do_not_count() -> None:
    node = settled(links=1)
    node.tell(Found((record("p00"), record("far"))))
    node.tell(DialFailed("far"))
    node.manager._probe_at = float("inf")
    node.tell(LinkEnded(1, heard=True))
    node.log.clear()
    actions = node.tell(Restarted())
    assert {dial.peer for dial in of(actions, Dial)} == {"p00", "far"}
    assert of(actions, Announce)
    assert of(actions, Find)
    assert of(actions, Bootstrap)
    assert node.manager._probe_at < float("inf")


def test_a_job_that_a_restart_has_interrupted_is_begun_again_when_it_has_failed() -> None:
    node = Node()
    node.tell(Wake())
    assert not of(node.tell(Restarted()), Find)
    node.tell(FindFailed())
    node.tell(AnnounceFailed())
    actions = node.tell(Wake())
    assert of(actions, Find)
    assert of(actions, Announce)


def test_a_node_that_is_away_asks_nobody_and_comes_back_at_once() -> None:
    node = Node("a", "b")
    node.tell(Wake())
    node.opened("a", outbound=True)
    node.count()
    actions = node.tell(PresenceChanged(Presence.AWAY))
    assert set(actions) == {StopDial("b"), StopBootstrap("a"), StopBootstrap("b"), Close(1, Reason.AWAY)}
    assert node.manager.alone
    node.log.clear()
    node.tell(Announced(OWN))
    node.tell(Found((record("c"),)))
    node.tell(BootstrapAnswered("b", False))
    node.tell(BootstrapAnswered("b", True))  # a probe that was under way
    node.tell(DialFailed("b"))
    assert node.opened("c") == [Close(2, Reason.UNWANTED)]
    assert node.opened("b", outbound=True) == [Close(3, Reason.UNWANTED)]
    node.tell(LinkEnded(1, heard=True))
    assert node.manager.next_deadline() == float("inf")
    node.now += 1000
    assert node.tell(Wake()) == []
    assert [action for _, action in node.log if not isinstance(action, Close)] == []
    actions = node.tell(PresenceChanged(Presence.OPEN))
    assert {dial.peer for dial in of(actions, Dial)} == {"a", "b", "c"}
    assert of(actions, Announce)
    assert of(actions, Find)


@pytest.mark.parametrize("wish", [Presence.OPEN, Presence.AWAY])
def test_a_node_that_leaves_does_not_come_back_whatever_its_owner_wishes(wish: Presence) -> None:
    node = Node("a", "b")
    node.tell(Wake())
    node.opened("a", outbound=True)
    node.count()
    assert StopDial("b") in node.tell(PresenceChanged(Presence.LEAVING))
    assert node.linked == {"a"}  # it has still to be given our last updates
    assert node.tell(PresenceChanged(wish)) == []
    assert node.manager.presence is Presence.LEAVING
    assert node.opened("c") == [Close(2, Reason.UNWANTED)]
    assert node.tell(LinkEnded(1, heard=True)) == []
    assert node.manager.next_deadline() == float("inf")


def test_intervals_are_those_of_a_node_in_the_field() -> None:
    """The simulator and the shipped node use the same constants."""
    assert (CHECK_INTERVAL, LONELY_INTERVAL, FIND_INTERVAL, PROBE_INTERVAL) == (2.0, 2.0, 30.0, 60.0)
    assert JITTER == (0.8, 1.2)


# -- peers of Hivemind's DHT ---------------------------------------------------------------------------


def strange() -> Node:
    """Return a node that has just started with a peer of Hivemind's DHT, and has found no node."""
    node = Node("plain")
    node.tell(Wake())
    node.tell(DialFailed("plain", plain=True))
    for answer in (BootstrapAnswered("plain", answered=True), Announced(OWN), Found(())):
        node.tell(answer)
    return node


def wait_in_vain(node: Node, seconds: float) -> None:
    """Let time pass. The peer answers, and the roster contains only this node."""
    until = node.now + seconds
    while node.now < until:
        for action in node.wake():
            match action:
                case Bootstrap(peer=peer):
                    node.tell(BootstrapAnswered(peer, answered=True))
                case Announce():
                    node.tell(Announced(OWN))
                case Find():
                    node.tell(Found((record("me"),)))


def test_in_a_dht_of_strangers_a_node_that_waits_asks_less_and_less_and_its_record_lives() -> None:
    node = strange()
    wait_in_vain(node, 400)
    for kind in (Bootstrap, Announce, Find):
        times = [when for when, _ in node.told(kind)]
        assert times[1] - times[0] < 3 * LONELY_INTERVAL, kind
        assert len([when for when in times if when > node.now - 300]) <= 300 / FIND_INTERVAL + 6, kind
    announced = [when for when, _ in node.told(Announce)]
    assert max(later - earlier for earlier, later in pairwise(announced)) < ANNOUNCE_TTL / 2
    assert node.dialled == ["plain"]


def test_it_dials_at_once_whom_the_roster_names_at_last_and_looks_again_when_that_link_ends() -> None:
    node = strange()
    wait_in_vain(node, 300)
    assert Dial("a", (address("a"),)) in node.tell(Found((record("a"),)))
    node.opened("a", outbound=True)
    node.count()
    wait_in_vain(node, 300)
    node.log.clear()
    node.tell(LinkEnded(1, heard=True))
    wait_in_vain(node, 3 * LONELY_INTERVAL)
    assert node.told(Find)
    assert node.told(Announce)


def test_a_node_that_knows_a_silent_node_besides_goes_on_trying() -> None:
    """The silent node may come back."""
    node = Node("plain", "away")
    node.tell(Wake())
    node.tell(DialFailed("away"))
    assert node.manager.next_deadline() <= node.now + LONELY_INTERVAL
