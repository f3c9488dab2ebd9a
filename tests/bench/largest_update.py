"""Measures what one update does to a model, by how far it moves the weights (result: docs/benchmarks.md).

    python tests/bench/largest_update.py [--run FILE] [--updates COUNT]

Trains in this process (0 updates: not at all), then applies one update more and takes it back: for each size,
the same four updates with either sign.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from sfnode.engine import scalar_limit
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models.manifest_builder import default_manifest
from sfprotocol.seeds import update_seeds

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 9)
"""Sizes of the update, as shares of the weights' root mean square."""
DIRECTIONS = 4
ROWS = 400
QUERIES = 4


def train(run: Trainer, updates: int) -> None:
    """Make the run's first updates."""
    seeds = update_seeds(1, 0, updates)
    for first in range(0, updates, QUERIES):
        own, epoch = seeds[first : first + QUERIES], first // run.manifest.training.epoch_updates
        scalars = np.array(run.step(own.tolist(), epoch).scalars)
        run.apply(UpdateBatch(np.full(len(own), epoch), own, scalars))


def measure(run: Trainer, share: float) -> str:
    """Measure updates of one size; returns a row of the table."""
    scalar = round(share * scalar_limit.typical_weight(run.loaded) / run.scale(0))
    found = []
    for seed in update_seeds(2, 0, DIRECTIONS):
        for sign in (1, -1):
            update = UpdateBatch(np.array([0]), np.array([seed]), np.array([sign * scalar]))
            run.apply(update)
            found.append(run.evaluate(ROWS))
            run.apply(update._replace(scalars=-update.scalars))
    values, losses = [one.value for one in found], [one.loss for one in found]
    figures = (np.mean(values), min(values), np.mean(losses), max(losses))
    return f"| {share:g} | {scalar} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path)
    parser.add_argument("--updates", type=int, default=3000)
    given = parser.parse_args()
    manifest = Manifest.from_toml(given.run) if given.run else default_manifest()
    with Trainer.load(manifest, data=given.run and given.run.parent) as run:
        train(run, given.updates)
        before = run.evaluate(ROWS)
        print("| share | scalar | accuracy | worst | loss | worst |\n|---|---|---|---|---|---|")
        print(f"| 0 | 0 | {before.value:.3f} | | {before.loss:.3f} | |")
        for share in SHARES:
            print(measure(run, share), flush=True)


if __name__ == "__main__":
    main()
