"""What two replicas on the CPU do together, beside one with as many threads as a replica has, or with all.

    python tests/bench/replicas.py [--model shape:opt-125m] [--devices cpu,cpu] [--batch 4] [--threads 2]

The measuring is that of `sfnode bench --device cpu,cpu`, without the rest of what it measures. By the clock:
what other programs take of the machine counts.
"""

from __future__ import annotations

import click
import torch
from rich.console import Console

from sfnode.bench import together
from sfnode.bench.subject import SubjectSpec, load_subject
from sfnode.cli import bench_output


@click.command()
@click.option("--model", default="shape:opt-125m", show_default=True)
@click.option("--devices", default="cpu,cpu", show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--queries", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True, help="CPU threads of all replicas together.")
@click.option("--repetitions", default=9, show_default=True)
def main(model: str, devices: str, batch: int, queries: int, threads: int, repetitions: int) -> None:
    """Print how fast all devices are, and how many times as fast as each alone."""
    spec = SubjectSpec(source=model, device=devices)
    torch.set_num_threads(threads)
    with load_subject(spec) as subject:
        found = together.measure(spec, subject, [batch], queries, repetitions)
    Console().print(bench_output.together(found))


if __name__ == "__main__":
    main()
