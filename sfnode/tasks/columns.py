"""A table before anybody has said what it is about: its rows, with what is wrong with them, and what each
column holds. It counts; what follows from that, `proposals` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from sfnode.manifest.sections import is_file
from sfnode.tasks import dataset, prompts
from sfnode.tasks.row_files import Placed, malformed

NAMED = 1_000
"""Rows that are looked at for names of columns: objects of a .jsonl may differ."""

COUNTED = 1_000
"""Different values of a column that are counted; one with more holds no classes."""

LONGEST_NAME, MOST_WORDS = 64, 8
"""Characters and words of the name of a column; what has more is a text."""

Holds = Literal["texts", "numbers", "messages", "lists", "others", "nothing"]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """The contents of a column, over all rows."""

    name: str
    holds: Holds
    filled: int
    """Rows in which it is not empty."""
    values: Counter[str]
    """Rows for each of its values, as labels are compared; COUNTED + 1 of them at most."""
    whole: bool
    """Whether all are whole numbers."""
    words: float
    """Words of a cell that is not empty, on average."""
    length: float
    """Characters, likewise."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """The rows of a source, and its columns in their order, without one that has no name."""

    source: str
    placed: Sequence[Placed]
    columns: dict[str, TableColumn]


def read(source: str) -> DataTable:
    """Read a source of rows. Raises UserError as `dataset.load_rows`, and DATA_MALFORMED if it has no rows,
    or no line with the names of its columns."""
    placed = list(dataset.read(source))
    rows = [one.row for one in placed if not one.wrong]
    if not rows:
        wrong = f": {placed[0].place}: {placed[0].wrong}" if placed else ""
        raise malformed(
            f"{source} has no rows{wrong}",
            "Name a file that has rows below the names of its columns, or objects in its lines.",
        )
    names = dict.fromkeys(name for row in islice(rows, NAMED) for name in row if name)
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    if is_file(source) and source.lower().endswith((".csv", ".tsv")):
        _require_names(source, columns)
    return DataTable(source, placed, columns)


def _column(name: str, cells: Sequence[Any]) -> TableColumn:
    filled = [cell for cell in cells if cell is not None and (not isinstance(cell, str) or cell.strip())]
    values: Counter[str] = Counter()
    for cell in filled:
        if len(values) <= COUNTED:
            values[prompts.label(cell)] += 1
    holds = _holds(filled)
    some = filled[:COUNTED] if holds == "texts" else []
    return TableColumn(
        name,
        holds,
        len(filled),
        values,
        holds == "numbers" and all((number(cell) or 0.0).is_integer() for cell in filled),
        sum(len(cell.split()) for cell in some) / max(len(some), 1),
        sum(map(len, some)) / max(len(some), 1),
    )


def _holds(cells: Sequence[Any]) -> Holds:
    """Return what the cells of a column that are not empty have in common."""
    if not cells:
        return "nothing"
    if all(number(cell) is not None for cell in cells):
        return "numbers"
    if all(isinstance(cell, str) for cell in cells):
        return "texts"
    if all(isinstance(cell, list) for cell in cells):
        said = [isinstance(one, dict) and "content" in one for cell in cells for one in cell]
        return "messages" if said and all(said) else "lists"
    return "others"


def number(cell: object) -> float | None:
    """Return the number that a cell is, also one with a decimal comma; None if it is none."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell.replace(",", ".", 1) if isinstance(cell, str) else cell)
    except (ValueError, OverflowError):
        return None


def _require_names(source: str, columns: dict[str, TableColumn]) -> None:
    """Refuse a table whose first line is a row: it has a number for a name, a whole sentence, or one of the
    few values that its column has below. (Frames without names are written with the numbers 0, 1, ...)"""
    if list(columns) == [str(place) for place in range(len(columns))]:
        return
    for name, column in columns.items():
        long = len(name) > LONGEST_NAME or len(name.split()) > MOST_WORDS
        same = len(column.values) <= column.filled / 2 and prompts.label(name) in column.values
        if number(name) is not None or long or same:
            raise malformed(
                f"{source}, line 1: {name[:LONGEST_NAME]!r} is a value and not the name of a column",
                "Put a line with names first, such as text,label.",
            )
