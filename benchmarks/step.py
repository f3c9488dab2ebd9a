"""Cost of a step relative to two plain forward passes and to MeZO's step, compared with limits.

    python -m benchmarks.step [--model mini] [--model shape:opt-125m] [--batch 4] [--repetitions 15]

Measures and prints tables as `sfnode lab bench --compare mezo` does, on three models: `mini` (opt-mini-sst of
../shared with SST-2 sentences), and the shapes of OPT-125M and of a Llama of that size, with sentences of 32
random tokens. `--model real` is the model of scripts/real_model.py. OMP_NUM_THREADS sets the number of
threads. Exit status 1 if a cost exceeds its limit below. The engine was built to keep these limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
import torch
from rich.console import Console

from benchmarks.subjects import MINI, wanted
from sflab.bench.runner import BenchPlan, run_benchmark
from sflab.cli import bench
from sfnode.manifest.training import Training
from sfnode.schema.results import BatchResult, BenchResult

SMALL_OPT = "shape:opt-125m"
MODELS = (MINI, SMALL_OPT, "shape:llama-160m")

STEP_LIMITS = {1: 1.00, 4: 1.00, 16: 1.05}
"""Maximum ratio of the time of a step to that of two forward passes, keyed by batch size."""

MEZO_LIMITS = {4: 9.0, 16: 2.8}
"""Minimum ratio of the time of MeZO's step, on all parameters of OPT-125M's shape, to that of ours; keyed by
batch size."""

MEMORY_LIMIT = 1.10
"""Maximum ratio of the memory of a step to that of inference with twice as many rows."""

USUAL_BATCH = Training().batch_size

INCOMING_LIMITS = {1024: 0.03}
"""Maximum share of the time, with steps of the usual batch size, that others' updates take; keyed by the
number of updates per step. It does not apply to `mini`, whose steps are so short that the core's work, which
is the same for all models, is a larger share."""


def misses(result: BenchResult) -> Iterator[str]:
    """Yield a line for each figure that misses its limit."""
    for batch in result.batches:
        yield from _batch_misses(result.model, batch)
    for incoming in result.incoming if result.model.startswith("shape:") else []:
        share = incoming.shares.get(USUAL_BATCH, 0.0)
        if share > INCOMING_LIMITS.get(incoming.updates, 1.0):
            yield f"{result.model}: {incoming.updates} updates take {share:.1%} of a step"


def _batch_misses(name: str, batch: BatchResult) -> Iterator[str]:
    where = f"{name}, batch {batch.batch}"
    if batch.step_ratio > STEP_LIMITS.get(batch.batch, 1e9):
        yield f"{where}: a step takes {batch.step_ratio:.3f} times two forward passes"
    if name == SMALL_OPT and (batch.mezo_all_ratio or 0) < MEZO_LIMITS.get(batch.batch, 0):
        yield f"{where}: MeZO's step takes only {batch.mezo_all_ratio:.1f} times ours"
    if (batch.memory_ratio or 0) > MEMORY_LIMIT:
        yield f"{where}: training takes {batch.memory_ratio:.2f} times the memory of inference"


@click.command()
@click.option("--model", "names", multiple=True, default=MODELS)
@click.option("--batch", "sizes", type=int, multiple=True, default=tuple(STEP_LIMITS))
@click.option("--repetitions", type=int, default=15)
def main(names: Sequence[str], sizes: Sequence[int], repetitions: int) -> None:
    missed: list[str] = []
    for name in names:
        plan = BenchPlan(sizes, 1, True, repetitions, torch.get_num_threads())
        result = run_benchmark(wanted(name), plan, lambda what: None)
        bench.show(result, Console())
        missed += misses(result)
    print("\n".join(missed) or "everything within its limits")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
