"""A node that uses up what is left of a run's budget at once, and leaves.

An ordinary node but for its engine, which evaluates nothing and says 1. So a test ends a run when it has seen
what it wanted to see, however fast the machine is, and may then ask for equal digests. It runs in the process
of the test, where torch is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from sfnode.config import Manifest, NodeSettings
from sfnode.engine.core import Core, UpdateBatch
from sfnode.runtime.node import run
from sfnode.runtime.worker import Evaluation
from sfnode.store.datadir import DataDir
from sfnode.transport.hivemind import HivemindSettings, HivemindTransport


class Outcome(NamedTuple):
    """What one order yields."""

    scalars: tuple[int, ...]
    loss: float = 0.0


class Ones:
    """An engine that finds the same slope everywhere."""

    def __init__(self, settings: NodeSettings, manifest: Manifest) -> None:
        self.core = Core(len(manifest.model.targets), manifest.training.rank)

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)

    def prepare(self, seeds: Sequence[int]) -> None:
        """It has nothing to tokenise."""

    def use_threads(self, count: int | None, most: int | None) -> None:
        """It has none."""

    def step(self, seeds: Sequence[int], epoch: int) -> Outcome:
        return Outcome((1,) * len(seeds))

    def evaluate(self, limit: int, wanted: Callable[[], bool]) -> Evaluation:
        raise NotImplementedError("nobody asks it how good the model is")

    evaluate_base = evaluate


def transport(settings: NodeSettings, folder: DataDir, bootstrap: tuple[str, ...]) -> HivemindTransport:
    return HivemindTransport(
        HivemindSettings(
            identity_path=folder.libp2p_identity, bootstrap=bootstrap, host_maddrs=settings.host_maddrs
        )
    )


def complete_run(folder: Path, address: str) -> None:
    """Join through the node at `address`, and return when the run is complete and the neighbours agree."""
    host = "127.0.0.1" if "/127.0.0.1/" in address else "0.0.0.0"
    settings = NodeSettings(
        data_dir=folder,
        peers=(address,),
        host_maddrs=(f"/ip4/{host}/tcp/0",),
        queries=64,
        until_complete=True,
    )
    uvloop.run(run(settings, transport, lambda node: None, Ones))
