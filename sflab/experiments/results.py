"""The results folder of a study: a file of JSON lines for each cell, named by the cell.

The runner writes these files; this module reads them, whole or torn by a kill, and notes failures beside
them. It knows neither models nor methods.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sflab.experiments.cell import Cell
from sfnode.store.disk_errors import disk_faults

FAILED = ".failed"
"""Ending of the file that says why a cell failed."""


END = {
    *("score", "loss", "base_score", "base_loss", "consensus"),
    *("bytes_per_edge", "bytes_total", "example_forwards", "seconds"),
}
"""Values that every finished cell has."""


class CellPoint(NamedTuple):
    """Measurement of a cell at one of its local steps."""

    kind: str
    step: int
    values: Mapping[str, float]


class CellResult(NamedTuple):
    """Knowledge of a cell so far."""

    cell: Cell
    points: tuple[CellPoint, ...]
    end: Mapping[str, float] | None
    """End values; None while the cell is not finished."""


def path_of(cell: Cell, folder: Path) -> Path:
    """Return the file of a cell's results."""
    return folder / f"{cell.name}.jsonl"


def read(file: Path) -> CellResult | None:
    """Read the results of a cell; None if it has none yet, or if they are none."""
    try:
        return parse(file.read_bytes())
    except (OSError, ValueError):
        return None


def parse(written: bytes) -> CellResult | None:
    """Return what a file of results says; None if there is no whole line in it yet.

    What follows a line that is none, because a kill or the disk tore it, is ignored. Raises ValueError for a
    file that does not begin with a cell.
    """
    first, *others = written.split(b"\n")[:-1] or [b""]
    if not first:
        return None
    try:
        cell = Cell.model_validate(json.loads(first)["cell"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError("it does not begin with the description of a cell") from error
    points = tuple(_points(others))
    finished = points and points[-1].kind == "end" and points[-1].values.keys() >= END
    return CellResult(cell, points, points[-1].values if finished else None)


def read_all(folder: Path) -> dict[str, CellResult]:
    """Read the results of all cells in a folder, by the names of the cells."""
    found = (read(file) for file in sorted(folder.glob("*.jsonl")))
    return {result.cell.name: result for result in found if result is not None}


def note_failure(cell: Cell, folder: Path, reason: str) -> None:
    """Note why a cell failed."""
    replace(folder / f"{cell.name}{FAILED}", reason + "\n")


def forget_failures(cells: Iterable[Cell], folder: Path) -> None:
    """Let these cells be tried again."""
    for cell in cells:
        with disk_faults(folder):
            (folder / f"{cell.name}{FAILED}").unlink(missing_ok=True)


def failures(folder: Path) -> dict[str, str]:
    """Return why cells failed, by the names of the cells."""
    return {
        file.name.removesuffix(FAILED): file.read_text(encoding="utf-8", errors="replace").strip()
        for file in sorted(folder.glob(f"*{FAILED}"))
        if file.is_file()
    }


def replace(file: Path, text: str) -> None:
    """Write a file so that it is there as a whole or as it was. Raises UserError DISK_FULL and
    DATA_DIR_UNUSABLE."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with disk_faults(file):
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)


def _points(lines: Iterable[bytes]) -> Iterator[CellPoint]:
    for line in lines:
        try:
            one = json.loads(line)
            point = CellPoint(str(one["kind"]), int(one["step"]), dict(one["values"]))
        except (ValueError, LookupError, TypeError):
            return
        if not all(isinstance(value, int | float) for value in point.values.values()):
            return
        yield point
