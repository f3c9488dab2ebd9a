"""How many seeds each scenario is tried with: few and short by default, SFNODE_SEEDS of full length
otherwise."""

from __future__ import annotations

import os

import pytest

SEEDS = int(os.environ.get("SFNODE_SEEDS", "0"))
"""0: one seed, and a shorter course of everything."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(max(SEEDS, 1)))


@pytest.fixture
def seconds() -> float | None:
    """How long faults last: as the scenario says, or short."""
    return None if SEEDS else 6.0
