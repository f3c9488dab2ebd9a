"""Costs of an organiser's line searches and evaluations, the growth of its epochs, and rates that follow.

    phase       an epoch                            searches and evaluations may cost    a rate moves by
    unsettled   is closed once the one before is    a fifth of what the swarm computes   2 up, 4 down
                sealed, from FIRST_UPDATES on;
                at once if the next has a new rate,
                which then discards what was under way
    settled     as long as it pays for itself       a twentieth                          2 at most

Once it has settled, every epoch is searched on a few rows first of all: none should count that nobody has
looked at, as a rate that was right for long destroys a model within two or three epochs once it no longer is.
Then it is measured what each feed has brought, on as few rows as may be: evidence is a sequence, and many
small measurements say more than a few exact ones. Where an epoch pays for one of the two only, they take
turns, by what they have cost.

A first-order run has no such phases: its rates, units and factors follow from its budget and from what
members make (`steps`), its rounds are as long as the manifest says, and no line is searched. A tenth of what
the swarm computes goes into what each feed has brought, and into evaluations: of the base model and of the
end, for which it saves, and of more where there is more.

In both an epoch has GROWTH times as many updates after each search that changes nothing, until one pays for
all of that, and no more than the manifest's epoch_updates. Where the organiser, one node of many, has no time
for some, epochs grow beyond that.

The rate has settled with the third search in a row after which nothing has to change. Epochs are short until
then, as all work of an epoch at a wrong rate is lost; and longer later, as the direction of a short one is
mostly noise once the easy part is learnt, and a search along it hunts.

Costs are counted in example-forwards (a forward of one example; an update takes two for each example of its
mini-batch), and every epoch earns a credit for them. A restart forgets the credit, which costs one search;
phase and length follow from the last close. This module knows no time, and nobody who measures.
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
"""Updates of the first epochs, if they can pay for a search: from a rate that is wrong by 100 four of them
are lost."""

GROWTH = 3 / 2
"""Times as many updates as the one before that an epoch has after a search that changes nothing."""

STEADY = 3
"""Searches in a row that change nothing, along epochs that evidently help, before the rate has settled. What
is learnt first is often easy, and the rate that is right for it ten times too large for the rest."""

HARMFUL = 1 / 4
"""Factor of an epoch, and less, after which the open one is cut short even once the rate has settled: it goes
on from where the rate has led."""

UNSEEN = 1 / 4
"""Factor of an epoch that was cut short after one that counted nothing, where it could not be searched: it
was made at the same rate, but nobody knows of its work that it does harm."""

AFTER_CUT = 1 / 4
"""Share of an epoch with which the one after a cut is cut short, too, where a factor is below 1: it has the
work that was under way meanwhile, at a rate that was too large and by a model that is there no more. Without
that, runs that began a hundred times too fast learnt in one of three cases, and with it in all."""

EVALUATE_EVERY, OVERDUE = 4, 2
"""Epochs between two evaluations with all rows, for people and alarms; the searches see to the rest. After
OVERDUE times as many everything else waits for one."""

FIRST_EVALUATION, BASE_EVALUATION = 3, 2
"""Times as much as later ones that the first evaluation costs: with the base model, and that less its
prior, which in a first-order run is the manifest's."""

ORIGIN_ROWS, ORIGIN_FORWARDS = 32, 4
"""Least rows on which it is measured what each feed has brought, and forwards for each: a backward pass takes
two, and one goes to see whether the middle of the step is better than its start."""

LEAST_ORIGIN_ROWS = 8
"""The same in a first-order run, where an update's figures are all that a gradient says: of 15 updates that a
round of a run of 234 has, a tenth pays for no more. Halving rows costs less than measuring every other
round."""

EARLY = 1 / 2
"""Share of what the measurements of a first-order run may cost in all that may be spent at its start: who is
found out early does harm at no large rate."""

MOST_ROWS = 32
"""Rows of a search once the rate has settled: with more of them a change that helps a little is evident, but
the next epochs have to count unseen."""

BUSY = 1 / 4
"""Share of the organiser's own time that searches and evaluations may take once the rate has settled: in a
large swarm a twentieth of everybody's work is more than one node can do."""


TELLING = 8
"""Part of a usual epoch's updates below which a search along an epoch says nothing of the rate."""


class EpochPlan(NamedTuple):
    """The measurements that an epoch is worth."""

    rows: int
    """Most rows of the line search; 0 for none."""
    scored: bool
    """Whether the model is evaluated on all validation rows."""
    origins: int = 0
    """Rows on which it is measured what each feed has brought; 0 if it is not."""


class Search:
    """The searches of one organiser, from one start to the next."""

    def __init__(self, policy: OrganiserPolicy, run_state: RunState) -> None:
        """`policy.search_rows` is not 0. `run_state` tells how far an organiser had come before."""
        self._policy = policy
        rows = policy.search_rows
        origins = policy.origins * min(ORIGIN_ROWS, rows) * ORIGIN_FORWARDS
        self._cheapest = min(FIRST_ROWS, rows) * len(AMOUNTS) + origins
        """Example-forwards of the least search, with the least measurement of origins."""
        self._dearest = rows * (len(AMOUNTS) + FIRST_EVALUATION) + origins
        """Example-forwards of the largest search and the first evaluation: no more is saved up."""
        earning = policy.update_forwards * _per_forward(policy.young_share)
        self._first = max(FIRST_UPDATES, math.ceil(self._cheapest / earning))
        regular = self._cheapest + rows / EVALUATE_EVERY
        earning = policy.update_forwards * _per_forward(policy.share)
        self._most = min(policy.longest, max(self._first, math.ceil(regular / earning)))
        """Updates of the longest epoch: as soon as one pays for everything that it is worth, a longer one
        only means that it takes longer to see that its rate does harm."""
        self.settled = False
        """Whether the rate has settled."""
        self._steady = 0
        """Searches in a row that changed nothing about an epoch that was evidently useful."""
        self._target = self._first
        self._scheduled = policy.steps is not None
        """Whether rates follow from a schedule."""
        if self._scheduled:
            self.settled, self._target, self._most = True, policy.longest, policy.longest
        else:
            self._resume(run_state)
        self._credit = self._beforehand = 0.0
        """Example-forwards that may be spent, and those of them that later updates will have earned."""
        if self._scheduled and not run_state.open_epoch:
            whole = run_state.budget * policy.update_forwards * _per_forward(policy.share)
            self._credit = self._beforehand = EARLY * whole
        self._credited = run_state.sealed
        """The first epoch that has earned nothing yet."""
        self._has_base = False
        self._scored: int | None = None
        """The epoch that was evaluated last."""
        self._found: tuple[int, int, SearchResult] | None = None
        """The epoch whose seal is to say it, the epoch that was searched, and the result."""
        self._cut: tuple[int, int, float] | None = None
        """The first and the last epoch that are cut short, and the factor of the one before."""
        self._lead = 0.0
        """Example-forwards by which measurements of origins have cost more than all else, since the rate has
        settled."""

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
        """Return how many updates the open epoch is to have."""
        target = min(self._target, self._most)
        return math.ceil(target * AFTER_CUT) if self.is_cut(run_state.open_epoch) else target

    def cuts(self, run_state: RunState) -> bool:
        """Return whether the open epoch is to be closed with whatever it has: the one after it has a better
        rate, and this one's work, at a rate that is far off, is worth little or does harm."""
        return self._cut is not None and self._cut[0] == run_state.open_epoch

    def is_for_waiting(self, epoch: int, run_state: RunState) -> bool:
        """Return whether an epoch was closed without naming anything, neither cut short nor for new bases:
        its seal is there to count what others have skipped, with a factor of its own, from which no rate
        follows."""
        if not 0 <= epoch < run_state.open_epoch or run_state.closed_updates(epoch) or run_state.moved(epoch):
            return False
        return not self.is_cut(epoch) and not run_state.has_new_bases(epoch + 1)

    def _says_nothing(self, epoch: int, run_state: RunState) -> bool:
        """Return whether no rate follows from an epoch: it is there for what waits, or so little was named
        that its factor is about single updates, and whoever made them would throw away what others make."""
        usual = run_state.usual_updates(self._policy.longest)
        few = epoch < run_state.open_epoch and TELLING * run_state.closed_updates(epoch) < usual
        return few or self.is_for_waiting(epoch, run_state)

    def is_cut(self, epoch: int) -> bool:
        """Return whether an epoch is cut short, so that nothing is measured of it, but see `is_doubted`."""
        return self._cut is not None and self._cut[0] <= epoch <= self._cut[1]

    def is_doubted(self, epoch: int) -> bool:
        """Return whether an epoch is cut short after one that counted nothing: it is searched whatever that
        costs, as its own work has to do harm before it counts nothing, too."""
        return self.is_cut(epoch) and self._cut is not None and not self._cut[2]

    def plan(self, run_state: RunState, *, last: bool = False, waiting: bool = False) -> EpochPlan | None:
        """Return what the oldest epoch without a seal is worth; None if nothing. The model of the `last` one
        is evaluated whatever that costs. `waiting`: it is there to count what others have skipped."""
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
        # an epoch at a rate that may be far off is searched, whatever else is due
        scored = last or (due and self._credit >= cost + self._cheapest)
        rest = max(0.0, self._credit - cost * scored)
        if due and not scored:  # it saves up: else what is cheaper would always come first
            rest = min(rest, self._cheapest)
        origins = 0
        if policy.origins:
            spare = rest - first * len(AMOUNTS)  # both or neither: the cheaper one would always come first
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
        """Return what an epoch is worth once the rate has settled: a search on a few rows first of all, as
        none should count that nobody has looked at; then a measurement of origins; and from what both leave
        something is put by for the next evaluation, which takes `cost` forwards and is `due` or not."""
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
        """Return what an epoch of a first-order run is worth: first of all what each feed has brought, from
        what the evaluation at the end leaves, for which it has to have saved by then."""
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
        """Return whether nobody knows what the rate does along the bases of the oldest epoch without a
        seal."""
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
        """Take note of what was measured of an epoch, and of what it cost."""
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
        """Take note of an epoch for which the organiser had no time: in a large swarm they have to be
        longer."""
        if self.is_cut(epoch):
            return
        self._most = min(2 * self._most, self._policy.longest)
        self._target = min(2 * self._target, self._most)

    def judged(self, run_state: RunState, judgement: Judgement) -> Judgement:
        """Return a judgement with the factor and the rate that the search has found.

        What was found too late for its own epoch is said of the rate alone, by the next seal. Epochs that
        were cut short were made like the one before, and count like it; after one that counted nothing, as
        their own searches say.
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
        if self._policy.kept and found.factor >= HARMFUL:  # the features have said which rate suits
            return judgement
        rate = next_rate(run_state.rate(epoch), found, young=not (self.settled or self._policy.kept))
        stays = found.factor == 1.0 or coming >= MAX_EPOCHS or rate == run_state.rate(coming)
        if not stays and (not self.settled or found.factor <= HARMFUL):
            self._cut = run_state.open_epoch, run_state.open_epoch + (found.factor < 1), found.factor
        return replace(judgement, rates=() if stays else (RateFrom(coming, rate),))


def _per_forward(share: float) -> float:
    """Return what one forward of training earns if `share` of all may be spent."""
    return share / (1 - share) if share < 1 else math.inf
