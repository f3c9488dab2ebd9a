"""Nodes that begin with a checkpoint, or store no updates before one (SPEC O14, O15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfprotocol import wire_codec
from sfprotocol.checkpoints import Base, feeds_digest
from sfprotocol.decisions import Admit, Amend, Checkpoint, Void
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import CheckpointKept, OwnJoinRequest, Received, Writable
from sfprotocol.messages import Branch, EpochScalars, Floor, Message, Position, Proof, Want
from sfprotocol.signing import extend, head_message
from tests.protocol.feeds import RUN, origin_of, signing_key
from tests.protocol.swarm import Faults, Node, Swarm
from tests.protocol.test_organised import close, decide, join_request, number, same, seal, swarm

EPOCHS = 4


def bases(node: Node, epoch: int) -> list[tuple[int, Base]]:
    """Return the bases of feeds after the close of `epoch`, from a complete log."""
    run_state = node.machine.organised.run_state
    found = []
    for of, stop in run_state.positions(epoch).items():
        feed = run_state.feed(of)
        chain, _ = node.log.past(node.run, feed, stop)
        found.append((of, Base(feed, stop, chain, *node.log.label(feed, stop))))
    return found


def kept(archive: Node, epoch: int) -> CheckpointKept:
    return CheckpointKept(
        Checkpoint(epoch, feeds_digest(RUN.run_id, bases(archive, epoch)), bytes(32)),
        tuple(base for _, base in bases(archive, epoch)),
    )


def run_with_checkpoint(names: str = "a b c", epoch: int = 2) -> tuple[Swarm, CheckpointKept]:
    """Return a swarm after some sealed epochs, and a checkpoint that its organiser has signed."""
    made = swarm(names)
    for _ in range(EPOCHS):
        for name in names.split():
            made[name].compute(9)
        made.run(2)
        close(made["a"])
        seal(made["a"])
        made.run(1)
    checkpoint = kept(made["a"], epoch)
    decide(made["a"], checkpoint.checkpoint)
    made.run(2)
    return made, checkpoint


def hear(node: Node, sender: Node, *messages: Message) -> None:
    """Let frames arrive that `sender` would not send."""
    (link,) = (wire.link for wire in node.wires.values() if wire.receiver is sender)
    for message in messages:
        node.host.post(Received(link, wire_codec.encode(message, RUN.scalar_bytes)))
    node.pump()


def newcomer(made: Swarm, *neighbours: str, waiting: bool = False) -> Node:
    late = made.add("late", relay=True, waiting=waiting)
    for name in neighbours:
        made.connect(late, made[name])
    made.run(3)
    return late


# -- nothing before a checkpoint ---------------------------------------------------------------------


def test_who_keeps_nothing_before_a_checkpoint_has_the_same_digest_and_goes_on() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    assert all(rows[0][0].first >= 27 for rows in made["b"].log.rows.values() if rows)
    for name in "abc":
        made[name].compute(5)
    made.run(3)
    close(made["a"])
    seal(made["a"], number(made, "b"))
    made.run(3)
    assert made["b"].machine.organised.run_state.counted == 3 * 9 * EPOCHS + 10
    assert same(made)


def test_a_node_that_has_let_go_of_its_past_starts_again_from_there() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    made["b"].restart()
    made.mesh()
    made.run(25)
    assert made["b"].compute(5)
    made.run(3)
    assert same(made)
    assert made["b"].machine.frontier.floor == 3
    assert made["c"].machine.frontier.known == 3 * 9 * EPOCHS + 5


def test_a_newcomer_asks_nobody_for_what_it_does_not_keep() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    late = newcomer(made, "b")
    made.run(30)
    assert late.machine.frontier.known == 0
    assert late.machine.organised.missing_updates == late.machine.organised.out_of_reach == 3 * 9 * EPOCHS
    assert late.sent["Want"] == 1, "to tell all again (O19); of no feed it has what comes before the floor"
    assert not late.faults
    assert not made["b"].faults


def test_a_newcomer_gets_all_from_the_one_who_keeps_all_and_the_rest_from_anybody() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint), made["c"].handle(checkpoint)
    late = newcomer(made, "b", "c")
    made.connect(late, made["a"])
    made.run(5)
    assert late.machine.organised.missing_updates == late.machine.organised.out_of_reach == 0
    made.cut(late, made["a"])
    made["c"].compute(5)
    made.run(3)
    assert same(made)


def test_what_a_peer_keeps_no_more_is_asked_of_others_at_once() -> None:
    made, checkpoint = run_with_checkpoint()
    late = made.add("late", relay=True)
    late.decided = list(made["a"].decided)
    late.host = late._host(proven=True)
    made.faults = Faults(latency=(0.05, 0.05))  # both have told what they have when one is asked
    wires = [made.connect(made[name], late)[0] for name in "bc"]
    while not late.sent["Want"]:
        made.run(0.01)
    for wire in wires:
        made.stall(wire)
    (asked,) = (link.id for link in late.machine.links.values() if link.inbox.asked)
    made[late.wires[asked].receiver.name].handle(checkpoint)
    hear(late, late.wires[asked].receiver, Floor(3))
    assert late.sent["Want"] == 2
    made.resume(next(wire for wire in wires if wire.far != asked))
    made.run(1)
    assert late.machine.organised.missing_updates == 0


def test_a_floor_of_epochs_that_are_not_known_yet_waits_for_decisions() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    late = made.add("late", relay=True)
    late.decided = made["a"].decided[:3]  # the members and no close
    late.host = late._host(proven=True)
    made.connect(late, made["b"])
    made.run(3)
    assert late.sent["Want"] == 0
    assert late.machine.organised.run_state.open_epoch == EPOCHS


@pytest.mark.parametrize("floors", [(0,), (3, 3), (5, 3)])
def test_a_floor_that_does_not_rise_costs_the_link(floors: tuple[int, ...]) -> None:
    made, _ = run_with_checkpoint()
    hear(made["c"], made["b"], *(Floor(floor) for floor in floors))
    assert [fault[:3] for fault in made["c"].faults] == ["O15"]
    made.run(1)
    assert not made.linked(made["b"], made["c"])


def test_a_floor_in_an_open_run_costs_the_link() -> None:
    made = Swarm("a b")
    made.mesh()
    made.run(1)
    hear(made["a"], made["b"], Floor(1))
    assert [fault[:3] for fault in made["a"].faults] == ["O12"]


def test_who_claims_that_its_floor_rises_all_the_time_wastes_its_link() -> None:
    made, _ = run_with_checkpoint()
    hear(made["c"], made["b"], *(Floor(floor) for floor in range(1, 10_000)))
    assert [fault[:2] for fault in made["c"].faults] == ["L8"]


def test_who_asks_for_what_is_not_kept_gets_nothing_and_stays() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    b, feed = made["b"], made["b"].own
    before = b.sent["Segment"]
    hear(b, made["c"], Want((Position(feed, 26),)))
    assert b.sent["Segment"] == before
    b.compute(1)
    assert b.sent["Segment"] == before + 2, "the news go to both neighbours"
    hear(b, made["c"], Want((Position(feed, 27),)))
    made.run(1)
    assert b.sent["Segment"] == before + 3
    assert not b.faults


@pytest.mark.parametrize("in_one_round", [True, False])
def test_what_a_slow_link_waits_for_is_not_served_once_it_is_gone(in_one_round: bool) -> None:
    """In one round the request is decided first, and carried out after the deletion."""
    made, checkpoint = run_with_checkpoint()
    b, c = made["b"], made["c"]
    (wire,) = (wire for wire in b.wires.values() if wire.receiver is c)
    made.stall(wire)
    for feed in (made["a"].own, b.own):
        hear(b, c, Want((Position(feed, 0),)))
    made.run(1)
    if in_one_round:
        b.host.post(Writable(wire.link))
    b.handle(checkpoint)
    outbox = b.machine.links[wire.link].outbox
    assert not in_one_round or (outbox.writable and not outbox.serving)
    made.resume(wire)
    made.run(1)
    assert not outbox.serving
    b.compute(1)
    made.run(1)
    assert same(made)


def test_what_is_not_here_cannot_be_let_go() -> None:
    made, checkpoint = run_with_checkpoint()
    beyond = checkpoint.bases[0]._replace(step=1000)
    with pytest.raises(LocalProtocolError):
        made["b"].handle(replace(checkpoint, bases=(beyond,)))


# -- beginning with a checkpoint ---------------------------------------------------------------------


def test_who_waits_for_a_checkpoint_learns_decisions_and_holds_nothing() -> None:
    made, _ = run_with_checkpoint()
    late = made.add("late", waiting=True)
    made.connect(late, made["b"])
    made.add("d")
    made.connect(made["d"], made["b"])
    decide(made["a"], Admit(origin_of("d"), 100, 0))
    made.run(2)
    late.handle(OwnJoinRequest(join_request("late")))
    for _ in range(30):
        made["b"].compute(1), made["d"].compute(1)
        made.run(2)
    decide(made["a"], Admit(origin_of("late"), 100, 0))
    made.run(2)
    assert late.machine.organised.run_state.checkpoints
    assert late.machine.organised.run_state.member(origin_of("late"))
    assert late.machine.frontier.known == 0
    assert not late.compute()
    assert made["a"].join_requests
    assert not late.faults
    assert not any(link.inbox.asked for link in late.machine.links.values())


@pytest.mark.parametrize("others_keep_all", [True, False])
def test_who_begins_with_a_checkpoint_fetches_what_comes_after_it_alone(others_keep_all: bool) -> None:
    made, checkpoint = run_with_checkpoint()
    if not others_keep_all:
        made["b"].handle(checkpoint)
    late = newcomer(made, "b", waiting=True)
    late.handle(checkpoint)
    made.run(3)
    assert same(made)
    after = 9 * 3 * (EPOCHS - 3)
    assert sum(segment.count for rows in late.log.rows.values() for segment, _ in rows) == after
    assert made["b"].machine.links[next(iter(made["b"].wires))].floor in (0, 3)
    made["c"].compute(7)
    made.run(2)
    assert same(made)
    late.restart()
    made.connect(late, made["c"])
    made.run(3)
    assert same(made)


def test_who_has_been_away_for_too_long_goes_on_from_a_checkpoint() -> None:
    made, checkpoint = run_with_checkpoint("a b")
    away = made.add("away")
    made.connect(away, made["a"])
    decide(made["a"], Admit(origin_of("away"), 100, 0))
    made.run(2)
    away.compute(4)
    made.run(2)
    made.cut(away, made["a"])
    close(made["a"]), seal(made["a"])
    for name in "ab":
        made[name].compute(9)
    made.run(2)
    close(made["a"]), seal(made["a"])
    made.run(1)
    checkpoint = kept(made["a"], EPOCHS + 1)
    decide(made["a"], checkpoint.checkpoint)
    made.run(2)
    made["b"].handle(checkpoint)
    made.drop(made["a"])
    away.host = away._host(proven=False, waiting=True)
    made.connect(away, made["b"])
    made.run(2)
    own = away.own
    away.handle(checkpoint)
    made.run(3)
    assert same(made)
    assert away.machine.own == own, "of its own feed it has everything"
    assert away.compute(3)
    made.run(2)
    assert same(made)


def test_who_waits_in_vain_begins_with_nothing() -> None:
    made, _ = run_with_checkpoint()
    late = newcomer(made, "b", waiting=True)
    late.handle(CheckpointKept(None, ()))
    made.run(3)
    assert late.machine.frontier.floor == 0
    assert same(made)


def test_an_own_feed_that_a_checkpoint_knows_is_not_continued() -> None:
    """The folder is new and the key is old: updates that the key has signed after the checkpoint are
    unknown here."""
    made, checkpoint = run_with_checkpoint()
    old = made["c"].own
    made.drop(made["c"])
    again = Node("c", made, run=made.parameters, waiting=True)
    again.own = old
    again.host = again._host(proven=True, waiting=True)
    made.nodes["c"] = again
    made.connect(again, made["b"])
    made.run(2)
    again.handle(checkpoint)
    assert again.compute(3)
    made.run(2)
    assert again.machine.own != old
    assert not again.machine.frontier.is_cut(old)
    assert same(made)


# -- forks and changed decisions ---------------------------------------------------------------------


def twin_of_b(made: Swarm, neighbour: Node) -> Node:
    """Add a node with the key and the log of b, linked with this neighbour."""
    twin = made.twin("b")
    twin.log = made["b"].log.copy()
    twin.log.organised = True
    twin.host = twin._host(proven=True)
    made.connect(twin, neighbour)
    return twin


def fork(made: Swarm, name: str, at: int) -> Proof:
    """Return the proof that the origin `name` has signed other updates from step `at` on."""
    feed = made[name].own
    log = made["a"].log
    chain, ours = log.past(RUN, feed, at)
    parts = (EpochScalars(ours.parts[0].epoch, (777,)),)
    head = head_message(RUN.run_id, feed, at + 1, extend(chain, parts))
    other = Branch(parts, signing_key(name).sign(head))
    return Proof(feed, at, (chain, chain), (Branch(ours.parts, ours.signature), other))


@pytest.mark.parametrize("at", [3, 26, 27, 30])
def test_a_fork_is_judged_alike_whether_its_place_is_kept_or_not(at: int) -> None:
    made, checkpoint = run_with_checkpoint()
    proof = fork(made, "c", at)
    made["b"].handle(checkpoint)
    hear(made["b"], made["a"], proof)
    made.run(30)
    feed = proof.feed
    assert {node.machine.frontier.next(feed) for node in made.nodes.values()} == {9 * EPOCHS}
    assert all(node.machine.frontier.is_cut(feed) for node in made.nodes.values())
    assert same(made)
    made["b"].restart()
    made.mesh()
    made.run(5)
    assert same(made)


def test_two_who_keep_no_past_find_the_fork_between_them() -> None:
    made, checkpoint = run_with_checkpoint("a b c d")
    feed, d = made["b"].own, made["d"]
    for name in "ac":
        made.cut(made[name], d)
    made.cut(made["b"], d)
    made["c"].handle(checkpoint), d.handle(checkpoint)
    twin = twin_of_b(made, d)
    made["b"].compute(5), twin.compute(5)
    made.run(3)
    made.drop(twin)
    made.connect(made["c"], d)
    made.run(30)
    assert all(node.machine.frontier.is_cut(feed) for node in made.nodes.values())
    assert same(made)


def test_another_history_than_the_named_one_is_let_go_back_to_the_checkpoint() -> None:
    made, checkpoint = run_with_checkpoint("a b c d")
    d, feed = made["d"], made["b"].own
    d.handle(checkpoint)
    for name in "abc":
        made.cut(made[name], d)
    twin = twin_of_b(made, d)
    made["b"].compute(5)
    made.run(2)
    close(made["a"])
    made.run(1)
    twin.compute(8)
    made.run(3)
    assert d.machine.frontier.next(feed) == 9 * EPOCHS + 8
    made.drop(twin)
    made.connect(d, made["c"])
    made.run(60)
    assert d.machine.frontier.next(feed) == 9 * EPOCHS + 5
    assert same(made)


def test_a_checkpoint_that_decisions_have_changed_is_outdated_until_there_is_a_newer_one() -> None:
    made, checkpoint = run_with_checkpoint()
    made["b"].handle(checkpoint)
    assert not made["b"].machine.organised.outdated
    decide(made["a"], Void(1, 1, ()))
    made.run(2)
    assert made["b"].machine.organised.outdated
    assert not made["a"].machine.organised.outdated, "who keeps everything begins with none"
    newer = replace(checkpoint.checkpoint, cores=bytes(range(32)))
    decide(made["a"], newer)
    made.run(2)
    assert made["b"].machine.organised.outdated, "the same feeds, with other sums"
    made["b"].handle(replace(checkpoint, checkpoint=newer))
    made.run(2)
    assert not made["b"].machine.organised.outdated
    assert same(made)


def test_a_feed_that_is_ended_before_its_base_stays_where_it_is() -> None:
    made, checkpoint = run_with_checkpoint()
    b, feed, proof = made["b"], made["c"].own, fork(made, "c", 3)
    b.handle(checkpoint)
    decide(made["a"], Amend(number(made, "c"), 1))
    made.run(2)
    hear(b, made["a"], proof)
    made.run(30)
    assert b.machine.organised.outdated
    assert b.machine.frontier.next(feed) == 27
    assert made["a"].machine.frontier.next(feed) == 9
    assert not any(node.faults for node in made.nodes.values())
    assert not b.compute(), "its model is not the run's"
    made["a"].compute(3)
    made.run(2)
    assert {node.machine.frontier.next(made["a"].own) for node in made.nodes.values()} == {9 * EPOCHS + 3}
