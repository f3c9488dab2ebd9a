"""Progress on standard error while the user waits: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.text import Text

from sfnode.cli.output import echo
from sfnode.dashboard.formatting import download_in_words
from sfnode.logging import BEGINS, begins, log
from sfnode.printable import paragraph, size_text
from sfnode.schema.metrics import far
from sfnode.schema.node_state import NodeState

if TYPE_CHECKING:
    from sfnode.schema.status import Status


FOLLOW_INTERVAL = 0.25
"""Seconds between two requests to a node that is starting."""

LINES = 10.0
"""Seconds from the last line of output to the next line of progress, where standard error is no terminal."""

TELLING = 0.05
"""Share of the work that must be done before the time left is computed from the measured speed. Until then it
is computed from the expected duration."""

MINUTES = 100.0
"""Threshold in seconds. Longer times are shown in minutes."""

Advance = Callable[[int, int], None]
"""Function to call with the amount of work that is done, and the total amount."""

T = TypeVar("T")


@contextmanager
def waiting(what: str, seconds: float = 0.0) -> Iterator[Advance]:
    """Show `what`, which names the work within the block, and the progress of the work once the block reports
    it.

    On a terminal a bar is shown, elsewhere a line every LINES seconds. `seconds` is the expected duration of
    the work, from which the time left is computed until the speed of the work is known.
    """
    if not sys.stderr.isatty():
        with _lines(what, seconds) as advance:
            yield advance
        return

    def left(task: Task) -> str:
        done = task.completed / task.total if task.total else 0.0
        return left_text(done, task.elapsed or 0.0, seconds)

    columns = (SpinnerColumn(), _Told(), _Bar(), _Told(_far), TimeElapsedColumn(), _Told(left))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)


class _Told(ProgressColumn):
    """A column of a progress bar, with the text that a function returns for the work. Strangers may have
    chosen names in the text."""

    def __init__(self, say: Callable[[Task], str] = lambda task: paragraph(task.description)) -> None:
        super().__init__()
        self._say = say

    def render(self, task: Task) -> Text:
        return Text(self._say(task))


class _Bar(BarColumn):
    """A bar that appears once the total is known. Before that, rich would draw a full bar."""

    def render(self, task: Task) -> Any:
        return super().render(task) if task.total else Text("...")


def _far(task: Task) -> str:
    """Return the amount done and the total as text; empty while the total is unknown, when rich would show
    `0/?`."""
    return f"{task.completed:,.0f}/{task.total:,.0f}" if task.total else ""


@contextmanager
def _lines(what: str, seconds: float) -> Iterator[Advance]:
    begun, ended, far = time.monotonic(), threading.Event(), [0, 0]

    def note(done: int, total: int) -> None:
        far[:] = done, total

    def line() -> str:
        done, total = far
        left = left_text(done / total if total else 0.0, time.monotonic() - begun, seconds)
        told = ", ".join(filter(None, [f"{done:,} of {total:,}" if total else "", left]))
        return f"{what}: {told}" if told else what

    def draw() -> None:
        while not ended.wait(LINES):
            echo(line(), err=True)

    echo(line(), err=True)
    thread = threading.Thread(target=draw, name="progress", daemon=True)
    thread.start()
    try:
        yield note
    finally:
        ended.set()
        thread.join()


def left_text(done: float, elapsed: float, expected: float) -> str:
    """Return the time left for some work, as text. The share `done` of it took `elapsed` seconds.

    `expected` is the expected duration of the whole work; 0: unknown. The text is empty if the time left is
    unknown, as it is once the work takes longer than it should.
    """
    left = (elapsed / done if done >= TELLING else expected) - elapsed
    if left <= 0.0:
        return ""
    return f"about {left / 60:.0f} min left" if left >= MINUTES else f"about {math.ceil(left)} s left"


class Narration:
    """Reports a starting node's work and its progress, until the node trains.

    On a terminal it prints one changing line, and a log line for each finished part of the work; elsewhere
    only log lines. A separate thread prints them, even while the main thread imports a library.
    """

    def __init__(
        self, *, terminal: bool, plain: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`terminal`: whether standard error is a terminal; `plain`: whether the log is for people. A log for
        programs gets a line when work begins, but no progress."""
        self._terminal = terminal and plain
        self._beats = plain and not terminal
        self._clock = clock
        self._begun = self._said = clock()
        self._what = ""
        self._since = 0.0
        self._far = ""
        self._bars: Progress | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self.heard)
        threading.Thread(target=self._beat, name="narration", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self.heard)
        self._ended.set()
        self.rest()

    def heard(self, record: logging.LogRecord) -> bool:
        """Handle a log record. A record that begins new work also ends the work before. Return whether to
        print the record. On a terminal, records that begin work are not printed, because the changing line
        shows the work."""
        if getattr(record, BEGINS, False):
            self.rest()
            self._what, self._since = record.getMessage(), self._clock()
            self._draw()
            return not self._terminal
        self._said = self._clock()
        return True

    def begin(self, what: str) -> None:
        """Report `what` as the current work, unless it already is."""
        if what != self._what:
            begins("%s", what)

    def advance(self, far: str) -> None:
        """Record the progress of the current work, such as `12,000 of 31,000`."""
        self._far = far
        self._draw()

    def end(self, last: str = "") -> None:
        """Stop reporting. Print `last`, if it is not empty."""
        self.rest()
        self._ended.set()
        if last:
            log.info("%s, %.1f s after the start", last, self._clock() - self._begun)

    def beat(self) -> None:
        """Print a line if LINES seconds have passed without one."""
        now = self._clock()
        if not (self._beats and self._what) or now - self._said < LINES:
            return
        far = f" {self._far}" if self._far else ""
        log.info("%s:%s %.0f s", self._what, f"{far}," if far else "", now - self._since)

    def _beat(self) -> None:
        while not self._ended.wait(LINES / 8):
            self.beat()

    def rest(self) -> None:
        """End the current work, and report nothing until other work begins."""
        what, self._what, self._far = self._what, "", ""
        self._said = self._clock()
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if what and self._terminal:
            log.info("%s: %.1f s", what, self._said - self._since)

    def _draw(self) -> None:
        if not self._terminal or not self._what or self._ended.is_set():
            return
        if self._bars is None:
            columns = (SpinnerColumn(), _Told(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.add_task(self._what, total=None)
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], description=f"{self._what} {self._far}".rstrip())


_followers: set[asyncio.Task[None]] = set()
"""References to the tasks, which prevent their garbage collection. The tasks end with the event loop."""


def follow(status: Callable[[], Status], narration: Narration) -> None:
    """Report the work of a node that has joined a run, until the node trains or has nothing to do.
    `narration` prints the reports."""
    task = asyncio.create_task(_follow(status, narration))
    _followers.add(task)
    task.add_done_callback(_followers.discard)


async def _follow(status: Callable[[], Status], narration: Narration) -> None:
    while True:
        now = status()
        what, far = doing(now)
        if not what:
            narration.end(far)
            return
        narration.begin(what)
        narration.advance(far)
        await asyncio.sleep(FOLLOW_INTERVAL)


def doing(now: Status) -> tuple[str, str]:
    """Return a node's work before its first update, and the progress of that work. After the first update,
    return an empty text and the last line to print."""
    match now.state:
        case NodeState.STARTING if now.fetch:
            return (
                f"{download_in_words(now.fetch)} from peers",
                f"{size_text(now.fetch.done)} of {size_text(now.fetch.total)}",
            )
        case NodeState.STARTING:
            return "loading the model", ""
        case NodeState.ASKING | NodeState.CATCHING_UP:
            most = max((link.known for link in now.links), default=0)
            if now.known < most:
                return "catching up", f"{now.known:,} of {most:,} updates"
            return "asking the neighbours what they have", ""
        case NodeState.WAITING | NodeState.IDLE if now.wait:
            return now.wait.text, ""
        case NodeState.TRAINING if not now.own_updates and now.doing:
            return now.doing.what, far(now.doing)
        case NodeState.TRAINING if not now.own_updates:
            return "computing the first update", ""
        case NodeState.TRAINING:
            return "", "training"
    return "", ""


# -- signals that end a coroutine as Ctrl-C does -------------------------------------------------------


def run(work: Coroutine[Any, Any, T], runner: Callable[..., T] = asyncio.run) -> T:
    """Await `work` in a new event loop, which `runner` makes (`asyncio.run` or `uvloop.run`).

    Raises click.Abort if a signal ends it.
    """
    try:
        return runner(_interruptible(work))
    except asyncio.CancelledError:
        raise click.Abort from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it, as Ctrl-C does, until `work` handles them itself.

    A signal that the parent process ignored (as nohup does) stays ignored. asyncio itself handles Ctrl-C.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    return await work
