"""Opens and creates the SQLite file of the update log, and reads and writes all its tables except the table
of segments (`segment_table`).

Segments are stored in order of arrival, with an index on (feed, step). If they were clustered by feed
instead, an append to N feeds would change N pages and not a few, and SQLite writes each changed page to the
WAL as a whole.

All functions take a connection. Functions that write do so within the caller's transaction. Logs of older
versions lack some of the tables. They are read as if these tables were empty.
"""

from __future__ import annotations

import fcntl
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sfnode.descriptors import patiently
from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import corrupt, private, unusable
from sfnode.store.segment_encoding import CardRecord, CutRecord
from sfprotocol import decisions
from sfprotocol.checkpoints import Base
from sfprotocol.events import KeepControl
from sfprotocol.messages import Entry, Feed
from sfprotocol.run_state import RunState

APPLICATION_ID = int.from_bytes(b"sfup", "big")
"""Application id in the SQLite header that marks the file as an update log."""

VERSION = 6
"""Version of the log's tables. A log with a higher version was written by a newer sfnode."""

SINCE_CUTS, SINCE_CARDS, SINCE_CONTROL, SINCE_BASES, SINCE_ARRIVALS = 2, 3, 4, 5, 6
"""First versions of the log with, in this order: the table of cuts, the table of cards, the tables of the
control feed, the table of bases, and the column with the times at which decisions arrived."""

_CUT = """CREATE TABLE cut (
        feed INTEGER PRIMARY KEY, step INTEGER NOT NULL, chain BLOB NOT NULL, proof BLOB NOT NULL)"""
"""Table of cuts. It has the step from which on no update of a feed counts, with the proof of the fork (SPEC
E4). The proof is empty for a feed that was removed in favour of another feed (SPEC S8)."""

_CARD = "CREATE TABLE card (feed INTEGER PRIMARY KEY, frame BLOB NOT NULL)"
"""Table of the cards of origins (SPEC K1), as encoded messages, keyed by feed."""

_CONTROL = """CREATE TABLE control (
        position INTEGER PRIMARY KEY, term INTEGER NOT NULL, record BLOB NOT NULL, signature BLOB NOT NULL)"""
"""Table of the organiser's decisions, keyed by their position in the control feed (SPEC O3)."""

_AUTHORITY = "CREATE TABLE authority (id INTEGER PRIMARY KEY, frame BLOB NOT NULL UNIQUE)"
"""Table of successions and forks of the control feed (SPEC O4), as encoded messages."""

_BASE = """CREATE TABLE base (
        feed INTEGER PRIMARY KEY, step INTEGER NOT NULL, chain BLOB NOT NULL, epoch INTEGER NOT NULL,
        labelled INTEGER NOT NULL)"""
"""Table of bases. A base is the step at which the rows of a feed begin, if a checkpoint stands for the
earlier steps (SPEC O14)."""

_ARRIVED = "ALTER TABLE control ADD COLUMN arrived INTEGER"
"""Column of the time at which a decision was written to this log, in seconds since 1970. It is only shown to
people."""

_ADDED = (
    (SINCE_CUTS, _CUT),
    (SINCE_CARDS, _CARD),
    (SINCE_CONTROL, _CONTROL),
    (SINCE_CONTROL, _AUTHORITY),
    (SINCE_BASES, _BASE),
    (SINCE_ARRIVALS, _ARRIVED),
)

_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE feed (
        id INTEGER PRIMARY KEY, origin BLOB NOT NULL, incarnation INTEGER NOT NULL,
        UNIQUE (origin, incarnation))""",
    """CREATE TABLE segment (
        id INTEGER PRIMARY KEY, feed INTEGER NOT NULL, first INTEGER NOT NULL, body BLOB NOT NULL,
        UNIQUE (feed, first))""",
    *(table for _, table in _ADDED),
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

_NOW = "CAST(strftime('%s', 'now') AS INTEGER)"

_WAIT_S = 5.0
"""Maximum time, in seconds, to wait for a lock of SQLite. Only the recovery of a WAL that a killed process
left makes others wait. It takes less than this time."""

_WAL_BYTES = 16 * 1024 * 1024
"""Size, in bytes, to which the WAL is truncated after a large transaction."""

_FS_IOC_GETVERSION = 0x80087601
"""Number of the ioctl request on Linux for the generation of an inode. The generation is a random number that
is drawn whenever the inode is allocated."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection without implicit transactions. Any thread may use it, but callers must make sure that
    only one does at a time.

    When a commit returns, its data are on the disk, because in WAL mode `synchronous = FULL` syncs at every
    commit. If no file descriptors are free, the function waits until there are. All descriptors that the
    connection needs are open when the function returns.
    """
    return patiently(lambda: _connect(path, read_only))


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        if read_only:
            db.execute("PRAGMA schema_version")
        else:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA fullfsync = ON")  # on macOS, a plain fsync stops at the drive's cache
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def inode_generation(path: Path) -> int:
    """Return the generation of the file's inode; 0 if the file system has no generations. If the file is
    missing, it is created.

    The generation is needed because ext4 gives the inode number of a deleted file to the next new file. So a
    backup restored in place of the original usually has the original's inode number. Do not call this
    function while SQLite has the file open: on POSIX, closing any descriptor of a file releases all locks of
    the process on the file, including those of SQLite. Another program that opens the log would then delete
    the WAL while this process uses it. A file created here is readable by this user only, and SQLite gives
    the same mode to the files that it creates beside it.
    """
    with open(path, "ab", opener=private) as file:
        try:
            return int(struct.unpack("=q", fcntl.ioctl(file, _FS_IOC_GETVERSION, bytes(8)))[0])
        except OSError:
            return 0


def create(db: sqlite3.Connection, run_id: bytes) -> None:
    """Create the tables if the file is empty, all of them or none."""
    if not is_empty(db):
        return
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('run_id', ?)", (run_id,))
    db.execute("COMMIT")


def is_empty(db: sqlite3.Connection) -> bool:
    """Return whether the file has no tables, because `create` has not been called yet."""
    return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))


def upgrade(db: sqlite3.Connection) -> None:
    """Upgrade the tables of a log that an older sfnode wrote, in one transaction."""
    found = version(db)
    if found == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    for since, table in _ADDED:
        if since > found:
            db.execute(table)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def run_of(db: sqlite3.Connection, path: Path) -> bytes:
    """Return the id of the log's run. Raises UserError LOG_CORRUPT if the file is no update log,
    DATA_DIR_UNUSABLE if it has no tables yet."""
    if is_empty(db):
        raise unusable(path, "there is no update log yet")
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise corrupt(path, "it is not an update log of sfnode")
    (run_id,) = db.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    return bytes(run_id)


def check(db: sqlite3.Connection, path: Path, run_id: bytes) -> None:
    """Raise UserError unless this is the log of run `run_id`, in a version that this sfnode reads."""
    theirs = run_of(db, path)
    if version(db) > VERSION:
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"{path} was written by a newer sfnode (log version {version(db)}; this one reads {VERSION})",
            "Upgrade with `pip install --upgrade sfnode`, or use another --data-dir.",
        )
    if theirs != run_id:
        raise UserError(
            Code.WRONG_RUN,
            f"{path} belongs to run {theirs.hex()}, not to run {run_id.hex()}",
            "Use one --data-dir per run.",
        )


def version(db: sqlite3.Connection) -> int:
    """Return the version of the log's tables in the file."""
    return _pragma(db, "user_version")


def shrink(db: sqlite3.Connection) -> None:
    """Return the space of deleted rows to the file system if it is more than half of the file."""
    if 2 * _pragma(db, "freelist_count") > _pragma(db, "page_count"):
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)


_OF_FEED = "FROM {0} x JOIN feed f ON f.id = x.feed ORDER BY f.origin, f.incarnation"


def _rows(db: sqlite3.Connection, since: int, query: str, values: tuple[int, ...] = ()) -> list[Any]:
    """Return the rows that `query` finds in a table that logs have from version `since` on; an empty list for
    an older log."""
    return db.execute(query, values).fetchall() if version(db) >= since else []


def cuts(db: sqlite3.Connection) -> list[tuple[int, CutRecord]]:
    """Return (number of the feed, cut) for each cut, in the order of feeds."""
    columns = "SELECT f.id, f.origin, f.incarnation, x.step, x.chain, x.proof "
    rows = _rows(db, SINCE_CUTS, columns + _OF_FEED.format("cut"))
    return [(number, CutRecord(Feed(*feed), *cut)) for number, *feed, cut in map(_split, rows)]


def bases(db: sqlite3.Connection) -> list[tuple[int, Base]]:
    """Return (number of the feed, base) for each base, in the order of feeds."""
    columns = "SELECT f.id, f.origin, f.incarnation, x.step, x.chain, x.epoch, x.labelled "
    rows = _rows(db, SINCE_BASES, columns + _OF_FEED.format("base"))
    return [(number, Base(Feed(*feed), *base)) for number, *feed, base in map(_split, rows)]


def _split(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the columns of a row as (number of the feed, origin, incarnation, tuple of the other
    columns)."""
    return (*row[:3], row[3:])


def cards(db: sqlite3.Connection) -> list[CardRecord]:
    """Return the cards, in the order of feeds."""
    columns = "SELECT f.origin, f.incarnation, x.frame "
    rows = _rows(db, SINCE_CARDS, columns + _OF_FEED.format("card"))
    return [CardRecord(Feed(origin, incarnation), frame) for origin, incarnation, frame in rows]


def control(db: sqlite3.Connection, first: int = 0) -> list[Entry]:
    """Return the decisions of the control feed from position `first` on, in order."""
    query = f"SELECT term, record, signature FROM control WHERE position >= {first:d} ORDER BY position"
    return [Entry(*row) for row in _rows(db, SINCE_CONTROL, query)]


def arrivals(db: sqlite3.Connection) -> list[int | None]:
    """Return the times at which the decisions arrived, in the order of decisions. A time is None if an
    earlier version of sfnode wrote the decision."""
    query = "SELECT arrived FROM control ORDER BY position"
    return [arrived for (arrived,) in _rows(db, SINCE_ARRIVALS, query)]


def arrival(db: sqlite3.Connection, position: int) -> int | None:
    """Return the time at which the decision at `position` arrived; None if there is no such decision, or if
    its time was not recorded."""
    rows = _rows(db, SINCE_ARRIVALS, "SELECT arrived FROM control WHERE position = ?", (position,))
    return next((arrived for (arrived,) in rows), None)


def authority(db: sqlite3.Connection) -> list[bytes]:
    """Return the encoded Successions and ControlForks, in the order of their arrival."""
    return [frame for (frame,) in _rows(db, SINCE_CONTROL, "SELECT frame FROM authority ORDER BY id")]


def keep_cuts(db: sqlite3.Connection, cuts: Iterable[tuple[int, CutRecord]]) -> None:
    rows = [(number, cut.at, cut.chain, cut.proof) for number, cut in cuts]
    db.executemany("INSERT OR REPLACE INTO cut VALUES (?, ?, ?, ?)", rows)


def keep_cards(db: sqlite3.Connection, cards: Iterable[tuple[int, CardRecord]]) -> None:
    rows = [(number, card.frame) for number, card in cards]
    db.executemany("INSERT OR REPLACE INTO card VALUES (?, ?)", rows)


def keep_bases(db: sqlite3.Connection, bases: Iterable[tuple[int, Base]]) -> None:
    """Store these bases, and remove all other bases."""
    db.execute("DELETE FROM base")
    rows = [(number, *base[1:]) for number, base in bases]
    db.executemany("INSERT INTO base VALUES (?, ?, ?, ?, ?)", rows)


STATEMENT = "statement"
"""Key in the table `meta`. Its value is this node's own Statement as a stand-in (SPEC O22), as an encoded
message."""


def keep_control(
    db: sqlite3.Connection, control: Sequence[KeepControl], authority: Sequence[bytes], statement: bytes
) -> None:
    """Store groups of decisions. Each group replaces all stored decisions from the group's first position on.
    Add those messages of `authority` that are not stored yet. Replace this node's own Statement by
    `statement` unless that is empty."""
    if statement:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (STATEMENT, statement))
    for first, entries in ((kept.first, kept.entries) for kept in control):
        db.execute("DELETE FROM control WHERE position >= ?", (first,))
        rows = [(position, *entry) for position, entry in enumerate(entries, first)]
        db.executemany(f"INSERT INTO control VALUES (?, ?, ?, ?, {_NOW})", rows)
    db.executemany("INSERT OR IGNORE INTO authority (frame) VALUES (?)", [(frame,) for frame in authority])


class Named:
    """Number of steps of each feed that closes have listed. It is computed from the log's decisions alone,
    without the manifest."""

    def __init__(self) -> None:
        self._run_state = RunState(budget=0, rate=0)

    def forget(self, control: Sequence[KeepControl]) -> None:
        """Discard the effect of all decisions if `control` replaces some that were applied."""
        if any(kept.first < self._run_state.decisions for kept in control):
            self.__init__()  # type: ignore[misc]

    def follow(self, db: sqlite3.Connection) -> None:
        """Apply the decisions that were added to the log since the last call."""
        for entry in control(db, self._run_state.decisions):
            self._run_state.apply(decisions.read(entry.record))

    def of(self, feed: Feed) -> int:
        """Return the number of a feed's steps that closes have listed."""
        number = self._run_state.number(feed)
        return self._run_state.named(number) if number is not None else 0
