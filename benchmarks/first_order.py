"""What hostile members cost a first-order run, and what measuring does: an organiser on a virtual clock.

The model is a quadratic. Every row has an optimum of its own around the one that all rows have, so that the
gradients of mini-batches agree with that of validation rows by as much as was measured on SmolLM2 (a cosine
of 0.16 +- 0.12 for 8 rows); curvatures fall by a power law, so that their noise is largest where gradients
are. Updates are vectors of integers by the rules of the protocol, and the organiser's policy is what ships.

    python -m benchmarks.first_order --attack flip --seeds 3
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sfnode.organising.evaluation.evidence import DISPERSED, SCORED_ROUNDS
from sfnode.organising.evaluation.searching import ORIGIN_FORWARDS
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.organising.policy import EVALUATIONS, LEAST_EVALUATED, MEASURING
from sfnode.organising.steps import Steps
from sfnode.schema.evaluation import EvaluationOfRows, StepShare
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS, RATE_ONE, Evaluated, Worth
from sfprotocol.messages import Feed
from sfprotocol.weighing import Rates
from tests.organising.bench import EVALUATED, Bench, feed_of

F64, I64 = NDArray[np.float64], NDArray[np.int64]

CELLS = 336
LIMIT = round(16 * math.sqrt(CELLS))
BATCH, FORWARDS = 8, 24
VALIDATION = 256
RATE = 0.05
ROUNDS = 16
SPREAD = 12.0
"""How far a row's optimum lies from that of all, in terms of how far that is from the start, in each cell."""

MEMORY = 0.95
"""Weight, for each measured round, of earlier gradients on validation rows in that by which is scored."""

Attack = Callable[["Swarm", F64], F64]
"""What becomes of an honest gradient, in natural units."""


@dataclass
class Member:
    name: str
    attack: Attack | None = None
    kind: F64 | None = None
    """Where the optimum of its rows lies, if not where that of others does."""
    made: list[I64] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)

    @property
    def feed(self) -> Feed:
        return feed_of(self.name)


def _towards(size: float, swarm: Swarm, gradient: F64) -> F64:
    """Return the gradient at a share of the longest that counts."""
    rate = swarm.counting.rate_from(swarm.counting.open_epoch)
    return gradient * (size * rate.limit * rate.unit / (1 << 16) * swarm.delta / np.linalg.norm(gradient))


ATTACKS: dict[str, Attack] = {
    "flip": lambda swarm, g: -g,
    "random": lambda swarm, g: swarm.draws.permutation(g) * swarm.draws.choice([-1.0, 1.0], CELLS),
    "scale": lambda swarm, g: _towards(0.99, swarm, g),
    "large flip": lambda swarm, g: _towards(-0.99, swarm, g),
    "large random": lambda swarm, g: _towards(0.99, swarm, swarm.draws.standard_normal(CELLS)),
    "beyond": lambda swarm, g: _towards(1.05, swarm, g),
    "short": lambda swarm, g: _towards(0.12, swarm, g),
    "target": lambda swarm, g: g,
    "turncoat": lambda swarm, g: g if swarm.counting.sealed < 5 else _towards(-0.99, swarm, g),
}


class Swarm:
    """Members of equal speed, the last of them hostile."""

    def __init__(
        self,
        honest: int,
        hostile: int = 0,
        attack: str = "",
        budget: int = 234,
        seed: int = 0,
        *,
        judged: bool = True,
    ) -> None:
        self.draws = np.random.default_rng(seed)
        truth = np.random.default_rng(1000 + seed)
        self.curvature: F64 = np.arange(1, CELLS + 1, dtype=np.float64) ** -0.4
        self.optimum: F64 = truth.standard_normal(CELLS)
        self.validation = self._optima(VALIDATION)
        self.members = [Member(f"member {n}") for n in range(honest)]
        self.members += [Member(f"hostile {n}", ATTACKS[attack]) for n in range(hostile)]
        if attack == "target":
            wrong = np.where(truth.random(CELLS) < 0.5, -self.optimum, self.optimum)
            for one in self.members[honest:]:
                one.kind = wrong
        norms = [np.linalg.norm(self._gradient(np.zeros(CELLS), None, BATCH)) for _ in range(8)]
        self.delta = float(np.median(norms)) / (LIMIT / 2)
        rows = max(LEAST_EVALUATED, int(MEASURING * budget * FORWARDS / EVALUATIONS))
        updates = max(1, budget // ROUNDS)
        policy = replace(
            EVALUATED,
            target_updates=updates,
            longest_epoch=600.0,
            seal_wait=600.0,
            search_rows=min(rows, VALIDATION),
            update_forwards=FORWARDS,
            origins=judged,
            guard=True,
            alike=DISPERSED,
            steps=Steps(round(RATE * RATE_ONE), updates, whole=False),
            share=MEASURING,
            young_share=MEASURING,
        )
        self.bench = Bench(policy=policy, budget=budget, rate=round(RATE * RATE_ONE), norm_limit=LIMIT)
        self.bench.begin(*(one.name for one in self.members), quota=1 << 10)
        self.answered, self.spent = 0, 0
        self.reference: F64 = np.zeros(CELLS)
        """The gradient on validation rows, with those of earlier rounds by a part."""

    @property
    def counting(self) -> Counting:
        return self.bench.counting

    # -- the model ---------------------------------------------------------------------------------

    def _optima(self, rows: int, kind: F64 | None = None) -> F64:
        middle = self.optimum if kind is None else kind
        return middle + SPREAD * self.draws.standard_normal((rows, CELLS))

    def _gradient(self, at: F64, kind: F64 | None, rows: int) -> F64:
        found: F64 = self.curvature * (at - self._optima(rows, kind).mean(0))
        return found

    def loss(self, at: F64) -> float:
        """Return the loss on all rows that there are, but for what no model can do better."""
        return float((self.curvature * (at - self.optimum) ** 2).sum()) / 2

    def cores(self, epoch: int | None = None, *, half: bool = False, skipped: Collection[int] = ()) -> F64:
        """Return the model that counts with what closes up to an epoch have named, of the last of them half
        if so; None: for whoever makes updates."""
        found, rates = np.zeros(CELLS), Rates.of(self.counting)
        for one in self.members:
            number = self.counting.number(one.feed)
            assert number is not None
            live = self.counting.live(number, len(one.made))
            runs = live if epoch is None else self.counting.runs(number, self.counting.named(number, epoch))
            before = 0 if epoch is None else self.counting.named(number, epoch - 1)
            first = 0
            for run in runs:
                for step in range(first, min(run.stop, len(one.made))):
                    part = 0.5 if half and step >= before else 1.0
                    part *= not (number in skipped and step >= before)
                    found -= part * run.factor / 4096 * self._step(one, step, rates)
                first = run.stop
        return found

    def _step(self, one: Member, step: int, rates: Rates) -> F64:
        rate, values = rates.of_label(one.labels[step]), one.made[step]
        moves = rate.moves(tuple(values.tolist()))
        return values * (self.delta * rate.unit / (1 << 16) * rate.rate / RATE_ONE * moves)

    # -- what happens ------------------------------------------------------------------------------

    def run(self) -> float:
        """Let everybody train until the run is over; return what was gained, as a share of what can be."""
        while not self.counting.complete and self.bench.now < 1_000_000:
            for one in self.draws.permutation(np.array(self.members, object)):
                if not self.counting.complete:
                    self._make(one)
            self._pass(8.0)
        self._pass(2000.0)
        start, end = self.loss(np.zeros(CELLS)), self.loss(self.cores(self.counting.sealed - 1))
        return 1 - end / start

    def _pass(self, seconds: float) -> None:
        until = self.bench.now + seconds
        while self.bench.now < until:
            self.bench.advance(1.0)
            while self.answered < len(self.bench.plans):
                self._answer(self.bench.plans[self.answered])

    def _make(self, one: Member) -> None:
        counting = self.counting
        number = counting.number(one.feed)
        assert number is not None
        member, label = number // INCARNATIONS, counting.open_epoch
        if label >= counting.members[member].revoked:
            return
        if counting.room_left(member, self.bench.organiser._feeds.made(counting)) <= 0:
            return
        rate = counting.rate_from(label)
        gradient = self._gradient(self.cores(), one.kind, BATCH)
        unit = self.delta * rate.unit / (1 << 16)
        if one.attack:
            gradient = one.attack(self, gradient)
        elif (length := float(np.linalg.norm(gradient)) / unit) > 0.995 * rate.limit:
            gradient = gradient * (0.995 * rate.limit / length)
        values = np.clip(np.rint(gradient / unit), -127, 127).astype(np.int64)
        one.made.append(values)
        one.labels.append(label)
        moves = rate.moves(tuple(values.tolist()))
        squares = min(int((values**2).sum()), rate.limit**2)
        self.bench.vector(one.feed, squares, moves=moves)

    def _answer(self, plan: Evaluate) -> None:
        forwards = plan.origins * ORIGIN_FORWARDS + plan.scored * self.bench.policy.search_rows
        base = plan.scored and not self.bench.of(Evaluated)
        forwards += base * self.bench.policy.search_rows
        result = self._evaluation(self.cores(plan.epoch, skipped=plan.skipped)) if plan.scored else None
        before = self._evaluation(np.zeros(CELLS)) if base else None
        shares = self._shares(plan) if plan.origins else {}
        self.answered, self.spent = self.answered + 1, self.spent + forwards
        self.bench.do(EvaluationEnded(plan.epoch, result, before, None, None, forwards, shares=shares))

    def _evaluation(self, at: F64) -> EvaluationOfRows:
        rows = self.validation[: self.bench.policy.search_rows]
        losses = (self.curvature * ((at - rows) ** 2 - (rows - self.optimum) ** 2)).sum(1) / 2 / CELLS
        loss, error = float(losses.mean()), float(losses.std()) / math.sqrt(len(rows))
        low, value, high = (math.exp(loss + k * error) for k in (-2, 0, 2))
        return EvaluationOfRows(
            metric="perplexity",
            value=value,
            low=low,
            high=high,
            loss=loss,
            count=len(rows),
            losses=tuple(losses),
        )

    def _shares(self, plan: Evaluate) -> dict[Feed, StepShare]:
        counting, rates, found = self.counting, Rates.of(self.counting), {}
        middle = self.cores(plan.epoch, half=True, skipped=plan.skipped)
        slopes = self.curvature * (middle - self.draws.choice(self.validation, plan.origins, False).mean(0))
        self.reference = MEMORY * self.reference + plan.origins * slopes
        slopes, now = self.reference, slopes
        for number in counting.moved(plan.epoch):
            one = next(one for one in self.members if counting.number(one.feed) == number)
            first, stop = (counting.named(number, plan.epoch - back) for back in (1, 0))
            before = counting.named(number, plan.epoch - SCORED_ROUNDS)
            total = np.sum([self._step(one, step, rates) for step in range(first, stop)], 0)
            lately = np.sum([self._step(one, step, rates) for step in range(before, stop)], 0)
            length = float(np.linalg.norm(lately) * np.linalg.norm(slopes))
            score = float(lately @ slopes) / length * math.sqrt(CELLS) if length else 0.0
            found[one.feed] = StepShare(stop - first, score, 1.0, float(total @ now) / CELLS, 1e-9)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", choices=ATTACKS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=334)
    parser.add_argument("--open", action="store_true", help="nobody is judged")
    given = parser.parse_args()
    for attack in given.attack or ATTACKS:
        for seed in range(given.seeds):
            ten = Swarm(7, 3, attack, given.budget, seed, judged=not given.open)
            gain = ten.run()
            counts = [ten.counting.counts_of(member) for member in range(10)]
            made = [len(one.made) for one in ten.members]
            honest = sum(made[:7])
            alone = Swarm(7, 0, "", honest, seed, judged=not given.open).run()
            share = ten.spent / (ten.spent + FORWARDS * sum(made))
            print(
                f"{attack:12} gain {gain:.3f} of {alone:.3f} ({1 - gain / alone:+.1%}), made {honest} and "
                f"{sum(made[7:])}, of which count {sum(counts[:7])} and {sum(counts[7:])}, measured "
                f"{len({worth.epoch for worth in ten.bench.of(Worth)})} of {ten.counting.sealed} rounds, "
                f"{share:.1%} of forwards",
                flush=True,
            )


if __name__ == "__main__":
    main()
