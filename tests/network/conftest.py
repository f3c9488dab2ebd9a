"""Removes the namespaces that a killed test run has left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import namespaces as network_namespaces


@pytest.fixture(scope="session")
def namespaces() -> Iterator[None]:
    """Skip the tests that need namespaces where there can be none."""
    if reason := network_namespaces.unavailable():
        pytest.skip(reason)
    network_namespaces.sweep()
    yield
    network_namespaces.sweep()
