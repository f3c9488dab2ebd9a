"""File descriptors: raises their maximum number as far as the system allows, and waits while all are in
use."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sfnode.logging import log

MACOS_MOST = 10_240
"""Maximum number of descriptors (OPEN_MAX) of a macOS process whose limit is infinite."""

PAUSE = 1.0
"""Pause, in seconds, before another attempt to open something."""

OPENED_BY_SQLITE = 4
"""Maximum number of files that SQLite opens for a statement: the database, its write-ahead log, the index of
that log, and one for sorting."""

_SQLITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Result codes with which SQLite reports that it could not open a file."""

_PRIMARY = 0xFF
"""Mask of the low byte of an extended SQLite result code, which is the primary code."""

T = TypeVar("T")


def allow_most() -> None:
    """Raise this process's limit of descriptors as far as the system allows.

    Many shells and services set the limit to 1,024, because select(2) cannot handle larger descriptors.
    """
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MACOS_MOST if most == resource.RLIM_INFINITY else most
    if usual != resource.RLIM_INFINITY and usual < wanted:
        with suppress(ValueError, OSError):  # where we may not
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def limit() -> int:
    """Return the maximum number of descriptors of this process."""
    usual, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MACOS_MOST if usual == resource.RLIM_INFINITY else usual


def are_lacking(error: BaseException | None) -> bool:
    """Return whether `error`, or the error that caused it, was due to a lack of descriptors."""
    while error is not None and not isinstance(error, OSError | sqlite3.OperationalError):
        error = error.__cause__
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in _SQLITE and _hardly_any_left()


def _hardly_any_left() -> bool:
    """Try to open as many files as SQLite does for a statement, and return whether that fails. SQLite itself
    does not report why it failed."""
    opened: list[int] = []
    try:
        for _ in range(OPENED_BY_SQLITE):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return are_lacking(error)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


def patiently(work: Callable[[], T]) -> T:
    """Call `work` repeatedly while it fails for lack of descriptors, and return its result.

    Blocks meanwhile: other programs on the machine may hold the descriptors, and will release some.
    """
    told = False
    while True:
        try:
            return work()
        except Exception as error:
            if not are_lacking(error):
                raise
            if not told:
                log.warning("waiting for descriptors: %s", error)
            told = True
        time.sleep(PAUSE)
