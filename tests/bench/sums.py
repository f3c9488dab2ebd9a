"""What a reward run of the embedded sums learns, for how much computing.

    python tests/bench/sums.py [--name one --name two] [--nodes 4] [--random-signs] [--set rate=2e-5]

Runs the built-in run `sums` as its nodes would, in one process and without a network: in a round every node
measures a group at the same weights, then all updates count. Printed at the end of each epoch: the CPU time
of measuring and applying (with OMP_NUM_THREADS=1 that of one core), which a busy machine stretches less than
the clock, the mean reward of the answers that were scored, and the share of right answers to the 500 problems
of the test split, which are in no other split and in no text that the model was pretrained on.

With --random-signs the scalars are as large as measured, and their signs are tossed: what comes of the same
budget without what was measured.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models.manifest_builder import build
from sfprotocol.seeds import derive_key, stream, update_seeds


def learn(run: Manifest, nodes: int, *, random_signs: bool) -> float:
    """Print how a run goes; return the share of right answers at its end."""
    numbers = run.training
    spent, done, losses = 0.0, 0, []
    feeds = [derive_key(run.run_id, bytes([node])) for node in range(nodes)]
    with Trainer.load(run) as trainer:
        print(f"{run.name}: untrained {trainer.evaluate().value:.3f}", flush=True)
        found = 0.0
        while done < numbers.update_budget:
            began, epoch = time.process_time(), done // numbers.epoch_updates
            first = done // nodes
            for_all = [update_seeds(feed, first, numbers.group) for feed in feeds]
            steps = [trainer.recompute(seeds.tolist(), epoch) for seeds in for_all]
            scalars = np.array([scalar for step in steps for scalar in step.scalars])
            seeds = np.concatenate(for_all)
            if random_signs:
                scalars = np.where(stream(7, done, len(seeds)) >> np.uint64(63), scalars, -scalars)
            trainer.apply(UpdateBatch(np.full(len(seeds), epoch), seeds, scalars))
            done += len(seeds)
            spent += time.process_time() - began
            losses += [step.loss for step in steps]
            if done // numbers.epoch_updates > epoch:
                answers = done * numbers.update_forwards
                found = trainer.evaluate().value
                print(
                    f"{done:>7,} updates, {answers:>9,} answers, {spent:5.1f} s: "
                    f"reward {1 - np.mean(losses):.3f}, right answers {found:.3f}",
                    flush=True,
                )
                losses = []
    return found


@click.command()
@click.option("--name", "names", multiple=True, default=("one", "two", "three"), help="Name of a run.")
@click.option("--nodes", default=4, help="How many nodes.")
@click.option("--random-signs", is_flag=True, help="Toss the signs of scalars.")
@click.option("--set", "changes", multiple=True, metavar="KEY=NUMBER", help="Change a number of the run.")
def main(names: tuple[str, ...], nodes: int, random_signs: bool, changes: tuple[str, ...]) -> None:
    numbers: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        numbers[key] = float(value) if set(value) & set(".e") else int(value)
    ends = [
        learn(build({"preset": "sums", "name": name} | numbers), nodes, random_signs=random_signs)
        for name in names
    ]
    print(f"right answers at the end: {', '.join(f'{end:.3f}' for end in ends)}")


if __name__ == "__main__":
    main()
