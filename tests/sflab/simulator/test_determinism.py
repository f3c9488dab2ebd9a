"""One integer determines a whole run."""

from __future__ import annotations

import os
import subprocess
import sys

from sflab.simulator.runner import simulate
from sflab.simulator.scenarios import SCENARIOS

SCRIPT = """
import gc, sys
gc.set_threshold(int(sys.argv[1]))
from tests.sflab.simulator.test_determinism import hashes
print(*hashes())
"""


def hashes() -> list[str]:
    """Return the trace hashes of three runs."""
    runs = (("storm", 7), ("equivocation", 5), ("organised", 4))
    return [simulate(SCENARIOS[name], 7, nodes=nodes, seconds=4).trace_hash for name, nodes in runs]


def test_a_fresh_interpreter_with_other_hashes_sees_the_same() -> None:
    """It also collects garbage at other moments."""
    seed = next(seed for seed in ("1", "2") if seed != os.environ.get("PYTHONHASHSEED"))
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, "5000"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert ended.stdout.split() == hashes()


def test_another_seed_gives_another_course() -> None:
    one, other = (simulate(SCENARIOS["calm"], seed, nodes=4, seconds=2).trace_hash for seed in (1, 2))
    assert one != other
