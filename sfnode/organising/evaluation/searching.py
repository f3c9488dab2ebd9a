"""Costs of an organiser's line searches and evaluations, the growth of its epochs, and the rates that follow.

    phase       an epoch is closed                  searches and evaluations may cost    a rate changes by
    unsettled   once the epoch before is sealed     a fifth of what the swarm computes   a factor of 2 up, or
                and it has FIRST_UPDATES updates                                         of 4 down, at most
                or more; at once if the next
                epoch has a new rate
    settled     once its updates pay for its        a twentieth                          a factor of 2 at most
                measurements

Once the rate has settled, a search on a few rows comes first in every epoch, so that no epoch counts unseen:
a rate that was right for long, but no longer is, destroys a model within two or three epochs. Next the
contribution of each feed is measured, on as few rows as possible: evidence is a sequence, and many small
measurements say more than a few exact ones. If an epoch pays for only one of search and measurement, the kind
that has cost less so far is chosen.

A first-order run has no such phases and no line searches. Its rates, units and factors follow from its budget
and from members' updates (`steps`). Its rounds are as long as the manifest says. A tenth of what the swarm
computes pays for measuring contributions and for evaluations. Credit is saved for the evaluations of the base
model and of the end; other evaluations are made if more credit is left.

In both phases an epoch has GROWTH times as many updates after each search that changes nothing. Epochs grow
until an epoch pays for all its measurements, up to the manifest's epoch_updates. They grow further if the
organiser, one node of many, has no time to search at some epochs.

The rate has settled with the third search in a row without a change. Until then epochs are short, because all
work of an epoch at a wrong rate is lost. Later they are longer: once the easy part is learnt, the direction
of a short epoch is mostly noise, and factors of searches along it oscillate.

Costs are counted in example-forwards. (An example-forward is a forward pass of one example; an update takes
two for each example of its mini-batch.) The updates of each epoch earn a credit of example-forwards. A
restart forgets the credit, and one search is lost by that. The phase and the length of epochs follow from the
last close.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from sfnode.organising.evaluation.line_search import AMOUNTS, FIRST_ROWS, SearchResult, next_rate
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import Judgement
from sfprotocol.decisions import FACTOR_ONE, RateFrom
from sfprotocol.run_state import MAX_EPOCHS, RunState

FIRST_UPDATES = 128
"""Target number of updates of the first epochs, if these pay for a search. With a first rate that is wrong by
a factor of 100, four such epochs are lost."""

GROWTH = 3 / 2
"""Factor by which epochs grow after a search that changes nothing."""

STEADY = 3
"""Number of consecutive searches without a change after which the rate has settled. Only searches along
epochs that evidently help are counted. What is learnt first is often easy, and a rate that suits it may be
ten times too large for the rest."""

HARMFUL = 1 / 4
"""Maximum factor of an epoch at which the open epoch is cut short, even if the rate has settled. The work in
the open epoch was made at weights to which the harmful rate had led."""

UNSEEN = 1 / 4
"""Factor of an epoch that was cut short after an epoch with factor 0, and could not be searched. Both were
made at the same rate, but it is not known whether the work of the second epoch does harm."""

AFTER_CUT = 1 / 4
"""Share of the target length at which the epoch after a cut epoch is closed, if the factor that caused the
cut was below 1. Work of the later epoch was under way during the cut, at a rate that was too large and at
weights that are gone. Without this early close, only one of three runs whose first rate was a hundred times
too large learnt; with it, all did."""

EVALUATE_EVERY, OVERDUE = 4, 2
"""Number of epochs between two evaluations on all rows, which people and alarms need; searches suffice for
the epochs in between. After OVERDUE times as many epochs, other measurements wait until an evaluation is paid
for."""

FIRST_EVALUATION, BASE_EVALUATION = 3, 2
"""Cost of the first evaluation as a multiple of a later evaluation's: in a zeroth-order run, and in a
first-order run. The first evaluation also evaluates the base model, without and with calibration. In a
first-order run the prior for calibration is in the manifest."""

ORIGIN_ROWS, ORIGIN_FORWARDS = 32, 4
"""Minimum number of rows on which the contribution of each feed is measured, and cost of each row in forward
passes. A gradient costs three: a forward pass, and a backward pass that takes as long as two. The fourth
shows whether the middle of the step is better than its start."""

LEAST_ORIGIN_ROWS = 8
"""Minimum number of rows on which contributions are measured in a first-order run, in which one update says
all that a gradient says. In a run of 234 updates, a round of 15 updates can pay for no more rows with a tenth
of its forwards. Halving the rows loses less than measuring only every other round."""

EARLY = 1 / 2
"""Share of a first-order run's allowance for measurements that is available at its start. Hostile members who
are found early do little harm, although rates are large at the start."""

MOST_ROWS = 32
"""Maximum number of rows of a search once the rate has settled. More rows would make small improvements
evident, but take the credit for searches of the next epochs."""

BUSY = 1 / 4
"""Maximum share of the organiser's own time for searches and evaluations once the rate has settled. In a
large swarm a twentieth of all nodes' computing is more than one node can do."""


TELLING = 8
"""Divisor of the usual number of updates of an epoch. The quotient is the minimum number of updates in an
epoch from whose search a rate follows."""


class EpochPlan(NamedTuple):
    """Measurements to make of an epoch."""

    rows: int
    """Maximum number of rows of the line search; 0 for none."""
    scored: bool
    """Whether the model is evaluated on all validation rows."""
    origins: int = 0
    """Rows on which the contribution of each feed is measured; 0 for none."""


class Search:
    """Searches of one organiser, from its start to the next restart."""

    def __init__(self, policy: OrganiserPolicy, run_state: RunState) -> None:
        """`policy.search_rows` must not be 0. The search continues from `run_state`, where an organiser
        before a restart stopped."""
        self._policy = policy
        rows = policy.search_rows
        origins = policy.origins * min(ORIGIN_ROWS, rows) * ORIGIN_FORWARDS
        self._cheapest = min(FIRST_ROWS, rows) * len(AMOUNTS) + origins
        """Example-forwards of the smallest search and the smallest measurement of contributions."""
        self._dearest = rows * (len(AMOUNTS) + FIRST_EVALUATION) + origins
        """Example-forwards of the largest search, the first evaluation and a measurement of contributions. No
        more credit than this is kept."""
        earning = policy.update_forwards * _per_forward(policy.young_share)
        self._first = max(FIRST_UPDATES, math.ceil(self._cheapest / earning))
        regular = self._cheapest + rows / EVALUATE_EVERY
        earning = policy.update_forwards * _per_forward(policy.share)
        self._most = min(policy.longest, max(self._first, math.ceil(regular / earning)))
        """Maximum updates of an epoch. An epoch that pays for all its measurements is long enough. The longer
        an epoch, the later the harm of its rate is seen."""
        self.settled = False
        """Whether the rate has settled."""
        self._steady = 0
        """Number of consecutive searches that changed nothing, and whose epochs were evidently useful."""
        self._target = self._first
        self._scheduled = policy.steps is not None
        """Whether rates follow from a schedule (`OrganiserPolicy.steps`)."""
        if self._scheduled:
            self.settled, self._target, self._most = True, policy.longest, policy.longest
        else:
            self._resume(run_state)
        self._credit = self._beforehand = 0.0
        """Example-forwards that may be spent now, and the part of an advance of them that later updates have
        yet to earn."""
        if self._scheduled and not run_state.open_epoch:
            whole = run_state.budget * policy.update_forwards * _per_forward(policy.share)
            self._credit = self._beforehand = EARLY * whole
        self._credited = run_state.sealed
        """First epoch that has not earned its credit yet."""
        self._has_base = False
        self._scored: int | None = None
        """Latest epoch that was evaluated; None if there is none."""
        self._found: tuple[int, int, SearchResult] | None = None
        """Epoch whose seal must apply the result of a search, epoch that was searched, and the result; None
        if there is no result."""
        self._cut: tuple[int, int, float] | None = None
        """First and last epoch that are cut short, and the factor of the epoch before them; None if no epoch
        is cut short."""
        self._lead = 0.0
        """Cost of contribution measurements minus the cost of all other measurements since the rate has
        settled, in example-forwards."""

    def _resume(self, run_state: RunState) -> None:
        last = run_state.closed_updates(run_state.open_epoch - 1) if run_state.open_epoch else 0
        self._most = min(self._policy.longest, max(self._most, last))
        while self._target < (longer := min(math.floor(GROWTH * self._target), self._most)) <= last:
            self._target = longer
            self._steady += 1
        self.settled = self._steady >= STEADY or (self._steady > 0 and self._target == self._most)

    @property
    def time_share(self) -> float:
        """Share of the organiser's own time that may be spent."""
        return BUSY if self.settled else 1.0

    def target(self, run_state: RunState) -> int:
        """Return the number of updates at which the open epoch should be closed."""
        target = min(self._target, self._most)
        return math.ceil(target * AFTER_CUT) if self.is_cut(run_state.open_epoch) else target

    def cuts(self, run_state: RunState) -> bool:
        """Return whether the open epoch must be closed with the updates that it has. This is so if the rate
        of its work is far off, so that the work is worth little or does harm, and the next epoch has a better
        rate."""
        return self._cut is not None and self._cut[0] == run_state.open_epoch

    def is_for_waiting(self, epoch: int, run_state: RunState) -> bool:
        """Return whether an epoch was closed only to recount skipped work: its close lists nothing, and
        neither a cut nor new bases are the reason. Its seal has a factor of its own, from which no rate
        follows."""
        if not 0 <= epoch < run_state.open_epoch or run_state.closed_updates(epoch) or run_state.moved(epoch):
            return False
        return not self.is_cut(epoch) and not run_state.has_new_bases(epoch + 1)

    def _says_nothing(self, epoch: int, run_state: RunState) -> bool:
        """Return whether no rate follows from an epoch: it recounts skipped work, or has so few updates that
        single updates decide its factor. The authors of these could otherwise make the work of others
        worthless."""
        usual = run_state.usual_updates(self._policy.longest)
        few = epoch < run_state.open_epoch and TELLING * run_state.closed_updates(epoch) < usual
        return few or self.is_for_waiting(epoch, run_state)

    def is_cut(self, epoch: int) -> bool:
        """Return whether an epoch is cut short. Nothing is measured of it, unless it `is_doubted`."""
        return self._cut is not None and self._cut[0] <= epoch <= self._cut[1]

    def is_doubted(self, epoch: int) -> bool:
        """Return whether an epoch is cut short after an epoch with factor 0. Such an epoch counts unless its
        own work does harm, and is therefore searched at any cost."""
        return self.is_cut(epoch) and self._cut is not None and not self._cut[2]

    def plan(self, run_state: RunState, *, last: bool = False, waiting: bool = False) -> EpochPlan | None:
        """Return the measurements to make of the oldest epoch without a seal; None if none is to be made. The
        model of the `last` epoch is evaluated at any cost. `waiting`: the epoch recounts skipped work."""
        self._earn(run_state)
        policy, first = self._policy, min(FIRST_ROWS, self._policy.search_rows)
        if self.is_cut(run_state.sealed) and not last:
            return EpochPlan(first, False) if self.is_doubted(run_state.sealed) else None
        if waiting:
            return EpochPlan(max(first, min(policy.search_rows, int(self._credit // len(AMOUNTS)))), False)
        due = self._scored is None or run_state.sealed - self._scored >= EVALUATE_EVERY
        if policy.kept and self._scheduled:
            return EpochPlan(0, True, origins=policy.search_rows * policy.origins)
        if policy.kept:
            everywhere = policy.search_rows if policy.origins else 0
            return EpochPlan(policy.search_rows, last or due, origins=everywhere)
        cost = policy.search_rows * (1 if self._has_base else FIRST_EVALUATION)
        if self._scheduled:
            return self._unsearched(run_state, due, last)
        if self.settled and not last:
            return self._regular(run_state, due, cost)
        # the rate may be far off, so the search comes first
        scored = last or (due and self._credit >= cost + self._cheapest)
        rest = max(0.0, self._credit - cost * scored)
        if due and not scored:  # saves for the evaluation, which cheaper searches would prevent
            rest = min(rest, self._cheapest)
        origins = 0
        if policy.origins:
            spare = rest - first * len(AMOUNTS)  # both or neither, or the cheaper one would always be chosen
            least = min(ORIGIN_ROWS, policy.search_rows)
            most = min(policy.search_rows, max(least, int(spare / 2) // ORIGIN_FORWARDS))
            origins = most if spare >= least * ORIGIN_FORWARDS else 0
            rest = rest - origins * ORIGIN_FORWARDS if origins else 0.0
        rows = min(policy.search_rows, int(rest // len(AMOUNTS)))
        rows = rows if rows >= first else 0
        if self._has_new_bases(run_state):
            rows = max(rows, first)
        return EpochPlan(rows, scored, origins) if rows or scored else None

    def _regular(self, run_state: RunState, due: bool, cost: int) -> EpochPlan | None:
        """Return the measurements to make of an epoch once the rate has settled.

        A search on a few rows comes first, so that no epoch counts unseen. A measurement of contributions
        comes next. Part of the remaining credit is saved for the next evaluation, which takes `cost`
        forwards. `due`: enough epochs have passed since the last evaluation.
        """
        policy, credit = self._policy, self._credit
        first, least = min(FIRST_ROWS, policy.search_rows), min(ORIGIN_ROWS, policy.search_rows)
        search, measure = first * len(AMOUNTS), policy.origins * least * ORIGIN_FORWARDS
        since = EVALUATE_EVERY if self._scored is None else run_state.sealed - self._scored
        overdue = since >= OVERDUE * EVALUATE_EVERY and credit < cost + search + measure
        if overdue and not self._has_new_bases(run_state):
            return None if credit < cost else EpochPlan(0, True)
        if measure and self._lead < 0 and measure <= credit < search + measure:
            return EpochPlan(0, False, origins=least)
        if credit < search and not self._has_new_bases(run_state):
            return None
        origins = least if measure and credit >= search + measure else 0
        rest = max(0.0, credit - search - origins * ORIGIN_FORWARDS)
        scored = due and rest >= cost
        put_by = cost * min(1.0, since / EVALUATE_EVERY)
        more = max(0.0, rest - cost * scored - put_by) // len(AMOUNTS)
        rows = first + min(int(more), MOST_ROWS - first)
        return EpochPlan(min(policy.search_rows, rows), scored, origins=origins)

    def _unsearched(self, run_state: RunState, due: bool, last: bool) -> EpochPlan | None:
        """Return the measurements to make of an epoch of a first-order run. The contribution of each feed
        comes first, paid from the credit that is not saved for the evaluation at the end."""
        policy, rows = self._policy, self._policy.search_rows
        once = rows if self._has_base else BASE_EVALUATION * rows
        saved = once * min(1.0, run_state.promised / run_state.budget)
        least = min(LEAST_ORIGIN_ROWS, rows) * policy.origins
        scored = last or (due and self._credit >= once + rows + least * ORIGIN_FORWARDS)
        spare = self._credit - (once if scored else saved)
        origins = min(ORIGIN_ROWS, rows, int(max(0.0, spare) // ORIGIN_FORWARDS)) if least else 0
        origins = origins if origins >= least else 0
        return EpochPlan(0, scored, origins) if origins or scored else None

    def _has_new_bases(self, run_state: RunState) -> bool:
        """Return whether the oldest epoch without a seal has new bases, along which the effect of the rate is
        unknown."""
        return bool(run_state.sealed) and run_state.has_new_bases(run_state.sealed)

    def _earn(self, run_state: RunState) -> None:
        share = self._policy.share if self.settled else self._policy.young_share
        while self._credited <= run_state.sealed:
            updates = run_state.closed_updates(self._credited)
            earned = updates * self._policy.update_forwards * _per_forward(share)
            paid = min(self._beforehand, EARLY * earned)
            self._credit, self._beforehand = self._credit + earned - paid, self._beforehand - paid
            self._credited += 1
        self._credit = min(self._credit, self._dearest)

    def ended(
        self, epoch: int, found: SearchResult | None, forwards: int, *, scored: bool, run_state: RunState
    ) -> None:
        """Record the measurements of an epoch, and their cost in example-forwards."""
        self._credit -= forwards
        self._lead += forwards if found is None and not scored else -forwards
        self._lead = self._lead if self.settled else 0.0
        if scored:
            self._scored, self._has_base = epoch, True
        if found is None:
            return
        self._found = run_state.sealed, epoch, found
        if self._says_nothing(epoch, run_state) or self.is_cut(epoch):
            return
        stays = found.factor == 1.0
        if stays:
            self._target = min(math.ceil(GROWTH * self._target), max(self._first, self._most))
        self._steady = self._steady + found.useful if stays else 0
        self.settled = self.settled or self._steady >= STEADY

    def missed(self, epoch: int) -> None:
        """Record that the organiser had no time to search this epoch, and double the target length of later
        epochs, up to the policy's limit."""
        if self.is_cut(epoch):
            return
        self._most = min(2 * self._most, self._policy.longest)
        self._target = min(2 * self._target, self._most)

    def judged(self, run_state: RunState, judgement: Judgement) -> Judgement:
        """Return a judgement with the factor and the rate that the search has found.

        A result that comes too late for the seal of its own epoch changes only the rate, at the next seal. An
        epoch that was cut short gets the factor of the epoch before the cut, which was made at the same rate.
        If that factor is 0, the epoch's own search decides.
        """
        if self._scheduled:
            return judgement
        coming = run_state.open_epoch + 1
        searched = self._found is not None and self._found[:2] == (run_state.sealed,) * 2
        if (
            self._cut
            and self.is_cut(run_state.sealed)
            and not (self.is_doubted(run_state.sealed) and searched)
        ):
            return replace(judgement, factor=round((self._cut[2] or UNSEEN) * FACTOR_ONE), rates=())
        if self._found is None or self._found[0] != run_state.sealed:
            return replace(judgement, rates=())
        _, epoch, found = self._found
        own = found.factor if epoch == run_state.sealed else 1.0
        judgement = replace(judgement, factor=round(own * FACTOR_ONE), rates=())
        if self._says_nothing(epoch, run_state) or self.is_cut(epoch):
            return judgement
        if self._policy.kept and found.factor >= HARMFUL:  # the rate of a head follows from its features
            return judgement
        rate = next_rate(run_state.rate(epoch), found, young=not (self.settled or self._policy.kept))
        stays = found.factor == 1.0 or coming >= MAX_EPOCHS or rate == run_state.rate(coming)
        if not stays and (not self.settled or found.factor <= HARMFUL):
            self._cut = run_state.open_epoch, run_state.open_epoch + (found.factor < 1), found.factor
        return replace(judgement, rates=() if stays else (RateFrom(coming, rate),))


def _per_forward(share: float) -> float:
    """Return the credit that one forward of training earns if `share` of all forwards may be spent."""
    return share / (1 - share) if share < 1 else math.inf
