"""A study: cells to compare, after trials of their learning rates.

A study has two stages. The trials of a tuning differ only in the learning rate. The trial with the least
validation loss gives its rate to the entries of that tuning. While the best rate is at the edge of the grid,
the next rate beyond it is tried. The next cells follow from the study and the results so far. So an
interrupted study continues where it was, and a finished cell is never run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from sflab.baselines import registry
from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.experiments.results import CellResult
from sflab.studies.workers import Pool, run_cells
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Section

PLAN = "study.json"
"""File of the results folder with the study's description."""


class StudyEntry(Section):
    """A cell of a study, and its part of the report."""

    part: str
    cell: Cell
    tuning: int | None = Field(default=None, ge=0)
    """Number of the tuning whose best learning rate replaces the cell's own; None keeps the cell's rate."""
    times: float = Field(default=1.0, gt=0)
    """Factor by which the tuning's rate is multiplied."""

    def at(self, rate: float) -> Cell:
        """Return the cell with a tuning's learning rate."""
        return self.cell.model_copy(update={"learning_rate": rate * self.times})


class Study(Section):
    """Cells to run, in this order."""

    title: str
    command: str
    """Command line of the study."""
    preset: str = ""
    notes: tuple[str, ...] = ()
    """Notes on the choice of cells, for the report."""
    tunings: tuple[tuple[Cell, ...], ...] = ()
    beyond: int = Field(default=0, ge=0)
    """Maximum number of trials beyond the edge of a tuning's grid."""
    entries: tuple[StudyEntry, ...] = ()

    def save(self, folder: Path) -> None:
        """Write the study to its results folder. Raises UserError RESULTS_UNUSABLE, and the errors of
        `results.replace`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(folder, error.strerror or str(error)) from error
        results.replace(folder / PLAN, self.model_dump_json(indent=1) + "\n")

    @model_validator(mode="after")
    def _tunings_exist(self) -> Self:
        if any(one.tuning is not None and one.tuning >= len(self.tunings) for one in self.entries):
            raise ValueError("an entry names a tuning that is not there")
        return self

    @classmethod
    def load(cls, folder: Path) -> Study:
        """Read the description from a results folder. Raises UserError RESULTS_UNUSABLE."""
        try:
            return cls.model_validate_json((folder / PLAN).read_bytes())
        except OSError as error:
            raise unusable(folder, f"{PLAN} cannot be read ({error.strerror})") from error
        except ValidationError as error:
            raise unusable(folder, f"{PLAN} is not a study of this version") from error


def unusable(folder: Path, reason: str) -> UserError:
    """Return the error for a folder that cannot hold results, or has no results of a study."""
    return UserError(
        Code.RESULTS_UNUSABLE,
        f"{folder} cannot be used as the results of a study: {reason}",
        "Name the folder that `sfnode lab simulate paper` has written to, or a new one.",
    )


class StudyProgress(NamedTuple):
    """Progress of a study. Work is counted in example-forwards."""

    done: int
    total: int
    fresh: int
    """Work of this start alone, without that of earlier ones; `done` includes both."""
    cell: Cell
    """Cell that ended last."""
    failure: str
    """Reason why the cell failed; empty if it did not."""


def tried(study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]) -> list[list[Cell]]:
    """Return the trials of each tuning, including those beyond the grid, by ascending learning rate."""
    return [_tried(tuning, found, failed, study.beyond) for tuning in study.tunings]


def _tried(
    tuning: Iterable[Cell], found: Mapping[str, CellResult], failed: Mapping[str, str], most: int
) -> list[Cell]:
    cells = sorted(tuning, key=lambda cell: cell.learning_rate)
    for _ in range(most if len(cells) > 1 else 0):
        best = winner(cells, found, failed)
        if best is cells[0]:
            cells.insert(0, _beyond(cells[1], cells[0]))
        elif best is cells[-1]:
            cells.append(_beyond(cells[-2], cells[-1]))
    return cells


def _beyond(inner: Cell, edge: Cell) -> Cell:
    """Return the next trial beyond `edge`: its rate has the same ratio to `edge` as `edge` to `inner`."""
    rate = edge.learning_rate * edge.learning_rate / inner.learning_rate
    return edge.model_copy(update={"learning_rate": float(f"{rate:.4g}")})


def trials(study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]) -> list[Cell]:
    """Return the cells of the first stage that are known so far, each once."""
    return _once(cell for tuning in tried(study, found, failed) for cell in tuning)


def resolved(
    study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]
) -> list[tuple[StudyEntry, Cell | None]]:
    """Return the entries with their final cells; None for a cell whose tuning has not ended."""
    winners = [winner(tuning, found, failed) for tuning in tried(study, found, failed)]
    return [(entry, _cell(entry, winners)) for entry in study.entries]


def _cell(entry: StudyEntry, winners: list[Cell | None]) -> Cell | None:
    if entry.tuning is None:
        return entry.cell
    best = winners[entry.tuning]
    return best and entry.at(best.learning_rate)


def winner(tuning: Iterable[Cell], found: Mapping[str, CellResult], failed: Mapping[str, str]) -> Cell | None:
    """Return the trial with the least validation loss; among equal losses, the one with the smallest rate.

    None unless all trials ended, and at least one has a finite loss. A failed trial never wins.
    """
    losses = []
    for cell in tuning:
        result = found.get(cell.name)
        if result is not None and result.end is not None:
            loss = result.end.get("validation_loss", math.nan)
            if math.isfinite(loss):
                losses.append((loss, cell.learning_rate, cell))
        elif cell.name not in failed:
            return None
    return min(losses, key=lambda one: one[:2])[2] if losses else None


def run(
    study: Study, folder: Path, pool: Pool, advance: Callable[[StudyProgress], None] = lambda _: None
) -> dict[str, str]:
    """Run the unfinished cells of a study. Return the reason of each cell's failure, keyed by the cell's
    name.

    Raises UserError RESULTS_UNUSABLE. After a KeyboardInterrupt the study can continue from the folder.
    """
    study.save(folder)
    count = _Counter(study, advance)
    with pool:
        first: list[Cell] = []
        while more := [cell for cell in _known(study, folder) if cell not in first]:
            count.expect(more)
            results.forget_failures(more, folder)
            _stage(more, folder, pool, count)
            first += more
        cells = (cell for _, cell in resolved(study, results.read_all(folder), results.failures(folder)))
        second = _once(cell for cell in cells if cell is not None and cell not in first)
        results.forget_failures(second, folder)
        _stage(second, folder, pool, count)
    own = {cell.name for cell in (*first, *second)}
    return {name: reason for name, reason in results.failures(folder).items() if name in own}


def _known(study: Study, folder: Path) -> list[Cell]:
    return trials(study, results.read_all(folder), results.failures(folder))


def _stage(cells: list[Cell], folder: Path, pool: Pool, count: _Counter) -> None:
    todo = []
    for cell in cells:
        result = results.read(results.path_of(cell, folder))
        if result is not None and result.end is not None:
            count.was_there(cell)
        else:
            todo.append(cell)

    def ended(cell: Cell, failure: str) -> None:
        if failure:
            results.note_failure(cell, folder, failure)
        count.ended(cell, failure)

    run_cells(todo, pool, ended)


class _Counter:
    """Counts the work of a study, each cell once."""

    def __init__(self, study: Study, advance: Callable[[StudyProgress], None]) -> None:
        self._advance = advance
        self._sure = {cell.name for cell in distinct(study)}
        self._total = total(distinct(study))
        self._before = self._fresh = 0

    def expect(self, trials: Iterable[Cell]) -> None:
        """Add trials to the total, if they are beyond the study's grids."""
        self._total += total(cell for cell in trials if cell.name not in self._sure)

    def was_there(self, cell: Cell) -> None:
        self._before += work(cell)

    def ended(self, cell: Cell, failure: str) -> None:
        self._fresh += work(cell)
        done = self._before + self._fresh
        self._advance(StudyProgress(done, max(self._total, done), self._fresh, cell, failure))


def distinct(study: Study) -> list[Cell]:
    """Return the cells that will certainly run, each once. A cell whose learning rate is still open has the
    first rate of its tuning."""
    found = _once(cell for tuning in study.tunings for cell in tuning)
    for entry in study.entries:
        cell = entry.cell
        if entry.tuning is not None:
            tried = study.tunings[entry.tuning]
            cell = entry.at(tried[0].learning_rate)
        found.append(cell)
    return _once(found)


def _once(cells: Iterable[Cell]) -> list[Cell]:
    return list({cell.name: cell for cell in cells}.values())


# -- names of cells and failures, on a screen and in a report ------------------------------------------


def describe(cell: Cell) -> str:
    """Describe a cell in one line."""
    network, problem = cell.network, cell.problem
    said = [cell.method, problem.task, f"{network.clients} clients", network.topology]
    said += [f"{network.hops} hops"] if network.hops else []
    said += [f"Dirichlet {problem.dirichlet:g}"] if problem.dirichlet else []
    said += [f"rank {cell.rank}", f"rate {cell.learning_rate:.2g}", f"seed {cell.seed}", f"cell {cell.name}"]
    return ", ".join(said)


def short(failure: str) -> str:
    """Return the main line of a failure: the last line of a traceback, else the first line."""
    lines = failure.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()


# -- work: an estimate of a cell's example-forwards, from its description --------------------------------


TWO_POINT, GRADIENT = 2, 3
"""Example-forwards of a row of a mini-batch, for a two-point estimate and for a gradient. A forward pass
counts 1, and a backward pass 2. In a group, each update counts 1. The end values have the actual number."""

SEEDFLOOD_SPEED, ZEROTH_SPEED, FIRST_SPEED = 400, 100, 140
"""Measured example-forwards per second of one core, with opt-mini-sst on sentences of SST-2. SeedFlood is
faster, because its clients share equal models, while each client of a baseline has its own weights."""

EVALUATION_SPEED = 500

TEST_ROWS = 1000
"""Assumed number of test rows if a cell tests on all rows."""


def first_order(method: str) -> bool:
    """Return whether a method uses gradients instead of two-point estimates."""
    baseline = registry.METHODS.get(method)
    return baseline is not None and baseline.first_order


def training_work(cell: Cell) -> int:
    """Return the example-forwards of a cell's training steps."""
    each = GRADIENT if first_order(cell.method) else cell.group or TWO_POINT
    return each * cell.network.clients * cell.steps * cell.batch_size


def evaluation_work(cell: Cell) -> int:
    """Return the number of rows that a cell evaluates: all rows before and after training, validation rows in
    between."""
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
    """Estimate a cell's seconds of one core if its model is opt-mini-sst. Larger models take longer."""
    if cell.method not in registry.METHODS:
        speed = SEEDFLOOD_SPEED
    else:
        speed = FIRST_SPEED if first_order(cell.method) else ZEROTH_SPEED
    return training_work(cell) / speed + evaluation_work(cell) / EVALUATION_SPEED


def estimate(cells: Sequence[Cell], workers: int) -> float:
    """Estimate the seconds that `workers` workers take for these cells, if their model is opt-mini-sst."""
    return sum(core_seconds(cell) for cell in cells) / workers
