"""The SQLite file of the update log: opening it, its tables, and the run that it belongs to.

Knows pragmas and versions; does not know what a segment is.

Segments are stored in order of arrival with an index on (feed, step). Clustering them by feed would look more
natural, but then an append of N feeds dirties N pages instead of a few, each written whole to the WAL.
"""

from __future__ import annotations

import fcntl
import sqlite3
import struct
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import corrupt

APPLICATION_ID = int.from_bytes(b"sfup", "big")
"""Marks the file as ours in its SQLite header."""

VERSION = 5
"""Version of the tables below. A log with a higher one was written by a newer sfnode."""

SINCE_CUTS, SINCE_CARDS, SINCE_CONTROL, SINCE_BASES = 2, 3, 4, 5
"""The first versions with the tables of cuts, of cards, of the control feed, and of bases."""

_CUT = """CREATE TABLE cut (
        feed INTEGER PRIMARY KEY, step INTEGER NOT NULL, chain BLOB NOT NULL, proof BLOB NOT NULL)"""
"""Feeds of which nothing counts from some step on, with the proof (SPEC E4); it is empty for a feed that has
made room for another (SPEC S8)."""

_CARD = "CREATE TABLE card (feed INTEGER PRIMARY KEY, frame BLOB NOT NULL)"
"""Cards of the feeds' origins (SPEC K1), as encoded messages."""

_CONTROL = """CREATE TABLE control (
        position INTEGER PRIMARY KEY, term INTEGER NOT NULL, record BLOB NOT NULL, signature BLOB NOT NULL)"""
"""Decisions of the organiser, by their position in the control feed (SPEC O3)."""

_AUTHORITY = "CREATE TABLE authority (id INTEGER PRIMARY KEY, frame BLOB NOT NULL UNIQUE)"
"""Successions and forks of the control feed (SPEC O4), as encoded messages."""

_BASE = """CREATE TABLE base (
        feed INTEGER PRIMARY KEY, step INTEGER NOT NULL, chain BLOB NOT NULL, epoch INTEGER NOT NULL,
        labelled INTEGER NOT NULL)"""
"""Steps at which the rows of feeds begin, where a checkpoint stands for what comes before (SPEC O14)."""

_ADDED = (
    (SINCE_CUTS, _CUT),
    (SINCE_CARDS, _CARD),
    (SINCE_CONTROL, _CONTROL),
    (SINCE_CONTROL, _AUTHORITY),
    (SINCE_BASES, _BASE),
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

_WAIT_S = 5.0
"""Seconds; longer than any recovery of a WAL that a killed process left, which is all we ever wait for."""

_WAL_BYTES = 16 * 1024 * 1024
"""Size to which a WAL is truncated after a large transaction."""

_FS_IOC_GETVERSION = 0x80087601
"""Request on Linux for the generation of an inode, a random number drawn whenever the inode is allocated."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection without implicit transactions, usable from any thread (callers lock).

    A commit through it is on the disk when it returns: with WAL, `synchronous = FULL` syncs at every commit.
    """
    mode = "ro" if read_only else "rwc"
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        if not read_only:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA fullfsync = ON")  # macOS, where an ordinary fsync stops at the drive's cache
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def inode_generation(path: Path) -> int:
    """Return the generation of the file's inode, 0 where the file system has none; make the file if needed.

    ext4 gives the number of a deleted file to the next one created, so a backup restored over the original
    usually has the original's inode number. Not to be called while SQLite has the file open: on POSIX,
    closing any descriptor of a file releases all locks that the process holds on it, SQLite's among them,
    and another program that opens the log would then delete the WAL under us.
    """
    with path.open("ab") as file:
        try:
            return int(struct.unpack("=q", fcntl.ioctl(file, _FS_IOC_GETVERSION, bytes(8)))[0])
        except OSError:
            return 0


def create(db: sqlite3.Connection, run_id: bytes) -> None:
    """Make the tables if the file is empty, all or nothing."""
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        return
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('run_id', ?)", (run_id,))
    db.execute("COMMIT")


def upgrade(db: sqlite3.Connection) -> None:
    """Bring the tables of a log that an older sfnode wrote up to date, all or nothing."""
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
    """Return the id of the run whose log this is. Raises UserError LOG_CORRUPT if it is no update log."""
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise corrupt(path, "it is not an update log of sfnode")
    (run_id,) = db.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    return bytes(run_id)


def check(db: sqlite3.Connection, path: Path, run_id: bytes) -> None:
    """Raise UserError unless this is the log of run `run_id` in a version that we read."""
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
    """Return the version of the tables in the file."""
    return _pragma(db, "user_version")


def shrink(db: sqlite3.Connection) -> None:
    """Give the space of what was deleted back to the disk if that is more than what is left."""
    if 2 * _pragma(db, "freelist_count") > _pragma(db, "page_count"):
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
