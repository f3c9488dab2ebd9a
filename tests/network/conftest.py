"""Puts the helpers of tests/processes within reach, and removes what a killed test run has left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import network_world
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))


@pytest.fixture(scope="session")
def namespaces() -> Iterator[None]:
    """Skips the tests that need namespaces where there are none."""
    if reason := network_world.lacking():
        pytest.skip(reason)
    network_world.sweep()
    yield
    network_world.sweep()
