"""Measures the speed at which updates are applied to an exact core of OPT-1.3B's size: 146 layers, rank 32.

    python benchmarks/apply.py

Targets: 1,024 updates in less than 50 ms, and 80,000 updates (all updates of the SeedFlood paper's run) in
less than 0.5 s. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from sfnode.engine.core import Core, UpdateBatch
from sfprotocol.seeds import update_seeds

LAYERS, RANK, EPOCH = 146, 32, 4096
TARGETS = {1_024: 0.050, 80_000: 0.5}
"""Maximum seconds, keyed by the number of updates."""


def batch(count: int) -> UpdateBatch:
    """Make `count` updates as in a node's replay: sorted by epoch, each with a scalar of ordinary size."""
    numbers = np.arange(count, dtype=np.int64)
    return UpdateBatch(numbers // EPOCH, update_seeds(1, 0, count), numbers * 7919 % 2001 - 1000)


def seconds(count: int, repetitions: int = 5) -> float:
    """Return the median time to apply `count` updates, in seconds, over `repetitions` new cores."""
    updates, taken = batch(count), []
    for _ in range(repetitions):
        core = Core(LAYERS, RANK)
        start = time.perf_counter()
        core.add(updates)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> int:
    missed = 0
    for count, target in TARGETS.items():
        taken = seconds(count)
        missed += taken > target
        print(f"{count:7,} updates: {taken * 1e3:8.1f} ms (target {target * 1e3:,.0f} ms)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
