"""No feed is continued from two histories (SPEC I1-I3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.machine import ASK_TIMEOUT
from sfprotocol.messages import EpochScalars, Feed, Position
from sfprotocol.own_feed import ENOUGH, EPOCH_SHARE, MAX_WAIT, MIN_INTERVAL, SEEN_SHARES, Coalescing
from tests.protocol import authors, scripted
from tests.protocol.authors import LATENCY, Author, feed, parameters
from tests.protocol.scripted import Scripted
from tests.protocol.swarm import Swarm

RENEWED = Feed(scripted.ANN.origin, scripted.NEW_INCARNATION)
ONE = (EpochScalars(0, (1,)),)


@pytest.fixture
def host() -> Scripted:
    """Return a node that asks whether its feed of three updates is the whole one."""
    return Scripted(scripted.ANN, proven=False, past=3)


def test_a_node_without_a_past_computes_at_once() -> None:
    host = Scripted(scripted.ANN)
    assert host.machine.may_compute
    assert scripted.admits(host.event(OwnUpdates(scripted.ANN, 0, ONE)))


def test_a_node_with_a_past_does_not_compute_while_it_asks(host: Scripted) -> None:
    assert not host.machine.may_compute
    with pytest.raises(LocalProtocolError):
        host.event(OwnUpdates(scripted.ANN, 3, ONE))
    host.link(1, Position(scripted.BOB, 4))
    assert not host.machine.may_compute


def test_a_node_with_a_witness_continues_its_feed(host: Scripted) -> None:
    assert scripted.continued(host.link(1, Position(scripted.ANN, 3))) == []
    assert host.machine.may_compute
    assert host.machine.own == scripted.ANN
    assert scripted.admits(host.event(OwnUpdates(scripted.ANN, 3, ONE)))


def test_a_peer_is_a_witness_only_after_its_last_summary(host: Scripted) -> None:
    host.greet(1)
    host.hear(1, host.summary(Position(scripted.ANN, 3), more=True))
    assert not host.machine.may_compute
    host.hear(1, host.summary(Position(scripted.BOB, 1)))
    assert host.machine.may_compute


def test_a_peer_that_knows_nothing_of_us_is_no_witness(host: Scripted) -> None:
    # A newcomer's empty list used to prove the feed of a restored backup, which then forked.
    host.link(1, Position(scripted.ANN, 0), Position(scripted.BOB, 9))
    assert not host.machine.may_compute


@pytest.mark.parametrize(("theirs_of_bob", "witness"), [(4, False), (5, True), (6, True)])
def test_a_peer_that_lacks_our_tail_is_a_witness_if_it_lacks_nothing_else(
    theirs_of_bob: int, witness: bool, host: Scripted
) -> None:
    host.machine.frontier.advance(scripted.BOB, 5, bytes(32), 0)
    host.link(1, Position(scripted.ANN, 2), Position(scripted.BOB, theirs_of_bob))
    assert host.machine.may_compute == witness


def test_a_peer_that_knows_all_of_our_feed_is_a_witness_whatever_else_it_lacks(host: Scripted) -> None:
    host.machine.frontier.advance(scripted.BOB, 5, bytes(32), 0)
    host.link(1, Position(scripted.ANN, 3))
    assert host.machine.may_compute


def test_a_peer_that_has_our_feed_from_ourselves_is_no_witness(host: Scripted) -> None:
    host.link(1)
    host.hear(1, host.summary(Position(scripted.ANN, 3)))
    assert not host.machine.may_compute


@pytest.fixture
def overtaken(host: Scripted) -> Scripted:
    """Return a node with 3 own updates in its log, after a peer has shown two more."""
    host.link(1, Position(scripted.ANN, 5))
    host.hear(1, scripted.said("ann", 3, 5))
    return host


def test_a_peer_that_shows_more_means_a_new_incarnation_before_any_computing(host: Scripted) -> None:
    asked = host.link(1, Position(scripted.ANN, 5), Position(scripted.BOB, 9))
    assert not host.machine.may_compute
    assert scripted.wants(asked)[0] == (1, (Position(scripted.ANN, 3),)), "our own feed first"
    shown = host.hear(1, scripted.said("ann", 3, 5))
    assert (len(scripted.admits(shown)), scripted.continued(shown)) == (1, [RENEWED])
    assert host.machine.may_compute
    assert scripted.admits(host.event(OwnUpdates(RENEWED, 0, ONE)))


def test_a_bare_claim_does_not_cost_the_incarnation_of_a_node_with_a_witness(host: Scripted) -> None:
    # Anybody could end a feed by claiming to have more of it; a thousand restarts left a thousand feeds.
    assert scripted.continued(host.link(1, Position(scripted.ANN, 5))) == []
    host.link(2, Position(scripted.ANN, 3))
    assert not host.machine.may_compute, "what is claimed may still be shown"
    assert scripted.continued(host.wait(ASK_TIMEOUT + 1)) == []
    assert (host.machine.may_compute, host.machine.own) == (True, scripted.ANN)
    assert scripted.admits(host.event(OwnUpdates(scripted.ANN, 3, ONE)))


def test_a_claim_that_is_shown_in_time_outweighs_a_witness(host: Scripted) -> None:
    host.link(1, Position(scripted.ANN, 5))
    host.link(2, Position(scripted.ANN, 3))
    host.wait(ASK_TIMEOUT / 2)
    assert scripted.continued(host.hear(1, scripted.said("ann", 3, 5))) == [RENEWED]


def test_who_claims_more_is_no_witness(host: Scripted) -> None:
    host.link(1, Position(scripted.ANN, 5))
    assert scripted.continued(host.wait(ASK_TIMEOUT - 1)) == []
    assert scripted.continued(host.wait(2)) == [RENEWED], "as if it had said nothing"


def test_a_claim_of_more_of_our_feed_that_is_forged_shows_nothing(host: Scripted) -> None:
    host.link(1, Position(scripted.ANN, 5))
    forged = replace(scripted.said("ann", 3, 5), signature=bytes(64))
    assert scripted.continued(host.hear(1, forged)) == []
    assert host.machine.own == scripted.ANN


def test_updates_computed_for_the_old_incarnation_are_thrown_away(overtaken: Scripted) -> None:
    assert overtaken.event(OwnUpdates(scripted.ANN, 5, ONE)) == []


def test_being_overtaken_later_means_a_new_incarnation_too() -> None:
    host = Scripted(scripted.ANN)
    host.event(OwnUpdates(scripted.ANN, 0, (EpochScalars(0, (0, 1)),)))
    assert scripted.continued(host.link(1, Position(scripted.ANN, 4))) == [], "anybody can say so"
    assert scripted.continued(host.hear(1, scripted.said("ann", 2, 4))) == [RENEWED]


def test_an_unknown_segment_of_our_own_feed_means_a_new_incarnation() -> None:
    host = Scripted(scripted.ANN)
    host.event(OwnUpdates(scripted.ANN, 0, (EpochScalars(0, (0, 1)),)))
    host.link(1)
    behind_a_gap = host.hear(1, scripted.said("ann", 3, 4))
    assert (scripted.continued(behind_a_gap), scripted.wants(behind_a_gap)) == (
        [],
        [(1, (Position(scripted.ANN, 2),))],
    )
    assert scripted.continued(host.hear(1, scripted.said("ann", 2, 4))) == [RENEWED]


def test_without_a_witness_a_new_incarnation_begins_after_the_timeout(host: Scripted) -> None:
    host.link(1)
    assert scripted.continued(host.wait(ASK_TIMEOUT - 0.1)) == []
    assert scripted.continued(host.wait(0.2)) == [RENEWED]
    assert host.machine.may_compute
    assert scripted.continued(host.wait(60)) == []


def test_an_own_feed_without_updates_is_replaced_without_waiting() -> None:
    # No peer can vouch for nothing: whoever has not heard of the feed may just not have heard of it yet.
    host = Scripted(scripted.ANN, proven=False)
    host.link(1)
    assert not host.machine.may_compute
    assert scripted.continued(host.wait(0)) == [RENEWED]


def test_a_relay_asks_for_no_witness() -> None:
    host = Scripted(None, proven=False)
    assert scripted.continued(host.wait(60)) == []
    assert not host.machine.may_compute


def test_a_complete_run_makes_no_more_updates_but_admits_them() -> None:
    host = Scripted(scripted.ANN)
    for first in (0, 2500):
        host.event(OwnUpdates(scripted.ANN, first, (EpochScalars(0, (1,) * 2500),)))
    assert host.machine.complete
    assert not host.machine.may_compute
    host.link(1)
    host.name(1, scripted.BOB)
    assert scripted.admits(host.hear(1, scripted.said("bob", 0, 1)))


def test_a_restored_backup_does_not_fork_even_if_a_newcomer_is_met_first() -> None:
    swarm = Swarm("ann bob")
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm["ann"].compute(3)
    backup = swarm["ann"].log.copy()
    swarm["ann"].compute(4)
    swarm.run_until_equal(2)
    swarm["ann"].log = backup  # and the backup's idea of which feed is ours
    swarm["ann"].restart()
    swarm.connect(swarm["ann"], swarm.add("newcomer"))
    for _ in range(60):
        swarm["ann"].compute()
        swarm.run(1)
    swarm.mesh()
    swarm.run_until_equal(5)
    origins = {feed.origin for feed in swarm.oracle}
    assert (len(swarm.oracle), len(origins)) == (2, 1)


def test_a_tail_that_was_logged_and_never_sent_still_reaches_everybody() -> None:
    swarm = Swarm("ann bob")
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm["ann"].compute(3)
    swarm.run_until_equal(2)
    swarm.cut(swarm["ann"], swarm["bob"])
    swarm["ann"].compute(2)
    swarm["ann"].restart()
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run_until_equal(2)
    assert swarm["ann"].compute()
    swarm.run_until_equal(2)
    assert len(swarm.oracle) == 1, "and the feed goes on"


def test_a_new_feed_is_named_and_flooded_on_links_that_are_up(overtaken: Scripted) -> None:
    actions = overtaken.event(OwnUpdates(RENEWED, 0, ONE))
    assert [entry.feed for _, summary in scripted.summaries(actions) for entry in summary.entries] == [
        RENEWED
    ]
    assert [(serve.feed, serve.first, serve.hops) for serve in scripted.serves(actions)] == [(RENEWED, 0, 0)]


LONG = parameters(epoch_updates=100_000)
"""A run in which a few steps are a negligible part of an epoch."""


# -- one author ------------------------------------------------------------------------------------------


def test_more_are_joined_step_by_step_until_the_signature_costs_little() -> None:
    author = Author(LONG)
    for step in range(200):
        author.make(0.5 * step)
    assert author.counts[:8] == [1, 2, 4, 8, 16, ENOUGH, ENOUGH, ENOUGH]


def test_a_step_that_takes_longer_than_that_is_signed_at_once() -> None:
    author = Author(LONG)
    for step in range(5):
        author.make(40.0 * step)
    assert author.counts == [1] * 5
    assert max(author.waited) == 0


def test_what_waits_is_due_although_no_more_comes() -> None:
    author = Author(LONG)
    for second in (0.0, 1.0, 2.0, 3.0):
        author.make(second)
    assert author.coalescing.count == 1
    assert author.coalescing.deadline() == 2.0 + MAX_WAIT


def test_the_progress_of_others_that_become_faster_ends_the_wait() -> None:
    author = Author(parameters(1000))
    for second in range(8):
        author.make(float(second))
    assert author.coalescing.count == 1
    author.hear(198)
    assert author.look(8.0) is None
    author.hear(1)
    assert author.look(8.0)


def test_as_many_wait_as_are_our_share_of_a_tenth_of_an_epoch() -> None:
    author = Author(parameters(1000))
    for second in range(300):
        author.hear(9)
        author.make(float(second))
    assert set(author.counts[12:]) == {10}


def test_what_an_author_adds_to_an_epoch_alone_ends_the_wait_too() -> None:
    author = Author(parameters(100))
    for second in range(100):
        author.make(float(second))
    assert author.counts[4:] == [10] * len(author.counts[4:])


def test_towards_the_end_of_the_run_less_and_less_waits() -> None:
    author = Author(parameters(1000, 1000))
    for step in range(1000):
        author.make(0.5 * step)
    assert sum(author.counts) == 1000
    for updates in author.taken:
        assert updates.count <= max(1, (1000 - updates.first) // EPOCH_SHARE)
    assert author.counts[-5:] == [1] * 5


def test_after_a_pause_the_first_update_goes_out_at_once() -> None:
    author = Author(LONG)
    for second in range(20):
        author.make(float(second))
    assert author.flush(20.0)
    author.hear(5000)
    author.make(500.0)
    assert author.coalescing.count == 0


def test_updates_of_several_epochs_are_joined_in_parts() -> None:
    author = Author(parameters(1000))
    author.make(0.0)
    for epoch in (0, 1, 1):
        author.coalescing.add((EpochScalars(epoch, (epoch,)),))
    updates = author.coalescing.take(1.0)
    assert updates == OwnUpdates(author.feed, 1, (EpochScalars(0, (0,)), EpochScalars(1, (1, 1))))
    assert author.coalescing.take(1.0) is None


def test_a_feed_is_continued_where_the_log_ends() -> None:
    frontier = Frontier(parameters(1000))
    frontier.advance(feed(1), 40, bytes(32), 0)
    coalescing = Coalescing(frontier, feed(1))
    coalescing.add((EpochScalars(0, (1, 2)),))
    assert (coalescing.first, coalescing.stop) == (40, 42)
    updates = coalescing.take(0.0)
    assert updates is not None
    assert (updates.first, updates.count, coalescing.first) == (40, 2, 42)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.floats(0.001, 100))
def test_nothing_waits_too_long_whatever_happens(chance: int, epoch_updates: int, pace: float) -> None:
    """Updates wait at most 30 s, or until two tenths of an epoch are seen, or until 32 wait."""
    random = Random(chance)
    author = Author(parameters(epoch_updates))
    now, known_at, signed_at = 0.0, 0, float("-inf")
    for _ in range(300):
        due = author.coalescing.deadline()
        now = min(now + random.expovariate(1 / pace), max(due, now))
        before = len(author.taken)
        match random.randrange(3):
            case 0:
                author.make(now, random.randint(1, 3))
            case 1:
                author.hear(random.randint(1, max(1, epoch_updates // 30)))
                author.look(now)
            case 2:
                author.look(now)
        if len(author.taken) > before:
            assert now >= signed_at + MIN_INTERVAL - 1e-9
            signed_at, known_at = now, author.frontier.known
        elif author.coalescing.count and now > signed_at + MIN_INTERVAL:
            assert now <= signed_at + MAX_WAIT
            assert author.coalescing.count < ENOUGH
            seen = author.frontier.known - known_at + author.coalescing.count
            assert seen < max(1, SEEN_SHARES * (epoch_updates // EPOCH_SHARE))
    assert not author.waited or max(author.waited) <= MAX_WAIT + 1e-9
    assert sum(author.counts) + author.coalescing.count == len(author.made_at)


# -- many authors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "paces",
    [[1.0] * 100, [0.1] * 30, [10.0] * 100, [0.1] * 3 + [1.0] * 10 + [10.0] * 40],
    ids=["even", "fast", "slow", "mixed"],
)
@pytest.mark.parametrize("epoch_updates", [100, 1024, 20_000])
def test_the_run_makes_no_more_than_a_tenth_of_an_epoch_while_an_update_waits(
    epoch_updates: int, paces: list[float], together: bool
) -> None:
    """This holds even if all authors begin together and none sees the others' waiting updates. Updates
    made between two segments, during a step or in transit are not counted."""
    course = authors.Swarm(parameters(epoch_updates), paces, together).play(
        warm=0, measured=64 * min(1.0, paces[0])
    )
    assert course.updates
    latency = LATENCY + MIN_INTERVAL
    assert course.progress <= epoch_updates / EPOCH_SHARE + latency * sum(1 / pace for pace in paces)
