"""A node that uses up the rest of a run's update budget at once, and leaves.

Its engine measures nothing and returns 1 for every update. In all else it is an ordinary node. With it, a
test can complete a run as soon as it has checked enough, on fast and slow machines, and compare digests. The
node runs in the test's process, where torch is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop

from sfnode.daemon import Node
from sfnode.engine.core import Core, UpdateBatch
from sfnode.manifest import Manifest
from sfnode.node import readiness
from sfnode.schema.measurements import Evaluation
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir
from sfnode.transport.libp2p.transport import HivemindSettings, HivemindTransport

SETTLED = 0.5
"""Seconds without an update after which the node leaves. They can be few, because all neighbours are on this
machine."""


class Outcome(NamedTuple):
    """Result of one step."""

    scalars: tuple[int, ...]
    loss: float = 0.0
    failed: int = 0


class NothingToPrepare:
    """Stand-in for the mini-batches of an engine without data."""

    def prepare(self, seeds: Sequence[int]) -> None:
        pass


class Ones:
    """An engine that returns 1 for every update."""

    def __init__(self, settings: Settings, manifest: Manifest) -> None:
        self.core = Core(*manifest.core_shape)
        self.mini_batches = NothingToPrepare()
        self.devices = ()

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Do nothing: this engine has no threads."""

    def step(self, seeds: Sequence[int], epoch: int, rate: object = None) -> Outcome:
        return Outcome((1,) * len(seeds))

    def evaluate(self, limit: int, wanted: Callable[[], bool]) -> Evaluation:
        raise NotImplementedError("it has no model to evaluate")

    evaluate_base = evaluate


def transport(settings: Settings, folder: DataDir, bootstrap: tuple[str, ...]) -> HivemindTransport:
    return HivemindTransport(
        HivemindSettings(
            identity_path=folder.libp2p_identity, bootstrap=bootstrap, host_maddrs=settings.host_maddrs
        )
    )


def complete_run(folder: Path, address: str) -> None:
    """Join through the node at `address`. Return when the run is complete and the neighbours have the same
    state."""
    host = "127.0.0.1" if "/127.0.0.1/" in address else "0.0.0.0"
    settings = Settings(
        data_dir=folder,
        peers=(address,),
        host_maddrs=(f"/ip4/{host}/tcp/0",),
        queries=64,
        samples=0,
        until_complete=True,
    )

    async def live() -> None:
        async with Node(settings, make_transport=transport, load_engine=Ones) as node:
            await node.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readiness, "SETTLE_TIME", SETTLED)
        uvloop.run(live())
