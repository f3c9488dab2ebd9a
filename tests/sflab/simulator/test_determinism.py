"""One integer determines a whole run."""

from __future__ import annotations

import io
import os
import subprocess
import sys

from sflab.simulator.runner import simulate
from sflab.simulator.scenarios import SCENARIOS

SCRIPT = """
import gc, sys
gc.set_threshold(int(sys.argv[1]))
from sflab.simulator.scenarios import SCENARIOS
from sflab.simulator.runner import simulate
for name, nodes in (("storm", 7), ("equivocation", 5), ("organised", 4)):
    print(simulate(SCENARIOS[name], 7, nodes=nodes, seconds=4).trace_hash)
"""


def hashes(hash_seed: str, threshold: str) -> str:
    """Return the trace hashes of a fresh interpreter, with other hash seeds and other moments of garbage
    collection."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, threshold],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return ended.stdout


def test_a_fresh_interpreter_with_other_hashes_sees_the_same() -> None:
    assert hashes("1", "700") == hashes("2", "5000")


def test_one_seed_gives_one_course_to_the_last_frame() -> None:
    files = io.StringIO(), io.StringIO()
    outcomes = [simulate(SCENARIOS["storm"], 3, nodes=6, seconds=4, trace_file=file) for file in files]
    assert files[0].getvalue() == files[1].getvalue()
    assert outcomes[0].trace_hash == outcomes[1].trace_hash


def test_another_seed_gives_another_course() -> None:
    one, other = (simulate(SCENARIOS["calm"], seed, nodes=4, seconds=2).trace_hash for seed in (1, 2))
    assert one != other
