"""Number of seeds for each scenario: one short run by default, SFNODE_SEEDS runs of full length otherwise."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import sfnode

__all__ = ["sfnode"]

SEEDS = int(os.environ.get("SFNODE_SEEDS", "0"))
"""Number of seeds at full length; 0: one seed, and short runs."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(max(SEEDS, 1)))


@pytest.fixture
def seconds() -> float | None:
    """Duration of the faults: short, or None for that of the scenario."""
    return None if SEEDS else 6.0
