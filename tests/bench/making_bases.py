"""How much more memory making gradient bases takes than inference, and whether that is little enough.

    python tests/bench/making_bases.py [--model shape:opt-125m] [--batch 8] [--rank 1] [--dtype float32]

Inference is one pass over as many sentences of 32 random tokens as a mini-batch has. Peaks are those of the
process beyond what it had before the model was loaded. Exit status 1 beyond the limit.
"""

from __future__ import annotations

import sys
import time

import click

from sflab.bench.subject import SubjectSpec, load_subject
from sfnode.engine import forward, making_bases
from sfnode.resources import memory
from sfnode.sizes import size_text

LIMIT = 1.6
"""At most so many times the memory of inference."""

BATCHES = 4


@click.command
@click.option("--model", default="shape:opt-125m", show_default=True)
@click.option("--batch", default=8, show_default=True)
@click.option("--rank", default=1, show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--device", default="cpu", show_default=True)
def main(model: str, batch: int, rank: int, dtype: str, device: str) -> None:
    with load_subject(SubjectSpec(source=model, dtype=dtype, device=device)) as subject:
        batches = [subject.mini_batch([seed], batch) for seed in range(BATCHES)]
        before = subject.before.resident

        def took(action: object) -> tuple[int, float]:
            start = time.perf_counter()
            found = memory.peak(action, subject.device)  # type: ignore[arg-type]
            return (found or 0) - before, (time.perf_counter() - start) / memory.RUNS

        inference, seconds = took(lambda: forward.score(subject.loaded, batches[0]))
        print(f"{subject.name}: inference {size_text(inference)}, {seconds:.2f} s a mini-batch")
        failed = False
        for name, make in (("gradients", making_bases.gradients), ("activations", making_bases.activations)):
            peak, seconds = took(lambda make=make: make(subject.loaded, batches, rank))
            ratio = peak / inference
            failed = failed or ratio > LIMIT
            print(f"{name}: {size_text(peak)}, {ratio:.2f} x inference, {seconds / BATCHES:.2f} s a batch")
    sys.exit(failed)


if __name__ == "__main__":
    main()
