"""The SQLite file of the update log: how it is opened, its tables, and whose log it is.

Knows pragmas and versions; it does not know what a segment is.

Segments are stored in order of arrival with an index on (feed, step). Clustering them by feed would look more
natural, but then an append of N feeds dirties N pages instead of a few, each written whole to the WAL.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.store.faults import corrupt

APPLICATION_ID = int.from_bytes(b"sfup", "big")
"""Marks the file as ours in its SQLite header."""

VERSION = 3
"""Of the tables below. A log with a higher one was written by a newer sfnode."""

SINCE_CUTS, SINCE_CARDS = 2, 3
"""The first versions with the tables of cuts and of cards."""

_CUT = """CREATE TABLE cut (
        feed INTEGER PRIMARY KEY, step INTEGER NOT NULL, chain BLOB NOT NULL, proof BLOB NOT NULL)"""
"""Feeds of which nothing counts from some step on (SPEC E4), and why."""

_CARD = "CREATE TABLE card (feed INTEGER PRIMARY KEY, frame BLOB NOT NULL)"
"""What the origins of feeds call themselves (SPEC K1), as encoded messages."""

_ADDED = ((SINCE_CUTS, _CUT), (SINCE_CARDS, _CARD))

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
"""Longer than any recovery of a WAL that a killed process left, which is all we ever wait for."""

_WAL_BYTES = 16 * 1024 * 1024
"""A WAL that a large transaction blew up is cut back to this."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection without implicit transactions, usable from any thread (callers lock).

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


def check(db: sqlite3.Connection, path: Path, run_id: bytes) -> None:
    """Raise UserError unless this is the log of run `run_id` in a version that we read."""
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise corrupt(path, "it is not an update log of sfnode")
    if version(db) > VERSION:
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"{path} was written by a newer sfnode (log version {version(db)}; this one reads {VERSION})",
            "Upgrade with `pip install --upgrade sfnode`, or use another --data-dir.",
        )
    (theirs,) = db.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    if theirs != run_id:
        raise UserError(
            Code.WRONG_RUN,
            f"{path} belongs to run {theirs.hex()}, not to run {run_id.hex()}",
            "Use one --data-dir per run.",
        )


def version(db: sqlite3.Connection) -> int:
    """Of the tables in the file."""
    return _pragma(db, "user_version")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
