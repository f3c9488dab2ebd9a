"""Panels of validators: what their findings say together, and what liars among them can do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks import evidence_cost
from sfnode.organising.evaluation import panel
from sfnode.organising.evaluation.evidence import OUTLIER, SCORE_ONE, MembersEvidence, weights_of
from sfnode.organising.evaluation.line_search import AMOUNTS, FIRST_ROWS, SearchResult
from sfnode.organising.evaluation.panel import (
    ASKED_AGAIN,
    BEYOND,
    DISPUTED,
    FINDINGS_WAIT,
    LATE,
    QUORUM,
    SILENCES,
    PanelFinding,
    Panels,
    apart,
    disputed,
    middle,
)
from sfnode.organising.evaluation.searching import ORIGIN_FORWARDS
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.schema.evaluation import StepShare
from sfprotocol.decisions import Announce, Part, Revoke, Seal, Validators, Worth
from sfprotocol.events import FindingHeard
from sfprotocol.messages import Feed
from tests.bench.validators import Run as Simulated
from tests.organising.bench import Bench, feed_of
from tests.organising.test_sanctions import MEASURED

NAMES = ("anne", "bob", "cleo", "dora", "eve", "finn")
EVERYBODY = tuple(range(len(NAMES)))
ROWS = 32


def parts(*scores: float, weight: float = 1.0, updates: int = 36) -> tuple[Part, ...]:
    worths = (weight * score * math.sqrt(updates) * 1e6 for score in scores)
    return tuple(
        Part(64 * number, updates, round(worth), round(score * SCORE_ONE))
        for number, (score, worth) in enumerate(zip(scores, worths, strict=True))
    )


def findings(*said: tuple[Part, ...]) -> list[PanelFinding]:
    return [PanelFinding(ROWS, one) for one in said]


def scores(found: tuple[Part, ...]) -> list[float]:
    return [part.score / SCORE_ONE for part in found]


# -- what findings say together ----------------------------------------------------------------------------


def test_figures_are_the_medians() -> None:
    found = middle(findings(parts(1, 2, 1), parts(2, 1, 1), parts(-9, 9, 1), parts(1.5, 1.8, 1)))
    assert scores(found) == [1.25, 1.9, 1.0]
    assert found[0].worth == 7_500_000


def test_nothing_is_said_of_a_feed_of_which_too_few_tell() -> None:
    assert middle(findings(parts(1, 2), parts(1, 2))) == ()
    assert scores(middle(findings(parts(1, 2), parts(1, 2), parts(1)))) == [1.0]
    assert middle([]) == ()


def test_no_score_exceeds_by_much_what_usual_work_of_as_many_updates_has_by_the_most_modest_finding() -> None:
    liar, modest = parts(-100, 100, 100), parts(1, 1.2, 0.8)
    assert scores(middle(findings(liar, liar, liar, modest))) == [-1 - BEYOND, 1 + BEYOND, 1 + BEYOND]
    many = tuple(part._replace(updates=36 * 16) for part in parts(4, 4, 4))
    few = parts(1, 1, 1)
    mixed = (*few[:2], many[2])
    assert scores(middle(findings(mixed, mixed, mixed))) == [1, 1, 4], "who makes many may score more"


def test_an_outlier_is_only_who_is_one_by_all_findings() -> None:
    usual = parts(1, 1, 1, 1)
    heavy = (usual[0]._replace(worth=100 * usual[0].worth), *usual[1:])
    assert weights_of(middle(findings(heavy, heavy, heavy)))[0] == pytest.approx(100)
    found = middle(findings(heavy, heavy, heavy, usual))
    assert weights_of(found)[0] == pytest.approx(OUTLIER / 2)


def test_a_step_that_goes_too_far_for_some_rows_is_no_difference() -> None:
    assert apart(parts(1, 2, 1, -1), parts(-2, -1, -2, -4)).doubt == 0
    assert apart((), parts(1)).doubt == 0


def test_findings_of_honest_validators_are_hardly_ever_disputed_and_those_of_liars_are() -> None:
    draws = np.random.default_rng(0).standard_normal((400, 5, 20))
    apart_by_chance = [apart(parts(*one[0]), parts(*one[1])).doubt for one in draws]
    assert sum(doubt > DISPUTED for doubt in apart_by_chance) <= 400 * math.exp(-DISPUTED)
    honest = [2 + one for one in draws[:50]]
    assert not any(disputed(findings(*(parts(*one) for one in said)), 5) for said in honest)
    for said in honest:
        said[0, :6], said[0, 6:] = 3, -3
    assert all(disputed(findings(*(parts(*one) for one in said)), 5) for said in honest)


# -- what the organiser makes of them ------------------------------------------------------------------------


class Run:
    """A run with six members, of whom all may measure, and an organiser whose own measurements say `own`."""

    def __init__(self, *validators: int) -> None:
        self.bench = Bench(policy=MEASURED, budget=1_000_000).begin(*NAMES, quota=1 << 20)
        self.bench.decide(Validators(validators or EVERYBODY[:5]))
        self.own: tuple[float, ...] | None = (2.0,) * 6
        self.answered = 0

    def close(self) -> int:
        """Let everybody train until an epoch is closed; return it."""
        epoch = self.bench.counting.open_epoch
        while self.bench.counting.open_epoch == epoch:
            for name in NAMES:
                self.bench.update(feed_of(name), 36)
            self.bench.advance(2)
        return epoch

    def tell(self, epoch: int, member: int, *said: float) -> None:
        self.bench.do(FindingHeard(member, epoch, ROWS, parts(*said)))

    def wait(self, seconds: float = 10.0) -> None:
        """Let time pass; whatever the organiser asks for is measured at once."""
        until = self.bench.now + seconds
        while self.bench.now < until:
            while self.answered < len(self.bench.plans):
                self.answered += 1
                self.answer(self.bench.plans[self.answered - 1])
            self.bench.advance(min(1.0, until - self.bench.now))

    def answer(self, plan: Evaluate) -> None:
        bench = self.bench
        cost = plan.origins * ORIGIN_FORWARDS + plan.rows * len(AMOUNTS) + plan.scored * 256
        found = SearchResult(1.0, 2.0, FIRST_ROWS) if plan.rows else None
        shares = dict[Feed, StepShare]()
        if plan.origins and self.own:
            said = zip(bench.counting.moved(plan.epoch), self.own, strict=True)
            shares = {
                bench.counting.feed(feed): StepShare(36, score * 6, 36.0, score * 6e-3, 1e-4)
                for feed, score in said
            }
        bench.do(EvaluationEnded(plan.epoch, None, None, None, found, cost, shares=shares))

    @property
    def checked(self) -> list[int]:
        """The epochs that the organiser has measured itself."""
        return [plan.epoch for plan in self.bench.plans if plan.origins]


HONEST = (2.0, 2.1, 1.9, 2.2, 1.8, -2.0)
"""Scores of six members; the last one flips its signs."""
LIE = (-2.0, -2.0, -2.0, -2.0, -2.0, 2.0)


def test_what_a_panel_has_found_is_signed_before_the_search_and_the_organiser_measures_nothing() -> None:
    run = Run()
    epoch = run.close()
    for member in range(5):
        run.wait(2)
        assert not run.bench.of(Worth), "the whole panel is waited for"
        assert not run.bench.plans
        run.tell(epoch, member, *HONEST)
    run.wait(8)
    (worth,) = run.bench.of(Worth)
    assert (worth.epoch, worth.rows, scores(worth.parts)) == (epoch, 5 * ROWS, list(HONEST))
    assert [type(one) for one in run.bench.signed if isinstance(one, Worth | Seal)] == [Worth, Seal]
    assert run.bench.of(Seal)[0].skipped == (5 * 64,)
    assert not run.checked
    assert run.bench.plans, "its time is for searches"


def test_who_says_nothing_is_waited_for_until_it_could_no_longer_tell() -> None:
    run = Run()
    epoch = run.close()
    for member in range(4):
        run.tell(epoch, member, *HONEST)
    run.wait(LATE - 3)
    assert not run.bench.of(Worth)
    run.wait()
    assert [worth.rows for worth in run.bench.of(Worth)] == [4 * ROWS]
    assert run.bench.counting.sealed == epoch + 1


def test_a_panel_of_which_two_say_nothing_is_checked_as_the_others_may_have_shut_them_out() -> None:
    run = Run()
    run.own = HONEST
    epoch = run.close()
    for member in range(QUORUM):
        run.tell(epoch, member, *LIE)
    run.wait(LATE + 10)
    assert run.checked == [epoch]
    assert [scores(worth.parts) for worth in run.bench.of(Worth)] == [list(HONEST)]
    assert run.bench.of(Validators)[-1] == Validators((3, 4))


def test_who_leaves_out_a_member_hides_nothing_of_it() -> None:
    run = Run()
    run.own = HONEST
    epoch = run.close()
    for member in range(5):
        run.tell(epoch, member, *(HONEST[:5] if member < QUORUM else HONEST))
    run.wait()
    assert run.checked == [epoch]
    assert [scores(worth.parts) for worth in run.bench.of(Worth)] == [list(HONEST)]


def test_who_is_often_silent_is_not_waited_for_until_it_tells_again_or_is_asked_anew() -> None:
    run = Run()
    took = []
    for number in range(ASKED_AGAIN + 2):
        epoch = run.close()
        for member in range(5 if number > ASKED_AGAIN else 4):
            run.tell(epoch, member, *HONEST[:5], 2.0)
        begun = run.bench.now
        while run.bench.counting.sealed <= epoch:
            run.wait(1)
        took.append(run.bench.now - begun > LATE - 3)
    assert took == [True] * SILENCES + [False] * (ASKED_AGAIN - SILENCES) + [True, False]
    assert not run.checked, "one may say nothing"


def test_a_panel_that_says_nothing_costs_two_minutes_twice_and_is_measured_by_the_organiser() -> None:
    run = Run()
    took = []
    for _ in range(SILENCES + 1):
        epoch, begun = run.close(), run.bench.now
        while run.bench.counting.sealed <= epoch:
            run.wait(1)
        took.append(run.bench.now - begun > FINDINGS_WAIT - 3)
    assert took == [True] * SILENCES + [False]
    assert run.checked[: SILENCES + 1] == list(range(SILENCES + 1))


@pytest.mark.parametrize("told", [0, QUORUM - 1])
def test_the_organiser_measures_itself_where_too_few_have(told: int) -> None:
    run = Run()
    epoch = run.close()
    for member in range(told):
        run.tell(epoch, member, *HONEST)
    run.wait((LATE if told else FINDINGS_WAIT) - 4)
    assert not run.bench.plans
    run.wait(8)
    assert run.checked == [epoch]
    assert [worth.rows for worth in run.bench.of(Worth)] == [run.bench.plans[0].origins]


def test_nobody_is_waited_for_where_fewer_are_named_than_could_say_something() -> None:
    run = Run(3, 4)
    epoch = run.close()
    run.wait()
    assert run.checked == [epoch]


def test_only_the_first_finding_of_a_member_of_the_panel_counts_and_only_of_what_the_close_has_named() -> (
    None
):
    run = Run()
    epoch = run.close()
    run.tell(epoch, 5, *LIE)
    run.tell(epoch + 1, 0, *LIE)
    for member in range(5):
        run.tell(epoch, member, *HONEST, 7.0)
        run.tell(epoch, member, *LIE)
    run.wait()
    assert [scores(worth.parts) for worth in run.bench.of(Worth)] == [list(HONEST)]


@pytest.mark.parametrize("liars", [1, 4])
def test_numbers_that_no_decision_can_hold_stop_no_organiser(liars: int) -> None:
    run = Run()
    run.own = None
    epoch = run.close()
    for member in range(4):
        lies = member < liars
        told = tuple(
            part._replace(worth=(1 << 63) - 1, score=(1 << 63) - 1) if lies else part
            for part in parts(*HONEST)
        )
        run.bench.do(FindingHeard(member, epoch, (1 << 32) - 1 if lies else ROWS, told))
    run.wait(LATE + 10)
    (worth,) = run.bench.of(Worth)
    assert worth.rows == (4 * ROWS if liars == 1 else (1 << 32) - 1)
    assert run.bench.counting.sealed == epoch + 1


def test_findings_that_are_far_apart_are_checked_and_who_is_wrong_measures_no_more() -> None:
    run = Run()
    run.own = HONEST
    epoch = run.close()
    for member in range(5):
        run.tell(epoch, member, *(LIE if member in (1, 2, 4) else HONEST))
    run.wait()
    assert run.checked == [epoch]
    assert [scores(worth.parts) for worth in run.bench.of(Worth)] == [list(HONEST)], "its own figures"
    assert run.bench.of(Validators)[-1] == Validators((0, 3))
    assert [one.text for one in run.bench.of(Announce)] == [
        f"member {member} measures no more as a validator: of round {epoch} it gave the work of member 5 a "
        f"score of +2.0; measured again by the organiser it is -2.0"
        for member in (1, 2, 4)
    ]
    assert run.bench.counting.sealed == epoch + 1


def test_findings_are_judged_once_however_long_their_check_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, judged = Run(), 0

    def counted(*said: Any) -> bool:
        nonlocal judged
        judged += 1
        return disputed(*said)

    monkeypatch.setattr(panel, "disputed", counted)
    epoch = run.close()
    for member in range(5):
        run.tell(epoch, member, *(LIE if member == 0 else HONEST))
    run.bench.advance(MEASURED.seal_wait - 4)
    assert run.bench.plans, "it is being checked"
    assert judged == 1


def test_nothing_is_kept_of_sealed_epochs_by_an_organiser_who_asks_no_panel() -> None:
    run = Run()
    panels = Panels(MembersEvidence(), 0.0)
    for _ in range(4):
        epoch = run.close()
        panels.hear(FindingHeard(0, epoch, ROWS, parts(*HONEST)), run.bench.counting, 0.0)
        run.wait(FINDINGS_WAIT + 10)
    assert len(panels._heard) == 1


def test_the_medians_stand_where_a_check_is_not_to_be_had() -> None:
    run = Run()
    run.own = None
    epoch = run.close()
    for member in range(5):
        run.tell(epoch, member, *(LIE if member == 0 else HONEST))
    run.wait()
    assert run.checked == [epoch]
    assert [scores(worth.parts) for worth in run.bench.of(Worth)] == [list(HONEST)]
    assert run.bench.of(Validators) == [Validators(EVERYBODY[:5])], "nobody is accused"
    assert run.bench.counting.sealed == epoch + 1


def test_medians_stand_where_a_check_takes_too_long_and_it_is_not_signed_besides() -> None:
    run = Run()
    run.own = HONEST
    epoch = run.close()
    for member in range(5):
        run.tell(epoch, member, *(LIE if member == 0 else HONEST))
    run.bench.advance(MEASURED.seal_wait + 4)
    assert [worth.rows for worth in run.bench.of(Worth)] == [5 * ROWS]
    assert run.bench.counting.sealed == epoch + 1
    run.wait()
    assert len(run.bench.of(Worth)) == 1
    assert run.bench.of(Validators)[-1] == Validators((1, 2, 3, 4)), "who lied is known all the same"


@pytest.mark.parametrize("own", [HONEST, None], ids=["checked", "without a check"])
def test_figures_of_a_panel_alone_revoke_nobody(own: tuple[float, ...] | None) -> None:
    run = Run()
    run.own = own
    for _ in range(4):
        epoch = run.close()
        for member in range(5):
            run.tell(epoch, member, -6.0, *HONEST[1:])
        run.wait()
    assert run.checked == [epoch]
    assert [part.feed // 64 for part in run.bench.of(Worth)[-1].parts] == list(range(own is None, 6))
    assert not run.bench.of(Revoke)
    assert not run.bench.origins.harmful


def test_nor_do_they_once_those_of_whom_nothing_is_said_are_left_out() -> None:
    """Without the first member the usual score is larger, by which the second one would do harm."""
    run, known = Run(), MembersEvidence()
    panels = Panels(known, 0.0)
    for epoch in range(3):
        known.take(Worth(epoch, ROWS, parts(-3, -2, 1, 2, 3)))
    while run.bench.counting.open_epoch < 4:
        run.close()
        run.wait(FINDINGS_WAIT + 10 if run.bench.counting.open_epoch < 4 else 0)
    for member in range(5):
        panels.hear(FindingHeard(member, 3, ROWS, parts(-6, -4, 1, 2, 3)), run.bench.counting, 0.0)
    (worth,) = panels.settle(3, check=False)
    assert [part.feed // 64 for part in worth.parts] == [2, 3, 4]
    known.take(worth)
    assert not known.harmful


def test_who_is_revoked_measures_no_more() -> None:
    run = Run()
    run.bench.decide(Revoke(3, 0))
    run.wait()
    assert run.bench.of(Validators)[-1] == Validators((0, 1, 2, 4))
    assert not run.bench.of(Announce)


# -- what colluding validators can do ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie", ["always", "if most", "a little", "one victim", "outliers", "alone", "silent"]
)
def test_three_in_ten_who_collude_gain_hostile_members_nothing_and_cost_others_little(lie: str) -> None:
    """Where members make 32 updates in an epoch and the organiser can check one of twenty."""
    found = Simulated(0, share=0.3, lie=lie, every=20).run(100)
    assert found.counts < 0.02
    assert found.lost < 0.005
    assert found.revoked == found.honest == 0


def test_liars_who_are_most_of_a_panel_are_found_by_a_check_or_two() -> None:
    found = [Simulated(seed, share=0.4, lie="if most", every=20).run(100) for seed in range(3)]
    assert sum(one.liars for one in found) > 3 * 0.6
    assert max(one.checks for one in found) <= 5
    assert Simulated(0, every=20, useless=True).run(100).checks == 0, "honest ones are not checked"


def test_a_mean_of_findings_would_be_anybodys_and_medians_alone_fail_where_epochs_are_short() -> None:
    assert Simulated(0, rule="mean", share=0.1, lie="wildly").run(50).counts > 0.3
    assert Simulated(0, rule="median", share=0.3, updates=8).run(60).counts > 0.3
    assert Simulated(0, rule="checked", share=0.3, updates=8).run(150).counts < 0.2


def test_with_validators_every_epoch_is_measured_however_slow_the_organiser_is() -> None:
    alone, helped = (
        evidence_cost.Swarm(10, 1_000_000_000, 1024, validators=validators, slower=20.0).run(1600)
        for validators in (0, 7)
    )
    assert alone.measured < 0.1
    assert helped.measured == 1.0
