"""Draws the tables of `sfnode top`: neighbours, or contributions of origins. Pure, like `frame`.

Anybody may choose any name, so beside each stands the beginning of the key, which nobody can choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sfnode.dashboard.formatting import count, delay, nats, percent, printable, short
from sfnode.dashboard.snapshot import Mood, Now, agreement
from sfnode.sizes import size_text

if TYPE_CHECKING:
    from sfnode.schema import Origin, Origins, SwarmNode

T = TypeVar("T")

KEY_DIGITS = 8
"""Hex digits of an origin's key that are shown: enough to tell all origins of a run apart."""

ORIGIN_ROWS = 50
"""Origins asked for at a time: as many as a tall terminal has lines for."""

WORTH_DIGITS = 9
"""Characters of a worth that are shown: sign, point and six digits behind it."""

ROOMY = 100
"""Columns from which on bytes stand beside names; below, names need the room."""

FLEXIBLE = 0
"""Width of a column that takes what the others leave it, within the bounds below."""

MIN_FLEXIBLE, MAX_FLEXIBLE = 14, 44
"""Widths of a shortened name with a key, and of the longest name with a key."""


class Column(NamedTuple):
    """A column of a table; `number` aligns it to the right."""

    name: str
    width: int
    number: bool = False


def named(name: str | None, origin: str, width: int = 80) -> str:
    """Return `name 1a2b3c4d`, of which the key is never cut off, or the key alone."""
    name, room = printable(name or ""), max(0, width - KEY_DIGITS - 1)
    if cell_len(name) > room:
        name = set_cell_size(name, room - 1) + "…" if room > 1 else ""
    return f"{name} {origin[:KEY_DIGITS]}".strip()


def peers(now: Now, width: int, room: int) -> list[Text]:
    """Draw the neighbours, as many as there is room for."""
    traffic = [Column("out", 8, True), Column("in", 8, True)] if width >= ROOMY else []
    columns = _columns(
        width,
        Column("peer", FLEXIBLE),
        Column("role", 8),
        Column("latency", 8, True),
        *traffic,
        Column("lag", 8, True),
        Column("state", 15),
    )

    def line(node: SwarmNode) -> Text:
        words = agreement(node, now.known)
        bytes_moved = [size_text(node.bytes_sent), size_text(node.bytes_received)][: len(traffic)]
        numbers = [delay(node.latency), *bytes_moved, count(node.lag)]
        who = named(node.name, node.origin, columns[0].width) if node.origin else short(node.peer)
        row = _row(columns, [who, node.role, *numbers, words.text])
        return Text(row, "red" if words.mood is Mood.BAD else "")

    return _table(columns, now.near, line, room, len(now.near))


def origins(page: Origins, width: int, room: int) -> list[Text]:
    """Draw the origins with the greatest worth, or most updates, counted in the log."""
    worth = [Column("worth", 11, True)] if any(one.worth is not None for one in page.origins) else []
    columns = _columns(
        width,
        Column("rank", 6, True),
        Column("origin", FLEXIBLE),
        Column("updates", 10, True),
        Column("share", 7, True),
        *worth,
        Column("team", 14),
    )

    def line(origin: Origin) -> Text:
        words = named(origin.name, origin.origin, columns[1].width)
        cells = [count(origin.rank), words, count(origin.updates), percent(origin.share)]
        cells += ["" if origin.worth is None else nats(origin.worth)[:WORTH_DIGITS]] * len(worth)
        cells.append(origin.team or "")
        return Text(_row(columns, cells), "bold" if origin.own else "")

    return _table(columns, page.origins, line, room, page.total)


def _columns(width: int, *columns: Column) -> list[Column]:
    """Give the flexible column the width that the others leave."""
    room = width - sum(column.width + 2 for column in columns)
    wide = max(MIN_FLEXIBLE, min(MAX_FLEXIBLE, room))
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
