"""A study: cells whose results are compared, and the learning rates that are tried for them before.

It has two stages. The trials of each tuning differ in nothing but the learning rate; the one with the least
validation loss gives its rate to the entries that name the tuning. While the best one is at the edge of what
was tried, the next rate beyond is tried. All follows from the study and the results, so that a study that was
interrupted goes on where it was, and a finished cell is never run again.
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
"""File of the results folder that describes the study."""


class StudyEntry(Section):
    """A cell of a study, and the part of the report that it belongs to."""

    part: str
    cell: Cell
    tuning: int | None = Field(default=None, ge=0)
    """Number of the tuning whose winner's learning rate takes the place of the cell's own."""
    times: float = Field(default=1.0, gt=0)
    """Factor of that rate."""

    def at(self, rate: float) -> Cell:
        """Return the cell with a tuning's learning rate."""
        return self.cell.model_copy(update={"learning_rate": rate * self.times})


class Study(Section):
    """Cells to run, in this order."""

    title: str
    command: str
    """Command line that runs it."""
    preset: str = ""
    notes: tuple[str, ...] = ()
    """Notes on the choice of cells for readers of the report."""
    tunings: tuple[tuple[Cell, ...], ...] = ()
    beyond: int = Field(default=0, ge=0)
    """Rates beyond the edge of its grid that are tried for a tuning, at most."""
    entries: tuple[StudyEntry, ...] = ()

    def save(self, folder: Path) -> None:
        """Describe the study in its results folder. Raises UserError RESULTS_UNUSABLE, and as
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
    """Return the error for a folder that holds no results of a study, or cannot."""
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
    """Part of `done` that was not there already when the study was started."""
    cell: Cell
    """The cell that has just ended."""
    failure: str
    """Reason of its failure; empty if it did not fail."""


def tried(study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]) -> list[list[Cell]]:
    """Return the trials of each tuning by ascending rate, with those that the results so far ask for."""
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
    """Return the trial that is as far from the edge of a grid as the edge is from its neighbour."""
    rate = edge.learning_rate * edge.learning_rate / inner.learning_rate
    return edge.model_copy(update={"learning_rate": float(f"{rate:.4g}")})


def trials(study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]) -> list[Cell]:
    """Return the cells of the first stage, each once, as far as they are known from the results so far."""
    return _once(cell for tuning in tried(study, found, failed) for cell in tuning)


def resolved(
    study: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]
) -> list[tuple[StudyEntry, Cell | None]]:
    """Return the entries with the cells that they come to; None where the tuning has not ended."""
    winners = [winner(tuning, found, failed) for tuning in tried(study, found, failed)]
    return [(entry, _cell(entry, winners)) for entry in study.entries]


def _cell(entry: StudyEntry, winners: list[Cell | None]) -> Cell | None:
    if entry.tuning is None:
        return entry.cell
    best = winners[entry.tuning]
    return best and entry.at(best.learning_rate)


def winner(tuning: Iterable[Cell], found: Mapping[str, CellResult], failed: Mapping[str, str]) -> Cell | None:
    """Return the trial with the least validation loss, of equal ones that with the smallest rate.

    None unless all of them have ended and one of them with a finite loss. A trial that failed has lost.
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
    """Run what is not finished of a study; return why cells failed, by their names.

    Raises UserError RESULTS_UNUSABLE. A KeyboardInterrupt leaves a folder that the study goes on from.
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
        """Take note of trials, of which some may lie beyond the study's grids."""
        self._total += total(cell for cell in trials if cell.name not in self._sure)

    def was_there(self, cell: Cell) -> None:
        self._before += work(cell)

    def ended(self, cell: Cell, failure: str) -> None:
        self._fresh += work(cell)
        done = self._before + self._fresh
        self._advance(StudyProgress(done, max(self._total, done), self._fresh, cell, failure))


def distinct(study: Study) -> list[Cell]:
    """Return the cells that are sure to run, each once; those whose rate is open, with the first rate."""
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


# -- words for a cell and for its failure, the same on a screen and in a report ---------------------------


def describe(cell: Cell) -> str:
    """Say in a line what a cell is."""
    network, problem = cell.network, cell.problem
    said = [cell.method, problem.task, f"{network.clients} clients", network.topology]
    said += [f"{network.hops} hops"] if network.hops else []
    said += [f"Dirichlet {problem.dirichlet:g}"] if problem.dirichlet else []
    said += [f"rank {cell.rank}", f"rate {cell.learning_rate:.2g}", f"seed {cell.seed}", f"cell {cell.name}"]
    return ", ".join(said)


def short(failure: str) -> str:
    """Return the line of a failure that says what happened: the last of a traceback, else the first."""
    lines = failure.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()


# -- work: what a cell takes, in example-forwards, from its description alone ---------------------------
#
# A forward pass of one example counts 1 and a backward pass 2; so a two-point estimate costs 2 for each row
# of its mini-batch, a group of updates as many as it has, a gradient 3. This estimates before a run; what was
# spent is among the end values.

TWO_POINT = 2
GRADIENT = 3

SEEDFLOOD_SPEED, ZEROTH_SPEED, FIRST_SPEED = 400, 100, 140
"""Example-forwards a second of one core with opt-mini-sst on sentences of SST-2, measured: of virtual clients
whose models are equal, and of baselines, each of whose clients has weights of its own."""

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
