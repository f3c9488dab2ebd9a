"""They build an image and take many minutes: only `pytest -m containers` (make containers) collects them."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = "containers" in config.getoption("markexpr")
    return None if wanted or not collection_path.name.startswith("test_") else True
