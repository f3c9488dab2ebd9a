"""Small cells on the built-in model, and the updates on their clients' disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sflab.experiments import problem
from sflab.experiments.cell import Cell, CellNetwork, Place, Problem
from sflab.experiments.seedflood import ClientComputer, SeedFlood
from sfnode.engine.trainer import Trainer
from sfprotocol.seeds import I64

PROBLEM = Problem(rows=96, validation_rows=32, test_rows=64)


def small(
    *, network: dict[str, Any] | None = None, problem: dict[str, Any] | None = None, **fields: Any
) -> Cell:
    """Return a cell of 4 clients that takes a second."""
    given = {"steps": 8, "local_steps": 2, "batch_size": 3, "rank": 4, "refresh": 3, "learning_rate": 2e-3}
    return Cell(
        problem=PROBLEM.model_copy(update=problem or {}),
        network=CellNetwork(**{"clients": 4, **(network or {})}),
        **{**given, **fields},
    )


@contextmanager
def running(cell: Cell, log: Path | None = None) -> Iterator[SeedFlood]:
    """Yield SeedFlood before its first step."""
    run = SeedFlood(cell, problem.load(cell, Place()), log)
    try:
        yield run
    finally:
        run.close()


def advance(run: SeedFlood, cell: Cell, first: int, stop: int) -> None:
    """Take these local steps, with communication."""
    for number in range(first, stop):
        run.step(number)
        if (number + 1) % cell.local_steps == 0 or number + 1 == cell.steps:
            run.communicate(number)


def told(client: ClientComputer, of: ClientComputer) -> list[tuple[int, int]]:
    """Return the labels and scalars of one client's feed on another client's disk."""
    feed = of.machine.own
    assert feed
    segment = client.disk.read(feed, 0, 1 << 10)
    return [(part.epoch, scalar) for part in segment.parts for scalar in part.scalars] if segment else []


def has(run: SeedFlood) -> list[list[int]]:
    """Return the number of updates of each client on each client's disk."""
    return [[len(told(client, of)) for of in run.clients] for client in run.clients]


def node_of(cell: Cell, client: int, cores: Mapping[int, I64]) -> Trainer:
    """Return a node's engine with the shard of one client and these cores."""
    loaded = problem.load(cell, Place())
    node = Trainer(loaded.manifest, loaded.loaded, loaded.shards[client])
    node.begin(cores)
    return node
