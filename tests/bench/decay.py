"""Measures what a decay does to the loss and to the drift of a run.

    python -m tests.bench.decay [--decays 1 0.99 0.95 0.9] [--seeds 0 1 2] [--updates 6000] [--size 100]
        [--rate 5e-4] [--loss centred] [--search]

The built-in task in one process: every update counts at a constant rate, or with `--search` as the factor and
the next rate of a line search at the end of each epoch say; a subspace for each epoch. Results:
docs/research-log.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.models.manifest_builder import build
from sfnode.organising.evaluation.line_search import LATER_STEP, LineSearch
from sfprotocol.decisions import FACTOR_ONE, RATE_ONE
from sfprotocol.seeds import update_seeds

ORGANISER = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
"""A public key that signs nothing here (RFC 8032, 7.1)."""

QUERIES = 10
ROWS = 400
SEARCHED = 256


def main() -> None:
    """Print loss, accuracy and drift of each run as it goes on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--decays", type=float, nargs="+", default=[1.0, 0.99, 0.95, 0.9])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--loss", choices=["plain", "centred"], default="centred")
    parser.add_argument("--search", action="store_true")
    given = parser.parse_args()
    for seed in given.seeds:
        for decay in given.decays:
            run(given, seed, decay)


def run(given: argparse.Namespace, seed: int, decay: float) -> None:
    """Train once, and print where it was at each quarter."""
    manifest = build(
        {
            "name": f"decay-{seed}",
            "loss": given.loss,
            "organiser": ORGANISER,
            "subspace_epochs": 1,
            "decay": decay,
            "learning_rate": given.rate,
            "update_budget": given.updates,
            "epoch_updates": given.size,
        }
    )
    begun, rate = time.monotonic(), round(given.rate * RATE_ONE)
    with Trainer.load(manifest) as trainer:
        seeds = update_seeds(500 + seed, 0, given.updates)
        epochs = given.updates // given.size
        for epoch in range(epochs):
            made, weight = [], rate
            for first in range(epoch * given.size, (epoch + 1) * given.size, QUERIES):
                part = seeds[first : first + QUERIES]
                said = np.array(trainer.step(part.tolist(), epoch).scalars, np.int64)
                made.append(UpdateBatch(np.full(len(part), epoch), part, said))
                trainer.apply(weighed(made[-1], weight))
            if given.search:
                rate = judge(trainer, made, weight)
            if (epoch + 1) % max(1, epochs // 4) == 0:
                found, drift = trainer.evaluate(ROWS), trainer.drift()
                print(
                    f"decay {decay} seed {seed} epoch {epoch + 1}: loss {found.loss:.4f}, accuracy "
                    f"{found.value:.3f}, distance {drift.distance:.4f}, kl {drift.kl:.5f}, rate "
                    f"{rate / RATE_ONE:.2g}, {time.monotonic() - begun:.0f} s",
                    flush=True,
                )


def judge(trainer: Trainer, made: list[UpdateBatch], weight: int) -> int:
    """Let an epoch count as a line search says, and return the rate of the next one."""
    after = trainer.cores()
    for batch in made:
        trainer.apply(weighed(batch, -weight))
    search = LineSearch(SEARCHED)
    trainer.search(after, search)
    found = search.found
    counted = (weight * round(found.factor * FACTOR_ONE)) >> 12
    for batch in made:
        trainer.apply(weighed(batch, counted))
    step = 1.0 if found.factor == 1 else min(LATER_STEP, max(1 / LATER_STEP, found.factor))
    return round(weight * step)


def weighed(batch: UpdateBatch, weight: int) -> UpdateBatch:
    """Return updates with their scalars times a weight."""
    return UpdateBatch(batch.epochs, batch.seeds, batch.scalars * weight)


if __name__ == "__main__":
    main()
