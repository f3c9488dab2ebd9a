"""Machine and host under any course of events: honest hosts, a hostile peer, and any order of events.

Bytes say which event comes and how. After each one the frontier is what is on disk, what is on disk was
signed by its origin and applied once, and no table outgrows its bound. In the end, when everything works
again, all hosts reach one state that holds everything that was on some disk, but for what is cut.
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
    """One that fails is made shorter by hypothesis."""
    course(data)


@pytest.mark.parametrize("size", [100, 400, 1_600])
def test_courses_of_events_at_random_come_to_one_end(size: int) -> None:
    """Longer ones than hypothesis writes. What is printed on failure plays the course again."""
    for seed in range(20 * TIMES):
        data = random.Random(f"{size}/{seed}").randbytes(size)
        try:
            course(data)
        except Exception:
            print(f"tests.fuzz.steps.course(bytes.fromhex('{data.hex()}'))")
            raise


@pytest.mark.skipif(CELLS, reason="they are first-order runs")
def test_courses_of_first_order_runs_come_to_one_end() -> None:
    """In a process of its own, as the form of updates is one for all."""
    chosen = f"{Path(__file__)}::{test_courses_of_events_at_random_come_to_one_end.__name__}[100]"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen],
        env=os.environ | {"SFNODE_FUZZ_CELLS": "3"},
        check=True,
        timeout=600,
    )
