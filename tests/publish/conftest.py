"""Fixtures: a run to publish, and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfprotocol.fields import NAMELESS, Names
from tests.cli.conftest import home, sfnode
from tests.publish.runs import HOSTILE, manifest_of, write_run

__all__ = ["home", "sfnode"]

NAMES = (Names("Anneli", "Owls"), HOSTILE, NAMELESS, Names("Zoë", "Owls"))
EPOCHS = 3


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a node that does not run."""
    path = tmp_path_factory.mktemp("published") / "node"
    write_run(path, manifest_of(), NAMES, updates=60, epochs=EPOCHS)
    return path
