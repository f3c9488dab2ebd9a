"""The tables of the log beside its segments: cuts, cards, bases and the control feed.

Functions on a connection, within the caller's transaction where they write. Logs of older versions lack some
of the tables; they read as empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from sfnode.store import tables
from sfnode.store.records import CardRecord, CutRecord
from sfprotocol import decisions
from sfprotocol.checkpoints import Base
from sfprotocol.counting import Counting
from sfprotocol.events import KeepControl
from sfprotocol.messages import Entry, Feed

_OF_FEED = "FROM {0} x JOIN feed f ON f.id = x.feed ORDER BY f.origin, f.incarnation"


def _rows(db: sqlite3.Connection, since: int, query: str) -> list[Any]:
    """Return the rows of a table that logs have since some version."""
    return db.execute(query).fetchall() if tables.version(db) >= since else []


def cuts(db: sqlite3.Connection) -> list[tuple[int, CutRecord]]:
    """Return the numbers of the feeds that are cut, and their cuts, in the order of feeds."""
    columns = "SELECT f.id, f.origin, f.incarnation, x.step, x.chain, x.proof "
    rows = _rows(db, tables.SINCE_CUTS, columns + _OF_FEED.format("cut"))
    return [(number, CutRecord(Feed(*feed), *cut)) for number, *feed, cut in map(_split, rows)]


def bases(db: sqlite3.Connection) -> list[tuple[int, Base]]:
    """Return the numbers of the feeds that begin at a base, and their bases, in the order of feeds."""
    columns = "SELECT f.id, f.origin, f.incarnation, x.step, x.chain, x.epoch, x.labelled "
    rows = _rows(db, tables.SINCE_BASES, columns + _OF_FEED.format("base"))
    return [(number, Base(Feed(*feed), *base)) for number, *feed, base in map(_split, rows)]


def _split(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return (number of a feed, origin, incarnation, all that follows)."""
    return (*row[:3], row[3:])


def cards(db: sqlite3.Connection) -> list[CardRecord]:
    """Return the cards, in the order of feeds."""
    columns = "SELECT f.origin, f.incarnation, x.frame "
    rows = _rows(db, tables.SINCE_CARDS, columns + _OF_FEED.format("card"))
    return [CardRecord(Feed(origin, incarnation), frame) for origin, incarnation, frame in rows]


def control(db: sqlite3.Connection, first: int = 0) -> list[Entry]:
    """Return the decisions of the control feed from position `first` on, in order."""
    query = f"SELECT term, record, signature FROM control WHERE position >= {first:d} ORDER BY position"
    return [Entry(*row) for row in _rows(db, tables.SINCE_CONTROL, query)]


def authority(db: sqlite3.Connection) -> list[bytes]:
    """Return the encoded Successions and ControlForks, in the order in which they came."""
    return [frame for (frame,) in _rows(db, tables.SINCE_CONTROL, "SELECT frame FROM authority ORDER BY id")]


def keep_cuts(db: sqlite3.Connection, cuts: Iterable[tuple[int, CutRecord]]) -> None:
    rows = [(number, cut.at, cut.chain, cut.proof) for number, cut in cuts]
    db.executemany("INSERT OR REPLACE INTO cut VALUES (?, ?, ?, ?)", rows)


def keep_cards(db: sqlite3.Connection, cards: Iterable[tuple[int, CardRecord]]) -> None:
    rows = [(number, card.frame) for number, card in cards]
    db.executemany("INSERT OR REPLACE INTO card VALUES (?, ?)", rows)


def keep_bases(db: sqlite3.Connection, bases: Iterable[tuple[int, Base]]) -> None:
    """Have these bases, and no others."""
    db.execute("DELETE FROM base")
    rows = [(number, *base[1:]) for number, base in bases]
    db.executemany("INSERT INTO base VALUES (?, ?, ?, ?, ?)", rows)


def keep_control(db: sqlite3.Connection, control: Sequence[KeepControl], authority: Sequence[bytes]) -> None:
    """Have these decisions from their first positions on; add what is new of `authority`."""
    for first, entries in ((kept.first, kept.entries) for kept in control):
        db.execute("DELETE FROM control WHERE position >= ?", (first,))
        rows = [(position, *entry) for position, entry in enumerate(entries, first)]
        db.executemany("INSERT INTO control VALUES (?, ?, ?, ?)", rows)
    db.executemany("INSERT OR IGNORE INTO authority (frame) VALUES (?)", [(frame,) for frame in authority])


class Named:
    """Numbers of steps that closes have named, by the decisions in the log, which takes no manifest."""

    def __init__(self) -> None:
        self._counting = Counting(budget=0, rate=0)

    def forget(self, control: Sequence[KeepControl]) -> None:
        """Begin anew if decisions that were followed are not in the log any more."""
        if any(kept.first < self._counting.decisions for kept in control):
            self.__init__()  # type: ignore[misc]

    def follow(self, db: sqlite3.Connection) -> None:
        """Take in the decisions that are new in the log."""
        for entry in control(db, self._counting.decisions):
            self._counting.apply(decisions.read(entry.record))

    def of(self, feed: Feed) -> int:
        """Return how many steps of a feed were named."""
        number = self._counting.number(feed)
        return self._counting.named(number) if number is not None else 0
