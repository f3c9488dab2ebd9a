"""Published bases among real nodes: fetched from a peer, renewed on the way, and the same model for all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sfnode.manifest import Manifest
from sfnode.models import bases
from sfnode.models.manifest_builder import build
from sfnode.store.data_folder import Layout
from sfnode.store.run_keys import RunKeys
from sfnode.swarm import local_swarm
from sfnode.swarm.local_swarm import LocalSwarm
from tests.processes.forked import ForkedNode
from tests.processes.helpers import here

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def made(run: Manifest, folder: Path, seed: int) -> str:
    """Write bases whose columns are as long as those of random ones; return their digest."""
    draw, rank = np.random.default_rng(seed), run.training.rank

    def side(rows: int) -> bases.I8:
        return np.clip(np.rint(8 * draw.standard_normal((rows, rank))), -127, 127).astype(np.int8)

    targets = run.model.parsed_targets()
    return bases.write(folder, [(side(one.out_features), side(one.in_features)) for one in targets])


async def test_two_nodes_train_with_bases_that_change_and_export_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_swarm, "NodeProcess", ForkedNode)
    options = RunKeys.generate().options() | {"rank": 4, "update_budget": 120, "epoch_updates": 20}
    options |= {"subspace_epochs": 2, "batch_size": 2, "loss": "centred"}
    first = made(build(options), tmp_path, 1)
    run = build(options | {"basis": "published", "bases": first})
    second = made(run, tmp_path / "later", 2)
    async with LocalSwarm(run, nodes=2, folder=tmp_path, evaluate=False, beside=tmp_path) as swarm:
        folders = [tmp_path / f"node-{number}" for number in (1, 2)]
        file = bases.path_in(tmp_path / "later", second)
        assert "1 -> 2" in here("organise", "bases", file, "--data-dir", folders[0])
        async for _ in swarm:
            pass
        assert (await swarm.compare()).equal
    exported = set()
    for folder in folders:
        assert {file.name for file in Layout(folder).bases.iterdir()} == {
            f"{first}.bases",
            f"{second}.bases",
        }
        here("export", "--data-dir", folder, folder / "model")
        exported.add((folder / "model" / "model.safetensors").read_bytes())
        assert "2 of 2 published bases are here" in here("verify", "--data-dir", folder)
    assert len(exported) == 1
    # without the later ones there is no model, and the command says which are lacking
    bases.path_in(Layout(folders[0]).bases, second).unlink()
    with pytest.raises(AssertionError):
        here("export", "--data-dir", folders[0], folders[0] / "again")
    assert not (folders[0] / "again").exists()
    status = json.loads(here("verify", "--data-dir", folders[0], "--json"))
    assert status["core_digest"]
