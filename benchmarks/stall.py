"""Whether training ever waits for the weights: times of all steps over several epochs, with others' updates.

    python benchmarks/stall.py [--model shape:opt-125m] [--dtype float32]

An epoch has a few more steps than the model has matrices, so that every matrix is rebuilt in each epoch. Exit
status 1 if a step took longer than LIMIT median steps: training then stood still for more than two steps.
"""

from __future__ import annotations

import statistics
import sys
import time

import click
import numpy as np
import torch

from sflab.bench import measure, subject
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfprotocol.seeds import update_seeds

LIMIT = 3.0

EPOCHS = 3

OTHERS = 32
"""Number of updates of others that arrive with each step."""

SPARE = 4
"""Number of steps of an epoch beyond those that rebuild a matrix."""


def step(trainer: Trainer, number: int, epoch: int) -> float:
    """Return the seconds of one step, with the application of others' updates before it."""
    start = time.perf_counter()
    incoming = update_seeds(number + 2, 0, OTHERS)
    trainer.apply(UpdateBatch(np.full(OTHERS, epoch), incoming, np.arange(OTHERS) * 7919 % 601 - 300))
    trainer.step([number], epoch)
    return time.perf_counter() - start


@click.command()
@click.option("--model", default="shape:opt-125m")
@click.option("--dtype", default="float32")
def main(model: str, dtype: str) -> None:
    with subject.load_subject(subject.SubjectSpec(source=model, dtype=dtype)) as found:
        trainer = found.trainer()
        matrices = len(trainer.loaded.sites)
        steps = matrices + SPARE
        with measure.undisturbed():
            trainer.step([0], 0)  # warm-up
            taken = [step(trainer, number, number // steps) for number in range(steps * EPOCHS)]
    median, longest = statistics.median(taken), max(taken)
    print(f"{model}, {dtype}, {torch.get_num_threads()} threads, {len(taken)} steps")
    print(f"median {median * 1e3:.1f} ms, longest {longest * 1e3:.1f} ms = {longest / median:.2f} x")
    sys.exit(longest > LIMIT * median)


if __name__ == "__main__":
    main()
