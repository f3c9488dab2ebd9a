"""Evaluations of closed epochs before their seals: whether there is time for an evaluation, and its result.

    an epoch is     left when
    planned         a measurement is asked for: the contribution of each feed first, then the rest
    under way       the answer comes; back to planned, if there is a rest
    answered        the next epoch is planned; the result is signed once the epoch is sealed

The evaluated model leaves out the feeds that the seal will skip. If the seal then skips other feeds, the
sealed model is another one, and the result is not published. A `Search` says what is measured of an epoch,
and how much of the organiser's own time may be spent (`searching`). Without a search an epoch is evaluated on
all rows or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sfnode.organising.evaluation import health
from sfnode.organising.evaluation.evidence import parts_of, worths_of
from sfnode.organising.evaluation.line_search import AMOUNTS
from sfnode.organising.evaluation.searching import EpochPlan, Search
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.organising.policy import OrganiserPolicy
from sfprotocol.decisions import Evaluated, Recount, Worth
from sfprotocol.run_state import RunState

YOUNG = 1 / 10
"""Share of the update budget up to which a run is young."""


@dataclass(slots=True)
class _Asked:
    """The latest epoch for which an evaluation was planned."""

    epoch: int
    at: float
    running: bool = False
    result: Evaluated | None = None
    """Result, until it is signed after the epoch's seal."""
    took: float = 0.0
    """Seconds from the plan to the latest answer."""
    altered: bool = False
    """Whether the sealed model differs from the evaluated one. The result is then not published."""
    rest: EpochPlan | None = None
    """Remaining measurements, which are requested once no measurement is under way."""
    skipped: frozenset[int] = frozenset()
    """Feeds that the evaluation leaves out."""
    rows: int = 0
    """Rows on which the contribution of each feed is measured."""
    searched: int = 0
    """Maximum rows of the line search."""


class Evaluations:
    """The evaluations of one organiser, from its start to the next restart."""

    def __init__(self, policy: OrganiserPolicy, search: Search | None, now: float) -> None:
        self._policy = policy
        self._search = search
        self._asked = _Asked(-1, now)
        self._from = now
        """Earliest time of the next evaluation."""
        self._bases: list[Evaluated] = []
        """Results of the base model that wait to be signed."""

    # -- before the seal ---------------------------------------------------------------------------

    def plan(self, run_state: RunState, now: float, *, last: bool, waiting: bool) -> None:
        """Plan, once, what is measured of the oldest epoch without a seal. If the organiser has no time,
        nothing is measured, unless the epoch is the `last` one, was closed to recount skipped work
        (`waiting`), or is doubted by the search. An epoch without updates is measured only in the first two
        cases."""
        epoch, search = run_state.sealed, self._search
        if self._asked.epoch >= epoch or self._asked.running or not self._policy.seal_wait:
            return
        plan = None
        if not (waiting or run_state.closed_updates(epoch)):
            plan = EpochPlan(0, True) if last else None
        elif last or waiting or now >= self._from or (search and search.is_doubted(epoch)):
            plan = search.plan(run_state, last=last, waiting=waiting) if search else EpochPlan(0, True)
        elif search:
            search.missed(epoch)
        else:
            return
        self._asked = _Asked(epoch, now, rest=plan)

    def is_due(self, epoch: int) -> bool:
        """Return whether a measurement of an epoch should be requested now."""
        asked = self._asked
        return asked.epoch == epoch and asked.rest is not None and not asked.running

    def ask(self, skipped: Iterable[int], recounted: Iterable[Recount]) -> Evaluate:
        """Return the request for the measurement that is due: first the contribution of each feed, then the
        rest. The rest is measured for the work that the seal will count: all feeds except `skipped`, and the
        `recounted` work."""
        asked, plan = self._asked, self._asked.rest
        assert plan is not None
        asked.skipped, asked.running = frozenset(skipped), True
        asked.rows, asked.searched = plan.origins, plan.rows
        rest = plan._replace(origins=0)
        asked.rest = rest if plan.origins and any(rest) else None
        part = EpochPlan(0, False, origins=plan.origins) if plan.origins else plan
        return Evaluate(asked.epoch, *part, asked.skipped, frozenset(recounted))

    def is_under_way(self, epoch: int) -> bool:
        """Return whether the answer to a request about an epoch is outstanding."""
        return self._asked.epoch == epoch and self._asked.running

    def is_awaited(self, epoch: int, now: float) -> bool:
        """Return whether the seal of an epoch waits for an answer."""
        return self.is_under_way(epoch) and now - self._asked.at < self._policy.seal_wait

    def sealing(self, epoch: int, skipped: Iterable[int], *, less: bool) -> None:
        """Record the feeds that the seal of an epoch skips. `less`: the other feeds count for nothing, or
        with a factor other than the evaluated one."""
        asked = self._asked
        if asked.epoch == epoch:
            asked.altered = asked.altered or less or asked.skipped != set(skipped)

    # -- after the answer --------------------------------------------------------------------------

    def ended(self, event: EvaluationEnded, run_state: RunState, now: float) -> list[Worth]:
        """Take in the answer to the evaluation under way; return the measured contributions."""
        asked = self._asked
        asked.running = False
        share = self._share(run_state)  # as when asked: the answer may settle the rate
        self._tell_search(event, run_state)
        self._pause(share, now)
        bases = (base for base in (event.base, event.calibrated) if base)
        self._bases += [health.published(event.epoch, base, base=True) for base in bases]
        too_late = event.found and event.found.factor != 1.0 and event.epoch < run_state.sealed
        if event.result and not too_late:  # the sealed model is another one
            asked.result = health.published(event.epoch, event.result)
        return worths_of(event.epoch, asked.rows, parts_of(event.shares, run_state))

    def _tell_search(self, event: EvaluationEnded, run_state: RunState) -> None:
        if search := self._search:
            scored, rows = event.result is not None, event.found.rows if event.found else 0
            beyond = max(0, rows - self._asked.searched) * len(AMOUNTS)
            cost = event.forwards - beyond  # rows beyond the plan are no debt of later epochs
            search.ended(event.epoch, event.found, cost, scored=scored, run_state=run_state)

    def _share(self, run_state: RunState) -> float:
        """Return the share of the organiser's own time that may be spent."""
        if self._search:
            return self._search.time_share
        young = run_state.counted < YOUNG * run_state.budget
        return self._policy.young_share if young else self._policy.share

    def _pause(self, share: float, now: float) -> None:
        """Delay the next evaluation so that this one takes no more than `share` of the organiser's time."""
        asked = self._asked
        asked.took, took = now - asked.at, now - asked.at - asked.took
        pause = took / share if share else float("inf")
        self._from = max(self._from, asked.at - pause) + pause  # one missed pause may be made up for

    def result(self, run_state: RunState) -> Evaluated | None:
        """Return the next result to sign, of the base model or of a sealed epoch; None if there is none."""
        asked = self._asked
        if self._bases:
            return self._bases.pop(0)
        if asked.result is None or asked.epoch >= run_state.sealed:
            return None
        result, asked.result = asked.result, None
        return None if asked.altered else result
