"""A step of virtual clients against the forwards that it consists of.

    python benchmarks/virtual_clients.py [CLIENTS [MODEL [TASK [TRAIN [TEST]]]]]

The reference scores the same sequences at both points without any perturbation, in one batch that is cut into
passes as always. Both are measured in turns, in one run; the ratio of medians is printed for clients whose
models are equal, and for clients that have updates which the others lack. One core.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from sflab.experiments import problem
from sflab.experiments.cell import Cell, CellNetwork, Place, Problem
from sflab.experiments.seedflood import SeedFlood
from sfnode.engine import forward
from sfnode.engine.estimator import points
from sfprotocol.seeds import update_seeds

SHARED = Path(__file__).parents[2] / "shared"
REPEATS = 3


def reference(run: SeedFlood) -> float:
    """Seconds of the forwards of every client's next step."""
    seeds = [int(update_seeds(feed.key, feed.made, 1)[0]) for feed in run.feeds]
    batches = [shard.mini_batch(seed) for shard, seed in zip(run._shards, seeds, strict=True)]
    loaded = run.replicas.loaded
    start = time.perf_counter()
    both = points(batches).batch
    with torch.inference_mode():
        for sequences in forward.passes(loaded, both, np.arange(len(both.input_ids))):
            targets = np.flatnonzero(np.isin(both.sequences, sequences))
            forward.log_probs(loaded, forward.take(loaded, both, sequences, targets), None).cpu()
    return time.perf_counter() - start


def step(run: SeedFlood, number: int, *, communicate: bool) -> float:
    """Seconds of a local step, with tokenising and all, and of the round after it."""
    start = time.perf_counter()
    run.step(number)
    if communicate:
        run.communicate(number)
    return time.perf_counter() - start


def main(arguments: list[str]) -> None:
    """Print the ratios."""
    given = dict(zip(("clients", "model", "task", "train", "test"), arguments, strict=False))
    clients = int(given.pop("clients", 128))
    mini, data = SHARED / "models" / "opt-mini-sst", SHARED / "data" / "sst2"
    usual = {
        "model": str(mini),
        "task": "sst2",
        "train": str(data / "train.tsv"),
        "test": str(data / "test.tsv"),
    }
    of = Problem(**(given or usual), rows=8 * clients, validation_rows=0, test_rows=50)  # type: ignore[arg-type]
    for text, local_steps in (("equal", 1), ("apart", 1000)):
        cell = Cell(problem=of, network=CellNetwork(clients=clients), local_steps=local_steps, steps=1000)
        run = SeedFlood(cell, problem.load(cell, Place()))
        reference(run), step(run, 0, communicate=local_steps == 1)
        pairs = [(reference(run), step(run, n, communicate=local_steps == 1)) for n in range(1, 1 + REPEATS)]
        forwards, steps = (median(column) for column in zip(*pairs, strict=True))
        print(
            f"{clients} clients, {text}: step {steps:.2f} s, its forwards {forwards:.2f} s, "
            f"ratio {steps / forwards:.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
