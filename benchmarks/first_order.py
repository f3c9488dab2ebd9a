"""Measures the damage of hostile members in a first-order run, with the organiser on a virtual clock.

There are two models. *Words* is a quadratic. Every row has its own optimum around the common optimum. The
spread is such that gradients of mini-batches and of validation rows have the cosine measured on SmolLM2 (0.16
+- 0.12 for 8 rows). Curvatures fall as a power law, so that noise and gradients are largest in the same
cells. *Head* is a softmax regression on states, whitened as in `sfnode init`. Each member has some of the
rows. The states are random, or come from a file with arrays `x` (rows, features) and `y` (rows,). Updates are
vectors of integers that follow the rules of the protocol. Scores and the organiser's policy are the shipped
ones.

    python -m benchmarks.first_order --attack flip --seeds 3
    python -m benchmarks.first_order --head [--states FILE.npz] --attack flip --seeds 3
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine.core import UpdateBatch
from sfnode.engine.head import Known
from sfnode.engine.line import Slopes, _of_rows
from sfnode.organising.evaluation.evidence import DISPERSED, SCORED_ROUNDS
from sfnode.organising.evaluation.searching import ORIGIN_FORWARDS
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.organising.policy import (
    EVALUATIONS,
    HEAD_EPOCH,
    HEAD_PATIENCE,
    LEAST_EVALUATED,
    MEASURING,
    OrganiserPolicy,
)
from sfnode.organising.steps import Steps
from sfnode.preparing.first_order import numbers_for, rate_of, whitening
from sfnode.preparing.recipes import HEAD
from sfnode.schema.measurements import EvaluationOfRows, StepShare
from sfprotocol.decisions import INCARNATIONS, RATE_ONE, Admit, Evaluated, Worth
from sfprotocol.messages import Feed
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.weighing import Rates
from tests.organising.bench import EVALUATED, Bench, feed_of

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

HONEST, HOSTILE = 7, 3
VALIDATION = 256

Attack = Callable[["Swarm", F64], F64]
"""Function that returns a hostile gradient in place of an honest one, in natural units."""


@dataclass
class Member:
    number: int
    name: str
    attack: Attack | None = None
    wrong: bool = False
    """Whether the member's rows have wrong labels."""
    made: list[I64] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)

    @property
    def feed(self) -> Feed:
        return feed_of(self.name)


class Words:
    """A quadratic with mini-batches of 8 rows."""

    forwards, bits = 24, 8
    batch = 8
    cells = 336
    spread = 12.0
    """Distance of a row's optimum from the common optimum, as a multiple of the common optimum's distance
    from the start."""

    def __init__(self, seed: int, budget: int) -> None:
        self.draws, truth = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
        self.curvature: F64 = np.arange(1, self.cells + 1, dtype=np.float64) ** -0.4
        self.optimum: F64 = truth.standard_normal(self.cells)
        self.wrong: F64 = np.where(truth.random(self.cells) < 0.5, -self.optimum, self.optimum)
        self.validation = self._optima(VALIDATION, self.optimum)
        rows = max(LEAST_EVALUATED, int(MEASURING * budget * self.forwards / EVALUATIONS))
        updates, member = max(1, budget // 16), Member(0, "")
        self.norm = float(
            np.median([np.linalg.norm(self.gradient(np.zeros(self.cells), member)) for _ in range(8)])
        )
        self.policy = replace(
            EVALUATED,
            target_updates=updates,
            search_rows=min(rows, VALIDATION),
            steps=Steps(round(0.05 * RATE_ONE), updates, whole=False),
        )
        self.quota, self.pace = 1 << 10, 8.0

    def _optima(self, rows: int, middle: F64) -> F64:
        return middle + self.spread * self.draws.standard_normal((rows, self.cells))

    def gradient(self, at: F64, member: Member) -> F64:
        """Return the gradient of a member's mini-batch."""
        rows = self._optima(self.batch, self.wrong if member.wrong else self.optimum)
        found: F64 = self.curvature * (at - rows.mean(0))
        return found

    def loss(self, at: F64) -> float:
        """Return the loss on all rows, minus its minimum."""
        return float((self.curvature * (at - self.optimum) ** 2).mean()) / 2

    def uphill(self, at: F64) -> F64:
        """Return the gradient of `loss`."""
        return self.curvature * (at - self.optimum) / self.cells

    def losses(self, at: F64, rows: int) -> F64:
        """Return the losses of the first `rows` validation rows."""
        rows_ = self.validation[:rows]
        found: F64 = (self.curvature * ((at - rows_) ** 2 - (rows_ - self.optimum) ** 2)).mean(1) / 2
        return found

    def slopes(self, at: F64, rows: int) -> F64:
        """Return gradients on batches of `rows` validation rows, (batches, cells)."""
        each = min(8, rows // 2)
        chosen = self.draws.choice(self.validation, rows // each * each, False)
        found: F64 = self.curvature * (at - chosen.reshape(-1, each, self.cells).mean(1))
        return found / self.cells


class Head:
    """A softmax regression on states. An update is the mean gradient of all rows of a node."""

    forwards, bits = 3 * 4096, 8

    def __init__(self, seed: int, budget: int, states: Path | None, members: int) -> None:
        self.draws = np.random.default_rng(seed)
        x, y = _states(states, self.draws)
        order = self.draws.permutation(len(x))
        held, test, public = np.split(order, [VALIDATION, VALIDATION + (len(x) - VALIDATION) // 3])
        none = torch.zeros(len(x), int(y.max()) + 1)
        known = Known(torch.from_numpy(x), torch.from_numpy(y), none)
        validating, learnt = (Known(*(part[rows] for part in known)) for rows in (held, public))
        v, unit = whitening(learnt, validating, 1024)
        self.states, self.right = x @ (v * unit), np.eye(none.shape[1])[y]
        self.cells = self.states.shape[1] * none.shape[1]
        self.held, self.test, self.shards = held, test, np.array_split(public, members)
        self.norm = float(np.linalg.norm(self._gradients(np.zeros(self.cells), public, self.right).mean(0)))
        numbers, rate = HEAD.training, rate_of(none.shape[1])
        self.policy = replace(
            EVALUATED,
            target_updates=numbers.epoch_updates,
            search_rows=VALIDATION,
            kept=True,
            steps=Steps(round(rate / numbers.epoch_updates * RATE_ONE), numbers.epoch_updates, whole=True),
            patience=HEAD_PATIENCE,
            least_epoch=HEAD_EPOCH,
        )
        self.quota, self.pace = 1, HEAD_EPOCH

    def _outputs(self, at: F64, rows: I64) -> F64:
        outputs = self.states[rows] @ at.reshape(self.right.shape[1], -1).T
        outputs -= outputs.max(1, keepdims=True)
        found: F64 = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
        return found

    def _gradients(self, at: F64, rows: I64, right: F64) -> F64:
        """Return the gradient of each row, (rows, cells)."""
        lacking = np.exp(self._outputs(at, rows)) - right[rows]
        found: F64 = (lacking[:, :, None] * self.states[rows][:, None]).reshape(len(rows), -1)
        return found

    def gradient(self, at: F64, member: Member) -> F64:
        right = np.eye(self.right.shape[1])[np.zeros(len(self.right), int)] if member.wrong else self.right
        found: F64 = self._gradients(at, self.shards[member.number % len(self.shards)], right).mean(0)
        return found

    def uphill(self, at: F64) -> F64:
        """Return the gradient of `loss`."""
        found: F64 = self._gradients(at, self.test, self.right).mean(0)
        return found

    def _losses(self, at: F64, rows: I64) -> F64:
        found: F64 = -(self._outputs(at, rows) * self.right[rows]).sum(1)
        return found

    def loss(self, at: F64) -> float:
        return float(self._losses(at, self.test).mean())

    def losses(self, at: F64, rows: int) -> F64:
        return self._losses(at, self.held[:rows])

    def slopes(self, at: F64, rows: int) -> F64:
        found: F64 = self._gradients(at, self.held[:rows], self.right).reshape(-1, 8, self.cells).mean(1)
        return found


def _states(file: Path | None, draws: np.random.Generator) -> tuple[F64, I64]:
    """Return states and classes from a file. Without a file, return random ones that a head separates as well
    as it separates SST-2's."""
    if file:
        read = np.load(file)
        return read["x"].astype(np.float64), read["y"]
    features = np.arange(1, 257) ** -0.5
    x = draws.standard_normal((2080, 256)) * features
    along = x @ (draws.standard_normal(256) / features) / 16
    return x + 1.0, (along + 0.6 * draws.standard_normal(len(x)) > 0).astype(np.int64)


def _towards(size: float, swarm: Swarm, gradient: F64) -> F64:
    """Return the gradient scaled to the share `size` of the maximum norm; backwards if `size` is negative."""
    rate = swarm.run_state.rate_from(swarm.run_state.open_epoch)
    return gradient * (size * rate.limit * rate.unit / (1 << 16) * swarm.delta / np.linalg.norm(gradient))


def _turned(part: float) -> Attack:
    """Make an attack: honest gradients until the share `part` of the budget is used, then the largest steps
    uphill."""
    return lambda swarm, g: g if swarm.run_state.promised < part * swarm.budget else _towards(-0.99, swarm, g)


ATTACKS: dict[str, Attack] = {
    "flip": lambda swarm, g: -g,
    "random": lambda swarm, g: swarm.draws.permutation(g) * swarm.draws.choice([-1.0, 1.0], len(g)),
    "scale": lambda swarm, g: _towards(-0.99, swarm, g),
    "norm": lambda swarm, g: _towards(-0.126, swarm, g),
    "large random": lambda swarm, g: _towards(0.99, swarm, swarm.draws.standard_normal(len(g))),
    "beyond": lambda swarm, g: _towards(1.05, swarm, g),
    "short": lambda swarm, g: _towards(0.12, swarm, g),
    "target": lambda swarm, g: g,
    "turncoat": _turned(1 / 2),
    "early turncoat": _turned(1 / 4),
    "none": lambda swarm, g: g,
}


class Swarm:
    """Members of equal speed. The last ones are hostile."""

    def __init__(
        self,
        task: Words | Head,
        honest: int,
        hostile: int,
        attack: str,
        budget: int,
        *,
        judged: bool = True,
        vouched: bool = True,
    ) -> None:
        """`vouched` tells whether somebody vouches for the hostile members. Otherwise they are strangers."""
        self.task, self.budget = task, budget
        self.draws: np.random.Generator = task.draws
        self.members = [Member(n, f"member {n}") for n in range(honest)]
        for n in range(honest, honest + hostile):
            self.members.append(Member(n, f"hostile {n}", ATTACKS[attack], attack == "target"))
        numbers = numbers_for(task.norm, task.cells, task.bits)
        self.delta, limit = numbers["scalar_delta"], round(numbers["norm_limit"])
        policy: OrganiserPolicy = replace(
            task.policy,
            longest_epoch=600.0,
            seal_wait=600.0,
            update_forwards=task.forwards,
            origins=judged,
            guard=True,
            alike=DISPERSED,
            share=MEASURING,
            young_share=MEASURING,
        )
        assert policy.steps
        self.bench = Bench(policy=policy, budget=budget, rate=policy.steps.rate, norm_limit=limit)
        self.bench.begin(*(one.name for one in self.members[:honest]), quota=task.quota)
        for one in self.members[honest:]:
            self.bench.decide(Admit(one.feed.origin, task.quota * vouched, 0))
        self.answered, self.spent = 0, 0
        self.past: dict[int, F64] = {}

    @property
    def run_state(self) -> RunState:
        return self.bench.run_state

    # -- the model ---------------------------------------------------------------------------------

    def cores(self, epoch: int | None = None, *, half: bool = False, skipped: Collection[int] = ()) -> F64:
        """Return the model with the updates listed by closes up to `epoch`. With `half`, the updates of
        `epoch` itself have half their weight. Updates of `skipped` feeds in `epoch` are left out.

        Without `epoch`, return the model that members train.
        """
        found, rates = np.zeros(self.task.cells), Rates.of(self.run_state)
        for one in self.members:
            number = self._number(one)
            live = self.run_state.live(number, len(one.made))
            runs = (
                live if epoch is None else self.run_state.spans(number, self.run_state.named(number, epoch))
            )
            before = 0 if epoch is None else self.run_state.named(number, epoch - 1)
            first = 0
            for run in runs:
                for step in range(first, min(run.stop, len(one.made))):
                    part = 0.5 if half and step >= before else 1.0
                    part *= not (number in skipped and step >= before)
                    found -= part * run.factor / 4096 * self._step(one, step, rates)
                first = run.stop
        return found

    def _number(self, one: Member) -> int:
        number = self.run_state.number(one.feed)
        assert number is not None
        return number

    def _step(self, one: Member, step: int, rates: Rates) -> F64:
        rate, values = rates.of_label(one.labels[step]), one.made[step]
        moves = rate.moves(tuple(values.tolist()))
        return values.astype(np.float64) * (self.delta * rate.unit / (1 << 16) * rate.rate / RATE_ONE * moves)

    # -- what happens ------------------------------------------------------------------------------

    def run(self) -> float:
        """Let all members train to the end of the run. Return the decrease of the loss."""
        while not self.run_state.complete and self.bench.now < 1_000_000:
            for one in self.draws.permutation(np.array(self.members, object)):
                if not self.run_state.complete:
                    self._make(one)
            self._pass(self.task.pace)
        self._pass(2000.0)
        return self.task.loss(np.zeros(self.task.cells)) - self.task.loss(
            self.cores(self.run_state.sealed - 1)
        )

    def worst(self, label: int, at: F64) -> tuple[float, float, float]:
        """Return the length of the longest step that an update with this label can take, and the rise of the
        loss when that step goes uphill.

        The third value is the maximum rise for a curvature of one half.
        """
        rate, uphill = self.run_state.rate_from(label), self.task.uphill(at)
        length = rate.limit * rate.unit / (1 << 16) * self.delta * rate.rate / RATE_ONE
        slope = float(np.linalg.norm(uphill))
        return (
            length,
            self.task.loss(at + uphill * (length / slope)) - self.task.loss(at),
            slope * length + length**2 / 4,
        )

    def _pass(self, seconds: float) -> None:
        until = self.bench.now + seconds
        while self.bench.now < until:
            self.bench.advance(self.task.pace / 8)
            while self.answered < len(self.bench.plans):
                self._answer(self.bench.plans[self.answered])

    def _make(self, one: Member) -> None:
        run_state = self.run_state
        member, label = self._number(one) // INCARNATIONS, run_state.open_epoch
        if label >= run_state.members[member].revoked:
            return
        if run_state.room_left(member, self.bench.organiser.known.feeds.made(run_state)) <= 0:
            return
        rate = run_state.rate_from(label)
        gradient = self.task.gradient(self.cores(), one)
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
        before = self._evaluation(np.zeros(self.task.cells)) if base else None
        shares = self._shares(plan) if plan.origins else {}
        self.answered, self.spent = self.answered + 1, self.spent + forwards
        self.bench.do(EvaluationEnded(plan.epoch, result, before, None, None, forwards, shares=shares))

    def _evaluation(self, at: F64) -> EvaluationOfRows:
        losses = self.task.losses(at, self.bench.policy.search_rows)
        loss, error = float(losses.mean()), float(losses.std()) / math.sqrt(len(losses))
        low, value, high = (math.exp(loss + k * error) for k in (-2, 0, 2))
        return EvaluationOfRows(
            metric="perplexity",
            value=value,
            low=low,
            high=high,
            loss=loss,
            count=len(losses),
            losses=tuple(losses),
        )

    def _shares(self, plan: Evaluate) -> dict[Feed, StepShare]:
        run_state, found, task = self.run_state, {}, self.task
        at = self.cores(plan.epoch, half=True, skipped=plan.skipped)
        start = self.cores(plan.epoch - 1)
        if task.losses(at, plan.origins).mean() > task.losses(start, plan.origins).mean():
            at = start
        gradients = task.slopes(at, plan.origins)
        slopes = Slopes(0.0, {0: gradients[:, None, None]}).added_to(self.past, plan.origins)
        for number in run_state.moved(plan.epoch):
            one = next(one for one in self.members if self._number(one) == number)
            stop, first, before = (
                run_state.named(number, plan.epoch - back) for back in (0, 1, SCORED_ROUNDS)
            )
            share, scored = (self._share(slopes, one, range(begin, stop)) for begin in (first, before))
            found[one.feed] = share._replace(sum=scored.sum, squares=scored.squares)
        return found

    def _share(self, slopes: Slopes, one: Member, steps: range) -> StepShare:
        rates = Rates.of(self.run_state)
        moved = np.stack([self._step(one, step, rates) for step in steps])
        none = np.zeros(len(steps), np.int64)
        batch = UpdateBatch(none, none.astype(np.uint64), moved)  # type: ignore[arg-type]  # in natural units
        share = slopes.share((batch, none + 1), 1.0, {0: 1.0})
        return _of_rows(share) if isinstance(self.task, Head) else share


def course(
    given: argparse.Namespace, attack: str, seed: int, hostile: int, budget: int
) -> tuple[Swarm, float]:
    """Run a swarm of seven honest and `hostile` hostile members. Return it with the decrease of the loss."""
    task = Head(seed, budget, given.states, HONEST + HOSTILE) if given.head else Words(seed, budget)
    judged, vouched = not given.open, not given.strangers
    swarm = Swarm(task, HONEST, hostile, attack, budget, judged=judged, vouched=vouched)
    return swarm, swarm.run()


def compare(given: argparse.Namespace, attack: str, seed: int, budget: int) -> float:
    """Print the damage of an attack. Return the share of the gain that is lost."""
    ten, gain = course(given, attack, seed, given.strangers or HOSTILE, budget)
    counts = [ten.run_state.counts_of(member) for member in range(len(ten.members))]
    made = [len(one.made) for one in ten.members]
    honest = sum(made[:HONEST])
    _, alone = course(given, "", seed, 0, honest)
    print(
        f"{attack:14} gain {gain:.4f} of {alone:.4f} ({1 - gain / alone:+.1%}), made {honest} and "
        f"{sum(made[HONEST:])}, of which count {sum(counts[:HONEST])} and {sum(counts[HONEST:])}, "
        f"{sum(one.revoked < NEVER for one in ten.run_state.members[:HONEST])} honest revoked, measured "
        f"{len({worth.epoch for worth in ten.bench.of(Worth)})} of {ten.run_state.sealed} rounds, "
        f"{ten.spent / (ten.spent + ten.task.forwards * sum(made)):.1%} of forwards",
        flush=True,
    )
    return 1 - gain / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", choices=ATTACKS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=0)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--states", type=Path)
    parser.add_argument(
        "--strangers", type=int, default=0, help="as many strangers in place of three members"
    )
    parser.add_argument("--open", action="store_true", help="nobody is judged")
    parser.add_argument("--worst", action="store_true", help="what one update can do, first and last")
    given = parser.parse_args()
    budget = given.budget or (HEAD.training.update_budget if given.head else 334)
    if given.worst:
        swarm, gain = course(given, "", 0, 0, budget)
        end = swarm.cores(swarm.run_state.sealed - 1)
        for label, at in ((0, np.zeros_like(end)), (swarm.run_state.open_epoch, end)):
            length, rise, most = swarm.worst(label, at)
            print(
                f"label {label}: moves {length:.3g}, loss +{rise:.4f}, at most +{most:.4f}, "
                f"where the run gains {gain:.4f}"
            )
        return
    for attack in given.attack or ATTACKS:
        lost = [compare(given, attack, seed, budget) for seed in range(given.seeds)]
        print(f"{attack:14} mean {np.mean(lost):+.1%}", flush=True)


if __name__ == "__main__":
    main()
