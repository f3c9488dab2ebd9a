"""Tests of runs of protocol 1: they can be verified, measured and exported, but not trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.manifest.training import Training
from sfnode.preparing.manifest import build
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from tests.cli.helpers import Run
from tests.store.helpers import Author

OLD = build({"loss": "plain"}).model_copy(
    update={
        "protocol": 1,
        "training": Training(
            learning_rate=1e-3,
            schedule="cosine",
            batch_size=8,
            epoch_updates=250,
            update_budget=3000,
            scalar_limit=96,
        ),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the folder of a node with five updates, for the run that `sfnode init` described in version 1."""
    layout, author = Layout(tmp_path / "node"), Author(1, 0, OLD.run_id)
    layout.path.mkdir()
    layout.manifest.write_text(OLD.to_toml())
    with UpdateLog.open(layout.log, OLD.run_id) as log:
        log.append([author.write([5, -96, 33], 0), author.write([7, 8], 1)])
    return layout.path


def test_it_verifies_to_the_digests_that_version_1_gave(folder: Path, sfnode: Run) -> None:
    found = json.loads(sfnode("verify", "--data-dir", folder, "--json").out)
    assert found["run_id"] == "2a4a45a0e5f342c66a97835db49204859b26d9435ed555bde6acebc0027607dc"
    assert found["digest"] == "8e68b87e27712fe8f979061f1284b37af8564ee83d073eec5d39d34cae9af35c"
    assert found["core_digest"] == "740ecefb91f41a0089c36ca59754261da20a88e097b05ee04e1ae59d34275bb8"


def test_its_model_can_be_measured_and_exported(folder: Path, sfnode: Run, tmp_path: Path) -> None:
    sfnode("eval", "--data-dir", folder, "--test-limit", 10, "--json").done()
    assert sfnode("export", "--out", tmp_path / "out", "--data-dir", folder).status == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_no_swarm_trains_it_further(folder: Path, sfnode: Run) -> None:
    sfnode("swarm", "--run", Layout(folder).manifest).failed("sfnode: SF016: ", "sfnode export")
