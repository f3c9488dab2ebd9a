"""What two replicas on the CPU do together, beside one with as many threads as a replica has, or with all.

    python tests/bench/replicas.py [--model shape:opt-125m] [--devices cpu,cpu] [--batch 4] [--threads 2]
    python tests/bench/replicas.py --divide

The measuring is that of `sfnode bench --device cpu,cpu`, without the rest of what it measures. By the clock:
what other programs take of the machine counts. `--divide` measures nothing: it says for what share of a step
devices work and do not wait for each other, by the number of batches, if those differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np
import torch
from rich.console import Console

from sflab.bench import runner
from sflab.bench.subject import SubjectSpec, load_subject
from sflab.cli import bench
from sfnode.engine.replicas import divide

SPREAD = 0.25
"""Standard deviation of the time of a batch, as a share of its mean."""

STEPS = 2000
"""Steps that are simulated."""


def working(costs: Sequence[int], batches: int) -> float:
    """Return the time that a step takes with all devices at work all the time, by that which it takes."""
    random = np.random.default_rng(1)
    sigma = np.sqrt(np.log1p(SPREAD**2))
    lengths = random.lognormal(-(sigma**2) / 2, sigma, (STEPS, batches))  # of mean 1
    parts = np.split(lengths, np.cumsum(divide(batches, costs))[:-1], axis=1)
    taken = np.max([cost * part.sum(1) for cost, part in zip(costs, parts, strict=True)], axis=0)
    return float(STEPS * batches / sum(1 / cost for cost in costs) / taken.sum())


@click.command()
@click.option("--model", default="shape:opt-125m", show_default=True)
@click.option("--devices", default="cpu,cpu", show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--queries", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True, help="CPU threads of all replicas together.")
@click.option("--repetitions", default=9, show_default=True)
@click.option("--divide", "dividing", is_flag=True, help="Simulate how steps are divided instead.")
def main(
    model: str, devices: str, batch: int, queries: int, threads: int, repetitions: int, dividing: bool
) -> None:
    """Print how fast all devices are, and how many times as fast as each alone."""
    if dividing:
        for costs in ([1, 1], [1] * 4, [1] * 8, [1, 2]):
            shares = (f"{each} {working(costs, each * len(costs)):.2f}" for each in (1, 2, 4, 8))
            click.echo(f"times of a batch {costs}; batches for each device, share: {', '.join(shares)}")
        return
    spec = SubjectSpec(source=model, device=devices)
    torch.set_num_threads(threads)
    with load_subject(spec) as subject:
        found = runner.measure_together(spec, subject, [batch], queries, repetitions)
    Console().print(bench.together(found))


if __name__ == "__main__":
    main()
