"""`sfnode top`: looks at a node once a second and keeps a terminal up to date, until q is pressed.

Writes only the lines that have changed, so that it costs a slow line little. A node that is not there or goes
away is said so and waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sfnode.client import Client
from sfnode.dashboard.frame import absent, ascii_only, frame
from sfnode.dashboard.seen import look
from sfnode.errors import UserError

INTERVAL = 1.0
"""Seconds between frames."""

MEASURED_ROWS = 200
"""Test rows of a measurement that is asked for by a key: seconds on a CPU, with an interval wide enough to
show that it is few."""

QUIT = frozenset("qQ\x03\x04\x1b")
"""Also Ctrl-C, Ctrl-D and Escape."""


async def once(client: Client, console: Console) -> None:
    """Print one frame. Raises UserError NODE_NOT_RUNNING."""
    lines = _fitting(frame(await look(client), console.width, console.height), console)
    while lines and not lines[-1].plain:
        lines.pop()
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", crop=True, highlight=False)


class Top:
    """One terminal that shows one node."""

    def __init__(self, client: Client, folder: Path, console: Console) -> None:
        self._client = client
        self._folder = folder
        self._console = console
        self._stirred = asyncio.Event()
        self._quit = False
        self._measuring: asyncio.Task[None] | None = None
        self._note = ""
        self._shown: list[str] = []
        self._size = console.size

    async def run(self) -> None:
        """Until the user quits."""
        loop = asyncio.get_running_loop()
        with self._console.screen(hide_cursor=True), _single_keys():
            loop.add_reader(sys.stdin.fileno(), self._on_key)
            loop.add_signal_handler(signal.SIGWINCH, self._stirred.set)
            try:
                while not self._quit:
                    self._show(await self._lines())
                    self._stirred.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(INTERVAL):
                            await self._stirred.wait()
            finally:
                loop.remove_reader(sys.stdin.fileno())
                loop.remove_signal_handler(signal.SIGWINCH)
                await self._stop_measuring()

    async def _lines(self) -> list[Text]:
        size = self._console.size
        try:
            return frame(await look(self._client), size.width, size.height, self._note)
        except UserError as error:
            return absent(self._folder, error.what, size.width, size.height)

    def _show(self, lines: list[Text]) -> None:
        """Write what differs from what is on the screen."""
        if self._console.size != self._size:
            self._size, self._shown = self._console.size, []
            self._console.file.write("\x1b[2J")
        rendered = [self._rendered(line) for line in _fitting(lines, self._console)]
        rendered += [""] * (len(self._shown) - len(rendered))
        for row, line in enumerate(rendered):
            if row >= len(self._shown) or line != self._shown[row]:
                self._console.file.write(f"\x1b[{row + 1};1H{line}\x1b[0m\x1b[K")
        self._console.file.flush()
        self._shown = rendered

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="crop", crop=True, highlight=False)
        return captured.get()

    # -- keys --------------------------------------------------------------------------------------

    def _on_key(self) -> None:
        typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
        if not typed or (QUIT & set(typed) and not typed.startswith("\x1b[")):
            self._quit = True
        elif "e" in typed and (self._measuring is None or self._measuring.done()):
            self._measuring = asyncio.create_task(self._measure())
        self._stirred.set()

    async def _measure(self) -> None:
        self._note = "measuring…"
        try:
            await self._client.evaluate(limit=MEASURED_ROWS)
            self._note = ""
        except UserError as error:
            self._note = error.what
        self._stirred.set()

    async def _stop_measuring(self) -> None:
        if self._measuring:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)


def _fitting(lines: list[Text], console: Console) -> list[Text]:
    return lines if console.encoding.lower().startswith("utf") else ascii_only(lines)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one and are not shown."""
    before = termios.tcgetattr(sys.stdin.fileno())
    tty.setcbreak(sys.stdin.fileno())
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
