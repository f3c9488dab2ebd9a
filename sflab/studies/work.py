"""The work that a cell takes, in example-forwards, from its description alone.

A forward pass of one example counts 1 and a backward pass 2; so a two-point estimate costs 2 for each row of
its mini-batch, a group of updates as many as it has, a gradient 3. This estimates before a run; what was
spent is among the end values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sflab.baselines import registry
from sflab.experiments.cell import Cell

TWO_POINT = 2
GRADIENT = 3

SEEDFLOOD_SPEED, ZEROTH_SPEED, FIRST_SPEED = 400, 100, 140
"""Example-forwards a second of one core with opt-mini-sst on sentences of SST-2, measured: of virtual
clients, whose perturbations share a pass, and of baselines, each of whose clients has weights of its own."""

EVALUATION_SPEED = 500

TEST_ROWS = 1000
"""Rows that are assumed to be tested on where a cell tests on all that there are."""


def first_order(method: str) -> bool:
    """Return whether a method takes gradients; if not, it takes two-point estimates."""
    baseline = registry.METHODS.get(method)
    return baseline is not None and baseline.first_order


def training_work(cell: Cell) -> int:
    """Return the example-forwards of a cell's training steps."""
    each = GRADIENT if first_order(cell.method) else cell.group or TWO_POINT
    return each * cell.network.clients * cell.steps * cell.batch_size


def evaluation_work(cell: Cell) -> int:
    """Return the rows that a cell evaluates: untrained and trained on all, in between on validation rows."""
    problem = cell.problem
    between = (cell.steps - 1) // cell.evaluate_every if cell.evaluate_every else 0
    return 2 * (problem.test_rows or TEST_ROWS) + (2 + between) * problem.validation_rows


def work(cell: Cell) -> int:
    """Return the example-forwards of a cell, evaluations included."""
    return training_work(cell) + evaluation_work(cell)


def total(cells: Iterable[Cell]) -> int:
    """Return the example-forwards of some cells."""
    return sum(work(cell) for cell in cells)


def core_seconds(cell: Cell) -> float:
    """Estimate the seconds of one core that a cell takes with opt-mini-sst; larger models take longer."""
    if cell.method not in registry.METHODS:
        speed = SEEDFLOOD_SPEED
    else:
        speed = FIRST_SPEED if first_order(cell.method) else ZEROTH_SPEED
    return training_work(cell) / speed + evaluation_work(cell) / EVALUATION_SPEED


def estimate(cells: Sequence[Cell], workers: int) -> float:
    """Estimate the seconds that cells take with so many workers, for opt-mini-sst."""
    return sum(core_seconds(cell) for cell in cells) / workers
