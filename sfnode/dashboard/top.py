"""`sfnode top`: requests a node's state once a second and redraws the terminal, until q is pressed.

While no node runs, the terminal says so, and `sfnode top` waits for a node.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sfnode.control.client import Client
from sfnode.dashboard.frame import ORIGIN_ROWS, WIDE, Shown, absent, ascii_only, frame
from sfnode.dashboard.snapshot import look_at_all, measure
from sfnode.errors import UserError

if TYPE_CHECKING:
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.views import OwnStanding

INTERVAL = 1.0
"""Seconds between frames."""

BACKGROUND_INTERVAL = 5.0
"""Seconds between two requests for the answers in `Background`, which change slowly."""

QUIT = frozenset("qQ\x03\x04\x1b")
"""Keys that quit: q, Ctrl-C, Ctrl-D and Escape."""

SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)", re.DOTALL)
"""Pattern of the characters of an arrow key, of F1, or of Alt with a letter. They begin with Escape, but do
not quit."""

IMMOBILE = frozenset(("", "dumb", "unknown"))
"""Values of TERM for terminals that cannot move the cursor."""

PLAIN = frozenset(("linux", "vt100", "vt102", "vt220", "ansi"))
"""Values of TERM for terminals whose font lacks most block characters, whatever the locale."""


def can_be_kept_up_to_date(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard input and output are a terminal on which lines can be replaced."""
    return sys.stdin.isatty() and sys.stdout.isatty() and environment.get("TERM", "") not in IMMOBILE


async def once(client: Client, console: Console) -> None:
    """Print one frame, one line shorter than the terminal, because the shell's prompt needs a line. Raises
    UserError NODE_NOT_RUNNING."""
    now, curves = await look_at_all(client)
    background = await look_behind(client, organised=now.status.organised is not None)
    origins = await client.origins(limit=ORIGIN_ROWS) if console.width >= WIDE else None
    shown = Shown(now, curves, origins, "", *background)
    lines = _fitting(frame(shown, console.width, console.height - 1), console)
    while lines and not lines[-1].plain:
        lines.pop()
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", crop=True, highlight=False)


Background = tuple[Sequence["EpochEvaluation"], "OwnStanding"]
"""The node's answers that change slowly: the organiser's evaluations, which change with a seal, and the
node's contribution, which changes after minutes of work."""


async def look_behind(client: Client, *, organised: bool) -> Background:
    """Ask the node for the organiser's evaluations and for its own contribution. Raises UserError
    NODE_NOT_RUNNING."""
    evaluations = (await client.organising()).evaluations if organised else ()
    return evaluations, await client.standing()


class Top:
    """Shows a node on a terminal."""

    def __init__(self, client: Client, folder: Path, console: Console) -> None:
        self._client = client
        self._folder = folder
        self._console = console
        self._wake = asyncio.Event()
        self._quit = asyncio.Event()
        self._measuring: asyncio.Task[None] | None = None
        self._with_origins = False
        """Whether origins are shown in place of the neighbours."""
        self._behind: Background | None = None
        self._behind_at = float("-inf")
        """Time of the last request for the answers in `_behind`, which change slowly."""
        self._note = ""

    async def run(self) -> None:
        """Run until the user quits. A key to quit takes effect at once, even while a node does not answer."""
        loop = asyncio.get_running_loop()
        live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        with live, _single_keys():
            loop.add_reader(sys.stdin.fileno(), self._on_key)
            for number in (signal.SIGWINCH, signal.SIGCONT):
                loop.add_signal_handler(number, self._redraw)
            watching = asyncio.create_task(self._watch(live))
            quitting = asyncio.create_task(self._quit.wait())
            try:
                await asyncio.wait((watching, quitting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_reader(sys.stdin.fileno())
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    loop.remove_signal_handler(number)
                tasks = [task for task in (watching, quitting, self._measuring) if task]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if not watching.cancelled():
            watching.result()  # it ends only by an error

    async def _watch(self, live: Live) -> None:
        while True:
            self._wake.clear()
            live.update(Group(*_fitting(await self._lines(), self._console)), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._wake.wait()

    async def _lines(self) -> list[Text]:
        try:
            now, curves = await look_at_all(self._client)
            both = self._console.width >= WIDE
            wanted = self._with_origins or both
            origins = await self._client.origins(limit=ORIGIN_ROWS) if wanted else None
            behind = await self._background(organised=now.status.organised is not None)
            shown = Shown(now, curves, origins, self._note, *behind, self._with_origins)
            return frame(shown, *self._console.size)
        except UserError as error:
            return absent(self._folder, error.what, *self._console.size)

    async def _background(self, *, organised: bool) -> Background:
        clock = asyncio.get_running_loop().time
        if self._behind is None or clock() - self._behind_at >= BACKGROUND_INTERVAL:
            self._behind = await look_behind(self._client, organised=organised)
            self._behind_at = clock()
        return self._behind

    def _redraw(self) -> None:
        """Draw at once, after the terminal was resized or used by another program."""
        _one_by_one()
        self._wake.set()

    # -- keys --------------------------------------------------------------------------------------

    def _on_key(self) -> None:
        try:
            typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
        except OSError:  # the terminal is gone
            typed = ""
        keys = SEQUENCE.sub("", typed)
        if not typed or QUIT & set(keys):
            self._quit.set()
        if "o" in keys:
            self._with_origins = not self._with_origins
        if "e" in keys and (self._measuring is None or self._measuring.done()):
            self._measuring = asyncio.create_task(self._measure())
        self._wake.set()

    async def _measure(self) -> None:
        self._note = "evaluating…"
        try:
            await measure(self._client)
            self._note = ""
        except UserError as error:
            self._note = error.what
        self._wake.set()


def _fitting(lines: list[Text], console: Console) -> list[Text]:
    """Return the lines. If the terminal cannot show Unicode, the lines are reduced to ASCII."""
    knows = console.encoding.lower().startswith("utf") and os.environ.get("TERM") not in PLAIN
    return lines if knows else ascii_only(lines)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Have the terminal pass on each key at once, without echo, within the block."""
    before = termios.tcgetattr(sys.stdin.fileno())
    _one_by_one()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


def _one_by_one() -> None:
    with suppress(termios.error):  # the terminal is gone; reading it ends soon
        tty.setcbreak(sys.stdin.fileno())
