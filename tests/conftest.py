"""What concerns all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start processes first: they take longest, and two at a time they finish soonest."""
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)
