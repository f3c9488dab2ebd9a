"""The outbox of a link: contents, timing and cost of what is sent (SPEC FL1-FL10, A1-A6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfprotocol import messages
from sfprotocol.events import Action, LinkUp, OwnUpdates, Serve, Served, Writable
from sfprotocol.plumtree import HAVE_DELAY, MAX_BURST, MAX_BURST_BYTES, PUSH_BURST, TTL
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.wire_codec import MAX_ENTRIES
from tests.protocol.feeds import RUN
from tests.protocol.scripted import ANN, BOB, Scripted, haves, prunes, said, serves, summaries, wants
from tests.protocol.swarm import Faults, Swarm

BIG_RUN = messages.RunParameters(bytes(range(32)), 1 << 20, 1 << 20, 2, 1000)


def own(host: Scripted, first: int, count: int = 1) -> list[Action]:
    return host.event(OwnUpdates(ANN, first, (messages.EpochScalars(0, (7,) * count),)))


def test_nothing_is_flooded_before_the_peer_has_told_what_it_has() -> None:
    host = Scripted(ANN)
    host.greet(1)
    assert serves(own(host, 0)) == []
    assert [(s.link, s.first) for s in serves(host.hear(1, host.summary()))] == [(1, 0)]


def test_after_a_hello_everything_is_told_and_nothing_is_pushed() -> None:
    host = Scripted(ANN)
    own(host, 0, 5)
    actions = host.link(1)
    assert [(link, told.entries) for link, told in summaries(actions)] == [(1, (host.claim(ANN, 5),))]
    assert serves(actions) == []
    assert [(serve.first, serve.hops) for serve in serves(own(host, 5))] == [(5, 0)]


def test_updates_from_before_the_hello_are_told_with_the_rest_and_not_pushed() -> None:
    host = Scripted(ANN)
    host.event(LinkUp(1, "peer"))
    own(host, 0, 5)
    hello = messages.Hello(messages.OLDEST_VERSION, RUN.run_id, 0, 0)
    actions = host.hear(1, hello, host.summary())
    assert [told.entries for _, told in summaries(actions)] == [(host.claim(ANN, 5),)]
    assert serves(actions) == []


def test_a_long_answer_goes_in_several_segments_one_after_the_other() -> None:
    host = Scripted()
    host.machine.frontier.advance(BOB, 20, bytes(32), 0)
    host.link(1)
    host.hear(1, messages.Want((messages.Position(BOB, 0),)))
    assert host.event(Served(1, BOB, 12, 0)) == []
    assert serves(host.event(Writable(1))) == [Serve(1, BOB, 12, 0)]


def test_segments_that_are_merged_go_with_the_smallest_hop_count() -> None:
    host, _ = tree(1, 2)
    hops = [9, 3, 7]
    served = [
        serve
        for step in range(3)
        for serve in serves(host.hear(1, replace(said("bob", step, step + 1), hops=hops[step])))
    ]
    host.event(Served(2, BOB, 1, 10))
    assert [*served, *serves(host.event(Writable(2)))] == [Serve(2, BOB, 0, 10), Serve(2, BOB, 1, 4)]


def test_a_full_frontier_is_told_in_pages() -> None:
    host = Scripted()
    for index in range(MAX_ENTRIES + 1):
        host.machine.frontier.advance(messages.Feed(index.to_bytes(32, "big"), 0), 1, bytes(32), 0)
    pages = [summary for _, summary in summaries(host.link(1))]
    assert [(len(page.entries), page.more) for page in pages] == [(MAX_ENTRIES, True), (1, False)]
    assert pages[1].known == MAX_ENTRIES + 1


def test_a_stalled_link_costs_no_memory_holds_up_no_other_and_gets_everything_in_one_segment() -> None:
    swarm = Swarm("ann bob cid")
    out, _ = swarm.connect(swarm["ann"], swarm["bob"])
    swarm.connect(swarm["ann"], swarm["cid"])
    swarm.run(1)
    swarm["ann"].compute()
    swarm.stall(out)
    for _ in range(40):
        swarm["ann"].compute()
        swarm.run(0.2)
    link = swarm["ann"].machine.links[out.link]
    assert len(link.outbox.dirty) == 1
    assert swarm["cid"].machine.frontier.known == 41
    swarm.forget_costs()
    swarm.resume(out)
    swarm.run_until_equal(3)
    assert swarm["ann"].sent["Segment"] <= 2


def test_a_burst_is_bounded_by_segments() -> None:
    host = Scripted()
    feeds = [messages.Feed(index.to_bytes(32, "big"), 0) for index in range(2 * MAX_BURST)]
    for feed in feeds:
        host.machine.frontier.advance(feed, 1, bytes(32), 0)
    host.link(1)
    first = serves(host.hear(1, messages.Want(tuple(messages.Position(feed, 0) for feed in feeds))))
    assert len(first) == MAX_BURST
    for serve in first:
        host.event(Served(1, serve.feed, 1, 0))
    second = serves(host.event(Writable(1)))
    assert sorted(serve.feed for serve in first + second) == feeds


def test_a_burst_is_bounded_by_bytes() -> None:
    # 64 large segments took minutes on a slow line; meanwhile the peer asked for all of them again.
    host = Scripted(run=BIG_RUN)
    feeds = [messages.Feed(index.to_bytes(32, "big"), 0) for index in range(40)]
    for feed in feeds:
        host.machine.frontier.advance(feed, 1 << 16, bytes(32), 0)
    host.link(1)
    burst = serves(host.hear(1, messages.Want(tuple(messages.Position(feed, 0) for feed in feeds))))
    assert len(burst) == MAX_BURST_BYTES // (2 * MAX_SEGMENT_UPDATES)
    for serve in burst:
        host.event(Served(1, serve.feed, MAX_SEGMENT_UPDATES, 0))
    following = serves(host.event(Writable(1)))
    assert {serve.feed for serve in following}.isdisjoint(serve.feed for serve in burst), "each feed in turn"


def test_a_want_for_steps_before_those_being_served_is_answered() -> None:
    # The report of the later part used to cover up that the earlier one had been asked for.
    host = Scripted()
    host.machine.frontier.advance(BOB, 20, bytes(32), 0)
    host.link(1)
    [serve] = serves(host.hear(1, messages.Want((messages.Position(BOB, 10),))))
    assert serve.first == 10
    host.hear(1, messages.Want((messages.Position(BOB, 3),)))
    host.event(Served(1, BOB, 20, 0))
    assert [again.first for again in serves(host.event(Writable(1)))] == [3]


def test_a_want_that_is_being_served_already_is_not_served_twice() -> None:
    host = Scripted()
    host.machine.frontier.advance(BOB, 20, bytes(32), 0)
    host.link(1)
    host.hear(1, messages.Want((messages.Position(BOB, 3),)))
    host.hear(1, messages.Want((messages.Position(BOB, 10),)))
    host.event(Served(1, BOB, 20, 0))
    assert serves(host.event(Writable(1))) == []


@pytest.mark.parametrize("hops", [0, 7, TTL - 2])
def test_a_forwarded_segment_has_one_hop_more(hops: int) -> None:
    host, _ = tree(1, 2)
    segment = said("bob", 0, 1)
    actions = host.hear(1, replace(segment, hops=hops))
    assert [(serve.link, serve.hops) for serve in serves(actions)] == [(2, hops + 1)]


def test_beyond_the_ttl_a_segment_is_admitted_and_announced_only() -> None:
    host, _ = tree(1, 2)
    segment = said("bob", 0, 1)
    actions = host.hear(1, replace(segment, hops=TTL - 1))
    assert host.machine.frontier.known == 1
    assert serves(actions) == []
    key = host.machine.frontier.state(BOB).key
    assert (2, (messages.Ahead(key, 1),)) in haves(host.wait(2 * HAVE_DELAY))


def test_an_answer_has_hop_count_0() -> None:
    host, _ = tree(1, 2)
    segment = said("bob", 0, 1)
    host.hear(1, replace(segment, hops=TTL - 1))
    host.name(2, BOB)
    assert [serve.hops for serve in serves(host.hear(2, messages.Want((messages.Position(BOB, 0),))))] == [0]


# -- cost --------------------------------------------------------------------------------------------


def test_on_a_clean_mesh_an_update_crosses_each_link_at_most_once_each_way() -> None:
    swarm = Swarm("a b c d e")
    swarm.mesh()
    swarm.run(3)
    swarm.forget_costs()
    for _ in range(20):
        for node in swarm.nodes.values():
            node.compute()
        swarm.run(0.5)
    swarm.run_until_equal(2)
    updates, receivers, links = 100, 4, 10
    copies = sum(node.updates_sent for node in swarm.nodes.values()) / (updates * receivers)
    assert copies <= 4, "each receiver hears it from each of its links at most"
    assert swarm.total("Segment") <= updates * 2 * links
    assert swarm.total("Want") == 0
    assert swarm.total_bytes("Segment") <= swarm.total("Segment") * 96


def test_a_quiet_network_sends_small_summaries_and_nothing_else() -> None:
    swarm = Swarm("a b c d e")
    swarm.mesh()
    for node in swarm.nodes.values():
        node.compute(3)
    swarm.run_until_equal(3)
    swarm.run(30)
    swarm.forget_costs()
    swarm.run(60)
    sent = {kind for node in swarm.nodes.values() for kind in node.sent}
    assert sent == {"Summary"}
    assert swarm.total("Summary") == 5 * 60
    assert swarm.total_bytes("Summary") <= 5 * 60 * 50


def test_pushed_updates_are_not_announced_as_well() -> None:
    swarm = Swarm("ann bob")
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(3)
    swarm["ann"].compute()
    swarm.run(0.2)
    swarm.forget_costs()
    swarm.run(10)
    assert swarm["ann"].sent_bytes["Summary"] / swarm["ann"].sent["Summary"] <= 50


def test_catching_up_costs_little_more_than_the_scalars() -> None:
    swarm = Swarm("ann")
    for _ in range(100):
        swarm["ann"].compute(10)
    late = swarm.add("late")
    swarm.connect(swarm["ann"], late)
    swarm.run_until_equal(3)
    assert swarm["ann"].sent_bytes["Segment"] <= 1000 * 2 + 20 * 6 + 100


def test_a_lost_last_segment_is_found_by_comparing_digests() -> None:
    swarm = Swarm("ann bob")
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(3)
    swarm.faults = Faults(loss=1.0)
    swarm["ann"].compute()
    swarm.run(0.3)
    swarm.faults = Faults()
    assert swarm.run_until_equal(10) > 1


def test_a_peer_is_blank_until_it_shows_that_it_takes_part() -> None:
    # A relay says nothing of its own; taken for a mute peer it lost its link with an only trainer.
    host = Scripted(ANN)
    own(host, 0, 8)
    for link in (1, 2, 3):
        host.link(link)
    assert all(host.machine.links[link].blank for link in (1, 2, 3))
    host.name(1, BOB)
    host.hear(1, said("bob", 0, 1))
    host.hear(2, replace(host.summary(), known=6))
    assert [host.machine.links[link].blank for link in (1, 2, 3)] == [False, False, True]


# -- the tree ----------------------------------------------------------------------------------------


def tree(*links: int) -> tuple[Scripted, int]:
    """Return a relay to which these links have taught the name of bob's feed, and the feed's key."""
    host = Scripted()
    for link in links:
        host.link(link)
        host.name(link, BOB)
    return host, host.machine.frontier.state(BOB).key


def pushed(segment: messages.Segment) -> messages.Segment:
    return replace(segment, hops=3)


def test_a_link_that_pushes_duplicates_is_asked_to_become_lazy() -> None:
    host, key = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    assert prunes(host.hear(2, pushed(said("bob", 0, 1)))) == [(2, (key,))]
    assert prunes(host.hear(2, pushed(said("bob", 0, 1)))) == [], "once"


def test_segments_from_their_origin_and_answers_to_wants_are_not_pruned() -> None:
    host, _ = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    assert prunes(host.hear(2, said("bob", 0, 1))) == []


def test_crossing_messages_do_not_cut_off_a_feed() -> None:
    host, key = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    assert prunes(host.hear(2, pushed(said("bob", 0, 1)))) == [(2, (key,))]
    host.hear(2, pushed(said("bob", 1, 2)))  # on its way before the Prune
    assert prunes(host.hear(1, pushed(said("bob", 1, 2)))) == []


def test_a_pruned_feed_is_announced_and_not_pushed() -> None:
    host, key = tree(1, 2, 3)
    host.hear(2, messages.Prune((key,)))
    assert [serve.link for serve in serves(host.hear(1, pushed(said("bob", 0, 1))))] == [2, 3], (
        "not known yet"
    )
    host.hear(2, messages.Prune((key,)))
    assert [serve.link for serve in serves(host.hear(1, pushed(said("bob", 1, 2))))] == []
    for link in (2, 3):
        host.event(Served(link, BOB, 1, 4))
        host.event(Writable(link))
    assert haves(host.wait(HAVE_DELAY)) == [(2, (messages.Ahead(key, 2),))]


def test_a_peer_is_not_told_what_it_has_announced_itself() -> None:
    host, key = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    host.event(Served(2, BOB, 1, 4))
    host.event(Writable(2))
    host.hear(2, messages.Prune((key,)))
    host.hear(1, pushed(said("bob", 1, 2)))
    host.hear(2, messages.Have((messages.Ahead(key, 2),)))
    assert haves(host.wait(HAVE_DELAY)) == []


def test_an_announcement_that_no_segment_follows_repairs_the_tree() -> None:
    host, key = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    host.hear(2, messages.Have((messages.Ahead(key, 2),)))
    assert wants(host.wait(HAVE_DELAY)) == [(2, (messages.Position(BOB, 1),))]
    host.hear(2, said("bob", 1, 2))
    assert prunes(host.hear(1, pushed(said("bob", 1, 2)))) == [(1, (key,))], "the faster link is kept"


def test_an_announcement_that_a_segment_follows_costs_nothing() -> None:
    host, key = tree(1, 2)
    host.hear(2, messages.Have((messages.Ahead(key, 1),)))
    host.hear(1, pushed(said("bob", 0, 1)))
    assert wants(host.wait(1)) == []


def test_a_peer_that_asks_is_pushed_to_again() -> None:
    host, key = tree(1, 2)
    host.hear(1, pushed(said("bob", 0, 1)))
    host.hear(2, messages.Prune((key,)), messages.Want((messages.Position(BOB, 0),)))
    host.event(Served(2, BOB, 1, 0))
    host.event(Writable(2))
    assert [serve.link for serve in serves(host.hear(1, pushed(said("bob", 1, 2))))] == [2]


def test_our_own_updates_are_pushed_on_lazy_links_too() -> None:
    host = Scripted(ANN)
    host.link(1)
    host.link(2)
    own(host, 0)
    for link in (1, 2):
        host.event(Served(link, ANN, 1, 0))
        host.event(Writable(link))
        host.hear(link, messages.Prune((host.machine.frontier.state(ANN).key,)))
    assert [serve.link for serve in serves(own(host, 1))] == [1, 2]


def test_an_origin_above_the_rate_limit_is_announced_instead_of_pushed() -> None:
    host, key = tree(1, 2)
    served: list[Serve] = []
    for step in range(int(PUSH_BURST) + 20):
        for serve in serves(host.hear(1, pushed(said("bob", step, step + 1)))):
            served.append(serve)
            host.event(Served(2, BOB, step + 1, 4))
            host.event(Writable(2))
    assert len(served) == PUSH_BURST
    assert haves(host.wait(HAVE_DELAY)) == [(2, (messages.Ahead(key, int(PUSH_BURST) + 20),))]
