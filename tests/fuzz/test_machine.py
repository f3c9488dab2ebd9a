"""Machine and host under any course of events: honest hosts, a hostile peer, and any order of events.

Bytes determine each event. After each event the frontier must equal the disk, everything on disk must be
signed by its origin and applied once, and all tables must keep their bounds. At the end everything works
again. Then all hosts must reach one state with all stored updates, except those that are cut.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.effort import EFFORT, TIMES
from tests.fuzz.steps import course, courses
from tests.fuzz.stories import CELLS


@settings(EFFORT, max_examples=40 * TIMES)
@given(st.binary(max_size=400))
def test_any_course_of_events_comes_to_one_end(data: bytes) -> None:
    """Run a course. hypothesis shortens one that fails."""
    course(data)


@pytest.mark.parametrize(("size", "count"), [(100, 20), (400, 20), (1_600, 8)])
def test_courses_of_events_at_random_come_to_one_end(size: int, count: int) -> None:
    """Run courses that are longer than those of hypothesis. `test_target` runs more of the longest ones."""
    courses(size, count * TIMES)


@pytest.mark.skipif(CELLS, reason="they are first-order runs")
def test_courses_of_first_order_runs_come_to_one_end() -> None:
    """Run courses in a separate process, because all updates of a process have one form."""
    subprocess.run(
        [sys.executable, "-c", f"from tests.fuzz.steps import courses; courses(100, {20 * TIMES})"],
        env=os.environ | {"SFNODE_FUZZ_CELLS": "3"},
        check=True,
        timeout=600,
    )
