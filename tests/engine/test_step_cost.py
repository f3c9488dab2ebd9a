"""Cost of a step beside that of plain passes, in operators and in waits for their results.

A GPU launches each operator by itself and is idle during a wait, so small steps are bound by these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from sfnode.engine import forward
from sfnode.tasks.encoding import encode
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import ROWS, data_file, manifest, trainer

WAITS = ("aten::_local_scalar_dense", "aten::nonzero")
"""Operators for whose result the caller waits."""

OF_A_TARGET = 12
"""Maximum operators that a step adds for each target, views included: a product along v, its amounts, their
sum with the bias, and a product along u."""

OF_A_STEP = 110
"""Maximum operators that a step adds as a whole: rows and amounts, blocks of logits, losses of both points.
Measured: 261 in all (OPT) and 265 (Llama), each with 14 targets."""

WAITS_OF_A_STEP = 4
"""Waits of a step of one query after its last pass: for the slope, the loss and the rounded epsilon."""


def operators(act: Callable[[], object]) -> Counter[str]:
    """Operators that a call runs, by name."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        act()
    return Counter({one.key: one.count for one in seen.key_averages() if one.key.startswith("aten::")})


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_step_adds_few_operators_to_its_pass_and_waits_only_at_its_end(family: str, tmp_path: Path) -> None:
    run = trainer(manifest(family), data_file(tmp_path), device="cpu")
    rows = encode(run.manifest.task, run.loaded.tokenizer, ROWS[:3])
    seeds = update_seeds(3, 0, 1).tolist()
    run.step(seeds, 0)  # prepares what later steps use again
    step, plain = operators(lambda: run.step(seeds, 0)), operators(lambda: forward.score(run.loaded, rows))
    targets = len(run.loaded.sites)
    assert step["aten::addmm_"] == targets
    assert step.total() - plain.total() <= OF_A_TARGET * targets + OF_A_STEP
    assert sum(step[name] - plain[name] for name in WAITS) <= WAITS_OF_A_STEP
