"""All methods by name: SeedFlood with virtual clients, and the baselines on vectors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sflab.baselines import registry
from sflab.baselines.method import Method
from sflab.baselines.model_problem import ModelProblem
from sflab.baselines.setup import Setup
from sflab.experiments import problem
from sflab.experiments.cell import Cell, Place
from sflab.experiments.network import Conditions
from sflab.experiments.problem import LoadedProblem
from sflab.experiments.seedflood import OPTIONS, SeedFlood
from sfnode.errors import Code, UserError

SEEDFLOOD = "seedflood"


class Range(NamedTuple):
    """Values that an option can have, both ends among them."""

    least: float
    most: float
    whole: bool = False


RANGES = {
    "organised": Range(0, 1, whole=True),
    "budget": Range(1, (1 << 32) - 1, whole=True),
    "guard": Range(0, 1, whole=True),
    "search": Range(0, 1, whole=True),
    "renew": Range(0, 1 << 32, whole=True),
    "scalar_bits": Range(8, 16, whole=True),
    "scalar_delta": Range(0, 1 << 32),
    "scalar_limit": Range(1, (1 << 15) - 1, whole=True),
    "segment_updates": Range(0, 1 << 32, whole=True),
    "subspace_epochs": Range(1, 1 << 32, whole=True),
    "keep": Range(0, 1),
    "origins": Range(0, 1, whole=True),
    "gamma": Range(0, 1),
    "outer_rate": Range(0, 1 << 32),
    "momentum": Range(0, 1),
    "weight_decay": Range(0, 1 << 32),
    "threshold": Range(0, 1 << 32),
    "candidates": Range(1, 1 << 24, whole=True),
}
"""Ranges of all options. 2^32 is more than anybody means; 2^24 candidates take 128 MiB."""


def names() -> list[str]:
    """Return the names of all methods."""
    return [SEEDFLOOD, *registry.METHODS]


def check(cell: Cell) -> None:
    """Raise UserError BAD_OPTION for a method, or for an option of it, that there is not, or for a
    value that an option cannot have."""
    if cell.method not in names():
        known = ", ".join(names())
        raise UserError(Code.BAD_OPTION, f"there is no method {cell.method!r}", f"There are {known}.")
    if cell.network.hostile and cell.method != SEEDFLOOD:
        raise UserError(
            Code.BAD_OPTION,
            f"clients of {cell.method} cannot be hostile",
            f"Only those of {SEEDFLOOD} can: leave out --hostile.",
        )
    if cell.group and cell.method != SEEDFLOOD:
        raise UserError(
            Code.BAD_OPTION, f"{cell.method} has no groups", "Leave out --group, or take seedflood."
        )
    has = OPTIONS if cell.method == SEEDFLOOD else registry.METHODS[cell.method].options
    for option in sorted(cell.options.keys() - has):
        known = ", ".join(sorted(has)) or "none"
        raise UserError(Code.BAD_OPTION, f"{cell.method} has no option {option!r}", f"It has {known}.")
    for option, value in sorted(cell.options.items()):
        least, most, whole = RANGES[option]
        if not least <= value <= most or (whole and value != int(value)):
            raise UserError(
                Code.BAD_OPTION,
                f"--option {option}={value:g} cannot be",
                f"Give a {'whole ' if whole else ''}number from {least:,} to {most:,}.",
            )


def make(cell: Cell, place: Place, loaded: LoadedProblem | None = None, log: Path | None = None) -> Method:
    """Make a cell's method, at its beginning; on a problem that was loaded for the cell already, if given.

    `log`: see `SeedFlood`. Raises UserError BAD_OPTION, MODEL_*, DATA_* and DEVICE.
    """
    check(cell)
    if log and cell.method != SEEDFLOOD:
        raise UserError(
            Code.BAD_OPTION,
            f"{cell.method} has no log of updates",
            f"Only {SEEDFLOOD} has one: leave out --write-log.",
        )
    found = loaded or problem.load(cell, place)
    if cell.method == SEEDFLOOD:
        return SeedFlood(cell, found, log)
    baseline = registry.METHODS[cell.method]
    on_vectors = ModelProblem(
        found.loaded,
        found.task,
        found.shards,
        found.held_out,
        cell.batch_size,
        cell.seed,
        baseline.problem,
        cell.rank,
        found.public,
    )
    setup = Setup(
        on_vectors,
        cell.network.clients,
        Conditions(cell.network, cell.seed).edges,
        cell.seed,
        cell.learning_rate,
        cell.epsilon,
        cell.rank,
        cell.local_steps,
        cell.options,
    )
    return registry.make(cell.method, setup)
