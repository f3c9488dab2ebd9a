"""Measures the cost of local noise in accuracy, and the privacy that it gives as (epsilon, delta).

    python -m benchmarks.noise --noise 0.5 [--clip 1] [--updates 2000] [--seeds 0 1 2]
        [--nodes 4] [--rows 512]

Trains the built-in task in one process, with noise in every update. Epsilon is that of one node, if `--nodes`
nodes share the updates and each has `--rows` rows of its own. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import LocalNoise
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.node import accounting
from sfnode.preparing.manifest import build
from sfprotocol.seeds import update_seeds

QUERIES = 8


def main() -> None:
    """Print accuracy and loss of each seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--loss", choices=["plain", "centred"], default="plain")
    given = parser.parse_args()
    for seed in given.seeds:
        noise = LocalNoise(given.noise, given.clip, np.random.default_rng(seed).normal)
        run = build({"loss": given.loss, "update_budget": given.updates})
        size, subspace_of = run.training.epoch_updates, run.parameters().subspace_of
        with Trainer.load(run, noise=noise if given.noise else None) as trainer:
            drawn, _ = trainer.odds
            seeds = update_seeds(500 + seed, 0, given.updates).tolist()
            for first in range(0, given.updates, QUERIES):
                part, label = seeds[first : first + QUERIES], first // size
                said = np.array(trainer.step(part, label).scalars, np.int64)
                labels = np.full(len(part), subspace_of(label))
                trainer.apply(UpdateBatch(labels, np.array(part, np.uint64), said))
            found = trainer.evaluate(400)
        print(f"seed {seed}: accuracy {found.value:.3f}, loss {found.loss:.3f}", flush=True)
    try:
        spent = accounting.epsilon(given.noise, drawn, given.rows, given.updates // given.nodes)
    except UserError as error:
        print(error)
    else:
        print(f"epsilon {spent:.2f} at delta {accounting.DELTA:g}")


if __name__ == "__main__":
    main()
