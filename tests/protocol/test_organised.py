"""Organised runs: how decisions change the feeds that a machine holds (SPEC, part O)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfprotocol import decisions, messages, validation, wire_codec
from sfprotocol.control_feed import ControlFeed, succession_message
from sfprotocol.decisions import Admit, Amend, Budget, Close, Finish, Move, Revoke, Seal, Validators, Void
from sfprotocol.events import OwnDecision, OwnJoinRequest, OwnSuccession, Received
from sfprotocol.join_requests import SEND_AGAIN, join_request_message
from sfprotocol.quotas import LEAST_USUAL, USUAL_OF
from sfprotocol.run_state import Span
from sfprotocol.signing import extend, genesis
from tests.protocol.feeds import RUN, forked, origin_of, own_updates, signed, signing_key
from tests.protocol.organised import closing
from tests.protocol.swarm import Node, Swarm

AUTHORITY = messages.Authority(
    RUN.run_id, origin_of("organiser"), tuple(map(origin_of, ("d1", "d2", "d3"))), 2
)
ORGANISED = replace(RUN, organised=AUTHORITY, rate=1 << 22)
QUOTA = 40


def swarm(
    names: str = "a b c", run: messages.RunParameters = ORGANISED, quota: int = QUOTA, **options: object
) -> Swarm:
    made = Swarm(run=run, organiser="a", **options)  # type: ignore[arg-type]
    for name in names.split():
        made.add(name)
    made.mesh()
    made.run(1)
    for name in names.split():
        decide(made["a"], Admit(origin_of(name), quota, 0))
    made.run(2)
    return made


@pytest.fixture
def made() -> Swarm:
    """Return three members, of which the first organises."""
    return swarm()


def decide(node: Node, decision: decisions.Decision) -> None:
    node.handle(OwnDecision(decisions.encode(decision)))


def close(node: Node) -> None:
    """Close the open epoch with all updates that this node holds."""
    decide(node, closing(node.machine.frontier))


def seal(node: Node, *skipped: int, factor: int = decisions.FACTOR_ONE) -> None:
    assert node.machine.organised is not None
    run_state = node.machine.organised.run_state
    decide(node, Seal(run_state.sealed, skipped, (), bytes(32), factor, ()))


def number(made: Swarm, name: str) -> int:
    own = made[name].own
    assert own is not None
    found = made[name].machine.organised.run_state.number(own)
    assert found is not None
    return found


def same(made: Swarm) -> bool:
    digests = {node.machine.frontier.digest() for node in made.nodes.values()}
    runs = {
        tuple((state.feed, node.machine.spans(state.feed)) for state in node.machine.frontier)
        for node in made.nodes.values()
    }
    return len(digests) == len(runs) == 1


def test_nobody_makes_updates_before_it_is_admitted() -> None:
    made = Swarm(run=ORGANISED, organiser="a")
    made.add("a"), made.add("b")
    made.mesh()
    made.run(2)
    assert not made["b"].compute()
    decide(made["a"], Admit(origin_of("b"), QUOTA, 0))
    made.run(2)
    assert made["b"].compute(3)
    made.run(2)
    assert made["a"].machine.frontier.known == 3
    assert same(made)


def test_a_proof_against_a_stranger_is_neither_kept_nor_passed_on() -> None:
    """Keys are free, and a proof may take 82 kB. So only proofs against members are stored."""
    made = swarm("a b")
    stranger = messages.Feed(origin_of("stranger"), 0)
    shown = Received(next(iter(made["a"].machine.links)), wire_codec.encode(forked("stranger", 0)))
    made["a"].handle(shown)
    made.run(2)
    assert not any(made[name].machine.frontier.is_cut(stranger) for name in "ab")
    decide(made["a"], Admit(stranger.origin, QUOTA, 0))
    made.run(2)
    made["a"].handle(shown)
    made.run(2)
    assert all(made[name].machine.frontier.is_cut(stranger) for name in "ab")


def test_nobody_makes_updates_while_what_is_closed_reaches_the_budget() -> None:
    made = swarm("a b")
    decide(made["a"], Budget(10))
    made["b"].compute(10)
    made.run(2)
    close(made["a"])
    made.run(2)
    assert not made["b"].compute()
    seal(made["a"], number(made, "b"))  # skipped: they do not count after all
    made.run(2)
    assert made["b"].compute()


def test_a_quota_bounds_the_updates_of_an_epoch(made: Swarm) -> None:
    assert made["b"].compute(QUOTA + 10)
    made.run(2)
    assert made["c"].machine.frontier.known == QUOTA
    assert not made["b"].compute()
    close(made["a"])
    made.run(2)
    assert made["b"].compute(5)
    made.run(2)
    assert made["c"].machine.frontier.known == QUOTA + 5
    assert same(made)


def test_all_together_make_two_epochs_of_updates_for_one_close() -> None:
    made = swarm(run=replace(ORGANISED, epoch_updates=8))
    assert made["b"].compute(20)
    made.run(2)
    assert made["b"].machine.frontier.next(made["b"].own) == 16
    assert made["c"].compute(20), "of another's updates half an epoch counts"
    made.run(2)
    assert made["c"].machine.frontier.next(made["c"].own) == 12
    assert made["a"].compute(20)
    made.run(2)
    assert made["a"].machine.frontier.next(made["a"].own) == 8
    assert not any(made[name].compute() for name in "abc")
    close(made["a"])
    made.run(2)
    assert all(made[name].compute() for name in "abc")


def test_after_short_epochs_members_make_no_more_than_twice_as_much_for_the_next_one() -> None:
    """An organiser that searches for a rate closes short epochs. Too many updates during them have
    destroyed models."""
    made = swarm(run=replace(ORGANISED, epoch_updates=4096), quota=4096)
    assert made["b"].compute(200)
    assert made["b"].machine.organised.room(made["b"].own) == 4096 - 200, "its quota"
    made.run(2)
    close(made["a"])
    for _ in range(USUAL_OF - 1):
        decide(made["a"], Close(made["a"].machine.organised.run_state.open_epoch, b"saltsalt", ()))
    made.run(2)
    assert made["b"].machine.organised.room(made["b"].own) == 2 * 200
    decide(made["a"], Close(USUAL_OF, b"saltsalt", ()))
    made.run(2)
    assert made["b"].machine.organised.room(made["b"].own) == 2 * LEAST_USUAL, "after a quiet night, too"


def test_seals_say_what_counts_and_everybody_agrees(made: Swarm) -> None:
    for name in "abc":
        made[name].compute(7)
    made.run(2)
    close(made["a"])
    made["b"].compute(3)  # may carry either label
    made.run(2)
    seal(made["a"], number(made, "b"), factor=2048)
    made.run(2)
    run_state = made["c"].machine.organised.run_state
    assert run_state.sealed == 1
    assert run_state.counted == 14
    assert same(made)


def test_what_is_to_be_skipped_can_be_left_out_of_what_is_named(made: Swarm) -> None:
    for name in "ab":
        made[name].compute(7)
    made.run(2)
    close(made["a"])
    seal(made["a"])
    made["b"].compute(3)
    made.run(2)
    close(made["a"])
    organised, b = made["a"].machine.organised, number(made, "b")
    assert organised.named(1)[made["b"].own].spans[-1].stop == 10
    assert organised.named(1, [b]) == organised.named(0)


def test_what_a_restarted_node_has_kept_is_what_counts(made: Swarm) -> None:
    made["b"].compute(9)
    made.run(2)
    close(made["a"])
    seal(made["a"], factor=1024)
    made.run(2)
    before = made["c"].machine.spans(made["b"].own)
    made["c"].restart()
    assert made["c"].machine.spans(made["b"].own) == before
    made.mesh()
    made.run(3)
    assert same(made)


def test_a_revoked_origin_makes_no_more_and_keeps_what_was_named(made: Swarm) -> None:
    made["b"].compute(9)
    made.run(2)
    close(made["a"])
    made.run(1)
    made["b"].compute(5)
    made.run(2)
    decide(made["a"], Revoke(1, 0))
    made.run(25)
    assert not made["b"].compute()
    assert {node.machine.frontier.known for node in made.nodes.values()} == {9}
    assert same(made)


def test_what_a_revoked_origin_has_not_signed_does_not_end_its_feed(made: Swarm) -> None:
    """Otherwise a forged update could end the feed, and its remaining valid updates would be refused."""
    made["b"].compute(3)
    made.run(2)
    made.cut(made["a"], made["b"]), made.cut(made["b"], made["c"])
    close(made["a"])
    assert made["b"].compute(4), "of the epoch before, as it has not heard of the close"
    decide(made["a"], Revoke(1, 1))
    made.run(2)
    feed, c = made["b"].own, made["c"]
    forged = messages.Segment(
        c.machine.frontier.state(feed).key, 3, (messages.EpochScalars(1, (1, 2)),), bytes(64)
    )
    (link,) = c.machine.links
    c.handle(Received(link, wire_codec.encode(forged)))
    made.mesh()
    made.run(20)
    assert c.machine.frontier.next(feed) == 7
    assert same(made)


def test_a_fork_of_the_organiser_freezes_the_feed_until_deputies_pass_it_on() -> None:
    made = swarm("a b c d")
    twin = ControlFeed(AUTHORITY)
    twin.add(0, made["a"].machine.organised.control.feed.entries)
    made.cut(made["a"], made["b"]), made.cut(made["a"], made["d"])
    made.cut(made["c"], made["b"]), made.cut(made["c"], made["d"])
    decide(made["a"], Budget(17))
    made["b"].machine.organised.control._sign = signing_key("organiser").sign
    decide(made["b"], Budget(18))
    made.run(2)
    made.connect(made["c"], made["d"])
    made.run(20)
    feeds = [node.machine.organised.control.feed for node in made.nodes.values()]
    assert all(feed.frozen for feed in feeds)
    assert {feed.stop for feed in feeds} == {4}
    assert same(made)
    made["d"].handle(succeeded(made["d"], feeds[0].stop))
    made["d"].machine.organised.control._sign = signing_key("new").sign
    decide(made["d"], Budget(19))
    made.run(10)
    assert {node.machine.organised.run_state.budget for node in made.nodes.values()} == {19}
    assert same(made)


def succeeded(node: Node, kept: int) -> OwnSuccession:
    """Return the deputies' succession that keeps this many decisions and names another key."""
    feed = node.machine.organised.control.feed
    succession = messages.Succession(feed.next_term, kept, feed.chains[kept], origin_of("new"), ())
    message = succession_message(RUN.run_id, succession)
    votes = tuple(messages.Vote(n, signing_key(f"d{n + 1}").sign(message)) for n in range(2))
    return OwnSuccession(replace(succession, votes=votes))


def test_an_organiser_that_has_lost_its_say_meanwhile_signs_nothing_and_goes_on() -> None:
    """A succession or a fork may arrive between a decision and its signature. That is no fault of this
    node."""
    made = swarm("a b")
    stop = made["a"].machine.organised.control.feed.stop
    made["a"].handle(succeeded(made["a"], stop))
    decide(made["a"], Budget(17))
    made["a"].handle(succeeded(made["a"], 0))  # it has nothing, and nothing is lacking
    decide(made["a"], Budget(17))
    assert made["a"].machine.organised.control.feed.stop == 0
    made = swarm("a b")
    made.cut(made["a"], made["b"])
    made["b"].machine.organised.control._sign = signing_key("organiser").sign
    decide(made["a"], Budget(17))
    decide(made["b"], Budget(18))
    made.connect(made["a"], made["b"])
    made.run(5)
    assert made["a"].machine.organised.control.feed.frozen
    decide(made["a"], Budget(19))
    assert made["a"].machine.organised.run_state.budget != 19


def test_what_a_succession_admits_no_more_does_not_count_until_it_is_admitted_again() -> None:
    """Both changes are reported as Advanced, although the feed has no number in between."""
    made = swarm("a b")
    made["b"].compute(3)
    made.run(2)
    counted, own = made["a"].counted, made["b"].own
    assert counted[own] == ((3, decisions.FACTOR_ONE),)
    made["a"].handle(succeeded(made["a"], 1))
    made.run(1)
    assert counted[own] == made["a"].machine.spans(own) == ()
    made["a"].machine.organised.control._sign = signing_key("new").sign
    decide(made["a"], Admit(origin_of("b"), QUOTA, 0))
    made.run(1)
    assert counted[own] == made["a"].machine.spans(own) == ((3, decisions.FACTOR_ONE),)


def test_who_has_signed_two_decisions_hears_of_it_from_whoever_finds_out() -> None:
    """A node with a single neighbour can hear of its own fork from nobody else."""
    made = swarm("a b c")
    made.cut(made["a"], made["b"]), made.cut(made["b"], made["c"])
    made["b"].machine.organised.control._sign = signing_key("organiser").sign
    decide(made["b"], Budget(18))
    to_c, _ = made.connect(made["b"], made["c"])
    heads = made["c"].machine.links[to_c.far].control
    while not (heads.theirs and heads.theirs.stop == 4):
        made.run(0.001)
    assert made["c"].machine.organised.control.feed.stop == 3
    made.stall(to_c)  # it has asked for the decision, and hears another one first
    decide(made["a"], Budget(17))
    made.run(1)
    made.resume(to_c)
    made.run(5)
    assert all(node.machine.organised.control.feed.frozen for node in made.nodes.values())
    assert same(made)


def test_after_a_cut_a_feed_has_the_label_of_what_is_left() -> None:
    """A later close lists the other history, whose next label is earlier than that of the dropped updates."""
    made = swarm("a b")
    made["b"].compute(5)
    made.run(2)
    close(made["a"])
    close(made["a"])
    made.run(2)
    own, link = made["b"].own, next(iter(made["a"].machine.links))
    assert own
    first = [messages.EpochScalars(part.epoch, part.scalars) for part in made["a"].log.read(own, 0).parts]
    ours, theirs = (
        signed("b", own.incarnation, 5, [messages.EpochScalars(label, (scalar,) * 3)], before=first)
        for label, scalar in ((2, 7), (1, 8))
    )
    made["a"].handle(Received(link, wire_codec.encode(ours)))
    made.run(1)
    assert made["a"].machine.frontier.state(own).next == 8
    made.cut(made["a"], made["b"])
    chain = extend(genesis(RUN.run_id, own), first)
    branches = messages.Branch(ours.parts, ours.signature), messages.Branch(theirs.parts, theirs.signature)
    made.add("c")
    made.connect(made["a"], made["c"])
    made.run(1)
    link = next(iter(made["a"].machine.links))
    made["a"].handle(Received(link, wire_codec.encode(messages.Proof(own, 5, (chain, chain), branches))))
    made.run(1)
    state = made["a"].machine.frontier.state(own)
    assert (state.next, state.epoch, state.labelled) == (5, 0, 5)
    tag = validation.tag(b"saltsalt", extend(chain, theirs.parts))
    decide(made["a"], Close(2, b"saltsalt", (Move(number(made, "b"), 3, tag),)))
    made["a"].handle(Received(link, wire_codec.encode(theirs)))
    made.run(1)
    assert made["a"].machine.frontier.next(own) == 8


def test_a_fork_of_the_organiser_is_found_however_far_back_it_lies() -> None:
    made = swarm("a b")
    made.cut(made["a"], made["b"])
    made["b"].machine.organised.control._sign = signing_key("organiser").sign
    for turn in range(9):
        decide(made["a"], Budget(100 + turn))
        decide(made["b"], Budget(200 + turn))
    made.connect(made["a"], made["b"])
    made.run(30)
    feeds = [node.machine.organised.control.feed for node in made.nodes.values()]
    assert [(feed.frozen, feed.stop) for feed in feeds] == [(True, 2), (True, 2)]
    assert not made["a"].faults
    assert not made["b"].faults, "neither has done anything wrong"
    assert same(made)


def test_decisions_that_come_with_a_forged_one_are_kept_and_counted() -> None:
    made = swarm("a b")
    made.cut(made["a"], made["b"])
    before = made["b"].machine.organised.control.feed.stop
    decide(made["a"], Budget(17))
    entry = made["a"].machine.organised.control.feed.entries[-1]
    control = messages.Control(before, (entry, entry._replace(record=decisions.encode(Budget(18)))))
    peer = made.add("peer")
    made.connect(peer, made["b"])
    made.run(1)
    (link,) = made["b"].wires
    made["b"].handle(Received(link, wire_codec.encode(control, RUN.scalar_bytes)))
    assert made["b"].machine.organised.run_state.budget == 17
    assert made["b"].decided[before:] == [entry]


def commitment(name: str) -> messages.Commitment:
    """Return a validator's commitment for epoch 0, signed as before version 0.3."""
    origin, digest = origin_of(name), bytes(32)
    signed = b"".join((b"sfnode-commitment", RUN.run_id, origin, bytes(4), b"saltsalt", digest))
    return messages.Commitment(0, origin, digest, signing_key(name).sign(signed))


def test_what_validators_of_before_say_changes_nothing_is_not_passed_on_and_counts_as_waste() -> None:
    made = swarm()
    for name in "bc":
        made[name].compute(3)
    decide(made["a"], Validators((0, 1, 2)))
    made.run(2)
    close(made["a"])
    made.run(2)
    made.forget_costs()
    a = made["a"]
    link, digest = next(iter(a.wires)), a.machine.frontier.digest()
    for message in (commitment("b"), messages.Finding(0, origin_of("b"), 7, 64, ())):
        before = a.machine.counters.news
        a.handle(Received(link, wire_codec.encode(message, RUN.scalar_bytes)))
        assert a.machine.counters.news == before
    made.run(2)
    assert not a.faults
    assert not {"Commitment", "Finding"} & a.sent.keys()
    assert a.machine.frontier.digest() == digest
    seal(a)
    made.run(2)
    assert same(made)
    again = Received(link, wire_codec.encode(commitment("b"), RUN.scalar_bytes))
    for _ in range(5000):
        a.handle(again)
    assert [fault[:2] for fault in a.faults] == ["L8"]


@pytest.mark.parametrize("others", [8, 2])
def test_a_node_with_another_history_than_the_named_one_lets_it_go(others: int) -> None:
    """This holds even if its history ends before the step whose tag would show the difference."""
    made = swarm("a b c d")
    other = made.twin("b")  # the same key, the same incarnation
    made.cut(made["b"], made["d"]), made.cut(made["a"], made["d"]), made.cut(made["c"], made["d"])
    made.connect(other, made["d"])
    feed = made["b"].own
    made["b"].compute(5)
    made.run(2)
    close(made["a"])
    other.compute(others)
    made.run(3)
    assert made["d"].machine.frontier.known == others
    made.drop(other)
    made.connect(made["d"], made["c"])
    made.run(60)
    assert {node.machine.frontier.next(feed) for node in made.nodes.values()} == {5}
    assert same(made)


@pytest.mark.parametrize("kept", [1, 0])
def test_a_node_whose_log_has_lost_what_was_named_of_its_feed_does_not_continue_it(kept: int) -> None:
    """No peer can show the lost updates, as all have lost them. The decisions show that they existed."""
    made = swarm()
    b, feed = made["b"], made["b"].own
    for steps in (3, 2):
        b.compute(steps)
        made.run(2)
    close(made["a"])
    made.run(2)
    for node in made.nodes.values():
        del node.log.rows[feed][kept:]
        if not kept:
            del node.log.rows[feed]
        node.restart()
    del made.oracle[feed][3 * kept :]
    made.mesh()
    made.run(30)
    b.compute(4), b.compute(4)
    made.run(5)
    assert b.own != feed
    assert {node.machine.frontier.next(feed) for node in made.nodes.values()} == {3 * kept}
    assert all(node.machine.frontier.next(b.own) for node in made.nodes.values())
    decide(made["a"], Amend(number(made, "b") // 64 * 64 + feed.incarnation, 0))
    made.run(5)
    assert same(made)


def join_request(name: str) -> messages.JoinRequest:
    unsigned = messages.JoinRequest(origin_of(name), 7, 0, b"", b"")
    return replace(unsigned, signature=signing_key(name).sign(join_request_message(RUN.run_id, unsigned)))


def test_a_join_request_reaches_the_organiser_over_others_and_is_not_sent_for_ever() -> None:
    made = swarm("a b")
    made.add("new")
    made.connect(made["new"], made["b"])
    asked = join_request("new")
    made["new"].handle(OwnJoinRequest(asked))
    made.run(2)
    assert made["a"].join_requests == [asked]
    decide(made["a"], Admit(asked.origin, QUOTA, 0))
    made.run(2)
    made.forget_costs()
    made.run(100)
    assert made["new"].sent["JoinRequest"] == 0
    assert made["new"].compute()


def test_a_join_request_that_found_no_way_to_the_organiser_does_when_it_is_sent_again() -> None:
    made = swarm("a b")
    made.add("new")
    made.cut(made["a"], made["b"])
    made.connect(made["new"], made["b"])
    asked = join_request("new")
    made["new"].handle(OwnJoinRequest(asked))
    made.run(2)
    made.connect(made["a"], made["b"])
    made.run(SEND_AGAIN)
    assert made["a"].join_requests == [asked]


@pytest.mark.parametrize("decision", [Finish(), Budget(3)])
def test_a_run_that_is_complete_makes_no_updates(decision: decisions.Decision) -> None:
    made = swarm()
    made["b"].compute(4)
    made.run(2)
    close(made["a"])
    seal(made["a"])
    decide(made["a"], decision)
    made.run(2)
    assert all(node.machine.complete for node in made.nodes.values())
    assert not made["b"].compute()


def test_what_an_epoch_has_named_can_be_told_from_what_came_after_its_close(made: Swarm) -> None:
    feed = made["b"].own
    for steps in (5, 3):
        made["b"].compute(steps)
        made.run(2)
        close(made["a"])
    seal(made["a"], factor=7)
    made["b"].compute(2)
    made.run(2)
    organised = made["c"].machine.organised
    assert made["c"].machine.spans(feed) == (Span(5, 7), Span(10, decisions.FACTOR_ONE))
    assert organised.named(0)[feed].spans == (Span(5, 7),)
    assert organised.named(1)[feed].spans == (Span(5, 7), Span(8, decisions.FACTOR_ONE))
    assert organised.named(1)[feed].rates == made["c"].machine.counted(feed).rates


def test_void_and_amend_take_back_what_was_counted(made: Swarm) -> None:
    for steps in (4, 6):
        for name in "bc":
            made[name].compute(steps)
        made.run(2)
        close(made["a"])
        seal(made["a"])
    decide(made["a"], Void(0, 1, (1,)))
    made.run(2)
    assert made["c"].machine.organised.run_state.counted == 10
    ended = made["c"].own
    decide(made["a"], Amend(number(made, "c"), 1))
    made.run(30)
    assert {node.machine.organised.run_state.counted for node in made.nodes.values()} == {4}
    assert {node.machine.frontier.next(ended) for node in made.nodes.values()} == {4}
    assert same(made)


def test_a_node_whose_feed_is_ended_goes_on_with_another(made: Swarm) -> None:
    for steps in (4, 6):
        made["c"].compute(steps)
        made.run(2)
        close(made["a"])
        made.run(1)
    begun = own_updates(made["c"].host, 3, lambda: 1)
    decide(made["a"], Amend(number(made, "c"), 1))
    made.run(2)
    made["c"].handle(begun)  # an engine had begun them before the feed was ended
    ended = begun.feed
    assert made["c"].own != ended
    made["c"].restart()
    made.mesh()
    made.run(30)
    assert made["c"].compute(1), "one update says that it goes on with another feed"
    made.run(2)
    close(made["a"])
    made.run(2)
    assert made["c"].compute(5)
    made.run(2)
    assert {node.machine.frontier.next(ended) for node in made.nodes.values()} == {4}
    assert {node.machine.frontier.known for node in made.nodes.values()} == {10}
    assert same(made)


def test_updates_that_were_begun_before_a_revocation_are_not_signed_after_it(made: Swarm) -> None:
    made["b"].compute(9)
    made.run(2)
    begun = own_updates(made["b"].host, 3, lambda: 1)
    decide(made["a"], Revoke(1, 1))
    close(made["a"])
    late = replace(begun, parts=(messages.EpochScalars(1, begun.parts[0].scalars),))
    made.run(2)
    made["b"].handle(late)
    made.run(2)
    assert {node.machine.frontier.known for node in made.nodes.values()} == {9}
    assert same(made)


def test_after_a_succession_what_is_labelled_beyond_the_open_epoch_goes_and_a_new_feed_begins() -> None:
    made = swarm("a b")
    close(made["a"])
    made.run(1)
    made["b"].compute(3)
    made.run(1)
    begun, former = own_updates(made["b"].host, 3, lambda: 1), made["b"].own
    made["b"].handle(succeeded(made["b"], made["b"].machine.organised.control.feed.stop - 1))
    assert made["b"].machine.organised.run_state.open_epoch == 0
    made["b"].handle(begun)
    made.run(2)
    assert made["b"].own != former
    assert all(node.machine.frontier.known == 0 for node in made.nodes.values())
    assert made["b"].compute(1), "of a new feed"
    made.run(2)
    assert same(made)
    assert all(node.machine.frontier.known == 1 for node in made.nodes.values())


def test_of_a_segment_that_goes_beyond_what_is_named_what_may_be_held_is_taken() -> None:
    """One signature covers both parts, so that there is no other way to get the listed part."""
    made = swarm("a b")
    segment = signed("b", 0, 0, [messages.EpochScalars(0, (1, 2, 3)), messages.EpochScalars(1, (4,))])
    feed = made["b"].own
    state, run_state = made["a"].machine.frontier.state(feed), made["a"].machine.organised.run_state
    assert validation.early(run_state, [state], segment)
    state.named = 3
    assert not validation.early(run_state, [state], segment)
    assert validation.label_fault(run_state, state, segment) is None
    assert validation.countable(run_state, state, segment) == 3


def test_while_it_is_not_settled_which_decisions_count_nothing_is_let_go() -> None:
    """A succession may keep a frozen decision, and then the updates that it allowed count."""
    made = swarm("a b c")
    made.cut(made["a"], made["b"]), made.cut(made["a"], made["c"])
    made["b"].machine.organised.control._sign = signing_key("organiser").sign
    close(made["b"])
    made.run(1)
    made["c"].compute(3)
    made.run(1)
    kept = made["b"].machine.organised.control.feed.stop
    succession = succeeded(made["b"], kept)
    decide(made["a"], Budget(17))
    made.connect(made["a"], made["b"])
    made.run(20)
    assert all(node.machine.organised.control.feed.frozen for node in made.nodes.values())
    assert all(node.machine.organised.run_state.open_epoch == 0 for node in made.nodes.values())
    assert [made[name].machine.frontier.known for name in "abc"] == [0, 3, 3]
    let_down = [link.inbox.let_down for node in made.nodes.values() for link in node.machine.links.values()]
    assert not any(let_down), "who has what other decisions allow keeps its word"
    made["b"].handle(succession)
    made.run(5)
    assert made["a"].machine.organised.control.feed.misses_decisions, "what was kept is nowhere any more"


def test_of_two_machines_with_one_key_the_later_goes_on_and_the_other_stays_where_it_is(made: Swarm) -> None:
    """Otherwise the two machines would replace each other with every epoch, until no incarnation is left."""
    made["c"].compute(3)
    made.run(2)
    close(made["a"])
    made.run(2)
    former, origin = made["c"].own, origin_of("c")
    twin = made.twin("c")
    twin.own = messages.Feed(origin, 9)
    twin.host = twin._host(proven=True)
    made.mesh()
    made.run(2)
    assert twin.compute(1)
    made.run(2)
    for _ in range(3):
        close(made["a"])
        made.run(2)
        made["c"].compute(1), twin.compute(1)
        made.run(2)
    assert made["c"].own == former
    assert made["c"].machine.room == 0
    assert twin.own == messages.Feed(origin, 9)
    assert made["a"].machine.frontier.next(messages.Feed(origin, 9)) > 3
