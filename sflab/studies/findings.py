"""Findings of a study so far: groups of cells that differ in nothing but the seed, and their means.

The report takes all its numbers from `StudyFindings`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.experiments.results import CellResult
from sflab.studies import study
from sflab.studies.study import Study

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""

MORE_975 = 2.201
"""97.5 % quantile for 11 degrees of freedom. It is also used for more than 11, where it makes the interval at
most an eighth too wide."""


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval. With one seed the interval is the mean alone."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return self.high - self.mean


def interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of the finite values with its interval; None without finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean, freedom = statistics.fmean(finite), len(finite) - 1
    if freedom == 0:
        return Interval(mean, mean, mean, 1)
    quantile = T_975[freedom - 1] if freedom <= len(T_975) else MORE_975
    half = quantile * statistics.stdev(finite) / math.sqrt(len(finite))
    return Interval(mean, mean - half, mean + half, len(finite))


class Group(NamedTuple):
    """Cells of one part of a study that differ only in the seed."""

    cell: Cell
    """One of the cells, with the learning rate of the tuning's best trial once that is known."""
    results: tuple[CellResult, ...]
    """Results of the finished cells."""
    wanted: int
    """Number of the group's cells in the study."""

    def of(self, name: str) -> Interval | None:
        """Return the mean over seeds of the end value `name`, with its interval; None without finite
        values."""
        return interval([value for _, value in self.by_seed(name)])

    def by_seed(self, name: str) -> list[tuple[int, float]]:
        """Return the seed and the end value `name` of each finished cell."""
        ends = ((result.cell.seed, result.end or {}) for result in self.results)
        return [(seed, end[name]) for seed, end in ends if name in end]


class Tuning(NamedTuple):
    """The trials of one method on one task."""

    trials: tuple[tuple[Cell, Interval | None], ...]
    """The cell of each learning rate with its validation loss; the loss is None if the cell did not run or
    has failed."""
    winner: Cell | None

    @property
    def at_the_edge(self) -> bool:
        """Whether the best trial has the smallest or the largest rate of all. Then a better rate may lie
        beyond."""
        rates = [cell.learning_rate for cell, _ in self.trials]
        return self.winner is not None and self.winner.learning_rate in (min(rates), max(rates))


class StudyFindings:
    """Results of a study, finished or not."""

    def __init__(self, plan: Study, found: Mapping[str, CellResult], failed: Mapping[str, str]) -> None:
        self.study = plan
        self._found, self._failed = found, failed
        self._entries = study.resolved(plan, found, failed)
        self._one_model = len({cell.problem.model for cell in self.cells()}) == 1

    @classmethod
    def load(cls, folder: Path) -> StudyFindings:
        """Read a results folder. Raises UserError RESULTS_UNUSABLE."""
        return cls(Study.load(folder), results.read_all(folder), results.failures(folder))

    def groups(self, part: str) -> list[Group]:
        """Return the groups of a part, in the study's order."""
        members: dict[str, list[Cell]] = {}
        for entry, cell in self._entries:
            if entry.part == part:
                key = entry.cell.model_copy(update={"seed": 0}).name
                members.setdefault(key, []).append(cell or entry.cell)
        return [self._group(cells) for cells in members.values()]

    def _group(self, cells: Sequence[Cell]) -> Group:
        found = (self._finished(cell) for cell in cells)
        return Group(cells[0], tuple(result for result in found if result is not None), len(cells))

    def _finished(self, cell: Cell) -> CellResult | None:
        result = self._found.get(cell.name)
        return result if result is not None and result.end is not None else None

    def tunings(self) -> list[Tuning]:
        """Return all tunings."""
        return [
            Tuning(
                tuple((cell, self._loss(cell)) for cell in trials),
                study.winner(trials, self._found, self._failed),
            )
            for trials in study.tried(self.study, self._found, self._failed)
        ]

    def _loss(self, cell: Cell) -> Interval | None:
        result = self._finished(cell)
        return interval([(result.end or {}).get("validation_loss", math.nan)]) if result else None

    def subject(self, cell: Cell) -> str:
        """Return the task of a cell, with the cell's model if the study has several models."""
        problem = cell.problem
        return problem.task if self._one_model else f"{problem.task}, {Path(problem.model).name}"

    def untrained(self, task: str) -> dict[str, Interval]:
        """Return scores and losses of the untrained model on a task's test rows, with and without
        calibration."""
        ends = [
            result.end
            for result in self._found.values()
            if result.end is not None and self.subject(result.cell) == task
        ]
        names = ("base_score", "base_loss", "calibrated_score", "calibrated_loss")
        means = {name: interval([end[name] for end in ends if name in end]) for name in names}
        return {name: mean for name, mean in means.items() if mean is not None}

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks from `subject`, in the study's order."""
        return list(dict.fromkeys(self.subject(cell) for cell in self.cells()))

    def cells(self) -> list[Cell]:
        """Return the cells of the study, each once. A cell whose rate is open has the first rate of its
        tuning."""
        return study.distinct(self.study)

    def finished(self) -> int:
        """Return the number of finished cells of the study."""
        return len(self._wanted()) - len(self.missing())

    def missing(self) -> list[tuple[str, Cell, str]]:
        """Return the cells without results, each once, with their parts of the study and the reasons."""
        return [
            (part, cell, self._failed.get(name, "not run yet"))
            for name, (part, cell) in self._wanted().items()
            if self._finished(cell) is None
        ]

    def _wanted(self) -> dict[str, tuple[str, Cell]]:
        trials = study.trials(self.study, self._found, self._failed)
        entries = ((entry.part, cell or entry.cell) for entry, cell in self._entries)
        wanted: dict[str, tuple[str, Cell]] = {}
        for part, cell in (*(("tuning", trial) for trial in trials), *entries):
            wanted.setdefault(cell.name, (part, cell))
        return wanted
