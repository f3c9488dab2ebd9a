"""Validators: what members measure of an epoch reaches everybody, and only from whom it was asked (O18)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

from sfprotocol import wire_codec
from sfprotocol.decisions import Part, Validators
from sfprotocol.events import FindingHeard, OwnFinding, Received
from sfprotocol.messages import Commitment, Finding
from sfprotocol.petitions import SEND_AGAIN
from sfprotocol.validators import (
    FLOOD_TIME,
    PANEL,
    REVEAL_AFTER,
    TAKEN_AFTER,
    commitment_message,
    finding_digest,
    panel,
)
from tests.protocol.feeds import RUN, origin_of, signing_key
from tests.protocol.organised import admit, close, fold, seal
from tests.protocol.swarm import Faults, Node, Swarm
from tests.protocol.test_organised import close as close_epoch
from tests.protocol.test_organised import decide, number, swarm
from tests.protocol.test_organised import seal as seal_epoch

SALT = b"saltsalt"
FAULTLESS = Faults()
NAMES = "a b c d e f g"


# -- who ---------------------------------------------------------------------------------------------


def test_a_panel_is_a_function_of_the_salt_and_as_likely_this_one_as_that() -> None:
    named = range(100)
    drawn = Counter(member for salt in range(2000) for member in panel(named, salt.to_bytes(8, "big")))
    assert panel(named, SALT) == panel(reversed(named), SALT)
    assert sum(drawn.values()) == 2000 * PANEL
    assert 60 < min(drawn.values()) <= max(drawn.values()) < 150  # 100 on average, with a deviation of 10


def test_of_few_all_are_the_panel_in_an_order_that_the_lot_says() -> None:
    assert sorted(panel((3, 7, 9), SALT)) == [3, 7, 9]
    assert len({panel((3, 7, 9), salt.to_bytes(8, "big")) for salt in range(100)}) == 6
    assert panel((), SALT) == ()


def test_who_is_named_measures_the_closes_that_follow_until_others_are_named() -> None:
    members = [admit(number) for number in range(3)]
    counting = fold(*members, close(0), Validators((0, 2)), close(1), seal(0), Validators(()), close(2))
    assert [counting.drawn_from(epoch)[1] for epoch in range(3)] == [(), (0, 2), ()]


def test_validators_of_whom_one_is_no_member_are_not_named() -> None:
    counting = fold(admit(0), Validators((0,)), Validators((0, 1)))
    assert counting.validators == (0,)


# -- how it reaches everybody ------------------------------------------------------------------------


class Run(NamedTuple):
    """A swarm in which epoch 0 is closed, and members `b` to `g` are named to measure it."""

    made: Swarm
    panel: list[Node]
    """In the order of their lots."""

    @property
    def organiser(self) -> Node:
        return self.made["a"]

    def measure(self, *nodes: Node) -> None:
        for node in nodes or self.panel:
            node.handle(self.found(node))

    def found(self, node: Node) -> OwnFinding:
        feeds = sorted(number(self.made, name) for name in "bc")
        worth = int.from_bytes(node.name.encode(), "big")
        return OwnFinding(0, 64, tuple(Part(feed, 4, worth, -feed) for feed in feeds), 7)

    def heard(self, node: Node) -> set[str]:
        """Names of those whose findings this node was shown; each of them once, and as it was measured."""
        names = [self.made.nodes[name] for name in NAMES.split()]
        by_number = {number(self.made, one.name) // 64: one for one in names}
        assert len(node.findings) == len({found.member for found in node.findings})
        for found in node.findings:
            said = self.found(by_number[found.member])
            assert found == FindingHeard(found.member, said.epoch, said.rows, said.parts)
        return {by_number[found.member].name for found in node.findings}


def closed(*links: str, faults: Faults = FAULTLESS, seed: int = 0) -> Run:
    """Return a run with a link between any two nodes, or with these `links`, each the names of two, where `x`
    and later ones are relays."""
    made = swarm(NAMES, seed=seed)
    decide(made["a"], Validators(tuple(sorted(number(made, name) // 64 for name in "bcdefg"))))
    for name in "bc":
        made[name].compute(4)
    made.run(2)
    close_epoch(made["a"])
    made.run(2)
    if links:
        for one in made.nodes.values():
            for wire in list(one.wires.values()):
                made.cut(one, wire.receiver)
        for name in sorted(set("".join(links)) - set(NAMES)):
            made.add(name, relay=True)
        made.connect_all(*((pair[0], pair[1]) for pair in links))
        made.run(5)
    made.faults = faults
    made.forget_costs()
    organised = made["a"].machine.organised
    by_number = {number(made, name) // 64: made[name] for name in NAMES.split()}
    drawn = [by_number[member] for member in organised.findings.panel(organised.counting, 0)]
    assert len(drawn) == PANEL
    return Run(made, drawn)


def test_findings_come_to_everybody_once_the_whole_panel_has_committed_itself() -> None:
    run = closed()
    everybody = {node.name for node in run.panel}
    run.measure(*run.panel[1:])
    run.made.run(FLOOD_TIME + 1)
    assert not run.organiser.findings
    run.measure(run.panel[0])
    run.made.run(FLOOD_TIME + 1)
    assert all(run.heard(node) == everybody for node in run.made.nodes.values())


def test_who_does_not_commit_itself_is_waited_for_no_longer_than_that() -> None:
    run = closed()
    run.measure(*run.panel[:3])
    run.made.run(REVEAL_AFTER - 1)
    assert not run.organiser.findings
    run.made.run(2)
    assert run.heard(run.organiser) == {node.name for node in run.panel[:3]}


def test_who_commits_itself_after_a_finding_is_left_out() -> None:
    run = closed()
    run.measure(*run.panel[:4])
    run.made.run(REVEAL_AFTER + 1)
    late = run.panel[4]
    assert late.machine.organised.findings.place(late.machine.organised.counting, 0) is None
    run.measure(late)
    run.made.run(2 * SEND_AGAIN)
    assert late.name not in run.heard(run.organiser)


def test_members_who_are_not_on_the_panel_say_nothing() -> None:
    run = closed()
    others = [node for name, node in run.made.nodes.items() if node not in run.panel]
    run.measure(*others)
    run.made.run(REVEAL_AFTER + 1)
    assert run.made.total("Commitment") == 0
    assert {node.machine.organised.findings.place(node.machine.organised.counting, 0) for node in others} == {
        None
    }


def test_places_are_those_among_the_lots() -> None:
    run = closed()
    sides = [node.machine.organised for node in run.panel]
    assert [side.findings.place(side.counting, 0) for side in sides] == list(range(PANEL))
    assert sides[0].findings.panel(sides[0].counting, 1) == ()  # it is open


def test_findings_go_over_others_along_a_line() -> None:
    run = closed("ab", "bc", "cd", "de", "ef", "fg")
    run.measure()
    run.made.run(REVEAL_AFTER + 1)
    assert all(len(run.heard(node)) == PANEL for node in run.made.nodes.values())


@pytest.mark.parametrize("seed", range(2))
def test_what_is_lost_arrives_in_the_end(seed: int) -> None:
    run = closed("ab", "bc", "cd", "de", "ef", "fg", "ga", faults=Faults(loss=0.3), seed=seed)
    run.measure(run.panel[0])
    run.made.run(10 * SEND_AGAIN)
    assert all(run.heard(node) == {run.panel[0].name} for node in run.made.nodes.values())


@pytest.mark.parametrize("seed", range(2))
def test_most_findings_come_in_time_through_losses(seed: int) -> None:
    run = closed(faults=Faults(loss=0.2), seed=seed)
    run.measure()
    run.made.run(REVEAL_AFTER + 5)
    assert len(run.heard(run.organiser)) >= PANEL - 1


@pytest.mark.parametrize("seed", range(2))
def test_findings_come_to_the_organiser_through_relays_with_losses(seed: int) -> None:
    links = [f"{relay}{name}" for name in "bcdefg" for relay in "xy"]
    run = closed(*links, "xz", "yz", "za", faults=Faults(loss=0.1), seed=seed)
    run.measure()
    run.made.run(REVEAL_AFTER + 2 * SEND_AGAIN)
    assert len(run.heard(run.organiser)) >= PANEL - 1


def test_a_new_neighbour_is_told_what_it_has_missed() -> None:
    run = closed("bc", "cd", "de", "ef", "fg")
    run.measure()
    run.made.run(REVEAL_AFTER + 1)
    assert not run.organiser.findings
    run.made.connect(run.made["d"], run.organiser)
    run.made.run(1)
    assert len(run.heard(run.organiser)) == PANEL


def test_messages_are_repeated_until_the_epoch_is_sealed_and_cost_little() -> None:
    run = closed()
    links = len(NAMES.split()) * (len(NAMES.split()) - 1) // 2
    run.measure()
    run.made.run(FLOOD_TIME + 1)
    assert run.made.total("Commitment") <= 2 * 2 * links * PANEL  # and once more before the first finding
    assert run.made.total("Finding") <= 2 * links * PANEL
    run.made.forget_costs()
    run.made.run(SEND_AGAIN)
    assert links * PANEL <= run.made.total("Finding") <= 2 * links * PANEL
    seal_epoch(run.organiser)
    run.made.run(2)
    run.made.forget_costs()
    run.made.run(3 * SEND_AGAIN)
    assert run.made.total("Commitment") == run.made.total("Finding") == 0
    assert all(not node.faults for node in run.made.nodes.values())


def test_who_was_restarted_does_not_contradict_what_it_has_said() -> None:
    run = closed()
    run.measure(*run.panel[:2])
    run.made.run(1)
    again = run.panel[0]
    again.restart()
    run.made.mesh()
    run.made.run(2)
    organised = again.machine.organised
    assert organised.findings.place(organised.counting, 0) is None
    run.measure(again)
    run.made.run(REVEAL_AFTER + 1)
    assert run.heard(run.organiser) == {run.panel[1].name}


def test_findings_about_what_was_not_named_are_not_sent() -> None:
    run = closed()
    node = run.panel[0]
    said = run.found(node)
    for parts in (said.parts[::-1], (Part(63, 1, 1, 1),), said.parts[:1] * 2):
        node.handle(replace(said, parts=parts))
    run.made.run(REVEAL_AFTER + 1)
    assert run.made.total("Commitment") == 0
    run.measure(node)
    run.made.run(REVEAL_AFTER + 1)
    assert run.heard(run.organiser) == {node.name}


# -- what is not taken -------------------------------------------------------------------------------


class Stranger:
    """Says things to the organiser over the link from a node, in the name of any key."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.link = next(iter(run.organiser.wires))

    def says(self, message: Commitment | Finding, wait: float = 1.0) -> set[str]:
        """Say it, and `wait`; return whose findings the organiser has been shown by then."""
        run = self.run
        run.organiser.handle(Received(self.link, wire_codec.encode(message)))
        run.made.run(wait)
        return run.heard(run.organiser)

    def finding(self, name: str, epoch: int = 0) -> Finding:
        said = self.run.found(self.run.made[name])
        return Finding(epoch, origin_of(name), said.nonce, said.rows, said.parts)

    def commits(self, name: str, finding: Finding, salt: bytes = SALT) -> Commitment:
        digest = finding_digest(RUN.run_id, salt, finding)
        unsigned = Commitment(finding.epoch, finding.origin, digest, bytes(64))
        signature = signing_key(name).sign(commitment_message(RUN.run_id, salt, unsigned))
        return replace(unsigned, signature=signature)


def taken(run: Run) -> int:
    return run.organiser.machine.counters.findings


def test_strangers_other_members_other_epochs_and_other_closes_are_not_listened_to() -> None:
    run = closed()
    stranger, chosen = Stranger(run), run.panel[0].name
    outside = next(name for name in "bcdefg" if run.made[name] not in run.panel)
    for name, epoch, salt in (
        ("nobody", 0, SALT),
        (outside, 0, SALT),
        (chosen, 1, SALT),
        (chosen, 0, b"another."),
    ):
        finding = stranger.finding(chosen if name == "nobody" else name, epoch)
        finding = replace(finding, origin=origin_of(name))
        stranger.says(stranger.commits(name, finding, salt))
        assert stranger.says(finding) == set()
    assert taken(run) == 0
    assert run.made.total("Commitment") == 0


def test_nothing_is_taken_of_an_epoch_before_the_seals_before_it_so_that_who_lies_is_not_first() -> None:
    run = closed()
    run.made["b"].compute(4)
    run.made.run(2)
    close_epoch(run.organiser)
    run.made.run(2)
    organised = run.organiser.machine.organised
    stranger, chosen = Stranger(run), panel(*reversed(organised.counting.drawn_from(1)))[0]
    name = next(one for one in "bcdefg" if number(run.made, one) // 64 == chosen)
    finding = stranger.finding(name, 1)
    finding = replace(finding, parts=finding.parts[:1])
    early = stranger.commits(name, finding, organised.counting.drawn_from(1)[0])
    stranger.says(early, TAKEN_AFTER)
    stranger.says(finding)
    assert taken(run) == 0
    seal_epoch(run.organiser)
    run.made.run(2)
    stranger.says(early)
    assert not run.organiser.findings
    assert taken(run) == 1


def test_a_commitment_with_anothers_signature_is_not_taken() -> None:
    run = closed()
    stranger, chosen = Stranger(run), run.panel[0].name
    finding = stranger.finding(chosen)
    forged = replace(stranger.commits("nobody", finding), origin=origin_of(chosen))
    assert stranger.says(forged) == stranger.says(finding) == set()
    assert taken(run) == 0


def test_a_finding_needs_the_commitment_that_stands_for_it() -> None:
    run = closed()
    stranger, chosen = Stranger(run), run.panel[0].name
    finding = stranger.finding(chosen)
    assert stranger.says(finding) == set()
    stranger.says(stranger.commits(chosen, finding), TAKEN_AFTER)
    for other in (
        replace(finding, nonce=8),
        replace(finding, rows=65),
        replace(finding, parts=finding.parts[:1]),
        replace(finding, origin=origin_of(run.panel[1].name)),
    ):
        assert stranger.says(other) == set()
    assert stranger.says(finding) == {chosen}


def test_the_first_commitment_and_one_finding_of_a_member_are_taken() -> None:
    run = closed()
    stranger, chosen = Stranger(run), run.panel[0].name
    finding = stranger.finding(chosen)
    second = replace(finding, nonce=8)
    stranger.says(stranger.commits(chosen, finding), TAKEN_AFTER)
    stranger.says(stranger.commits(chosen, second))
    assert stranger.says(second) == set()
    assert stranger.says(finding) == stranger.says(finding) == {chosen}
    assert taken(run) == 2


def test_nobody_shuts_out_others_by_being_quick() -> None:
    run = closed()
    stranger, hasty = Stranger(run), run.panel[0].name
    finding = stranger.finding(hasty)
    stranger.says(stranger.commits(hasty, finding))
    assert stranger.says(finding, TAKEN_AFTER - 3) == set()
    run.measure(*run.panel[1:])
    run.made.run(FLOOD_TIME + 1)
    assert run.heard(run.organiser) == {node.name for node in run.panel[1:]}
    assert stranger.says(finding) == {node.name for node in run.panel}, "it is still taken later"


def test_after_a_finding_no_commitment_is_taken() -> None:
    run = closed()
    stranger, (chosen, other) = Stranger(run), (node.name for node in run.panel[:2])
    for name in (chosen, other):
        if name == chosen:
            stranger.says(stranger.commits(name, stranger.finding(name)), TAKEN_AFTER)
            stranger.says(stranger.finding(name))
        else:
            stranger.says(stranger.commits(name, stranger.finding(name)))
            assert stranger.says(stranger.finding(name)) == {chosen}


def test_a_peer_that_forges_commitments_is_dropped_in_the_end() -> None:
    run = closed()
    stranger, chosen = Stranger(run), run.panel[0].name
    forged = replace(stranger.commits("nobody", stranger.finding(chosen)), origin=origin_of(chosen))
    frame = wire_codec.encode(forged)
    for _ in range(300):
        run.organiser.handle(Received(stranger.link, frame))
    assert [fault[:2] for fault in run.organiser.faults] == ["L8"]


def test_in_an_open_run_nobody_validates() -> None:
    made = Swarm("a b")
    made.mesh()
    made.run(1)
    said = Commitment(0, origin_of("b"), bytes(32), bytes(64))
    made["a"].handle(Received(next(iter(made["a"].wires)), wire_codec.encode(said)))
    assert [fault[:3] for fault in made["a"].faults] == ["O12"]
