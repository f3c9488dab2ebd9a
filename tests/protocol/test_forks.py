"""Forks are proven, told to every node, and cut at one step (SPEC E1-E6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfprotocol import fork_proofs, seeds, wire_codec
from sfprotocol.events import Admit, Cut, Examine, Examined, OwnUpdates, Received, ShowProof
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Branch, EpochScalars, Feed, Proof, Segment
from sfprotocol.signing import extend, head_message, verifies
from tests.protocol.feeds import RUN, Log, Parts, signed, signing_key
from tests.protocol.scripted import ANN, EVE, NEW_INCARNATION, Scripted, admits, continued, drops, taught
from tests.protocol.swarm import Faults, Node, Swarm


def parts(*scalars: int) -> list[EpochScalars]:
    return [EpochScalars(0, scalars)]


def branch(common: int, scalar: int, count: int = 1) -> Segment:
    """Return `count` updates of Eve with scalar `scalar`, after `common` updates with scalar 0."""
    before = parts(*[0] * common) if common else []
    return signed("eve", 1, common, parts(*[scalar] * count), before)


def proof(common: int = 2, one: int = 1, other: int = 2, count: int = 1) -> Proof:
    chain = extend(Frontier(RUN).state(EVE).chain, parts(*[0] * common) if common else [])
    segments = [branch(common, scalar, count) for scalar in (one, other)]
    return Proof(EVE, common, (chain, chain), tuple(Branch(s.parts, s.signature) for s in segments))  # type: ignore[arg-type]


def past(node: Node, *stories: Parts) -> None:
    """Give `node` a log with `stories` of Eve, one segment each, and restart it."""
    said_until_then: list[EpochScalars] = []
    state = Frontier(RUN).state(EVE)
    first, chain = 0, state.chain
    for story in stories:
        segment = signed("eve", 1, first, story, said_until_then)
        chain = extend(chain, story)
        node.log.append(Admit(EVE, segment, chain, segment.count))
        said_until_then += story
        first = segment.stop
    node.restart()


def states(swarm: Swarm) -> set[bytes]:
    return {node.machine.frontier.digest() for node in swarm.nodes.values()}


# -- the proof itself --------------------------------------------------------------------------------


def test_two_signed_histories_prove_a_fork_to_every_node() -> None:
    assert fork_proofs.holds(RUN, proof(), verifies)
    assert wire_codec.decode(wire_codec.encode(proof())) == proof()


@pytest.mark.parametrize(
    "broken",
    [
        replace(proof(), branches=(proof().branches[0],) * 2),
        replace(proof(), branches=(proof().branches[0], Branch(parts(9), bytes(64)))),  # type: ignore[arg-type]
        replace(proof(), at=3),
        replace(proof(), chains=(bytes(32), bytes(32))),
        replace(proof(), feed=ANN),
        replace(proof(), branches=(proof().branches[0], Branch((), proof().branches[1].signature))),
    ],
    ids=["one history twice", "forged", "another step", "another past", "another feed", "nothing said"],
)
def test_a_proof_that_does_not_hold_costs_the_link(broken: Proof) -> None:
    host = Scripted()
    host.link(1)
    assert [drop.fault[:2] for drop in drops(host.hear(1, broken))] == ["E1"]
    assert not host.machine.frontier.is_cut(EVE)


def test_a_proof_is_sent_to_every_peer_before_anything_else_and_only_once() -> None:
    host = Scripted()
    for link in (1, 2, 3):
        host.link(link)
    cut, *shown = host.hear(1, proof())
    assert cut == Cut(proof(), 2)
    assert shown == [ShowProof(link, EVE) for link in (1, 2, 3)]
    assert host.hear(2, proof()) == []


def test_only_updates_before_the_cut_count() -> None:
    host = Scripted()
    host.link(1)
    host.hear(1, proof(common=2))
    assert host.machine.frontier.known == 0
    [admit] = admits(host.hear(1, signed("eve", 1, 0, parts(0, 0, 1))))
    assert (admit.segment.count, admit.counted) == (3, 2), "the signature vouches for all three"
    assert host.machine.frontier.known == 2
    assert admits(host.hear(1, signed("eve", 1, 3, parts(5), parts(0, 0, 1)))) == []


def test_an_own_feed_that_is_cut_is_continued_under_a_new_incarnation() -> None:
    host = Scripted(ANN)
    host.event(OwnUpdates(ANN, 0, tuple(parts(0, 1, 2))))
    host.link(1)
    other = signed("ann", 1, 2, parts(9), parts(0, 1))
    ours = signed("ann", 1, 2, parts(2), parts(0, 1))
    chain = extend(Frontier(RUN).state(ANN).chain, parts(0, 1))
    branches = (Branch(ours.parts, ours.signature), Branch(other.parts, other.signature))
    shown = Proof(ANN, 2, (chain, chain), branches)
    [examine] = host.hear(1, shown)
    assert examine == Examine(1, ANN, shown)
    log = Log()
    whole = signed("ann", 1, 0, parts(0, 1, 2))
    log.append(Admit(ANN, whole, extend(chain, parts(2)), 3))
    actions = host.event(Examined(1, ANN, shown, *log.past(RUN, ANN, 2), None))
    assert continued(actions) == [Feed(ANN.origin, NEW_INCARNATION)]
    assert host.machine.frontier.next(ANN) == 2


# -- how it is found ---------------------------------------------------------------------------------


def test_a_proof_that_is_made_has_the_shorter_of_two_branches() -> None:
    # Everybody keeps it for ever; a long branch proves no more than a short one.
    long, short = proof(count=50), proof(count=1)
    kept = replace(short, branches=(long.branches[0], short.branches[1]))
    state = Frontier(RUN).state(EVE)
    nothing = Segment(state.key, 2, (), bytes(64))
    examined = Examined(1, EVE, made_up(2, bytes(32)), kept.chains[0], nothing, kept)
    made = fork_proofs.judge(RUN, state, examined, verifies)
    assert isinstance(made, Proof)
    assert made.branches[1] == short.branches[1]
    assert fork_proofs.holds(RUN, made, verifies)


@pytest.mark.parametrize(
    ("anns", "bobs", "common"),
    [
        ([parts(0, 0), parts(1, 1)], [parts(0, 0), parts(2, 2, 2)], 2),
        ([parts(0, 0, 1)], [parts(0, 0, 2)], 2),  # nobody lacks anything by count: only the tags differ
        (
            [parts(0, 1), *[parts(*[3] * 90) for _ in range(20)]],
            [parts(0, 2), *[parts(*[4] * 70) for _ in range(20)]],
            1,
        ),
    ],
    ids=["two branches", "equal length", "far back"],
)
def test_two_nodes_with_two_histories_find_the_fork_and_end_equal(
    anns: list[Parts], bobs: list[Parts], common: int
) -> None:
    swarm = Swarm("ann bob")
    past(swarm["ann"], *anns)
    past(swarm["bob"], *bobs)
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(10)
    assert [node.machine.frontier.known for node in swarm.nodes.values()] == [common, common]
    assert len(states(swarm)) == 1
    assert [node.faults for node in swarm.nodes.values()] == [[], []]


def test_a_fork_at_step_0_leaves_nothing_and_is_remembered() -> None:
    swarm = Swarm("ann bob")
    past(swarm["ann"], parts(1))
    past(swarm["bob"], parts(2))
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(5)
    swarm.connect(swarm["bob"], swarm.add("cid"))
    swarm.run(10)
    assert [node.machine.frontier.known for node in swarm.nodes.values()] == [0, 0, 0]
    assert all(node.machine.frontier.is_cut(EVE) for node in swarm.nodes.values())
    assert len(states(swarm)) == 1


def made_up(at: int, hidden: bytes) -> Proof:
    """Return a proof of two chain heads that Eve has signed over an unknown past."""
    return Proof(EVE, at, (hidden, hidden), (head(at, hidden, 1), head(at, hidden, 2)))


def head(at: int, before: bytes, scalar: int) -> Branch:
    said_then = tuple(parts(scalar))
    message = head_message(RUN.run_id, EVE, at + 1, extend(before, said_then))
    return Branch(said_then, signing_key("eve").sign(message))


def test_histories_with_no_known_common_part_leave_nothing() -> None:
    proof_of_nothing = made_up(5, bytes(range(32)))
    assert fork_proofs.holds(RUN, proof_of_nothing, verifies)
    swarm = Swarm("ann bob cid")
    past(swarm["ann"], parts(*[0] * 9))
    past(swarm["bob"], parts(*[0] * 3))
    for one, other in combinations(swarm.nodes.values(), 2):
        swarm.connect(one, other)
    for _ in range(2):
        link = next(iter(swarm["cid"].wires))
        swarm["cid"].handle(Received(link, wire_codec.encode(proof_of_nothing)))
        swarm.run(10)
    assert len(states(swarm)) == 1
    assert all(node.machine.frontier.is_cut(EVE) for node in swarm.nodes.values())


def test_a_proof_examined_after_a_lower_cut_is_ignored() -> None:
    # It used to be put together with a chain head that our log does not have, and ended the node.
    host = Scripted()
    host.link(1)
    low, *higher = made_up(3, bytes(32)), made_up(5, b"1" * 32), made_up(5, b"2" * 32)
    actions = host.hear(1, *higher, low)
    [examine] = [action for action in actions if isinstance(action, Examine)]
    nothing = Segment(host.machine.frontier.state(EVE).key, 5, (), bytes(64))
    assert host.event(Examined(1, EVE, examine.against, b"", nothing, low)) == []


def test_a_lookup_from_before_a_lower_cut_is_repeated() -> None:
    # A proof made of the old cut and the new chain head held nowhere; neighbours dropped the node for it.
    host = taught(EVE)
    host.hear(1, signed("eve", 1, 0, parts(0, 0, 0)))
    first = made_up(10, b"1" * 32)
    host.hear(1, first)
    actions = host.hear(1, signed("eve", 1, 3, parts(*[0] * 7), parts(0, 0, 0)))
    [examine] = [action for action in actions if isinstance(action, Examine)]
    second = made_up(6, b"2" * 32)
    host.hear(1, second)
    chain = host.machine.frontier.state(EVE).chain
    ours = Segment(host.machine.frontier.state(EVE).key, 3, (), bytes(64))
    assert host.event(Examined(1, EVE, examine.against, chain, ours, first)) == [examine]
    [cut, *_] = host.event(Examined(1, EVE, examine.against, chain, ours, second))
    assert isinstance(cut, Cut)
    assert fork_proofs.holds(RUN, cut.proof, verifies)
    assert host.machine.frontier.next(EVE) == 0


# -- all honest nodes cut alike ----------------------------------------------------------------------

stories = st.lists(st.integers(0, 1), min_size=1, max_size=6)
"""A history of Eve. With two values and few updates, several histories often have a common beginning."""


@settings(deadline=None, max_examples=15)
@given(st.lists(stories, min_size=2, max_size=4), st.integers(0, 2**32), st.booleans())
@example([[0], [0, 0]], 7030, True)  # the only link is lost after the network has healed
@example([[0], [0]], 10748, False)  # rounding of times let a Summary overtake the Hello
def test_whatever_the_order_of_arrival_all_end_with_the_same_cut(
    told: list[list[int]], seed: int, rough: bool
) -> None:
    faults = Faults(loss=0.1, duplication=0.2, reorder=True) if rough else Faults()
    swarm = Swarm(" ".join(f"n{index}" for index in range(len(told))), seed=seed, faults=faults)
    for node, story in zip(swarm.nodes.values(), told, strict=True):
        past(node, *(parts(scalar) for scalar in story))
    pairs = list(combinations(swarm.nodes.values(), 2))
    swarm.random.shuffle(pairs)
    for one, other in pairs:
        swarm.connect(one, other)
        swarm.run(swarm.random.uniform(0, 2))
    for _ in range(6):  # a frame lost or doubled at the wrong moment costs a link
        swarm.run(10)
        swarm.mesh()
    swarm.faults = Faults()
    # a link whose Hello was lost is dropped only after a minute (SPEC L7), and opened again
    for _ in range(13):
        swarm.mesh()
        swarm.run(10)
    assert len(states(swarm)) == 1
    longest = max(told, key=len)
    forked = any(story != longest[: len(story)] for story in told)
    assert all(node.machine.frontier.is_cut(EVE) == forked for node in swarm.nodes.values())
    if not forked:
        assert swarm["n0"].machine.frontier.known == len(longest)
    assert rough or not any(node.faults for node in swarm.nodes.values())


def test_a_fork_is_found_also_in_a_feed_that_shares_its_key_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An answer that fits none of several feeds used to be dropped unseen, and digests differed for ever.
    monkeypatch.setattr(seeds, "feed_key", lambda *name: 1)
    swarm = Swarm("ann bob")
    other = Feed(EVE.origin, 2)
    for name, story in (("ann", (parts(0, 0), parts(1, 1))), ("bob", (parts(0, 0), parts(2, 2, 2)))):
        past(swarm[name], *story)
        whole = signed("eve", 2, 0, parts(5, 6, 7))
        chain = extend(Frontier(RUN).state(other).chain, whole.parts)
        swarm[name].log.append(Admit(other, whole, chain, 3))
        swarm[name].restart()
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(150)
    assert [node.machine.frontier.known for node in swarm.nodes.values()] == [5, 5]
    assert len(states(swarm)) == 1
