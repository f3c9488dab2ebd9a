"""Whole nodes for these tests."""

from __future__ import annotations

import pytest

from tests.node.fixtures import no_complaints_of_asyncio, quick, quicken_downloads, swarm, swarm_of

__all__ = ["no_complaints_of_asyncio", "quick", "swarm", "swarm_of"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken_downloads(monkeypatch)
