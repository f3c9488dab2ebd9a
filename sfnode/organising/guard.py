"""The guard rails of an organised run: when it goes back to its best seal, and when it ends.

    evaluations on the validation rows                       decision
    far worse than the best one, or worse twice in a row     back to the best seal, at a lower rate
    no gain over the base model, though losses move far      back to the base model, at a lower rate
    (or rewards fall)
    a gain, and no better than the best one for long         the run ends where it is
    worse than the best one at the end                       back to the best seal, and the run ends
    none better by BETTER for `patience` rounds              back to the best seal, and the run ends; if no
                                                             seal is better than the base model, back to the
                                                             base model, at a lower rate
    rounds of updates too short to change the weights        the run ends where it is

Results are compared by the figure that people are shown (`figure`). Losses of single rows only tell whether a
difference may be chance. A result that is no worse in that figure is never taken back. A guard with a
patience, such as that of a first-order run of a head, compares mean losses instead, like early stopping. The
loss of such a head gets worse before its accuracy does.

A return is a Void of all epochs after the seal to which the run goes back. Updates that were under way at
that time never count, because they were made with models that are gone, at a rate that was too large. Until
the lower rate begins, epochs are closed with the updates that they have and sealed with factor 0. Feeds that
later bring updates labelled with these epochs are skipped, and not recounted. A run has MOST_RETURNS returns
at most, and each lowers the rate.

The guard's state follows from the decisions alone, except for losses of single rows. A restart forgets these
losses, and a difference to an earlier seal then has a larger error. A Void of all members' work up to the
last seal is a return, even if it is the owner's decision.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.organising.evaluation import health
from sfnode.organising.steps import IDLE_ROUNDS, Judgement, idle_rounds
from sfnode.schema.measurements import Evaluation, EvaluationOfRows
from sfnode.schema.metrics import measure_of, metric_of, result_in_words
from sfnode.schema.organising import EpochEvaluation
from sfprotocol.decisions import Announce, Close, Decision, Evaluated, Finish, Seal, Void
from sfprotocol.run_state import MAX_EPOCHS, NEVER, RunState

ERRORS = 2.0
"""Number of standard errors above which a difference, paired by rows, is taken to be more than chance."""

LITTLE = 0.02
"""Largest difference between two results that does not matter, in nats, reward or share of right answers.
Once the best seal has gained much, PART raises this bound."""

PART = 0.1
"""Largest difference between two results that does not matter, as a share of the best seal's gain over the
base model. The bound is never below LITTLE."""

LARGE = 0.5
"""Decline from the best seal, as a share of that seal's gain over the base model, above which a single
evaluation is enough for a return to the best seal. The decline must also be above LARGE_MOVE."""

LARGE_MOVE = 0.1
"""Root mean square change of the rows' losses, in nats, above which the steps of a run that has gained
nothing are taken for noise at too large a rate, as in `line_search`."""

BETTER = 0.02
"""Minimum improvement that counts, as a share of the gain over the base model. A smaller improvement is not
worth the time."""

PATIENCE = 6
"""Number of evaluations without an improvement after which a run that has gained nothing, though its losses
have moved far, goes back to the base model at a lower rate. In runs of the built-in model that learn, every
second or third evaluation is an improvement."""

LEAST_BUDGET = 1 / 40
"""Minimum number of updates that PATIENCE evaluations must span, as a share of the budget."""

LEAST_MADE = 1 / 4
"""Minimum number of updates that PATIENCE evaluations must span, as a share of the updates up to the last
improvement."""

END = 2
"""Factor on PATIENCE, LEAST_BUDGET and LEAST_MADE for the end of a run that has gained. Learning is slow late
in a run, and line searches have lowered the rate by then if a lower rate helps."""

LOWER = 4
"""Divisor of the rate when a run goes back to an earlier seal. Three or four such returns correct a first
rate that is 100 times too large."""

LABELLED = frozenset({"accuracy", "f1"})
"""Metrics by whose values results are compared. Any other metric may stay at 0 until some answer is right as
a whole. Results in another metric are therefore compared by the trained quantity, loss or mean reward."""

MOST_RETURNS = 8
"""Maximum number of returns to earlier seals in one run. Together they divide the rate by 65,000; no first
rate is 65,000 times too large."""


Rows = dict[tuple[int, bool, tuple[str, bool]], NDArray[np.float64]]
"""Losses of a result's rows, keyed by (epoch, whether the result is of the base model, (metric, whether it is
calibrated))."""


class SealResult(NamedTuple):
    """An evaluation of a seal, or of the base model."""

    said: EpochEvaluation
    losses: NDArray[np.float64] | None
    """Loss of each row; None if this organiser has not measured the result itself, or no longer needs the
    losses."""

    @property
    def epoch(self) -> int:
        """Epoch of the seal; -1 for the base model."""
        return -1 if self.said.base else self.said.epoch

    @property
    def loss(self) -> float:
        """Mean loss; infinite if the measured loss was NaN."""
        return self.said.loss

    @property
    def is_labelled(self) -> bool:
        """Whether results are compared by the values of their metric."""
        return self.said.metric in LABELLED

    @property
    def figure(self) -> float:
        """Number by which results are compared; larger is better. Minus infinity if the mean loss is not
        finite."""
        return self.said.value if self.is_labelled and math.isfinite(self.loss) else -self.loss

    @property
    def jumps(self) -> bool:
        """Whether losses change in leaps, as those that follow from rewards do."""
        return metric_of(self.said.metric).trained.rises


def rise(before: SealResult, after: SealResult) -> tuple[float, float]:
    """Return the rise of the mean loss in nats, and its standard error. If the losses of single rows are
    known for both results, the error is that of paired rows. If they are known for one result, the error is
    the larger one of two independent samples. If they are known for neither, the error is infinite."""
    if not (math.isfinite(before.loss) and math.isfinite(after.loss)):
        numbers = math.isfinite(before.loss) - math.isfinite(after.loss)
        return (math.copysign(math.inf, numbers) if numbers else 0.0), 0.0
    mean = after.loss - before.loss
    known = [one.losses for one in (before, after) if one.losses is not None]
    if not known:
        return mean, math.inf
    paired = len(known) == 2 and len(known[0]) == len(known[1])
    differences = known[1] - known[0] if paired else math.sqrt(2) * known[-1]
    return mean, float(differences.std(ddof=1)) / math.sqrt(len(differences))


@dataclass(slots=True)
class Return:
    """A return to an earlier seal."""

    first: int
    """First epoch that was taken back."""
    until: int = NEVER
    """First epoch that counts again; NEVER until a seal decides which epoch that is. If the organiser has a
    guard, the rate is lower from this epoch on."""


class Guard:
    """Guard of one organiser, from its start to the next restart."""

    def __init__(self, patience: int = 0, idle: int = IDLE_ROUNDS) -> None:
        """`patience`: number of rounds without a better evaluation after which the run ends at the best seal;
        0 for no such limit. `idle`: number of consecutive rounds without an update that changes the weights
        after which nothing is taken to be left to learn."""
        self._patience, self._idle = patience, idle
        self.returns: list[Return] = []
        self._opened = self._sealed = 0
        self._base: dict[tuple[str, bool], SealResult] = {}
        """Results of the base model, uncalibrated and calibrated, keyed by measure."""
        self.results: list[SealResult] = []
        """Results of the seals that were not taken back, in order. All have the same metric, and all or none
        are calibrated."""
        self._top: SealResult | None = None
        """Best of `results`, the earliest of equal ones; None if there is no result."""
        self._voided: list[range] = []
        """Epochs that were taken back. Later results of these epochs belong to models that are gone."""
        self._marks: list[SealResult] = []
        """Improvements, in order. Each was evidently better than the improvement before it, and by more than
        a little. The first improvement is one over the base model."""
        self.rows: Rows = {}
        """Losses of rows for results that are not published yet. A restart forgets all losses of rows."""
        self._with_rows: list[int] = []
        """Indices of the `results` that may have losses of rows, ascending."""
        self._unjudged = False
        self._due: deque[Decision] = deque()
        self._stale: set[tuple[int, int]] = set()
        """(Feed, epoch) pairs that a seal has skipped because the feed's updates in the close were taken
        back."""

    def anew(self) -> Guard:
        """Return a guard with the same settings that has read no decision."""
        return Guard(self._patience, self._idle)

    # -- what is known -----------------------------------------------------------------------------

    def note(self, epoch: int, result: Evaluation | None, *, base: bool = False) -> None:
        """Keep the losses of rows of a result that will be published. A seal's losses replace those of the
        seal before it."""
        if not base:
            self.rows = {key: rows for key, rows in self.rows.items() if key[1]}
        if isinstance(result, EvaluationOfRows):
            self.rows[epoch, base, measure_of(result)] = np.array(result.losses, np.float64)

    def take(self, decision: Decision) -> None:
        """Take in the next decision of the control feed."""
        match decision:
            case Close(epoch=epoch) if epoch == self._opened:
                self._opened += 1
            case Seal(epoch=epoch) if epoch == self._sealed:
                self._sealed += 1
                last = self.returns[-1] if self.returns else None
                if last and last.until == NEVER and (decision.factor or decision.rates):
                    # without a guard the organiser lowers no rate, and the next epoch counts
                    last.until = epoch if decision.factor else decision.rates[0].epoch
            case Evaluated():
                said = health.evaluation(decision)
                rows = self.rows.pop((said.epoch, said.base, measure_of(said)), None)
                self._on_result(SealResult(said, rows))
            case Void():
                self._on_void(decision)

    def _on_result(self, result: SealResult) -> None:
        if result.said.base:
            self._base[measure_of(result.said)] = result
        elif not (self.discards(result.epoch) or any(result.epoch in epochs for epochs in self._voided)):
            if self.results and measure_of(self.results[-1].said) != measure_of(result.said):
                self.results, self._with_rows, self._top, self._marks = [], [], None, []
            self.results.append(result)
            self._top = max(self._top or result, result, key=_goodness)
            if (mark := self._mark) is None or self._is_improved(mark, result):
                self._marks.append(result)
            self._forget_rows()
            self._unjudged = True

    def _forget_rows(self) -> None:
        """Drop the losses of rows of results with which later results are not compared. The best result, the
        last two results and the improvements keep theirs. After a Void by the owner an older result may be
        the best one; a difference to it then has a larger error."""
        last = len(self.results) - 1
        self._with_rows.append(last)
        kept = [at for at in self._with_rows if at >= last - 1 or self.results[at] is self._top]
        for at in set(self._with_rows) - set(kept):
            self.results[at] = self.results[at]._replace(losses=None)
        self._with_rows = kept

    def _on_void(self, void: Void) -> None:
        if not void.members and void.first <= void.last == self._sealed - 1:
            self.returns.append(Return(void.first))
        self._unjudged = False
        self._voided.append(range(void.first, void.last + 1))
        self.results = [one for one in self.results if one.epoch < void.first]
        self._top = max(self.results, key=_goodness, default=None)
        self._with_rows = [at for at, one in enumerate(self.results) if one.losses is not None]
        self._marks = [one for one in self._marks if one.epoch < void.first]

    def verdict(self) -> health.HealthVerdict:
        """Return the health of the run, judged from the results so far."""
        bases = {measure: one.said for measure, one in self._base.items()}
        return health.verdict(bases, [one.said for one in self.results])

    # -- what is decided ---------------------------------------------------------------------------

    def due(self, run_state: RunState) -> Decision | None:
        """Return the next decision that is due; None if none is."""
        if self._unjudged and not run_state.finished and self.results:
            self._due.extend(self._judge(run_state))
        self._unjudged = False
        if not (self._due or run_state.complete) and idle_rounds(run_state) >= self._idle:
            what = "what nodes learn from their rows has become too little to change it"
            self._due.extend(self._end(f"at the model of round {self._sealed - 1}", what))
        decision = self._due.popleft() if self._due else None
        if isinstance(decision, Finish):  # work without a seal comes too late
            self.returns.append(Return(self._sealed))
        return decision

    def discards(self, epoch: int) -> bool:
        """Return whether an epoch counts for nothing because the run has gone back to an earlier seal."""
        return any(one.first <= epoch < one.until for one in self.returns)

    def cuts(self, run_state: RunState) -> bool:
        """Return whether the open epoch must be closed with the updates that it has, because the run has gone
        back to an earlier seal and the lower rate has not begun."""
        last = self.returns[-1] if self.returns else None
        if last is None or run_state.complete:
            return False
        unsealed = run_state.open_epoch - run_state.sealed
        return unsealed == 0 if last.until == NEVER else run_state.open_epoch < last.until

    def labels(self) -> list[range]:
        """Return the ranges of epochs that were discarded. Updates labelled with these epochs do not count if
        they come later, either."""
        return [range(one.first, min(one.until, MAX_EPOCHS)) for one in self.returns]

    def skip(self, feed: int, epoch: int) -> None:
        """Record that the seal of `epoch` skips a feed because its updates were taken back."""
        self._stale.add((feed, epoch))

    def is_stale(self, feed: int, epoch: int) -> bool:
        """Return whether a seal skipped a feed's updates in the close of `epoch` because they were taken
        back."""
        return (feed, epoch) in self._stale

    def judged(self, run_state: RunState, judgement: Judgement, *, searched: bool) -> Judgement:
        """Return a judgement with rates that are lowered if the run has gone back to an earlier seal. A
        discarded epoch gets factor 0.

        `searched`: each rate follows from the rate before it, as with line searches, and not from a schedule.
        """
        epoch, coming = run_state.sealed, run_state.open_epoch + 1
        scale = LOWER ** len(self.returns)
        rates = judgement.rates
        if not searched:
            rates = tuple(one._replace(rate=max(1, one.rate // scale)) for one in rates)
            rates = tuple(one for one in rates if one[1:] != run_state.rate_from(one.epoch)[1:])
        if not self.discards(epoch):
            return replace(judgement, rates=rates)
        if self.returns[-1].until != NEVER or coming >= MAX_EPOCHS:
            return Judgement(factor=0)
        if searched or not rates:
            known = run_state.rate_from(coming)
            rates = (known._replace(epoch=coming, rate=max(1, known.rate // LOWER)),)
        return Judgement(factor=0, rates=rates)

    # -- the policy --------------------------------------------------------------------------------

    def _judge(self, run_state: RunState) -> list[Decision]:
        """Return the decisions that follow from the last result."""
        latest, best = self.results[-1], self._top
        assert best is not None  # there are results
        if latest.losses is None:
            return []
        if self._patience:
            return self._stopped(run_state)
        gained = self._has_gained(best)
        over = run_state.complete or (gained and self._is_flat(run_state, END))
        if self._harmed(latest, best, once=over):
            what = f"{_of(latest)} is worse than {_of(best)}"
            return self._back(run_state, what, best if gained else None, ends=over)
        if run_state.complete or not self._is_flat(run_state, 1):
            return []
        assert self._mark is not None  # there are results
        what = (
            f"{len(self._since_mark())} evaluations have shown no certain improvement over {_of(self._mark)}"
        )
        if not gained:
            return self._back(run_state, what, None) if self._has_moved(latest) else []
        return self._end(f"at the model of round {self._sealed - 1}", what) if over else []

    def _stopped(self, run_state: RunState) -> list[Decision]:
        """Return the decisions that end the run at the model with the least loss, if no result has been much
        better for `patience` rounds or the budget is used up. If that model is the base model, the rate is
        too large, and the run continues at a lower rate unless the budget is used up."""
        results = [self._start(), *self.results]
        best = mark = results[0]
        for one in results:
            best = min(best, one, key=lambda one: one.loss)
            if one.loss < mark.loss - BETTER * (results[0].loss - mark.loss):
                mark = one
        since = [one for one in self.results if one.epoch > mark.epoch]
        if not since or not (run_state.complete or since[-1].epoch - mark.epoch >= self._patience):
            return []
        what = f"of {len(since)} evaluations since then none was much better than {_of(mark)}"
        ends = run_state.complete or not best.said.base
        return self._back(run_state, what, None if best.said.base else best, ends=ends)

    def _back(
        self, run_state: RunState, what: str, best: SealResult | None, *, ends: bool = False
    ) -> list[Decision]:
        """Return the decisions by which the run goes back to a seal, or to the base model. The run then ends,
        or continues at a lower rate."""
        first = best.epoch + 1 if best else 0
        void: list[Decision] = [Void(first, self._sealed - 1, ())] if first < self._sealed else []
        to = f"at the model of round {best.epoch}" if best else "at the base model"
        if ends or len(self.returns) >= MOST_RETURNS:
            return [*void, *self._end(to, what)]
        rate = f"an update's rate is divided by {LOWER}"
        return [*void, Announce(f"The guard goes on {to}, and {rate}: {what}.")]

    def _end(self, to: str, what: str) -> list[Decision]:
        tried = f", after {len(self.returns)} returns at lower rates" if self.returns else ""
        return [Announce(f"The guard ends the run {to}, as it no longer improves: {what}{tried}."), Finish()]

    def _start(self) -> SealResult:
        """Return the better one of the base model's two results, uncalibrated and calibrated; the first
        seal's result if the base model was not measured."""
        return max(self._base.values(), key=_goodness, default=self.results[0])

    def _base_of(self, result: SealResult) -> SealResult | None:
        """Return the base model's result with the same measure; None if there is none."""
        return self._base.get(measure_of(result.said))

    def _chance(self) -> float:
        """Return the number of standard errors above which a difference from the best result is more than
        chance. The best of n results looks better than it is by up to sqrt(2 ln n) of its own standard
        errors. That is sqrt(ln n) standard errors of a difference, as these are sqrt(2) times as large."""
        return ERRORS + math.sqrt(math.log(len(self.results) + 1))

    def _has_gained(self, best: SealResult) -> bool:
        """Return whether a seal is evidently better than the base model."""
        start = self._start()
        base = self._base_of(best)
        if base and health.is_worse(base.said, best.said):
            return True
        gain, error = rise(best, start)
        return gain > max(LITTLE, self._chance() * error)

    def _harmed(self, latest: SealResult, best: SealResult, *, once: bool) -> bool:
        def worse(one: SealResult, least: float, errors: float) -> bool:
            by, error = rise(best, one)
            evident = one.is_labelled and health.is_worse(one.said, best.said)
            return best.figure - one.figure > least and (evident or by > errors * error)

        gain = max(0.0, best.figure - self._start().figure)
        chance, little = self._chance(), max(LITTLE, PART * gain)
        if worse(latest, max(LARGE_MOVE, LARGE * gain), 2 * chance):
            return True
        before = [one for one in self.results[:-1] if one.epoch > best.epoch][-1:]
        return worse(latest, little, chance) and (once or (before != [] and worse(before[0], little, chance)))

    @property
    def _mark(self) -> SealResult | None:
        """The last improvement, or else the base model's result; None if neither is known."""
        if self._marks or not self.results:
            return self._marks[-1] if self._marks else None
        return self._base_of(self.results[-1])

    def _is_improved(self, mark: SealResult, one: SealResult) -> bool:
        """Return whether a result is an improvement over `mark`."""
        by, error = rise(one, mark)
        gain = max(LITTLE, self._start().loss - one.loss)
        better = by > BETTER * gain and by > ERRORS * error
        return better or health.is_worse(mark.said, one.said)

    def _since_mark(self) -> list[SealResult]:
        """Return the results since the last improvement and the last return."""
        return [one for one in self.results if one.epoch >= self._first_since()]

    def _first_since(self) -> int:
        return max(self._mark.epoch + 1 if self._mark else 0, self.returns[-1].until if self.returns else 0)

    def _is_flat(self, run_state: RunState, times: int) -> bool:
        """Return whether nothing has improved for long: for `times` PATIENCE evaluations, and `times` the
        minimum number of updates that PATIENCE evaluations must span."""
        since = self._since_mark()
        if len(since) < times * PATIENCE:
            return False
        made = _updates(run_state, 0, self._mark.epoch if self._mark else -1)
        least = times * max(LEAST_BUDGET * run_state.budget, LEAST_MADE * made)
        return _updates(run_state, self._first_since(), since[-1].epoch) >= least

    def _has_moved(self, latest: SealResult) -> bool:
        """Return whether the rows' losses are far from the base model's; also True if the base model was not
        measured. In a reward run the mean reward must be evidently lower instead, as single rewards change in
        leaps."""
        base = self._base_of(latest)
        if base is None or base.losses is None or latest.losses is None or not math.isfinite(latest.loss):
            return base is None or not math.isfinite(latest.loss)
        if latest.jumps:
            by, error = rise(base, latest)
            return by > LITTLE and by > ERRORS * error
        return float(np.sqrt(((latest.losses - base.losses) ** 2).mean())) > LARGE_MOVE


def best_seal(decisions: Iterable[Decision]) -> EpochEvaluation | None:
    """Return the evaluation of the best seal that was not taken back; None if there is no evaluation of such
    a seal."""
    guard = Guard()
    for decision in decisions:
        guard.take(decision)
    return max(guard.results, key=_goodness).said if guard.results else None


def _goodness(result: SealResult) -> tuple[float, float]:
    return result.figure, -result.loss


def _updates(run_state: RunState, first: int, last: int) -> int:
    return sum(map(run_state.closed_updates, range(first, min(last + 1, run_state.open_epoch))))


def _of(result: SealResult) -> str:
    """Return a result in words, with the trained quantity if results are compared by it."""
    trained = metric_of(result.said.metric).trained
    told = "" if result.is_labelled else f" ({trained.name} {trained.of(result.loss):.4f})"
    return f"{result_in_words(result.said)}{told}"
