"""The contents of a file with a table: its rows, faults in these rows, and the contents of each column. This
module counts; `proposals` draws conclusions.

People bring files from programs of all kinds. Purely formal differences (empty lines, blanks around a name,
another format's words for a role) are removed here, and `DataTable.dress` lists them. Nodes would read the
original file differently, so its rows are written anew.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Literal

from sfnode.tasks import dataset, prompts, row_files
from sfnode.tasks.row_files import Placed, Row, TextForm, malformed

MEASURED = 1_000
"""Approximate number of a column's cells, evenly spread, whose length and words are measured."""

MOSTLY = 4 / 5
"""Minimum share of codes among a column's cells at which the column is taken to hold codes, and not texts."""

LONGEST_CODE = 200
"""Maximum characters of a code; longer cells are texts."""

LONGEST_NAME, MOST_WORDS = 64, 8
"""Maximum characters and words of a column's name; anything longer is a text."""

Holds = Literal["texts", "codes", "numbers", "booleans", "messages", "lists", "objects", "others", "nothing"]

MISSING = frozenset(["nan", "NaN", "NULL", "null", "<NA>", "#N/A", "#NV", "#REF!", "#VALUE!", "\\N"])
"""Words that programs write into an empty cell of a table."""

INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))
"""Characters without a width, which come along when names are copied."""

SPEAKERS = {"human": "user"} | dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant")
"""Roles in chat templates, keyed by the speaker's name in other formats."""

MESSAGES = (("from", "value"), ("role", "content"), ("role", "text"), ("role", "value"), ("speaker", "text"))
"""Pairs of keys with which a message has its speaker and its content. The first pair is ShareGPT's."""

_CODE = re.compile(
    r"\w+://\S+|www\.\S+|\S+@\S+\.\w+|(?:[\w.-]*[/\\])+[\w.-]+|[!-~]*\d[!-~]*"
    r"|(?=.*\d)[\d\s.,:;/+()T-]+(?:[AP]M|Z|UTC)?"
    r"|(?:\w{2,10}\.?,? )?(?:\d{1,2}\.? \w{3,9}\.?|\w{3,9}\.? \d{1,2}),? \d{4}(?:,? [\d:]+(?: [AP]M)?)?",
    re.IGNORECASE | re.ASCII,
)
"""Matches codes: addresses, paths, order numbers, dates and times, which are for programs and not for
reading."""

_LIST = re.compile(r"\s*(?:\[.*\]|\{.*\})\s*", re.DOTALL)
"""A list or an object written as text."""

NO_DIGIT = r"[.,'’ \u00a0\u202f]"
"""Separators between thousands."""

_NUMBER = re.compile(
    rf"[€$£]?\s?([+-]?)((?:[1-9]\d{{0,2}}(?:{NO_DIGIT}\d{{3}})+|\d+))(?:[.,](\d+))?\s?[€$£%]?", re.ASCII
)

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]{2}|\S+")
"""A word, or two letters of languages that put no blanks between words."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Contents of a column, over all rows."""

    name: str
    holds: Holds
    filled: int
    """Number of rows in which the column is not empty."""
    values: Counter[str]
    """Number of rows with each value, keyed by the value in the form in which labels are compared."""
    whole: bool
    """Whether all values are whole numbers."""
    words: float
    """Mean number of words of a cell that is not empty."""
    length: float
    """Mean number of characters of a cell that is not empty."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of a source, and the source's columns in their order, without nameless columns."""

    source: str
    placed: Sequence[Placed]
    columns: dict[str, TableColumn]
    dress: tuple[str, ...] = ()
    """Changes that were made to the rows, in words. Nodes would read the unchanged source differently."""


def read_table(source: str) -> DataTable:
    """Read a source of rows. Raises UserError as `dataset.load_rows`, and DATA_MALFORMED if it has no rows,
    or no line with the names of its columns."""
    layout, table = row_files.layout(source), source.lower().endswith(row_files.TABLES)
    found = list(dataset.read(source, layout))
    plain = [_undressed(one, table=table) for one in found]
    placed = [one for one in plain if not table or one.wrong or not all(map(is_empty, one.row.values()))]
    rows = [one.row for one in placed if not one.wrong]
    if not rows:
        wrong = f": {placed[0].place}: {placed[0].wrong}" if placed else ""
        raise malformed(
            f"{source} has no rows{wrong}",
            row_files.EXPORT
            if row_files.NOT_UTF_8 in wrong
            else "Name a file that has rows below the names of its columns, or objects in its lines.",
        )
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    nameless = {place: columns.pop(name) for place, name in enumerate(names, start=1) if not name.strip()}
    if table:
        _require_names(source, columns)
        _require_no_values(source, nameless)
    dress = list(_dress(layout, rows))
    dress += ["as one column"] if layout.separator == row_files.NO_SEPARATOR else []
    dress += [f"without {len(found) - len(placed):,} empty rows"] if len(placed) < len(found) else []
    tidied = any(one is not other for one, other in zip(found, plain, strict=True))
    dress += ["with names, empty cells, lists and conversations as nodes read them"] if tidied else []
    return DataTable(source, placed, columns, tuple(dress))


def _dress(layout: TextForm, rows: Sequence[Row]) -> Iterator[str]:
    """Yield, in words, how a file's form differs from the form that nodes read."""
    if layout.encoding:
        words = (word for row in rows for cell in row.values() for word in str(cell).split())
        some = next((f", so that a word is {word[:30]!r}" for word in words if not word.isascii()), "")
        yield f"in {layout.encoding.replace('utf', 'UTF')}{some}"
    if layout.separator not in ("", row_files.NO_SEPARATOR):
        yield f"with {layout.separator!r} between its columns"


def is_empty(cell: object) -> bool:
    """Return whether a cell is empty: null, blank, or NaN."""
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def _undressed(placed: Placed, *, table: bool) -> Placed:
    """Return a row as nodes read it; the same object where nothing changes."""
    row = {_name(name): _cell(cell, table=table) for name, cell in placed.row.items()}
    same = len(row) < len(placed.row) or list(row.items()) == list(placed.row.items())
    return placed if same else placed._replace(row=row)


@cache
def _name(name: str) -> str:
    return " ".join(name.translate(INVISIBLE).split()) or name


def _cell(cell: Any, *, table: bool) -> Any:
    if isinstance(cell, str) and table:
        return "" if cell.strip() in MISSING else _listed(cell)
    if isinstance(cell, float) and cell != cell:
        return None
    if isinstance(cell, list) and cell and all(isinstance(one, dict) for one in cell):
        return _conversation(cell)
    return cell


def _listed(cell: str) -> Any:
    """Return the list of texts or messages that a cell of a table holds as JSON; else the cell."""
    if cell.lstrip()[:1] != "[" or cell.rstrip()[-1:] != "]":
        return cell
    try:
        found = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    texts = found and all(isinstance(one, str | dict) for one in found)
    return _cell(found, table=False) if texts else cell


def _conversation(cell: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the role names of chat templates; anything else unchanged."""
    for role, content in MESSAGES:
        if all(isinstance(one.get(role), str) and content in one for one in cell):
            said = [
                {"role": SPEAKERS.get(one[role].lower(), one[role]), "content": one[content]} for one in cell
            ]
            return cell if role == "role" and content == "content" and said == cell else said
    return cell


def _column(name: str, cells: Sequence[Any]) -> TableColumn:
    filled = [cell for cell in cells if not is_empty(cell)]
    some = [str(cell) for cell in filled[:: max(1, len(filled) // MEASURED)]]
    holds = _holds(filled, some)
    return TableColumn(
        name,
        holds,
        len(filled),
        Counter(map(prompts.label, filled)),
        holds == "numbers" and all((number(cell) or 0.0).is_integer() for cell in filled),
        sum(len(_WORD.findall(cell)) for cell in some) / max(len(some), 1),
        sum(map(len, some)) / max(len(some), 1),
    )


def _holds(cells: Sequence[Any], some: Sequence[str]) -> Holds:
    """Return the kind of contents that all of these cells of a column have. None of them is empty; `some` are
    examples as text."""
    if not cells:
        return "nothing"
    if all(isinstance(cell, bool) for cell in cells):
        return "booleans"
    if all(number(cell) is not None for cell in cells):
        return "numbers"
    if all(isinstance(cell, str | int | float | Decimal) for cell in cells):
        if all(_LIST.fullmatch(cell) for cell in some):
            return "lists"
        codes = sum(len(cell) <= LONGEST_CODE and bool(_CODE.fullmatch(cell.strip())) for cell in some)
        return "codes" if codes >= MOSTLY * len(some) else "texts"
    if all(isinstance(cell, list) for cell in cells):
        said = [isinstance(one, dict) and "content" in one for cell in cells for one in cell]
        return "messages" if said and all(said) else "lists"
    return "objects" if all(isinstance(cell, dict | list) for cell in cells) else "others"


def number(cell: object) -> float | None:
    """Return the number in a cell, as a spreadsheet shows it: with a decimal comma, thousands separators, a
    currency or a per cent sign; None if the cell holds no number."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal):
        return None
    if isinstance(cell, str) and (found := _NUMBER.fullmatch(cell.strip())):
        cell = f"{found[1]}{re.sub(NO_DIGIT, '', found[2])}.{found[3] or 0}"
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _require_no_values(source: str, nameless: dict[int, TableColumn]) -> None:
    """Raise UserError DATA_MALFORMED for a nameless column that holds more than row numbers."""
    for place, column in nameless.items():
        index = column.holds in ("numbers", "codes") and len(column.values) > column.filled / 2
        if column.holds != "nothing" and not (place == 1 and index):
            raise malformed(
                f"{source}: column {place} has no name, and {column.filled:,} rows have something there, "
                f"such as {next(iter(column.values))[:LONGEST_NAME]!r}",
                "Name it in the first line, or remove it. Lines above the names of the columns have to go.",
            )


def _require_names(source: str, columns: dict[str, TableColumn]) -> None:
    """Raise UserError DATA_MALFORMED if the first line of a table is a row instead of names: if it has a
    number, a whole sentence, or one of few values of its column. (Frames without names are written with the
    names 0, 1, ..., which are accepted.)"""
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
