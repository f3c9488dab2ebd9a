"""A step of virtual clients, compared with the forward passes that it consists of.

    python benchmarks/virtual_clients.py [CLIENTS [MODEL [TASK [TRAIN [TEST]]]]]

The reference scores the same sequences at both points, but without perturbation, in one batch that is cut
into passes as usual. Step and reference take turns in one process. Prints the ratio of their median times,
for clients with equal models, and for clients of which each has updates that others lack. Uses one core.
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
    """Return the seconds of the forward passes of every client's next step."""
    keys = [client.machine.frontier.state(client.own).key for client in run.clients]
    made = [(key, engine.made, engine.shard) for key, engine in zip(keys, run.engine.clients, strict=True)]
    batches = [shard.mini_batch(int(update_seeds(key, first, 1)[0])) for key, first, shard in made]
    loaded = run._problem.loaded
    start = time.perf_counter()
    both = points(batches).batch
    with torch.inference_mode():
        for sequences in forward.passes(loaded, both, np.arange(len(both.input_ids))):
            targets = np.flatnonzero(np.isin(both.sequences, sequences))
            forward.log_probs(loaded, forward.take(loaded, both, sequences, targets), None).cpu()
    return time.perf_counter() - start


def step(run: SeedFlood, number: int) -> float:
    """Return the seconds of a local step, tokenising included, and of the round after it."""
    start = time.perf_counter()
    run.step(number)
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
    for text, hops in (("equal", 0), ("apart", 1)):
        cell = Cell(problem=of, network=CellNetwork(clients=clients, hops=hops), local_steps=1, steps=1000)
        run = SeedFlood(cell, problem.load(cell, Place()))
        reference(run), step(run, 0), step(run, 1)
        pairs = [(reference(run), step(run, n)) for n in range(2, 2 + REPEATS)]
        run.close()
        forwards, steps = (median(column) for column in zip(*pairs, strict=True))
        print(
            f"{clients} clients, {text}: step {steps:.2f} s, its forwards {forwards:.2f} s, "
            f"ratio {steps / forwards:.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
