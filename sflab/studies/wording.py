"""Words for a cell and for its failure: the same on a screen and in a report."""

from __future__ import annotations

from sflab.experiments.cell import Cell
from sflab.studies.comparisons import label


def describe(cell: Cell) -> str:
    """Say in a line what a cell is."""
    network, problem = cell.network, cell.problem
    said = [label(cell.method), problem.task, f"{network.clients} clients", network.topology]
    said += [f"{network.hops} hops"] if network.hops else []
    said += [f"Dirichlet {problem.dirichlet:g}"] if problem.dirichlet else []
    return ", ".join(
        [
            *said,
            f"rank {cell.rank}",
            f"rate {cell.learning_rate:.2g}",
            f"seed {cell.seed}",
            f"cell {cell.name}",
        ]
    )


def short(failure: str) -> str:
    """Return the line of a failure that says what happened: the last of a traceback, else the first."""
    lines = failure.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()
