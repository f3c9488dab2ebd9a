"""Everything follows from one integer."""

from __future__ import annotations

import io
import os
import subprocess
import sys

from sflab.sim.runner import simulate
from sflab.sim.scenarios import SCENARIOS

SCRIPT = """
from sflab.sim.runner import simulate
from sflab.sim.scenarios import SCENARIOS
for name in ("storm", "equivocation"):
    print(simulate(SCENARIOS[name], 7, nodes=8, seconds=4).trace_hash)
"""


def hashes(hash_seed: str) -> str:
    """As a fresh interpreter has them."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return ended.stdout


def test_a_fresh_interpreter_with_other_hashes_sees_the_same() -> None:
    assert hashes("1") == hashes("2")


def test_one_seed_gives_one_course_to_the_last_frame() -> None:
    files = io.StringIO(), io.StringIO()
    outcomes = [simulate(SCENARIOS["storm"], 3, nodes=8, seconds=4, trace_file=file) for file in files]
    assert files[0].getvalue() == files[1].getvalue()
    assert outcomes[0].trace_hash == outcomes[1].trace_hash


def test_another_seed_gives_another_course() -> None:
    one, other = (simulate(SCENARIOS["calm"], seed, nodes=6, seconds=3).trace_hash for seed in (1, 2))
    assert one != other
