"""The tables of `sfnode top`: neighbours, or who has contributed what. Pure, like `frame`.

Names are chosen freely by strangers and two can be equal: beside each stands the beginning of the key, which
nobody can choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sfnode.dashboard.figures import count, delay, percent, printable, short
from sfnode.dashboard.seen import BAD, Now, agreement
from sfnode.limits import size_text
from sfnode.runtime.viewed import Origin, Origins, SwarmNode

T = TypeVar("T")

KEY_DIGITS = 8
"""Of an origin's key: four billion of them, so that in one run none are alike by chance."""

ORIGIN_ROWS = 50
"""Asked for at a time: as many as a tall terminal has lines for."""


FLEXIBLE = 0
"""The width of a column that takes what the others leave it, within these bounds."""

LEAST_FLEXIBLE, MOST_FLEXIBLE = 14, 44
"""From a cut name and a key to the longest name and a key."""


class Column(NamedTuple):
    """Of a table."""

    name: str
    width: int
    number: bool = False


def named(name: str, origin: str, width: int = 80) -> str:
    """`name 1a2b3c4d`, of which the key is never cut off, or the key alone."""
    name, room = printable(name), max(0, width - KEY_DIGITS - 1)
    if cell_len(name) > room:
        name = set_cell_size(name, room - 1) + "…" if room > 1 else ""
    return f"{name} {origin[:KEY_DIGITS]}".strip()


def peers(now: Now, width: int, room: int) -> list[Text]:
    """The neighbours, as many as there is room for."""
    columns = _columns(
        width,
        Column("peer", 14),
        Column("role", 8),
        Column("latency", 8, True),
        Column("out", 8, True),
        Column("in", 8, True),
        Column("lag", 8, True),
        Column("state", 15),
    )

    def line(node: SwarmNode) -> Text:
        words = agreement(node, now.known)
        numbers = [
            delay(node.latency),
            size_text(node.bytes_sent),
            size_text(node.bytes_received),
            count(node.lag),
        ]
        row = _row(columns, [short(node.peer), node.role, *numbers, words.text])
        return Text(row, "red" if words.mood == BAD else "")

    return _table(columns, now.near, line, room, len(now.near))


def origins(page: Origins, width: int, room: int) -> list[Text]:
    """Those with most updates, counted in the log."""
    columns = _columns(
        width,
        Column("rank", 6, True),
        Column("origin", FLEXIBLE),
        Column("updates", 10, True),
        Column("share", 7, True),
        Column("team", 20),
    )

    def line(origin: Origin) -> Text:
        words = named(origin.name, origin.origin, columns[1].width)
        cells = [count(origin.rank), words, count(origin.updates), percent(origin.share), origin.team]
        return Text(_row(columns, cells), "bold" if origin.own else "")

    return _table(columns, page.origins, line, room, page.total)


def _columns(width: int, *columns: Column) -> list[Column]:
    """One takes the width that the others leave it."""
    room = width - sum(column.width + 2 for column in columns)
    wide = max(LEAST_FLEXIBLE, min(MOST_FLEXIBLE, room))
    return [column if column.width else column._replace(width=wide) for column in columns]


def _row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return "".join(_cell(column, cell) for column, cell in zip(columns, cells, strict=True)).rstrip()


def _cell(column: Column, text: str) -> str:
    text = printable(text)
    text = set_cell_size(text, min(cell_len(text), column.width))
    room = " " * (column.width - cell_len(text))
    return f"{room}{text}  " if column.number else f"{text}{room}  "


def _table(
    columns: Sequence[Column], rows: Sequence[T], line: Callable[[T], Text], room: int, total: int
) -> list[Text]:
    if room < 2:
        return []
    shown = rows[: room - 1] if total < room else rows[: room - 2]
    lines = [Text(_row(columns, [column.name for column in columns]), "bold underline")]
    lines += [line(row) for row in shown]
    return lines if len(shown) == total else [*lines, Text(f"and {count(total - len(shown))} more", "dim")]
