"""Measures the costs and the findings of line searches, evaluations and evidence, in swarms of equally fast
nodes.

The organiser's shipped policy runs on a virtual clock. All members are honest until the rate has settled.
Then the share `--turn` of them flips the signs of its scalars. A measurement takes the time of its forwards
on a node that makes one update per second, and finds the usual effect of honest updates. A search uses all
allowed rows, which is its maximum cost.

    python -m benchmarks.evidence_cost --members 10 --members 100 --updates 400 --turn 0.3
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sfnode.organising.evaluation.line_search import AMOUNTS, SearchResult
from sfnode.organising.evaluation.searching import ORIGIN_FORWARDS
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.schema.measurements import StepShare
from sfprotocol.decisions import INCARNATIONS, Worth
from sfprotocol.messages import Feed
from tests.organising.bench import EVALUATED, Bench, feed_of, scores

FORWARDS = 8
"""Example-forwards of an update."""

SPEED = float(FORWARDS)
"""Example-forwards per second of every node, which is one update per second."""

ROWS = 256
"""Number of validation rows."""

RHO = 0.35
"""Correlation between an honest scalar, measured on 4 rows, and the slope on all rows."""

BATCH = 4
"""Number of rows of a mini-batch."""


def drift(rows: int) -> float:
    """Return the mean score of one honest update on `rows` rows. Fewer rows have more noise, which lowers the
    score."""
    noise = BATCH * (RHO**-2 - 1)  # variance over rows, as a multiple of the slope's variance
    return RHO / math.sqrt(1 + noise / rows)


TICK = 8
"""Seconds between two reports of members' updates."""


class Cost(NamedTuple):
    """Costs of a run."""

    share: float
    """Share of measurements in all example-forwards."""
    later: float
    """Share of measurements in all example-forwards since the rate settled."""
    busy: float
    """Share of the organiser's time spent on measurements since the rate settled."""
    updates: float
    """Mean number of updates of an epoch since the rate settled."""
    searched: float
    """Share of the epochs since the rate settled that have a search."""
    measured: float
    """Share of the epochs since the rate settled in which members' work was measured."""
    judged: float
    """Share of the updates since the rate settled that are in measured epochs. Short epochs are not measured
    while epochs grow."""
    skipped: float = math.nan
    """Mean number of updates that a dishonest member makes before seals skip its updates."""
    revoked: float = math.nan
    """Mean number of updates that a dishonest member makes before it is revoked."""


class Swarm:
    """Members of equal speed, one of which organises."""

    def __init__(
        self,
        members: int,
        budget: int,
        epoch_updates: int,
        rows: int = ROWS,
        turn: float = 0.0,
    ) -> None:
        """`rows` is the maximum number of rows that a search needs to be clear. `turn` is the share of
        members that become dishonest."""
        self.rows = rows
        self._turning = int(turn * members)
        self._turned_at: int | None = None
        self._gone: dict[str, dict[int, int]] = {"skipped": {}, "revoked": {}}
        policy = replace(
            EVALUATED,
            target_updates=epoch_updates,
            longest_epoch=600.0,
            seal_wait=600.0,
            search_rows=ROWS,
            update_forwards=FORWARDS,
            origins=True,
        )
        self.bench = Bench(policy=policy, budget=budget)
        self.names = [f"member {n}" for n in range(members)]
        self.bench.begin(*self.names, quota=1 << 20)
        self.made = self.spent = self.answered = 0
        self._begun_at = 0.0
        """Start time of the oldest unanswered plan; 0 if that plan has not started."""
        self._draws = np.random.default_rng(0)

    def run(self, updates: int) -> Cost:
        """Let every member make `updates` updates. Return the costs."""
        bench, began, before, first = self.bench, self.bench.now, (0, 0), 0
        for turn in range(updates // TICK):
            self._look(turn * TICK)
            for name in self.names:
                bench.update(feed_of(name), TICK)
            self.made += len(self.names) * TICK
            until = bench.now + TICK
            while self.answered < len(bench.plans) and self._done_at(bench.plans[self.answered]) <= until:
                self._answer(bench.plans[self.answered])
            bench.advance(max(0.0, until - bench.now))
            assert bench.organiser.known.search
            if not first and bench.organiser.known.search.settled:
                self._turned_at = (turn + 1) * TICK
                began, before, first = bench.now, (self.spent, self.made), bench.run_state.sealed + 1
        spent, made = self.spent - before[0], self.made - before[1]
        sealed = range(first, bench.run_state.sealed)
        lengths = [bench.run_state.closed_updates(epoch) for epoch in sealed]
        count = max(1, len(lengths))
        measured = {worth.epoch for worth in bench.of(Worth) if worth.epoch in sealed}
        return Cost(
            self.spent / (self.spent + self.made * FORWARDS),
            spent / (spent + made * FORWARDS),
            spent / SPEED / (bench.now - began),
            sum(lengths) / count,
            len({plan.epoch for plan in bench.plans if plan.rows and plan.epoch in sealed}) / count,
            len(measured) / count,
            sum(lengths[epoch - first] for epoch in measured) / max(1, sum(lengths)),
            *(sum(found.values()) / len(found) if found else math.nan for found in self._gone.values()),
        )

    def _look(self, made: int) -> None:
        """Record the members detected since the last call. `made` is the number of updates that each member
        made."""
        if self._turned_at is None or not self._turning:
            return
        evidence = self.bench.origins
        for name, members in (
            ("skipped", (m for m in range(self._turning) if not evidence.trusts(m))),
            ("revoked", evidence.harmful & set(range(self._turning))),
        ):
            for member in members:
                self._gone[name].setdefault(member, made - self._turned_at)

    def _forwards(self, plan: Evaluate) -> int:
        rows = min(plan.rows, self.rows)
        return rows * len(AMOUNTS) + plan.origins * ORIGIN_FORWARDS + plan.scored * ROWS

    def _done_at(self, plan: Evaluate) -> float:
        """Return the end time of `plan`, which is the oldest unanswered plan."""
        self._begun_at = self._begun_at or self.bench.now
        return self._begun_at + self._forwards(plan) / SPEED

    def _answer(self, plan: Evaluate) -> None:
        bench, forwards = self.bench, self._forwards(plan)
        bench.advance(max(0.0, self._done_at(plan) - bench.now))
        self.answered, self.spent, self._begun_at = self.answered + 1, self.spent + forwards, 0.0
        rows = min(plan.rows, self.rows)
        found = SearchResult(1.0, 2.0, rows) if rows else None
        result = scores(0.6) if plan.scored else None
        shares = self._shares(plan.epoch, plan.origins) if plan.origins else {}
        bench.do(EvaluationEnded(plan.epoch, result, None, None, found, forwards, shares=shares))

    def _shares(self, epoch: int, rows: int) -> dict[Feed, StepShare]:
        run_state = self.bench.run_state
        found = {}
        for number in run_state.moved(epoch):
            count = run_state.named(number, epoch) - run_state.named(number, epoch - 1)
            turned = self._turned_at is not None and number // INCARNATIONS < self._turning
            mean = drift(rows) * (-1 if turned else 1)
            score = mean * math.sqrt(count) + self._draws.standard_normal()
            found[run_state.feed(number)] = StepShare(count, score * 6, 36.0, score * 1e-3, 1e-4)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, action="append")
    parser.add_argument("--updates", type=int, default=400, help="of each member")
    parser.add_argument("--epoch-updates", type=int, default=1024)
    parser.add_argument("--turn", type=float, default=0.0, help="share of members who turn [default: 0]")
    given = parser.parse_args()
    print(*Cost._fields)
    for members in given.members or [10, 100, 1000]:
        budget = 2 * members * given.updates
        cost = Swarm(members, budget, given.epoch_updates, turn=given.turn).run(given.updates)
        print(members, *(f"{figure:.3f}" for figure in cost), flush=True)


if __name__ == "__main__":
    main()
