"""Turns errors of the disk, from the operating system and SQLite, into errors that a user can act on.

This module also makes writes durable. It does not know the content of the files.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sfnode.descriptors import patiently
from sfnode.errors import Code, UserError

Opener = Callable[[str, int], int]

_NO_ROOM_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""SQLite's codes for a full disk. SQLite reports FULL only after ENOSPC, and IOERR_WRITE when a quota or a
file size limit is exceeded."""

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REFUSED = frozenset(
    {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR}
)
_PRIMARY = 0xFF
"""Mask of the primary code in an extended SQLite result code."""


class BrokenRowError(Exception):
    """Error for a row of the log whose bytes are not those that were written."""


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn every error of the disk with the file `path` that occurs in the block into a UserError.

    Errors that only a bug in sfnode can cause (a violated constraint, invalid SQL) pass through unchanged, so
    that developers notice them.
    """
    try:
        yield
    except BrokenRowError as error:
        raise corrupt(path, str(error)) from error
    except sqlite3.Error as error:
        fault = _from_sqlite(path, error)
        if fault is None:
            raise
        raise fault from error
    except OSError as error:
        raise _from_os(path, error) from error


def private(name: str, flags: int) -> int:
    """Open a file, as the `opener` of Python's `open`. If the file is new, only this user can read and write
    it, whatever the umask."""
    return os.open(name, flags, 0o600)


def write_whole(path: Path, data: bytes, opener: Opener | None = None) -> None:
    """Write a file durably, and completely or not at all. Raises UserError DISK_FULL, DATA_DIR_UNUSABLE."""
    with disk_faults(path):
        patiently(lambda: _write_whole(path, data, opener))


def _write_whole(path: Path, data: bytes, opener: Opener | None) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)  # others may be able to read the file of an earlier attempt
    try:
        with open(partial, "xb", opener=opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of new files in `folder` survive a power cut."""
    sync_file(folder)


def sync_file(file: Path) -> None:
    """Make the content of a file survive a power cut."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def corrupt(path: Path, reason: str) -> UserError:
    """Return the error for a damaged log."""
    return UserError(
        Code.LOG_CORRUPT,
        f"the update log {path} is damaged: {reason}",
        "Move it away and start the node again: it gets all updates from its peers. Then check the disk.",
    )


def unusable(path: Path, reason: str) -> UserError:
    """Return the error for an unusable folder, or an unusable file in it."""
    return UserError(
        Code.DATA_DIR_UNUSABLE, f"cannot use {path}: {reason}", "Correct that, or name another folder."
    )


def _full(path: Path, reason: str) -> UserError:
    return UserError(
        Code.DISK_FULL,
        f"no room to write {path}: {reason}",
        "Free some space, or raise the quota or file size limit; if there is room, check the disk.",
    )


def _from_os(path: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return _full(path, reason) if error.errno in _NO_ROOM_ERRNO else unusable(path, reason)


def _from_sqlite(path: Path, error: sqlite3.Error) -> UserError | None:
    """Return the UserError for an error of SQLite; None if a bug in sfnode caused it."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & _PRIMARY
    if code in _NO_ROOM:
        return _full(path, str(error))
    if primary in _CORRUPT or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return corrupt(path, str(error))
    if primary in _BUSY:
        return UserError(
            Code.DATA_DIR_IN_USE, f"another process is writing {path}", "Stop it, or use another --data-dir."
        )
    return unusable(path, str(error)) if primary in _REFUSED else None
