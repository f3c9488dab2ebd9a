"""Small cells on the built-in model, and what their clients hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from sflab.experiments import problem
from sflab.experiments.cell import Cell, CellNetwork, Place, Problem
from sflab.experiments.seedflood import SeedFlood
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfprotocol.seeds import update_seeds

PROBLEM = Problem(rows=96, validation_rows=32, test_rows=64)


def small(
    *, network: dict[str, Any] | None = None, problem: dict[str, Any] | None = None, **fields: Any
) -> Cell:
    """A cell of 4 clients that takes a fraction of a second."""
    given = {"steps": 8, "local_steps": 2, "batch_size": 3, "rank": 4, "refresh": 3, "learning_rate": 2e-3}
    return Cell(
        problem=PROBLEM.model_copy(update=problem or {}),
        network=CellNetwork(**{"clients": 4, **(network or {})}),
        **{**given, **fields},
    )


def method(cell: Cell) -> SeedFlood:
    return SeedFlood(cell, problem.load(cell, Place()))


def advance(run: SeedFlood, cell: Cell, first: int, stop: int) -> None:
    """Take these local steps, with communication."""
    for number in range(first, stop):
        run.step(number)
        if (number + 1) % cell.local_steps == 0 or number + 1 == cell.steps:
            run.communicate(number)


def held(run: SeedFlood, client: int) -> UpdateBatch:
    """All updates that a client has, as a node's engine takes them."""
    weight = run.run.rate if run.run.organised else 1
    stops = run.has()[client].tolist()
    told = list(zip(run.feeds, stops, strict=True))
    return UpdateBatch(
        np.array([run.run.subspace_of(e) for feed, stop in told for e in feed.labels[:stop]], np.int64),
        np.concatenate([update_seeds(feed.key, 0, stop) for feed, stop in told]),
        np.array([scalar * weight for feed, stop in told for scalar in feed.scalars[:stop]], np.int64),
    )


def node_of(cell: Cell, client: int) -> Trainer:
    """A node's engine in the place of one client, with its shard."""
    loaded = problem.load(cell, Place())
    return Trainer(loaded.manifest, loaded.loaded, loaded.shards[client])
