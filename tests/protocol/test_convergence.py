"""All nodes end with the union of all updates, with any faults of links (SPEC, section 1)."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol import rate_limit, seeds
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.plumtree import TTL
from sfprotocol.signing import extend
from tests.protocol.feeds import RUN, origin_of, signed
from tests.protocol.scripted import admits, taught
from tests.protocol.swarm import Faults, Swarm


def names(count: int) -> str:
    return " ".join(f"n{index:02}" for index in range(count))


def test_a_line_longer_than_the_ttl_gets_everything() -> None:
    swarm = Swarm(names(20))
    line = list(swarm.nodes.values())
    assert len(line) > TTL + 2
    for one, other in pairwise(line):
        swarm.connect(one, other)
    swarm.run(2)
    line[0].compute()
    swarm.run(3)
    assert all(node.machine.frontier.known == 1 for node in line)
    asked = [node.name for node in line if node.sent["Want"]]
    assert asked == [line[TTL + 1].name], "what is pushed ends where the hop count says, and begins anew"
    swarm.run_until_equal(30)


def test_an_update_travels_around_a_ring_once() -> None:
    swarm = Swarm(names(8))
    ring = list(swarm.nodes.values())
    for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
        swarm.connect(one, other)
    swarm.run(2)
    swarm.forget_costs()
    ring[3].compute()
    swarm.run_until_equal(3)
    swarm.run(20)
    assert swarm.total("Segment") <= 8 + 1, "one for every link, and one where both directions meet"


def test_a_late_joiner_gets_everything_once_however_many_neighbours_it_has() -> None:
    # Every neighbour used to push the whole history at it, and once more when asked for it.
    swarm = Swarm("ann bob cid")
    swarm.mesh()
    for _ in range(30):
        for node in list(swarm.nodes.values()):
            node.compute(5)
        swarm.run(0.3)
    swarm.run_until_equal(5)
    swarm.forget_costs()
    swarm.add("late")
    swarm.mesh()
    swarm.run_until_equal(5)
    swarm.run(30)
    history = sum(len(told) for told in swarm.oracle.values())
    assert sum(node.updates_sent for node in swarm.nodes.values()) == history
    assert swarm.total("Segment") == len(swarm.oracle)


@pytest.fixture
def low_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit links to 1,000 bytes a second, and origins to one update a second."""
    for what, rate in {"INTAKE": 1000.0, "RESERVE": 0.0, "ORIGIN": 1.0}.items():
        monkeypatch.setattr(rate_limit, f"{what}_RATE", rate)
        monkeypatch.setattr(rate_limit, f"{what}_BURST", 4 * rate)


@pytest.mark.usefixtures("low_rates")
def test_what_is_beyond_every_rate_is_late_and_never_lost() -> None:
    swarm = Swarm(names(4))
    for one, other in pairwise(swarm.nodes.values()):
        swarm.connect(one, other)
    swarm.run(2)
    for _ in range(60):
        for node in swarm.nodes.values():
            node.compute(2)
        swarm.run(0.25)
    assert swarm.run_until_equal(200) > 20
    assert all(node.machine.counters.put_off for node in swarm.nodes.values())
    assert not any(node.faults for node in swarm.nodes.values()), "and costs no link"


# -- one machine, any order --------------------------------------------------------------------------

FEEDS = {name: Feed(origin_of(name), 1) for name in ("ann", "bob", "cid")}


def expected(scalars: dict[str, list[int]]) -> bytes:
    frontier = Frontier(RUN)
    for name, values in scalars.items():
        chain = extend(frontier.state(FEEDS[name]).chain, [EpochScalars(0, tuple(values))])
        frontier.advance(FEEDS[name], len(values), chain, 0)
    return frontier.digest()


@settings(max_examples=40)
@given(
    scalars=st.dictionaries(
        st.sampled_from(sorted(FEEDS)), st.lists(st.integers(-1000, 1000), min_size=1, max_size=8), min_size=1
    ),
    data=st.data(),
    order=st.randoms(use_true_random=False),
)
def test_order_rejoin_request_and_cuts_leave_no_trace(
    scalars: dict[str, list[int]], data: st.DataObject, order: Random
) -> None:
    segments = []
    for name, values in scalars.items():
        cuts = data.draw(st.sets(st.integers(1, len(values))) | st.just({len(values)})) | {len(values)}
        for stop in cuts:
            first = data.draw(st.integers(0, stop - 1))
            before = [EpochScalars(0, tuple(values[:first]))] if first else []
            segments.append(signed(name, 1, first, [EpochScalars(0, tuple(values[first:stop]))], before))
        segments.append(signed(name, 1, 0, [EpochScalars(0, tuple(values))]))
    host = taught(*FEEDS.values())
    for _ in range(3):
        order.shuffle(segments)
        host.hear(1, *segments)
    host.hear(1, *segments)
    assert host.machine.frontier.digest() == expected(scalars)
    assert host.machine.counters.admitted == sum(len(values) for values in scalars.values())


@pytest.mark.parametrize("bits", [0, 1])
def test_feeds_that_share_a_key_still_converge(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = seeds.feed_key
    monkeypatch.setattr(seeds, "feed_key", lambda *name: original(*name) & bits)
    swarm = Swarm(names(5), faults=Faults(loss=0.05))
    for _ in range(15):
        swarm.mesh()
        for node in swarm.nodes.values():
            node.compute()
        swarm.run(0.5)
    for node in list(swarm.nodes.values())[1:]:
        swarm.cut(node, swarm["n00"])
    swarm["n00"].compute(3)
    swarm["n01"].compute(3)
    swarm.faults = Faults()
    swarm.mesh()
    swarm.run_until_equal(60)


def test_a_segment_that_fits_several_feeds_tells_nothing_about_any(monkeypatch: pytest.MonkeyPatch) -> None:
    # The peer used to be taken to have the other feed too, and was then never sent it.
    monkeypatch.setattr(seeds, "feed_key", lambda *name: 1)
    host = taught(FEEDS["ann"], FEEDS["bob"])
    assert len(admits(host.hear(1, signed("ann", 1, 0, [EpochScalars(0, (1, 2, 3))])))) == 1
    host.hear(1, signed("ann", 1, 0, [EpochScalars(0, (1, 2, 3))]))
    host.hear(1, signed("cid", 1, 5, [EpochScalars(0, (1,))]))
    link = host.machine.links[1]
    assert link.has == {FEEDS["ann"]: 3}
    assert not link.inquiries


def test_a_peer_is_believed_when_it_says_that_it_lacks_something() -> None:
    swarm = Swarm("ann bob")
    swarm["ann"].compute(4)
    out, _ = swarm.connect(swarm["ann"], swarm["bob"])
    assert swarm["ann"].own
    swarm["ann"].machine.links[out.link].has[swarm["ann"].own] = 4  # a false belief, wherever it came from
    swarm.run_until_equal(2)


def test_a_second_link_to_the_same_peer_does_no_harm() -> None:
    swarm = Swarm("ann bob")
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm["ann"].compute(2)
    swarm.run_until_equal(2)
