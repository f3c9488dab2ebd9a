"""The same updates in real nodes and in the simulator: the same digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from sflab.experiments.cell import CellNetwork
from sflab.experiments.replay import replay
from sfnode.manifest import Manifest
from sfnode.models.manifest_builder import build
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.run_keys import RunKeys
from sfnode.store.verification import verify_log
from sfnode.swarm import local_swarm
from sfnode.swarm.local_swarm import LocalSwarm
from tests.processes.forked import ForkedNode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


async def test_virtual_clients_come_to_the_digests_of_four_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_swarm, "NodeProcess", ForkedNode)
    run = build({**RunKeys.generate().options(), "update_budget": 60, "epoch_updates": 20})
    async with LocalSwarm(run, nodes=4, folder=tmp_path, evaluate=False) as swarm:
        async for _ in swarm:
            pass
    digests = set()
    for node in range(1, 5):
        layout = Layout(tmp_path / f"node-{node}")
        manifest = Manifest.from_toml(layout.manifest)
        with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
            wanted = verify_log(manifest, update_log)
        found = replay(layout.path, CellNetwork(clients=4, hops=1), 0)
        assert wanted.seals
        assert found.updates == wanted.updates
        assert (found.digest, found.core_digest) == (wanted.digest, wanted.core_digest)
        assert found.named_digest == wanted.seals.named_digest
        digests.add((found.named_digest, found.core_digest))
    assert len(digests) == 1
