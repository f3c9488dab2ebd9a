"""Evaluations of a closed epoch before its seal: whether there is time for one, and what comes of it.

    an epoch is     left when
    planned         something is asked for: what each feed has brought first, the rest once that is known
    under way       the answer comes; back to planned, if there is a rest
    answered        the next epoch is planned; the result is to be signed once the epoch is sealed

What the seal is going to skip is left out; if it then skips something else, the result is of another model,
and is not told. Searches say what an epoch is worth (`searching`), and how much of the organiser's own time
may be spent; without them there is all or nothing. This module is told what a seal counts and skips, and
knows nobody who measures.
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
    """The result, until it is signed once the epoch is sealed."""
    took: float = 0.0
    """Seconds from then to the last answer."""
    altered: bool = False
    """Whether the seal has skipped something that was evaluated, or the other way round."""
    rest: EpochPlan | None = None
    """The rest, which is to be asked for once nothing is under way."""
    skipped: frozenset[int] = frozenset()
    """Feeds that were left out."""
    rows: int = 0
    """Rows on which it is measured what each feed has brought."""
    searched: int = 0
    """Rows of the line search."""


class Evaluations:
    """The evaluations of one organiser, from one start to the next."""

    def __init__(self, policy: OrganiserPolicy, search: Search | None, now: float) -> None:
        self._policy = policy
        self._search = search
        self._asked = _Asked(-1, now)
        self._from = now
        """The time from which on the next one may begin."""
        self._bases: list[Evaluated] = []
        """The base model's results, until they are signed."""

    # -- before the seal ---------------------------------------------------------------------------

    def plan(self, run_state: RunState, now: float, *, last: bool, waiting: bool) -> None:
        """Make out, once, what the oldest epoch without a seal is worth, as soon as there is time; at once if
        it is the `last` one, or there to count what others have skipped (`waiting`). Of any other that has
        named nothing there is nothing to measure."""
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
        """Return whether something of an epoch is to be asked for now."""
        asked = self._asked
        return asked.epoch == epoch and asked.rest is not None and not asked.running

    def ask(self, skipped: Iterable[int], recounted: Iterable[Recount]) -> Evaluate:
        """Return what is due: what each feed has brought, first, and then the rest along what the seal is
        going to count, which is all but the feeds that are `skipped`, and what is `recounted`."""
        asked, plan = self._asked, self._asked.rest
        assert plan is not None
        asked.skipped, asked.running = frozenset(skipped), True
        asked.rows, asked.searched = plan.origins, plan.rows
        rest = plan._replace(origins=0)
        asked.rest = rest if plan.origins and any(rest) else None
        part = EpochPlan(0, False, origins=plan.origins) if plan.origins else plan
        return Evaluate(asked.epoch, *part, asked.skipped, frozenset(recounted))

    def is_under_way(self, epoch: int) -> bool:
        """Return whether an answer about an epoch is to come."""
        return self._asked.epoch == epoch and self._asked.running

    def is_awaited(self, epoch: int, now: float) -> bool:
        """Return whether the seal of an epoch waits for an answer."""
        return self.is_under_way(epoch) and now - self._asked.at < self._policy.seal_wait

    def sealing(self, epoch: int, skipped: Iterable[int], *, less: bool) -> None:
        """Take note of the feeds that the seal of an epoch skips; `less`: of the others it counts nothing at
        all, or with a factor that nobody has looked at."""
        asked = self._asked
        if asked.epoch == epoch:
            asked.altered = asked.altered or less or asked.skipped != set(skipped)

    # -- what comes of it --------------------------------------------------------------------------

    def ended(self, event: EvaluationEnded, run_state: RunState, now: float) -> list[Worth]:
        """Take in the answer that is under way; return what was measured of each feed."""
        asked = self._asked
        asked.running = False
        share = self._share(run_state)  # that of when it was asked for: it may just have settled
        self._tell_search(event, run_state)
        self._pause(share, now)
        bases = (base for base in (event.base, event.calibrated) if base)
        self._bases += [health.published(event.epoch, base, base=True) for base in bases]
        too_late = event.found and event.found.factor != 1.0 and event.epoch < run_state.sealed
        if event.result and not too_late:  # what is sealed is another model
            asked.result = health.published(event.epoch, event.result)
        return worths_of(event.epoch, asked.rows, parts_of(event.shares, run_state))

    def _tell_search(self, event: EvaluationEnded, run_state: RunState) -> None:
        if search := self._search:
            scored, rows = event.result is not None, event.found.rows if event.found else 0
            beyond = max(0, rows - self._asked.searched) * len(AMOUNTS)
            cost = event.forwards - beyond  # what it took to save an epoch is no debt of later ones
            search.ended(event.epoch, event.found, cost, scored=scored, run_state=run_state)

    def _share(self, run_state: RunState) -> float:
        """Return the share of the organiser's own time that may be spent."""
        if self._search:
            return self._search.time_share
        young = run_state.counted < YOUNG * run_state.budget
        return self._policy.young_share if young else self._policy.share

    def _pause(self, share: float, now: float) -> None:
        """Put off the next one until an answer that has come took no more than its share of the time."""
        asked = self._asked
        asked.took, took = now - asked.at, now - asked.at - asked.took
        pause = took / share if share else float("inf")
        self._from = max(self._from, asked.at - pause) + pause  # one may be made up for

    def result(self, run_state: RunState) -> Evaluated | None:
        """Return the next result that is to be signed: of the base model, or of an epoch that is sealed."""
        asked = self._asked
        if self._bases:
            return self._bases.pop(0)
        if asked.result is None or asked.epoch >= run_state.sealed:
            return None
        result, asked.result = asked.result, None
        return None if asked.altered else result
