"""Calls into hivemind: each has a deadline, fails with our own error type, and leaves no open socket or task.

hivemind waits for ever for a p2pd that hangs or is gone. It may raise anything, and leaks the sockets of
failed and cancelled calls. This module imports nothing of hivemind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextvars import ContextVar
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from sfnode.transport.base import TransportError

CANCEL_DEADLINE = 0.2
"""Deadline, in seconds, for cancelled tasks to end. A task that has not ended by then runs on until the event
loop ends."""

_REASON_CHARS = 300
_STOPPED = "the network is stopped"
_DESTROYED = "Task was destroyed but it is pending"
_WAITS = "coro=<Event.wait() "
_sockets: ContextVar[list[asyncio.StreamWriter] | None] = ContextVar("_sockets", default=None)

T = TypeVar("T")
log = logging.getLogger(__name__)


class Calls:
    """The calls to one p2pd. After `fail`, the calls under way and all later calls fail at once."""

    def __init__(self) -> None:
        self._failed = False
        self._running: set[asyncio.Timeout] = set()

    async def within(self, deadline: float, what: str, call: Coroutine[Any, Any, T]) -> T:
        """Await `call` for at most `deadline` seconds. Raises TransportError with a reason that begins with
        `what`."""
        if self._failed:
            call.close()
            raise TransportError(f"{what}: {_STOPPED}")
        opened: list[asyncio.StreamWriter] = []
        token = _sockets.set(opened)
        try:
            async with asyncio.timeout(deadline) as timeout:
                self._running.add(timeout)
                try:
                    return await call
                finally:
                    self._running.discard(timeout)
        except BaseException as error:
            for writer in opened:
                writer.close()
            if isinstance(error, TimeoutError):
                why = _STOPPED if self._failed else f"no answer within {deadline:g} s"
                raise TransportError(f"{what}: {why}") from None
            if isinstance(error, Exception):
                raise TransportError(f"{what}: {one_line(error)}") from error
            raise
        finally:
            _sockets.reset(token)

    def fail(self) -> None:
        """Make all present and later calls fail, because this p2pd will not answer any more."""
        self._failed = True
        now = asyncio.get_running_loop().time()
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(now)


def remember_sockets(connector: Any) -> None:
    """Make `within` note the sockets that hivemind's DaemonConnector opens, so that it can close them."""
    open_connection = connector.open_connection

    async def remembering() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await open_connection()
        opened = _sockets.get()
        if opened is not None:
            opened.append(writer)
        return reader, writer

    connector.open_connection = remembering


def contain_inbound(control: Any) -> None:
    """Catch the exceptions of hivemind's ControlClient when an inbound stream ends too early; log them at
    level DEBUG."""
    serve = control._handler

    async def containing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except Exception as error:
            log.debug("inbound stream: %s", one_line(error))
            writer.close()

    control._handler = containing


class Demote(logging.Handler):
    """A handler that logs a library's messages at level DEBUG. Failures that matter reach the user as our own
    errors."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s: %s", record.name, record.getMessage())


class AbandonedTasks(logging.Filter):
    """A filter for asyncio's log records: failures of tasks that a library has abandoned are logged at level
    DEBUG instead.

    hivemind updates its routing table in such tasks, with data from strangers. It also leaves the tasks of a
    cancelled search to the garbage collector: its workers, and tasks that only wait for the end of the
    search.
    """

    def __init__(self, library: Path, ours: Path) -> None:
        super().__init__()
        self._library, self._ours = f"{library}/", f"{ours}/"

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)] if error else []
        text = record.getMessage()
        if error is None and not text.startswith(_DESTROYED):
            return True
        seen = files or [text]
        # The message does not show whose task waits; the task that awaits that task is logged, too.
        waits = error is None and _WAITS in text
        known = waits or any(self._library in file for file in seen)
        if not known or any(self._ours in file for file in seen):
            return True
        log.debug("abandoned task: %s", one_line(error) if error else text)
        return False


def one_line(error: BaseException) -> str:
    """Return a library's message on one line, at most _REASON_CHARS long."""
    text = " ".join(str(error).removeprefix("Connect failed. msg=").split())
    return (text or type(error).__name__)[:_REASON_CHARS]


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that still run, and wait at most CANCEL_DEADLINE for all to end."""
    pending = set(tasks)
    for task in pending:
        task.cancel()
    await wait_briefly(pending, CANCEL_DEADLINE)


async def wait_briefly(tasks: Iterable[asyncio.Task[Any]], deadline: float) -> set[asyncio.Task[Any]]:
    """Wait at most `deadline` seconds and return the tasks that still run. All exceptions are ignored."""
    pending = set(tasks)
    for task in pending:
        task.add_done_callback(_ignore_exception)
    return (await asyncio.wait(pending, timeout=deadline))[1] if pending else pending


def _ignore_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task, because asyncio logs exceptions that nobody has retrieved."""
    if not task.cancelled():
        task.exception()
