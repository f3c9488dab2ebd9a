"""Measures what audits can tell: by what honest scalars differ, and how soon invented ones are found out.

    python -m tests.bench.audits --save FILE [--model mini] [--loss centred] [--seed 0]
    python -m tests.bench.audits FILE...

The first trains alone for some epochs and then looks at several moments: what an honest node says there, by
number format, and what an auditor recomputes there, an eighth of an epoch before and after, and an epoch
before. The second puts several such files together: correlation, relative error and disagreement of each
pair, and what the policy (`sfnode.organising.evaluation.audits`) finds of 200 origins with 500 audits each,
drawn from these pairs with replacement; of attackers how many audits it takes. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.organising.evaluation.audits import TOLERANCE, Audited, Audits
from sfnode.schema.audits import Finding
from sfnode.tasks.encoding import encode
from sfprotocol.seeds import update_seeds
from tests.bench.privacy import run_of

QUERIES = 8
UPDATES = {"built-in": (256, 4, 64), "mini": (256, 2, 32)}
"""Updates of an epoch, epochs, and updates that are audited at each moment."""
FORMATS = ("float32", "bfloat16", "int8")
AUDITS, ORIGINS = 500, 200
ORIGIN = bytes(32)

Scalars = NDArray[np.float64]


class Course:
    """A training that can be taken to any of its moments."""

    def __init__(self, model: str, loss: str, seed: int) -> None:
        self.epoch, self.epochs, self.sample = UPDATES[model]
        numbers = {"epoch_updates": self.epoch, "update_budget": self.epoch * self.epochs}
        run = run_of(model, loss)
        self.run = run.model_copy(update={"training": run.training.model_copy(update=numbers)})
        self.trainers = {name: Trainer.load(self.run, dtype=name) for name in FORMATS}
        self.at = dict.fromkeys(FORMATS, 0)
        self.made: list[UpdateBatch] = []
        seeds = update_seeds(1000 * seed + 7, 0, self.epoch * self.epochs).tolist()
        trainer, subspace_of = self.trainers["float32"], self.run.parameters().subspace_of
        for first in range(0, len(seeds), QUERIES):
            part, label = seeds[first : first + QUERIES], first // self.epoch
            said = np.array(trainer.step(part, label).scalars, np.int64)
            batch = UpdateBatch(np.full(len(part), subspace_of(label)), np.array(part, np.uint64), said)
            trainer.apply(batch)
            self.made.append(batch)
        self.at["float32"] = len(self.made)

    def says(
        self, seeds: Sequence[int], label: int, place: float, name: str = "float32", queries: int = QUERIES
    ) -> Scalars:
        """The scalars that are measured after `place` epochs."""
        trainer, wanted = self.trainers[name], self._batches(place)
        while self.at[name] != wanted:
            forth = self.at[name] < wanted
            self.at[name] -= not forth
            batch = self.made[self.at[name]]
            trainer.apply(batch if forth else batch._replace(scalars=-batch.scalars))
            self.at[name] += forth
        parts = (seeds[n : n + queries] for n in range(0, len(seeds), queries))
        return np.array([said for part in parts for said in trainer.recompute(part, label).scalars], float)

    def of_half_the_rows(self, seeds: Sequence[int], label: int, place: float) -> Scalars:
        """The same, of the first half of each mini-batch alone."""
        batches: Any = self.trainers["float32"].mini_batches
        shard = batches._draw.__self__

        def half(seed: int) -> Any:
            drawn = shard._drawn(seed).tolist()
            return encode(shard._task, shard._tokenizer, [shard._rows[n] for n in drawn[: len(drawn) // 2]])

        batches._draw, before = half, batches._draw
        found = self.says(seeds, label, place)
        batches._draw = before
        return found

    def _batches(self, place: float) -> int:
        return min(max(0, round(place * self.epoch / QUERIES)), len(self.made))


def measure(model: str, loss: str, seed: int) -> dict[str, Scalars]:
    """What is said and recomputed, one array over all moments for each name."""
    course, found = Course(model, loss, seed), dict[str, list[Scalars]]()
    places = [epoch + 0.5 for epoch in range(course.epochs)]
    for number, place in enumerate(places):
        seeds, label = update_seeds(99 + seed, 1000 * number, course.sample).tolist(), int(place)

        def add(name: str, said: Scalars) -> None:
            found.setdefault(name, []).append(said)

        add("exact", course.says(seeds, label, place))
        add("an eighth before", course.says(seeds, label, place - 1 / 8))
        add("an eighth after", course.says(seeds, label, place + 1 / 8))
        add("an epoch before", course.says(seeds, label, place - 1))
        add("base model", course.says(seeds, label, 0))
        add("half", course.of_half_the_rows(seeds, label, place))
        add("int8", course.says(seeds, label, place, "int8"))
        add("bfloat16", course.says(seeds, label, place, "bfloat16", queries=1))
        add("bfloat16 exact", course.says(seeds, label, place, "bfloat16"))
        add("bfloat16 before", course.says(seeds, label, place - 1 / 8, "bfloat16"))
        add("bfloat16 after", course.says(seeds, label, place + 1 / 8, "bfloat16"))
    return {name: np.concatenate(parts) for name, parts in found.items()}


HONEST = {
    "float32 | float32, same state": ("exact", ["exact"]),
    "float32 | float32, an eighth of an epoch old": ("exact", ["an eighth before"]),
    "float32 | float32, an epoch old": ("exact", ["an epoch before"]),
    "float32 | float32, an eighth before and after": ("exact", ["an eighth before", "an eighth after"]),
    "int8 | float32, same state": ("int8", ["exact"]),
    "int8 | float32, an eighth before and after": ("int8", ["an eighth before", "an eighth after"]),
    "bfloat16 | float32, same state": ("bfloat16", ["exact"]),
    "bfloat16 | float32, an eighth before and after": ("bfloat16", ["an eighth before", "an eighth after"]),
    "bfloat16 | bfloat16, same state": ("bfloat16", ["bfloat16 exact"]),
    "bfloat16 | bfloat16, an eighth before and after": ("bfloat16", ["bfloat16 before", "bfloat16 after"]),
    "float32 | bfloat16, an eighth before and after": ("exact", ["bfloat16 before", "bfloat16 after"]),
}
"""What is said, and what is recomputed."""

ATTACKS: dict[str, Callable[[dict[str, Scalars], np.random.Generator], Scalars]] = {
    "random": lambda seen, rng: rng.permutation(seen["exact"]) * rng.choice([-1, 1], len(seen["exact"])),
    "constant": lambda seen, rng: np.full(len(seen["exact"]), np.median(np.abs(seen["exact"]))),
    "zero": lambda seen, rng: 0 * seen["exact"],
    "copied from another update": lambda seen, rng: np.roll(seen["exact"], 1),
    "sign flipped": lambda seen, rng: -seen["exact"],
    "sign flipped, a third of the size": lambda seen, rng: -seen["exact"] / 3,
    "twice as large": lambda seen, rng: 2 * seen["exact"],
    "four times as large": lambda seen, rng: 4 * seen["exact"],
    "ten times as large": lambda seen, rng: 10 * seen["exact"],
    "the right sign, the largest size": lambda seen, rng: (
        np.sign(seen["exact"]) * np.abs(seen["exact"]).max()
    ),
    "every other one sign flipped": lambda seen, rng: (
        seen["exact"] * np.where(rng.random(len(seen["exact"])) < 0.5, -1, 1)
    ),
    "lazy: an epoch old": lambda seen, rng: seen["an epoch before"],
    "lazy: at the base model": lambda seen, rng: seen["base model"],
    "lazy: half of the mini-batch": lambda seen, rng: seen["half"],
}


def found(
    claimed: Scalars, recomputed: list[Scalars], rng: np.random.Generator, audits: int
) -> tuple[list[int], float]:
    """How many audits it has taken to refute each origin that was, and the share that is confirmed after
    32."""
    taken, confirmed = [], 0
    for _ in range(ORIGINS):
        of = Audits(rng.random)
        for number, place in enumerate(rng.integers(len(claimed), size=audits), 1):
            seen = tuple(round(one[place]) for one in recomputed)
            refuted = of.take([Audited(ORIGIN, round(claimed[place]), seen)])
            confirmed += number == 32 and of.of(ORIGIN).finding is Finding.CONFIRMED
            if refuted:
                taken.append(number)
                break
    return taken, confirmed / ORIGINS


def tables(files: Sequence[Path]) -> None:
    """Print what the files have together."""
    parts = [dict(np.load(file)) for file in files]
    every = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rng, exact = np.random.default_rng(1), every["exact"]
    scale = float(np.median(np.abs(exact)))
    print(f"{len(exact)} updates, median {scale:.0f}, tolerance {TOLERANCE}")
    for name, (said, at) in HONEST.items():
        mean = np.mean([every[one] for one in at], 0)
        error = np.sqrt(np.mean((every[said] - mean) ** 2) / np.mean(exact**2))
        taken, confirmed = found(every[said], [every[one] for one in at], rng, AUDITS)
        print(
            f"| {name} | {np.corrcoef(every[said], mean)[0, 1]:.3f} | {error:.1%} "
            f"| {disagreed(every[said], [every[one] for one in at], scale):.3f} "
            f"| {confirmed:.0%} | {len(taken) / ORIGINS:.1%} |",
            flush=True,
        )
    between = [every["an eighth before"], every["an eighth after"]]
    for name, attack in ATTACKS.items():
        said = attack(every, rng)
        for at in ([exact], between):
            taken, confirmed = found(said, at, rng, 300)
            some = f"{np.median(taken):.0f} | {np.quantile(taken, 0.9):.0f}" if taken else "- | -"
            print(
                f"| {name} | {disagreed(said, at, scale):.3f} | {some} | {len(taken) / ORIGINS:.0%} "
                f"| {confirmed:.0%} |",
                flush=True,
            )


def disagreed(claimed: Scalars, recomputed: list[Scalars], scale: float) -> float:
    """The mean disagreement."""
    nearest = np.clip(claimed, np.min(recomputed, 0), np.max(recomputed, 0))
    return float(np.mean(np.abs(claimed - nearest) / (np.abs(claimed) + np.abs(nearest) + scale)))


def main() -> None:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--model", choices=list(UPDATES), default="built-in")
    parser.add_argument("--loss", choices=["plain", "centred"], default="plain")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.save:
        arrays: Any = measure(given.model, given.loss, given.seed)
        np.savez(given.save, **arrays)
    if given.files:
        tables(given.files)


if __name__ == "__main__":
    main()
