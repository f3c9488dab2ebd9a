"""Clients that are admitted and harm: what they send in place of what they have measured.

All chance follows from an update's seed, and what an attack remembers is what the feed says, so that a
restart goes on with the same scalars. This module knows no model and no organiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sflab.experiments.cell import Cell
from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks.dataset import Row
from sfprotocol.seeds import derive_key

LAZY = 4
"""Updates that a lazy client makes of one measurement."""


def hostile_clients(cell: Cell) -> range:
    """Return the numbers of the hostile clients: the last ones."""
    clients = cell.network.clients
    return range(clients - int(cell.network.hostile * clients), clients)


def shard_of(attack: str, task: Task, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that a hostile client measures on. Raises UserError BAD_OPTION for `target` where rows
    have no classes."""
    if attack != "target":
        return rows
    if not task.labelled:
        raise UserError(
            Code.BAD_OPTION,
            "rows of this task have no classes, and `target` teaches a wrong one",
            "Choose another --attack.",
        )
    label: dict[str, Any] = {task.label_field: next(iter(task.verbalizer))}
    return [{**row, **label} for row in rows]


def scalar_of(cell: Cell, limit: int, sent: Sequence[int], seed: int, measured: int) -> int:
    """Return what a hostile client sends that has `sent` these scalars before; `limit` is the largest."""
    coin = 1 - 2 * (derive_key(b"sfnode simulated attack", seed.to_bytes(8, "big")) & 1)
    match cell.network.attack:
        case "random":
            return coin * abs(measured)
        case "flip":
            return -measured
        case "turncoat":
            return -measured if 2 * len(sent) >= cell.steps else measured
        case "scale":
            return limit if measured < 0 else -limit
        case "noise":
            return coin * limit
        case "constant":
            return sent[0] if sent else measured
        case "lazy":
            return sent[len(sent) // LAZY * LAZY] if len(sent) % LAZY else measured
    return measured
