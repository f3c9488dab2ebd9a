"""Ways to go on where the system gives a process only so many descriptors."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sfnode.logging import log

MACOS_MOST = 10_240
"""OPEN_MAX: descriptors that macOS gives a process which may have any number."""

PAUSE = 1.0
"""Seconds before another attempt to open something."""

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


def are_lacking(error: BaseException | None) -> bool:
    """Return whether something failed, directly or further down, because no descriptor was left."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in (errno.EMFILE, errno.ENFILE)


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
