"""The results folder of a study: a file of JSON lines for each cell, named after the cell.

The runner writes these files. This module reads them, complete or cut off by a kill, and writes the files of
failures beside them.
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
"""Suffix of the file with the reason of a cell's failure."""


END = {
    *("score", "loss", "base_score", "base_loss", "consensus"),
    *("bytes_per_edge", "bytes_total", "example_forwards", "seconds"),
}
"""End values that every finished cell has."""


class CellPoint(NamedTuple):
    """Measurement of a cell at one of its local steps."""

    kind: str
    step: int
    values: Mapping[str, float]


class CellResult(NamedTuple):
    """Results of a cell so far."""

    cell: Cell
    points: tuple[CellPoint, ...]
    end: Mapping[str, float] | None
    """End values; None while the cell is not finished."""


def path_of(cell: Cell, folder: Path) -> Path:
    """Return the file of a cell's results."""
    return folder / f"{cell.name}.jsonl"


def read(file: Path) -> CellResult | None:
    """Read the results of a cell; None if it has no results yet, or if the file is damaged."""
    try:
        return parse(file.read_bytes())
    except (OSError, ValueError):
        return None


def parse(written: bytes) -> CellResult | None:
    """Parse a file of results; None if it has no complete line yet.

    A line that was cut off by a kill or the disk is ignored, with all lines after it. Raises ValueError if
    the file does not begin with a cell.
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
    """Read the results of all cells in a folder, keyed by the cell's name."""
    found = (read(file) for file in sorted(folder.glob("*.jsonl")))
    return {result.cell.name: result for result in found if result is not None}


def note_failure(cell: Cell, folder: Path, reason: str) -> None:
    """Write the reason of a cell's failure."""
    replace(folder / f"{cell.name}{FAILED}", reason + "\n")


def forget_failures(cells: Iterable[Cell], folder: Path) -> None:
    """Delete the failure files of these cells, so that the cells are run again."""
    for cell in cells:
        with disk_faults(folder):
            (folder / f"{cell.name}{FAILED}").unlink(missing_ok=True)


def failures(folder: Path) -> dict[str, str]:
    """Return the reason of each cell's failure, keyed by the cell's name."""
    return {
        file.name.removesuffix(FAILED): file.read_text(encoding="utf-8", errors="replace").strip()
        for file in sorted(folder.glob(f"*{FAILED}"))
        if file.is_file()
    }


def replace(file: Path, text: str) -> None:
    """Replace the content of a file atomically. Raises UserError DISK_FULL and DATA_DIR_UNUSABLE."""
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
