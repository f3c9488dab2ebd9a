"""Fixture of tests that need network namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import namespaces as network_namespaces


@pytest.fixture(scope="session")
def namespaces() -> Iterator[None]:
    """Skip tests that need namespaces if none can be made here. Before and after the tests, remove namespaces
    that a killed test run has left."""
    if reason := network_namespaces.unavailable():
        pytest.skip(reason)
    network_namespaces.sweep()
    yield
    network_namespaces.sweep()
