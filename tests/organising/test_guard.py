"""Tests of the guard: a run goes back to its best seal when it gets worse, and ends when it no longer
improves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.organising import guard as policy
from sfnode.organising.evaluation import health
from sfnode.organising.events import EvaluationEnded
from sfnode.organising.guard import END, LOWER, MOST_RETURNS, PATIENCE, Guard
from sfnode.organising.steps import Judgement, at_rate
from sfnode.schema.measurements import EvaluationOfRows
from sfnode.schema.metrics import PASS_AT_1
from sfnode.tasks import metrics
from sfprotocol.decisions import (
    FACTOR_ONE,
    Admit,
    Announce,
    Close,
    Decision,
    Finish,
    Move,
    RateFrom,
    Recorded,
    Seal,
    Void,
)
from sfprotocol.run_state import RunState
from tests.organising.bench import EVALUATED, Bench, feed_of, skipping
from tests.organising.bench import RATE as BENCH_RATE

ROWS, RATE, UPDATES = 256, 1 << 20, 250
F64 = NDArray[np.float64]


class Run:
    """An organised run of epochs with UPDATES updates each, evaluated at every seal."""

    def __init__(
        self,
        base: float = 0.7,
        *,
        budget: int = 60_000,
        seed: int = 0,
        noise: float = 0.1,
        searched: bool = False,
        metric: str = "accuracy",
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.run_state = RunState(budget=budget, rate=RATE)
        self.guard = Guard()
        self.searched = searched
        self.noise = noise
        self.metric = metric
        self.said: list[Decision] = []
        """The decisions that the guard has made."""
        self.decided: list[Decision] = []
        self.rows: F64 = self.random.normal(0, 0.3, ROWS)
        """Additional loss of each row."""
        self.rows -= self.rows.mean()
        self.decide(Admit(bytes(32), 1 << 30, 0))
        self.publish(0, self.losses(base), base=True)

    def losses(self, mean: float) -> F64:
        """Return the rows' losses by a model with mean loss `loss` over all possible rows."""
        return mean + self.rows + self.random.normal(0, self.noise, ROWS)

    def decide(self, decision: Decision) -> None:
        self.run_state.apply(Recorded(decision))
        self.guard.take(decision)
        self.decided.append(decision)

    def publish(
        self, epoch: int, losses: F64, *, base: bool = False, known: bool = True, right: float | None = None
    ) -> None:
        hits = round(ROWS * (right or min(1.0, max(0.5, 1.2 - float(losses.mean())))))
        share = metrics.share(hits, ROWS)._asdict()
        loss = float(losses.mean())
        found = EvaluationOfRows(metric=self.metric, **share, loss=loss, count=ROWS, losses=tuple(losses))
        if known:
            self.guard.note(epoch, found, base=base)
        self.decide(health.published(epoch, found, base=base))

    def seal(self) -> Seal:
        """Close the open epoch if none waits for its seal, and seal the oldest."""
        run_state = self.run_state
        if run_state.open_epoch == run_state.sealed:
            self.decide(Close(run_state.open_epoch, bytes(8), (Move(0, UPDATES, bytes(8)),)))
        judgement = Judgement() if self.searched else at_rate(RATE)(run_state)
        judgement = self.guard.judged(run_state, judgement, searched=self.searched)
        seal = Seal(run_state.sealed, (), (), bytes(32), judgement.factor, judgement.rates)
        self.decide(seal)
        return seal

    def epoch(self, loss: float | F64, right: float | None = None) -> list[Decision]:
        """Seal epochs until one is evaluated, with this loss and share of right answers; return the
        decisions."""
        assert not self.run_state.finished
        assert self.run_state.open_epoch < 500, "it does not come to an end"
        while self.guard.discards(self.run_state.sealed):
            self.seal()
        epoch = self.seal().epoch
        self.publish(epoch, self.losses(loss) if isinstance(loss, float) else loss, right=right)
        found = []
        while decision := self.guard.due(self.run_state):
            self.decide(decision)
            found.append(decision)
        self.said += found
        return found

    def learn(self, *losses: float) -> None:
        for loss in losses:
            assert not self.epoch(loss)

    @property
    def rate(self) -> float:
        """The rate of the open epoch as a share of the first one."""
        return self.run_state.rate(self.run_state.open_epoch) / RATE


def test_what_learns_is_left_alone() -> None:
    run = Run()
    run.learn(*(0.05 + 0.65 * 0.9**n for n in range(25)))
    assert run.rate == 1


def test_a_collapse_is_taken_back_from_the_best_seal_on() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2)
    void, said = run.epoch(0.8)
    assert void == Void(4, 4, ())
    assert "accuracy 50.0 % (43.9-56.1 %) of round 4 is worse than accuracy 99.2 %" in said.text
    assert "goes on at the model of round 3" in said.text
    assert run.guard.results[-1].losses is not None, "later ones are compared with it row by row"


def test_a_smaller_rise_is_taken_back_once_a_second_evaluation_confirms_it() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2, 0.35)
    assert run.epoch(0.35)[0] == Void(4, 5, ())
    recovered = Run()
    recovered.learn(0.6, 0.4, 0.3, 0.2, 0.35, 0.19)


def test_a_model_that_has_diverged_is_taken_back_at_once() -> None:
    run = Run()
    run.learn(0.6, 0.4)
    assert run.epoch(np.full(ROWS, math.nan))[0] == Void(2, 2, ())


def test_what_was_under_way_counts_nothing_and_the_rate_is_lower_from_then_on() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2)
    counted = run.run_state.counted
    assert run.guard.cuts(run.run_state) is False
    run.epoch(0.7)
    assert run.guard.cuts(run.run_state), "the open epoch is closed with what it has"
    assert run.seal() == Seal(5, (), (), bytes(32), 0, (RateFrom(7, RATE // LOWER),))
    assert run.guard.cuts(run.run_state), "so is the one that was begun before the rate was told"
    assert run.seal().factor == 0
    assert not run.guard.cuts(run.run_state)
    assert run.seal().factor == FACTOR_ONE
    assert run.run_state.counted == counted + UPDATES
    assert run.rate == 1 / LOWER
    assert run.guard.labels() == [range(4, 7)]


def test_a_seal_that_waits_tells_the_lower_rate_one_epoch_earlier() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2)
    run.seal()
    run.decide(Close(5, bytes(8), (Move(0, UPDATES, bytes(8)),)))
    run.publish(4, run.losses(0.7))
    while decision := run.guard.due(run.run_state):
        run.decide(decision)
    assert run.seal().rates == (RateFrom(7, RATE // LOWER),)


@pytest.mark.parametrize("searched", [False, True])
def test_the_lower_rate_holds(searched: bool) -> None:
    run = Run(searched=searched)
    run.learn(0.6, 0.4)
    run.epoch(0.8)
    run.learn(0.35, 0.3, 0.25)
    assert run.rate == 1 / LOWER
    run.epoch(0.8)
    run.learn(0.2, 0.15)
    assert run.rate == 1 / LOWER**2


def test_a_run_that_no_longer_improves_ends_where_it_is() -> None:
    run = Run(budget=20_000)
    run.learn(0.6, 0.4, 0.3)
    while not run.run_state.finished:
        run.epoch(0.3 + 0.01 * (len(run.decided) % 2))
    assert [type(said) for said in run.said] == [Announce, Finish]
    last = run.run_state.sealed - 1
    assert f"ends the run at the model of round {last}, as it no longer" in run.said[0].text  # type: ignore[union-attr]
    assert run.rate == 1


def test_it_does_not_end_before_a_share_of_the_budget_and_of_what_was_made() -> None:
    for budget, learning in ((1_000_000, 3), (10_000, 60)):
        run = Run(budget=budget)
        run.learn(*np.linspace(0.65, 0.2, learning).tolist())
        run.learn(*[0.2] * (END * PATIENCE + 2))


def test_a_run_that_ends_where_it_is_worse_than_at_its_best_goes_back_to_that() -> None:
    run = Run(budget=20_000)
    run.learn(0.6, 0.4, 0.3)
    assert not run.epoch(0.3, 0.92)
    for _ in range(END * PATIENCE - 2):
        assert not run.epoch(0.31)
    void, _, end = run.epoch(0.42)
    assert (void, end) == (Void(4, run.run_state.sealed - 1, ()), Finish())


# -- one figure decides ----------------------------------------------------------------------------------


def test_what_is_better_by_the_figure_that_is_shown_is_kept_whatever_its_loss() -> None:
    """The loss of a head rises as it becomes surer. An accuracy of 80 % is not taken back in favour of 77.4
    %."""
    run = Run(budget=20_000)
    run.learn(0.6, 0.5)
    assert not run.epoch(0.40, 0.774)
    while not run.run_state.finished:
        run.epoch(0.55, 0.80)
    assert not [said for said in run.said if isinstance(said, Void)]
    best = policy.best_seal(run.decided)
    assert round(best.value, 2) == 0.80


@pytest.mark.parametrize("right", [0.774, 0.77])
def test_nothing_is_worse_than_what_is_as_good_to_the_eye(right: float) -> None:
    run = Run()
    run.learn(0.6, 0.5)
    for loss in (0.4, 0.6, 0.6, 0.6):
        assert not run.epoch(loss, 0.774 if loss < 0.5 else right)


def test_fewer_right_answers_are_worse_whatever_the_loss() -> None:
    run = Run()
    run.learn(0.6, 0.5)
    assert not run.epoch(0.4, 0.9)
    assert not run.epoch(0.4, 0.75)
    assert run.epoch(0.4, 0.75)[0] == Void(3, 4, ())


def test_where_right_answers_are_rare_the_loss_decides_and_is_said() -> None:
    run = Run(metric="exact_match")
    run.decided.clear()
    run.publish(0, run.losses(3.0), base=True, right=0.001)
    for loss in (2.0, 1.5, 2.6):
        found = run.epoch(loss, 0.001)
    assert found[0] == Void(2, 2, ())
    assert isinstance(said := found[1], Announce)
    assert "(loss 2.6" in said.text
    assert "(loss 1.5" in said.text


def test_without_any_gain_it_goes_back_to_the_base_model_until_the_rate_suits() -> None:
    run = Run(noise=0.3)
    while run.rate > 1 / LOWER**3:
        run.epoch(0.69)
        assert all(said.first == 0 for said in run.said if isinstance(said, Void))
    run.learn(0.6, 0.5, 0.4)


def test_returns_are_bounded_and_the_last_one_ends_the_run() -> None:
    run = Run(noise=0.3)
    while not run.run_state.finished:
        assert run.epoch(0.9) is not None
    assert len([said for said in run.said if isinstance(said, Void)]) == MOST_RETURNS + 1
    assert run.run_state.counted == 0


def test_a_run_that_hardly_moves_is_left_to_its_owner() -> None:
    run = Run(noise=0.02, budget=10_000)
    run.learn(*[0.7] * 40)


def answered(run: Run, right: float) -> F64:
    """Return each row's loss: 0, a right answer, with probability `right`, and 1 otherwise."""
    return np.asarray(run.random.random(ROWS) > right, float)


def test_rewards_of_other_answers_that_are_no_worse_are_left_alone_and_worse_ones_taken_back() -> None:
    run = Run(metric=PASS_AT_1)
    run.publish(0, answered(run, 0.5), base=True)
    for _ in range(15):
        assert not run.epoch(answered(run, 0.5))
    worse = Run(metric=PASS_AT_1)
    worse.publish(0, answered(worse, 0.5), base=True)
    while not worse.said:
        worse.epoch(answered(worse, 0.1))
    assert any(isinstance(one, Void) for one in worse.said)
    (said,) = [one.text for one in worse.said if isinstance(one, Announce)]
    assert "(mean reward 0." in said
    assert "loss" not in said


def test_what_gets_worse_with_the_last_epochs_is_taken_back_at_the_end() -> None:
    run = Run(budget=5 * UPDATES)
    run.learn(0.6, 0.4, 0.3, 0.2)
    void, _, end = run.epoch(0.28)
    assert (void, end) == (Void(4, 4, ()), Finish())
    assert run.guard.discards(run.run_state.sealed), "what waits for its seal does not count"
    done = Run(budget=5 * UPDATES)
    done.learn(0.6, 0.4, 0.3, 0.2, 0.21)


def test_results_of_what_was_taken_back_do_not_speak_any_more() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2)
    run.epoch(0.7)
    run.publish(5, run.losses(0.7))
    assert run.guard.due(run.run_state) is None


def test_an_owner_who_takes_back_the_last_epochs_makes_a_return_and_other_voids_are_none() -> None:
    run = Run()
    run.learn(0.6, 0.4, 0.3, 0.2)
    run.decide(Void(1, 1, ()))
    run.decide(Void(1, 3, (0,)))
    assert not run.guard.returns
    run.decide(Void(3, 3, ()))
    assert run.seal().rates == (RateFrom(6, RATE // LOWER),)


def test_after_a_restart_it_knows_what_was_decided() -> None:
    run = Run()
    run.learn(0.6, 0.4)
    run.epoch(0.8)
    run.learn(0.35, 0.3)
    again = Guard()
    for decision in run.decided:
        again.take(decision)
    assert again.returns == run.guard.returns
    run.guard = again
    run.learn(0.25)
    assert run.rate == 1 / LOWER
    assert run.epoch(0.7)[0] == Void(run.run_state.sealed - 1, run.run_state.sealed - 1, ())


def test_losses_of_rows_are_not_kept_of_every_seal() -> None:
    run = Run(budget=10_000_000)
    run.learn(*np.linspace(0.65, 0.3, 100).tolist(), *[0.3] * 100)
    known = [one for one in run.guard.results if one.losses is not None]
    assert len(run.guard.results) == 200
    assert len(known) <= 3, "the best one's and the last two's"
    assert not run.guard.rows
    run.guard.note(201, measured(0.3))
    run.guard.note(202, measured(0.3))
    assert len(run.guard.rows) == 1, "what is never published is replaced"


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_alone_never_takes_anything_back(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models differ by chance only, after something was learnt."""
    monkeypatch.setattr(policy, "PATIENCE", 1000)
    runs = (Run(seed=seed, noise=noise, budget=1 << 31) for seed in range(20))
    said = [said for run in runs for mean in (0.6, 0.5, *[0.4] * 40) for said in run.epoch(mean)]
    assert not [one for one in said if isinstance(one, Void)]


# -- in the organiser ------------------------------------------------------------------------------------

ANNE, BOB = feed_of("anne"), feed_of("bob")
GUARDED = replace(EVALUATED, guard=True, share=1.0, young_share=1.0)


def measured(loss: float) -> EvaluationOfRows:
    rows = tuple(loss + row / 100 for row in range(-10, 11))
    share = {"metric": "accuracy", "value": 1.2 - loss, "low": 1.1 - loss, "high": 1.3 - loss}
    return EvaluationOfRows(**share, loss=loss, count=len(rows), losses=rows)


def epoch(bench: Bench, loss: float) -> None:
    """Go through an epoch: updates, evaluation, seal and judgement."""
    asked = len(bench.asked)
    while len(bench.asked) == asked:
        bench.update(ANNE, 100)
        bench.advance(10)
    base = measured(0.7) if len(bench.asked) == 1 else None
    bench.do(EvaluationEnded(bench.asked[-1], measured(loss), base))
    bench.advance(3)


def spoilt() -> Bench:
    """Return a run whose epoch 2 was taken back, and 30 updates of Bob's that no other node holds."""
    bench = Bench(policy=GUARDED, judge=skipping(set())).begin("anne", "bob")
    for loss in (0.5, 0.4):
        epoch(bench, loss)
    bench.update(BOB, 30, shown=False)
    epoch(bench, 0.8)
    bench.advance(10)
    return bench


def test_an_organiser_takes_back_what_did_harm_and_says_so() -> None:
    bench = spoilt()
    (void,) = bench.of(Void)
    seals = bench.of(Seal)
    assert void == Void(2, 2, ())
    assert [seal.factor for seal in seals] == [FACTOR_ONE] * 3 + [0] * (len(seals) - 3)
    assert len(seals) == 5
    assert bench.run_state.counted == 200
    assert bench.run_state.rate(bench.run_state.open_epoch) == BENCH_RATE // LOWER
    assert "goes on at the model of round 1" in bench.of(Announce)[0].text
    assert bench.asked == [0, 1, 2], "what is worth nothing is not evaluated"


def test_work_from_before_that_comes_late_does_not_bring_it_back() -> None:
    bench = spoilt()
    bench.show(BOB)
    epoch(bench, 0.35)
    late = bench.of(Close)[-1].epoch
    assert late >= 5
    assert bench.of(Seal)[-1].skipped == (64,)
    assert bench.run_state.counted == 300
    bench.update(BOB, 20)
    epoch(bench, 0.3)
    assert bench.of(Seal)[-1].recounted == ()
    assert bench.run_state.counted == 420


def test_the_last_epoch_is_evaluated_whatever_that_costs() -> None:
    bench = Bench(policy=replace(GUARDED, share=0.0, young_share=0.0), budget=400).begin("anne")
    epoch(bench, 0.5)
    for _ in range(40):
        if len(bench.asked) == 2:
            break
        bench.update(ANNE, 50)
        bench.advance(10)
    assert bench.asked == [0, 3]
    bench.do(EvaluationEnded(3, measured(0.9)))
    bench.advance(10)
    assert bench.run_state.finished
    assert bench.of(Void) == [Void(1, 3, ())]


def test_without_the_guard_nothing_of_this_is_done() -> None:
    bench = Bench(policy=EVALUATED).begin("anne", "bob")
    for loss in (0.5, 0.4, 0.8, 0.8):
        epoch(bench, loss)
    assert not bench.of(Void)
