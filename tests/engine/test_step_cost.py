"""What a step asks of the processor beside its forward passes: operators, and waits for their results.

A GPU launches each operator by itself, and a wait leaves it idle: small steps are bound by their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sfnode.engine import forward
from sfnode.tasks.encoding import encode
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import ROWS, data_file, manifest, trainer

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
"""Operators for whose result the caller waits."""

OPERATORS_OF_A_TARGET = 9
"""Operators by which a step may exceed plain passes for each target: two products along the direction, its
amount, one sum, and their views. Measured: 9."""

OPERATORS_BESIDE = 60
"""Operators of a step as a whole, such as bringing its rows and amounts to the device. Measured: 50."""


def counted(act: Callable[[], object]) -> Counter[str]:
    """Operators that a call runs, by name."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        act()
    return Counter({one.key: one.count for one in seen.key_averages() if one.key.startswith("aten::")})


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_step_adds_few_operators_and_no_waits_to_its_passes(family: str, tmp_path: Path) -> None:
    run = trainer(manifest(family), data_file(tmp_path), device="cpu")
    seeds = update_seeds(3, 0, 1).tolist()
    rows = encode(run.manifest.task, run.loaded.tokenizer, ROWS[:3])
    run.mini_batch = lambda seed: rows  # type: ignore[method-assign, assignment]

    def plain() -> None:
        with torch.inference_mode():
            batch = forward.batch_of(rows)
            for this in [forward.take(run.loaded, batch, *map(torch.arange, (3, 3)))]:
                forward.log_probs(run.loaded, this, None).cpu()

    run.step(seeds, 0)  # what is made once is made
    step = counted(lambda: run.step(seeds, 0))
    alone = counted(lambda: forward.score(run.loaded, rows))
    print(family, len(run.loaded.sites), step.total(), alone.total())
    print({k: (step[k], alone[k]) for k in step | alone if step[k] != alone[k]})
    print([(w, step[w], alone[w]) for w in WAITS])
    assert 0
