"""Machine and host under any course of events: honest hosts, a hostile peer, and any order of events.

Bytes determine each event. After each event the frontier must equal the disk, everything on disk must be
signed by its origin and applied once, and all tables must keep their bounds. At the end everything works
again. Then all hosts must reach one state with all stored updates, except those that are cut.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.effort import EFFORT, TIMES
from tests.fuzz.steps import course
from tests.fuzz.stories import CELLS


@settings(EFFORT, max_examples=70 * TIMES)
@given(st.binary(max_size=400))
def test_any_course_of_events_comes_to_one_end(data: bytes) -> None:
    """Run a course. hypothesis shortens one that fails."""
    course(data)


@pytest.mark.parametrize("size", [100, 400, 1_600])
def test_courses_of_events_at_random_come_to_one_end(size: int) -> None:
    """Run courses that are longer than those of hypothesis. A failure prints what repeats it."""
    for seed in range(20 * TIMES):
        data = random.Random(f"{size}/{seed}").randbytes(size)
        try:
            course(data)
        except Exception:
            print(f"tests.fuzz.steps.course(bytes.fromhex('{data.hex()}'))")
            raise


@pytest.mark.skipif(CELLS, reason="they are first-order runs")
def test_courses_of_first_order_runs_come_to_one_end() -> None:
    """Run courses in a separate process, because all updates of a process have one form."""
    chosen = f"{Path(__file__)}::{test_courses_of_events_at_random_come_to_one_end.__name__}[100]"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen],
        env=os.environ | {"SFNODE_FUZZ_CELLS": "3"},
        check=True,
        timeout=600,
    )
