"""How much of a mini-batch's gradient is signal, by its classes and by what its scores are centred by.

    python tests/bench/centring.py agnews|sst2 SEED BATCHES [VARIANT ...]

Needs ../shared. The signal is the part of the mean gradient that lies along the gradient of the centred loss
on 384 balanced rows; one mini-batch is worth as much as the signal is large beside the root mean square of
its gradient. By backpropagation: differences of two points would take a hundred times as long to tell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sflab.baselines.model_problem import ModelProblem
from sflab.experiments import problem
from sflab.experiments.cell import Cell, CellNetwork, Place, Problem
from sfnode.tasks import calibration, prompts
from sfnode.tasks.encoding import Encoded, Prior, encode, unlabelled
from sfnode.tasks.prompts import Row
from sfprotocol.seeds import balanced_rows, batch_rows, update_seeds
from tests.engine.helpers import SHARED

SIZE = 4
FILES = {"agnews": ("agnews/train.tsv", "agnews/test.tsv"), "sst2": ("sst2/train.tsv", "sst2/dev.tsv")}

VARIANTS = {
    "balanced": "all classes, less the mini-batch's means",
    "alone": "one class, less the mini-batch's means",
    "2 references": "one class, less the means of 2 unlabelled rows",
    "4 references": "one class, less the means of 4 unlabelled rows",
    "8 references": "one class, less the means of 8 unlabelled rows",
    "prior": "one class, less the base model's prior",
    "two classes": "two classes, less the mini-batch's means",
    "two classes, 4 references": "two classes, less the means of 4 unlabelled rows",
    "plain": "any rows, as they are",
}


class Probe:
    """Gradients of mini-batches of one task at the base model."""

    def __init__(self, name: str, seed: int) -> None:
        train, test = (str(SHARED / "data" / path) for path in FILES[name])
        model = str(SHARED / "models" / "opt-mini-sst")
        of = Problem(model=model, task=name, train=train, test=test, objective="centred", test_rows=40)
        cell = Cell(problem=of, network=CellNetwork(clients=1), seed=seed)
        self.loaded = problem.load(cell, Place())
        self.task, self.rows = self.loaded.task, self.loaded.shards[0]
        self.of = ModelProblem(
            self.loaded.loaded, self.task, self.loaded.shards, self.loaded.held_out, SIZE, seed
        )
        self.of._place(self.of.start())
        classes = range(len(self.task.verbalizer))
        self.classes = [[row for row in self.rows if prompts.class_of(self.task, row) == k] for k in classes]

    def prior(self) -> Prior:
        """The base model's prior."""
        tokenizer = self.loaded.loaded.tokenizer
        return calibration.prior(self.task, tokenizer, self.loaded.public, self.loaded.score, 32)

    def gradient(
        self, rows: Sequence[Row], references: Sequence[Row] = (), prior: Prior | None = None
    ) -> Tensor:
        """The gradient of the mean loss, (P,); with `prior` of scores less that and no means."""
        task = self.task if prior is None else self.task.model_copy(update={"loss": "plain"})
        batch: Any = encode(task, self.loaded.loaded.tokenizer, rows, unlabelled(task, references))
        self.of._gradient.zero_()
        self.of._losses(_Shifted(batch, prior) if prior is not None else batch).mean().backward()
        return self.of._gradient.clone()

    def reference(self) -> Tensor:
        """The gradient on 384 balanced rows."""
        parts = []
        for part in range(6):
            turns = range(64 * part, 64 * (part + 1))
            chosen = [self.classes[k % len(self.classes)] for k in turns]
            rows = [one[k // len(self.classes) % len(one)] for one, k in zip(chosen, turns, strict=True)]
            parts.append(self.gradient(rows))
        return torch.stack(parts).mean(0)

    def draw(self, variant: str, seed: int, turn: int) -> tuple[list[Row], list[Row]]:
        """The rows of a mini-batch, and its references."""
        if variant == "plain":
            return [self.rows[row] for row in batch_rows(seed, SIZE, len(self.rows))], []
        count = len(self.classes)
        present = {"balanced": count, "two": 2}.get(variant.split()[0], 1)
        sizes = [len(one) if (k - turn) % count < present else 0 for k, one in enumerate(self.classes)]
        places = zip(*balanced_rows(seed, SIZE, sizes), strict=True)
        references = int(variant.split()[-2]) if variant.endswith("references") else 0
        public = [self.rows[row] for row in batch_rows(seed + 1, references, len(self.rows))]
        return [self.classes[k][place] for k, place in places], public


class _Shifted:
    """A batch whose losses are of scores less a prior."""

    def __init__(self, batch: Encoded, prior: Prior) -> None:
        self._batch, self._prior = batch, prior

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def losses(self, log_probs: Tensor) -> Tensor:
        return self._batch.losses(log_probs, self._prior)


def main() -> None:
    name, seed, batches, *variants = sys.argv[1:]
    probe, seeds = Probe(name, int(seed)), update_seeds(99 + int(seed), 0, int(batches)).tolist()
    prior, reference = probe.prior(), probe.reference()
    size = float(reference.norm())
    print(f"{name}, seed {seed}: the gradient of 384 balanced rows has the norm {size:.3f}")
    for variant in variants or VARIANTS:
        along, squares, forwards = [], [], 0
        shift = {"prior": prior, "plain": 0 * prior}.get(variant)
        for turn, drawn in enumerate(seeds):
            rows, references = probe.draw(variant, drawn, turn)
            gradient = probe.gradient(rows, references, shift)
            along.append(float(gradient @ reference) / size)
            squares.append(float(gradient @ gradient))
            forwards += len(rows) + len(references)
        mean, error, rms = np.mean(along), np.std(along) / len(along) ** 0.5, np.mean(squares) ** 0.5
        worth = mean / rms / (forwards / SIZE / len(along)) ** 0.5
        found = {"signal": mean, "error": error, "rms": rms, "ratio": mean / rms, "per forward": worth}
        print(
            json.dumps({"variant": variant} | {key: round(float(value), 4) for key, value in found.items()})
        )


if __name__ == "__main__":
    main()
