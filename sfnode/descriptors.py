"""Ways to go on where the system gives a process only so many descriptors."""

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
"""OPEN_MAX: descriptors that macOS gives a process which may have any number."""

PAUSE = 1.0
"""Seconds before another attempt to open something."""

OPENED_BY_SQLITE = 4
"""Most files that SQLite opens for one statement: database, WAL, its index, and one for sorting."""

_SQLITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Errors by which SQLite says that it could not open something."""

_PRIMARY = 0xFF
"""The low byte of an extended SQLite result code is the primary one."""

T = TypeVar("T")


def allow_most() -> None:
    """Let this process have as many descriptors as the system lets it.

    Many shells and services allow 1,024, for the sake of programs that call select(2).
    """
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MACOS_MOST if most == resource.RLIM_INFINITY else most
    if usual != resource.RLIM_INFINITY and usual < wanted:
        with suppress(ValueError, OSError):  # where it is not for us to say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def limit() -> int:
    """Return the number of descriptors that this process may have."""
    usual, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MACOS_MOST if usual == resource.RLIM_INFINITY else usual


def are_lacking(error: BaseException | None) -> bool:
    """Return whether something failed, directly or further down, because no descriptor was left."""
    while error is not None and not isinstance(error, OSError | sqlite3.OperationalError):
        error = error.__cause__
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in _SQLITE and _hardly_any_left()


def _hardly_any_left() -> bool:
    """Return whether what SQLite opens at a time cannot be opened now: SQLite does not say why it failed."""
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
    """Return what `work` returns; do it again, and again, as long as it fails for lack of descriptors.

    Blocks meanwhile: other programs of the machine may hold them, and will let go of them.
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
