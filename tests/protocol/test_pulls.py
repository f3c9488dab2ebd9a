"""The number of lacking updates is always up to date, and reading it costs nothing (SPEC A4, A5)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol.machine import Machine
from sfprotocol.messages import Ahead, EpochScalars, Feed, Have, Position, Want
from sfprotocol.pulls import Pulls
from tests.protocol.feeds import RUN, forked, origin_of
from tests.protocol.scripted import Scripted, said

NAMES = ("bob", "cid", "eve")
FEEDS = {name: Feed(origin_of(name), 1) for name in NAMES}
LINKS = (1, 2, 3)


def counted(machine: Machine) -> int:
    """Return `lacking`, computed anew: the lowest claim above our own step, summed over all pulls."""
    total = 0
    for feed in machine._pulls:
        ours = machine.frontier.next(feed)
        claims = [link.has.get(feed, 0) for link in machine.links.values()]
        total += min((claim - ours for claim in claims if machine.frontier.lacks(feed, claim)), default=0)
    return total


# -- it is right -------------------------------------------------------------------------------------

STEPS = st.integers(0, 30)
NAMED = st.sampled_from(NAMES)
LINKED = st.sampled_from(LINKS)

EVENTS = st.one_of(
    st.tuples(st.just("claim"), LINKED, NAMED, STEPS),
    st.tuples(st.just("announce"), LINKED, NAMED, STEPS),
    st.tuples(st.just("want"), LINKED, NAMED, STEPS),
    st.tuples(st.just("bring"), LINKED, NAMED, STEPS),
    st.tuples(st.just("fork"), LINKED, NAMED, STEPS),
    st.tuples(st.just("down"), LINKED),
    st.tuples(st.just("wait"), st.sampled_from((0.05, 0.2, 0.5, 3.0, 11.0))),
)


class Peers:
    """A machine with three peers that make arbitrary claims about three feeds."""

    def __init__(self) -> None:
        self.host = Scripted()
        for link in LINKS:
            self._up(link)

    def _up(self, link: int) -> None:
        self.host.link(link)
        self.host.name(link, *FEEDS.values())

    def claim(self, link: int, name: str, step: int) -> None:
        self.host.hear(link, self.host.summary(Position(FEEDS[name], step)))

    def announce(self, link: int, name: str, step: int) -> None:
        self.host.hear(link, Have((Ahead(self.host.machine.frontier.state(FEEDS[name]).key, step),)))

    def want(self, link: int, name: str, step: int) -> None:
        self.host.hear(link, Want((Position(FEEDS[name], step),)))

    def bring(self, link: int, name: str, step: int) -> None:
        first = self.host.machine.frontier.next(FEEDS[name])
        self.host.hear(link, said(name, max(0, min(first, step)), step + 1))

    def fork(self, link: int, name: str, step: int) -> None:
        """Show a proof that the origin has signed two different updates after `step` updates."""
        before = [EpochScalars(0, tuple(range(step)))] if step else []
        self.host.hear(link, forked(name, 1, before, (step, -step - 1)))

    def down(self, link: int) -> None:
        self.host.unlink(link)

    def wait(self, seconds: float) -> None:
        self.host.wait(seconds)

    def play(self, kind: str, *arguments: Any) -> None:
        for link in set(LINKS) - set(self.host.machine.links):
            self._up(link)
        getattr(self, kind)(*arguments)


@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENTS, max_size=40))
def test_the_kept_number_is_the_counted_one_whatever_peers_say(events: list[Any]) -> None:
    peers = Peers()
    for event in events:
        peers.play(*event)
        assert peers.host.machine.lacking == counted(peers.host.machine)


# -- and costs nothing -------------------------------------------------------------------------------


def calls(work: Callable[[], Any]) -> int:
    """Return the number of Python and C function calls of `work`."""
    number = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def lacking_host(feeds: int) -> Scripted:
    """Return a host with `feeds` pulls, for feeds that three links claim to have completely."""
    host = Scripted()
    claims = [Position(Feed(number.to_bytes(32, "big"), 0), RUN.update_budget) for number in range(feeds)]
    for link in LINKS:
        host.greet(link)
        for cut in range(0, feeds, 500):
            host.hear(link, host.summary(*claims[cut : cut + 500]))
    return host


def test_asking_costs_the_same_however_much_is_lacking() -> None:
    # It used to look at every claim of every link: 91 ms at 16,384 pulls on 12 links, for each status.
    few, many = lacking_host(2), lacking_host(3000)
    assert many.machine.lacking == 1500 * few.machine.lacking > 0
    assert calls(lambda: many.machine.lacking) == calls(lambda: few.machine.lacking) < 10


def test_a_claim_above_the_lowest_costs_no_look_at_other_links(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Scripted()
    bob = FEEDS["bob"]
    for link in LINKS:
        host.link(link)
    host.hear(1, host.summary(Position(bob, 10)))
    recount, recounted = Pulls._recount, []

    def noted(pulls: Pulls, feed: Feed, pull: Any) -> None:
        recounted.append(feed)
        recount(pulls, feed, pull)

    monkeypatch.setattr(Pulls, "_recount", noted)
    for step in range(11, 20):
        host.hear(2, host.summary(Position(bob, step)))
    assert (recounted, host.machine.lacking) == ([], 10)
    host.hear(3, host.summary(Position(bob, 4)))
    assert (recounted, host.machine.lacking) == ([bob], 4)
    host.hear(3, host.summary(Position(bob, 12)))
    assert (recounted, host.machine.lacking) == ([bob, bob], 10)
