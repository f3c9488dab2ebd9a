"""A model that a test may spoil."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import hostile


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the OPT model to spoil."""
    return hostile.copy(tmp_path / "copy")
