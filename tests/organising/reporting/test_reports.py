"""Tests of reports: the run's health, alarms with their fixes, and reasons why a node waits."""

from __future__ import annotations

import pytest

from sfnode.organising.evaluation.health import published
from sfnode.organising.reporting.alarms import ALONE_FIX, Restarted
from sfnode.organising.reporting.reports import LOOK_INTERVAL, SILENT_TIME, UNANSWERED_TIME, Reports
from sfnode.schema.node_state import RunHealth, Wait
from sfnode.schema.status import AlarmStatus, WaitStatus
from sfprotocol.decisions import (
    FACTOR_ONE,
    Admit,
    Announce,
    Budget,
    Close,
    Decision,
    Evaluated,
    Finish,
    Move,
    Part,
    Revoke,
    Seal,
    Void,
    Worth,
)
from sfprotocol.validation import tag
from tests.control.organised_node import QUOTA, OrganisedNode
from tests.organising.bench import scores as measured
from tests.protocol.feeds import origin_of
from tests.publish.test_words import check

A = origin_of("a")
SALT = bytes(8)


@pytest.fixture
def node() -> OrganisedNode:
    return OrganisedNode()


@pytest.fixture
def reports(node: OrganisedNode) -> Reports:
    return node.api.reports


def told(epoch: int, value: float, *, base: bool = False) -> Evaluated:
    return published(epoch, measured(value), base=base)


def sealed(node: OrganisedNode, updates: int = 0) -> list[Decision]:
    """Make updates at node a; return the decisions that list and count them."""
    run_state = node.organised.run_state
    moves = ()
    if updates:
        node.compute(updates)
        state = node.swarm["a"].machine.frontier.state(node.swarm["a"].own)  # type: ignore[arg-type]
        number = run_state.number(state.feed)
        moves = (Move(number, state.next - run_state.named(number), tag(SALT, state.chain)),)
    epoch = run_state.open_epoch
    return [Close(epoch, SALT, moves), Seal(epoch, (), (), bytes(32), FACTOR_ONE, ())]


def seal(node: OrganisedNode, count: int = 1) -> None:
    for _ in range(count):
        node.decide(*sealed(node))


def codes(alarms: list[AlarmStatus]) -> list[str]:
    return [alarm.code for alarm in alarms]


# -- evidence ------------------------------------------------------------------------------------------


def brought(node: OrganisedNode, score: int, epochs: int) -> None:
    """Publish a score of node a for each epoch, and the best possible scores of the others."""
    node.decide(Admit(A, QUOTA, 0))
    own = node.organised.run_state.number(node.swarm["a"].own)  # type: ignore[arg-type]
    others = range(64, 5 * 64, 64)
    for epoch in range(epochs):
        parts = [Part(own, 36, 250_000 * score, score), *(Part(n, 36, 10**9, 3000) for n in others)]
        node.decide(Worth(epoch, 64, tuple(sorted(parts))))


def test_who_is_left_out_reads_in_three_sentences_why_and_what_to_do(
    node: OrganisedNode, reports: Reports
) -> None:
    own = node.swarm["a"].own
    brought(node, -500, 4)
    run = reports.run(own, None, 0.0)
    assert (run.evidence.updates, run.evidence.worth) == (144, -500_000_000)
    assert run.evidence.skipped
    (alarm,) = reports.alarms(None, 0.0, own)
    assert alarm.code == "SF086"
    assert alarm.what.endswith("the organiser has measured it, and cannot tell that it helps")
    assert alarm.fix.startswith("Chance does that to honest nodes, so let it go on")
    check(f"{alarm.what}. {alarm.fix}")
    assert [one.member for one in reports.status(None, 0.0).doubted] == [run.evidence.member]


@pytest.mark.parametrize(
    ("scores", "skipped", "at_last"),
    [([(3000, 4)], False, True), ([(0, 1)], True, True), ([(-5000, 1), (3000, 2)], False, False)],
    ids=["helps", "counts in the end in any case", "one epoch was spoilt"],
)
def test_whose_new_work_counts_or_will_in_the_end_is_not_alarmed(
    scores: list[tuple[int, int]], skipped: bool, at_last: bool, node: OrganisedNode, reports: Reports
) -> None:
    own = node.swarm["a"].own
    assert reports.run(own, None, 0.0).evidence is None
    for score, epochs in scores:
        brought(node, score, epochs)
    evidence = reports.run(own, None, 0.0).evidence
    assert (evidence.skipped, evidence.counts_at_last) == (skipped, at_last)
    assert reports.alarms(None, 0.0, own) == []
    assert [one.member for one in reports.status(None, 0.0).doubted] == [evidence.member] * skipped


def test_who_is_revoked_for_harm_reads_since_when(node: OrganisedNode, reports: Reports) -> None:
    own = node.swarm["a"].own
    brought(node, -4000, 8)
    evidence = reports.run(own, None, 0.0).evidence
    assert evidence.harmful_since == 0
    node.decide(Revoke(evidence.member, 0))
    wait = reports.wait(own, None, None)
    assert wait.reason is Wait.REVOKED
    assert "raised the loss on the validation rows since round 0 (+8.000000 by 288 updates" in wait.text
    assert reports.alarms(None, 0.0, own) == []


# -- alarms --------------------------------------------------------------------------------------------


def test_a_run_that_gets_worse_says_so_and_what_to_take_back_first(
    node: OrganisedNode, reports: Reports
) -> None:
    seal(node, 5)
    node.decide(told(0, 0.5, base=True), told(1, 0.6))
    assert reports.alarms(node.organising, 0.0) == []
    node.decide(told(3, 0.3))
    (alarm,) = reports.alarms(node.organising, 0.0)
    assert alarm.code == "SF070"
    assert alarm.what == (
        "the run gets worse: accuracy 30.0 % (28.0-32.0 %) of round 3, after accuracy 50.0 % (48.0-52.0 %) "
        "of the base model and accuracy 60.0 % (58.0-62.0 %) of round 1"
    )
    assert alarm.fix.startswith("First take back what made it worse: `sfnode organise void 2-4`.")
    assert "members" not in alarm.fix, "nobody is blamed who may not be there"
    node.decide(Void(2, 4, ()))
    assert reports.alarms(node.organising, 0.0) == []
    assert reports.run(None, None, 0.0).health.verdict is RunHealth.BETTER


def test_while_a_guard_sees_to_it_nothing_is_to_be_done(node: OrganisedNode, reports: Reports) -> None:
    node.organising.guarded = True
    seal(node, 2)
    node.decide(told(0, 0.6), told(1, 0.3))
    (alarm,) = reports.alarms(node.organising, 0.0)
    assert alarm.fix.startswith(
        "There is nothing to do: if it stays so, the guard goes back to the best round"
    )
    node.decide(Finish())
    (alarm,) = reports.alarms(node.organising, 0.0)
    assert "`sfnode organise void 1`" in alarm.fix


def test_a_volunteer_is_told_that_there_is_nothing_to_do(node: OrganisedNode, reports: Reports) -> None:
    seal(node)
    node.decide(told(0, 0.5, base=True), told(0, 0.3))
    (alarm,) = reports.alarms(None, 0.0)
    assert "nothing to do" in alarm.fix
    assert "`sfnode pause`" in alarm.fix
    assert "void" not in alarm.fix


def test_a_run_without_a_gain_after_a_quarter_of_its_budget_says_so(
    node: OrganisedNode, reports: Reports
) -> None:
    """At a rate that is far too large the first seal is already as bad as chance, so nothing gets worse."""
    node.decide(Admit(A, QUOTA, 0), Budget(40), told(0, 0.5, base=True))
    node.decide(*sealed(node, 9), told(0, 0.51))
    assert reports.alarms(None, 0.0) == []
    node.decide(*sealed(node, 1), told(1, 0.49))
    (alarm,) = reports.alarms(node.organising, 0.0)
    assert (alarm.code, alarm.what) == (
        "SF071",
        "no gain can be seen: 10 of 40 updates count, and the best of all rounds, accuracy 51.0 % "
        "(49.0-53.0 %) of round 0, is within what chance makes of accuracy 50.0 % (48.0-52.0 %) of the base "
        "model; loss 0.5000 beside 0.5000",
    )
    assert alarm.fix.startswith("If its loss has hardly changed, or for the worse, another rate may help")
    node.decide(told(2, 0.53))  # above what chance makes of the base model, if not by as much as is certain
    assert reports.alarms(None, 0.0) == []
    node.decide(told(3, 0.5))
    assert reports.alarms(None, 0.0) == []


def test_a_frozen_run_says_so_and_that_training_goes_on(node: OrganisedNode, reports: Reports) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.fork()
    (alarm,) = reports.alarms(None, 0.0)
    assert alarm.code == "SF072"
    assert "Training goes on within limits" in alarm.what
    assert "nothing to do" in alarm.fix
    assert "`sfnode organise hand-over`" in reports.alarms(node.organising, 0.0)[0].fix


def test_an_organiser_is_silent_once_updates_have_waited_for_long(
    node: OrganisedNode, reports: Reports
) -> None:
    node.decide(Admit(A, QUOTA, 0))
    seal(node)
    reports.news(100.0)
    reports.news(100.0 + 9 * SILENT_TIME)
    assert reports.alarms(None, 100.0 + 9 * SILENT_TIME) == [], "nothing waits"
    began = 10_000.0
    node.compute(3)
    reports.news(began)
    assert reports.alarms(None, began + SILENT_TIME - 1) == []
    (alarm,) = reports.alarms(None, began + SILENT_TIME)
    assert alarm.code == "SF073"
    assert "updates have waited for 15 min" in alarm.what
    assert "work was counted last 3 h ago" in alarm.what
    assert "counts when the organiser is back" in alarm.what
    assert alarm.fix.startswith(
        "If you are its owner, start the node that decides with --organise. Otherwise"
    )
    node.decide(Announce("here I am"))
    reports.news(began + SILENT_TIME)
    assert reports.alarms(None, began + SILENT_TIME) == []


@pytest.mark.parametrize(
    ("restarted", "alarms"),
    [
        (Restarted(3.0, more=0, linked=False, signed_here=False), 0),
        (Restarted(5.0, more=0, linked=False, signed_here=False), 1),
        (Restarted(5.0, more=0, linked=False, signed_here=True), 0),
        (Restarted(5.0, more=0, linked=True, signed_here=False), 0),
        (Restarted(5.0, more=7, linked=True, signed_here=True), 1),
    ],
)
def test_an_organiser_that_may_wait_for_ever_says_so_within_seconds_and_no_other(
    node: OrganisedNode, reports: Reports, restarted: Restarted, alarms: int
) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.organising.restarted = restarted
    found = reports.alarms(node.organising, 0.0)
    assert codes(found) == ["SF073"] * alarms
    for alarm in found:
        assert "5 s after its start the organiser here signs nothing yet: " in alarm.what
        assert "organise.alone=yes" in alarm.fix
    assert reports.status(node.organising, 0.0).waits == f"{restarted.what}. {ALONE_FIX}"


def test_who_knows_for_what_its_organiser_waits_is_not_told_that_it_is_silent_too(
    node: OrganisedNode, reports: Reports
) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.compute(3)
    reports.news(0.0)
    node.organising.restarted = Restarted(SILENT_TIME, more=7, linked=True, signed_here=False)
    (alarm,) = reports.alarms(node.organising, SILENT_TIME)
    assert "7 decisions more" in alarm.what


def test_a_decision_of_a_later_version_is_an_alarm(
    node: OrganisedNode, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.organised.run_state, "unsupported", True)
    assert codes(reports.alarms(None, 0.0)) == ["SF012"]


# -- why a node waits ----------------------------------------------------------------------------------


def waits(node: OrganisedNode, asked: float | None = None, *, organises: bool = False) -> WaitStatus | None:
    return node.api.reports.wait(node.swarm["a"].own, asked, node.organising if organises else None)


def reason(node: OrganisedNode) -> Wait | None:
    waiting = waits(node)
    return waiting and waiting.reason


def test_a_newcomer_sees_how_far_its_admission_is(node: OrganisedNode) -> None:
    first, asked, long_ago = waits(node), waits(node, 12.0), waits(node, UNANSWERED_TIME)
    assert (first.reason, asked.reason) == (Wait.WORK, Wait.JOIN_REQUEST)
    assert asked.text == "not admitted yet: it has asked for that"
    assert "nobody decides in this run yet" in long_ago.text
    assert "`sfnode join --organise`" in long_ago.text
    node.decide(Announce("here I am"))
    decided = waits(node, UNANSWERED_TIME)
    assert f"`sfnode organise admit {A.hex()[:8]}`" in decided.text
    node.organising.restarted = Restarted(8.0, more=0, linked=True, signed_here=False)
    organiser = waits(node, organises=True)
    assert organiser.reason is Wait.ORGANISER
    assert node.organising.restarted.what in organiser.text
    node.decide(Admit(A, QUOTA, 0))
    assert waits(node) is None


def test_who_has_used_its_quota_waits_for_the_next_epoch(node: OrganisedNode, reports: Reports) -> None:
    node.decide(Admit(A, QUOTA, 0))
    own = node.swarm["a"].own
    node.compute(QUOTA - 1)
    run = reports.run(own, None, 0.0)
    assert (run.member, run.quota, run.room, waits(node)) == (0, QUOTA, 1, None)
    node.compute(1)
    waiting = waits(node)
    assert (waiting.reason, reports.run(own, None, 0.0).room) == (Wait.QUOTA, 0)
    assert "it has made the 40 updates that it may make in round 0" in waiting.text
    assert "when the organiser closes it" in waiting.text
    node.decide(*sealed(node))
    assert waits(node) is None
    assert reports.run(own, None, 0.0).room == QUOTA


def test_in_a_frozen_run_a_used_quota_lasts_until_the_hand_over(node: OrganisedNode) -> None:
    node.decide(Announce("hello"), Admit(A, QUOTA, 0), Announce("hello"))
    node.compute(QUOTA)
    node.fork()
    waiting = waits(node)
    assert waiting.reason is Wait.QUOTA
    assert "when the deputies have handed over" in waiting.text


def test_once_what_is_closed_reaches_the_budget_it_waits_for_seals(node: OrganisedNode) -> None:
    node.decide(Admit(A, QUOTA, 0), Budget(5))
    close, last = sealed(node, 5)
    node.decide(close)
    assert reason(node) is Wait.SEALS
    node.decide(last)
    assert waits(node) is None


def test_who_begins_with_a_checkpoint_waits_for_it(node: OrganisedNode) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.swarm["a"].machine.frontier.waiting = True
    assert reason(node) is Wait.HISTORY


def test_who_was_revoked_is_told_and_nobody_waits_in_a_run_that_is_over(node: OrganisedNode) -> None:
    node.decide(Admit(A, QUOTA, 0), Revoke(0, 0))
    assert reason(node) is Wait.REVOKED
    node.decide(Finish())
    assert waits(node) is None


def test_a_relay_waits_for_nothing(reports: Reports) -> None:
    assert reports.wait(None, None, None) is None
    run = reports.run(None, None, 0.0)
    assert (run.member, run.quota, run.room) == (None, None, None)


# -- the log -------------------------------------------------------------------------------------------


def test_each_seal_and_each_result_is_a_line_and_of_many_the_last(
    node: OrganisedNode, reports: Reports
) -> None:
    node.decide(Admit(A, QUOTA, 0), told(0, 0.5, base=True))
    assert reports.news(1.0) == []
    node.decide(*sealed(node, 7))
    assert reports.news(2.0) == [f"round 0 counts: 7 of {node.organised.run_state.budget:,} updates count"]
    assert reports.run(None, None, 5.0).seconds_since_seal == 3.0
    node.decide(told(0, 0.6))
    assert reports.news(3.0) == [
        "better: accuracy 60.0 % (58.0-62.0 %) of round 0, the base model 50.0 %, best 60.0 %"
    ]
    assert reports.news(4.0) == []
    for epoch in range(1, 4):
        node.decide(*sealed(node), told(epoch, 0.6))
    assert [line.partition(", the")[0] for line in reports.news(5.0)] == [
        f"round 3 counts: 7 of {node.organised.run_state.budget:,} updates count",
        "better: accuracy 60.0 % (58.0-62.0 %) of round 3",
    ]


def test_what_was_decided_before_the_start_is_no_news(node: OrganisedNode) -> None:
    seal(node, 2)
    reports = Reports(node.manifest, node.organised, 0.0)
    assert reports.news(LOOK_INTERVAL) == []
    assert reports.run(None, None, 9.0).seconds_since_seal is None


def test_what_waits_is_looked_for_now_and_then_only(
    node: OrganisedNode, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(type(node.organised), "unnamed", property(lambda _: looks.append(1) or 0))
    for tenth in range(200):
        reports.news(tenth / 10)
    assert len(looks) <= 20 / LOOK_INTERVAL + 1


def test_what_a_succession_has_dropped_was_never_said(node: OrganisedNode, reports: Reports) -> None:
    seal(node)
    node.decide(told(0, 0.5, base=True), told(0, 0.3))
    assert codes(reports.alarms(None, 0.0)) == ["SF070"]
    feed = node.organised.control.feed
    feed._truncate(feed.stop - 1)
    assert reports.alarms(None, 0.0) == []
    node.decide(told(0, 0.6))
    assert reports.alarms(None, 0.0) == []
