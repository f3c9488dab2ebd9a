"""The one wrapper of all loggers: a thread of its own, so that whoever measures never waits and never fails.

What a disk, a network or a library does wrong costs a line in the log and some records, nothing else.

A node, the simulator and a program that uses the library all say the same four kinds of things; where those
go is up to the logger.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from sfnode.logging import log
from sfnode.printable import printable

Kind = Literal["step", "epoch", "evaluation", "traffic"]


# -- measurements, and what takes them -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """Numbers that were measured together."""

    kind: Kind
    step: int
    """Place on the x-axis: updates known to a node, or local steps of a simulated client."""
    values: Mapping[str, float]
    """Numbers by name, in lower case with underscores: `loss`, `accuracy`, `bytes_per_edge`."""


class Logger(Protocol):
    """Interface of a place for records."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        """Begin a run, once, with its name and all that its numbers follow from."""
        ...

    def record(self, record: LoggedRecord) -> None:
        """Take a record. Must not block for long, and raises nothing for what goes wrong elsewhere."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...


MAX_WAITING = 1024
"""Records that may wait, 1 MB: an hour of a node while a logger waits for its network."""

PATIENCE = 10.0
"""Seconds for which `close` waits for what is left, unless told otherwise."""

LONGEST_NAME = 128
"""Characters of a run's name that are passed on."""


class BackgroundLogger:
    """Loggers in a thread beside: takes records at once, drops them when too many wait. Does nothing without
    loggers."""

    def __init__(self, loggers: Mapping[str, Logger], patience: float = PATIENCE) -> None:
        """`loggers` have the names by which the log speaks of them; they are this one's from now on."""
        self.dropped = 0
        """Records that nobody had room for."""
        self._writers = [_Writer(name, logger) for name, logger in loggers.items()]
        self._patience = patience
        self._waiting: queue.Queue[Callable[[_Writer], None] | None] = queue.Queue(MAX_WAITING)
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="loggers", daemon=True)

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        """Begin a run with all loggers. Its name may be a stranger's text: it is made printable and short."""
        if self._writers:
            self._thread.start()
        shown = printable(name)[:LONGEST_NAME]
        self._take(lambda writer: writer.begin(shown, settings))

    def record(self, record: LoggedRecord) -> None:
        self._take(lambda writer: writer.record(record))

    def close(self) -> None:
        """Wait until everything is written and all loggers are closed, for so long as patience lasts."""
        if self._closing:
            return
        self._closing = True
        if not self._thread.is_alive():  # never begun
            self._end()
            return
        with suppress(queue.Full):  # then it is at work, and looks at `_closing` itself
            self._waiting.put_nowait(None)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            names = ", ".join(writer.name for writer in self._writers)
            log.warning("gave up waiting for %s: what was recorded last may be lost", names)

    def _take(self, work: Callable[[_Writer], None]) -> None:
        if not self._writers:
            return
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self.dropped += 1
            if _tells(self.dropped):
                log.warning("loggers are too slow: %d records were dropped so far", self.dropped)

    def _work(self) -> None:
        while not (self._closing and self._waiting.empty()):
            if work := self._waiting.get():
                for writer in self._writers:
                    writer.attempt(work)
        self._end()

    def _end(self) -> None:
        for writer in self._writers:
            writer.attempt(lambda writer: writer.close())
        self._writers = []


class _Writer:
    """One logger, and how often it has failed."""

    def __init__(self, name: str, logger: Logger) -> None:
        self.name = name
        self._logger = logger
        self._begin: Callable[[], None] | None = None
        """Function that begins the run, until it has succeeded."""
        self._failed = 0

    def attempt(self, work: Callable[[_Writer], None]) -> None:
        """Do some work; log what it fails with, the first time and whenever failures have doubled."""
        try:
            work(self)
        except Exception as error:  # of any library
            self._failed += 1
            if _tells(self._failed):
                log.warning("%s fails, %d times so far: %s", self.name, self._failed, error or type(error))

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._begin = lambda: self._logger.begin(name, settings)
        self._begun()

    def record(self, record: LoggedRecord) -> None:
        self._begun()
        self._logger.record(record)

    def close(self) -> None:
        self._logger.close()

    def _begun(self) -> None:
        """Begin the run unless that was done: what fails once, without a network, may succeed later."""
        if self._begin:
            self._begin()
            self._begin = None


def _tells(count: int) -> bool:
    return count & (count - 1) == 0
