"""A terminal of 100 columns in which a user types, and a transcript of what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Self

from tests.processes.helpers import PATIENCE, SFNODE, environment

ROWS, COLUMNS = 50, 100

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
"""Sequences that move the cursor and change colours."""


class Terminal:
    """A command in its own terminal."""

    def __init__(self, home: Path, *words: object) -> None:
        self._end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        variables = environment(home) | {"TERM": "xterm"}
        command = [*SFNODE, *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, cwd=home, env=variables, start_new_session=True
        )
        os.close(inner)
        self.transcript = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def until(self, shown: str) -> str:
        """Read until the text `shown` appears. Return the transcript."""
        begun = time.monotonic()
        while shown not in self.transcript:
            assert time.monotonic() - begun < PATIENCE, f"no {shown!r} in {self.transcript}"
            assert self._read(), f"it ended without {shown!r}: {self.transcript}"
        return self.transcript

    def type(self, line: str) -> None:
        os.write(self._end, f"{line}\n".encode())

    def ended(self) -> str:
        """Wait until the command has ended with exit status 0. Return the transcript."""
        begun = time.monotonic()
        while self._read():
            assert time.monotonic() - begun < PATIENCE, self.transcript
        assert self.process.wait(PATIENCE) == 0, self.transcript
        return self.transcript

    def _read(self) -> bool:
        """Add new output to the transcript. Return whether more may follow."""
        if not select.select([self._end], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._end, 1 << 16)
        except OSError:  # no process writes to the terminal any more
            return False
        self.transcript += CONTROL.sub("", data.decode(errors="replace"))
        return bool(data)
