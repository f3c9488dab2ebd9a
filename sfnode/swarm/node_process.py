"""One node process on this machine: started, watched through its control socket, stopped.

It does not outlive the process that started it, however that one ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from sfnode import die_with_parent
from sfnode.control.client import Client
from sfnode.defaults import PREFIX, variable
from sfnode.errors import NO_ANSWER, Code, UserError
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout

T = TypeVar("T")

START_DEADLINE = 120.0
"""Seconds for a node to answer on its control socket: importing torch on a busy machine takes ten."""

STOP_DEADLINE = 10.0
"""Seconds for a node to end after it was asked to; it takes less than two."""

END_DEADLINE = 5.0
"""Seconds for a process whose control socket has gone to be gone itself."""

START_POLL = 0.2

SHOWN_LINES = 8
"""Lines of a node's output that the error shows when the node has ended."""


class NodeProcess:
    """One node process and its folder; `number` counts from 1."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.client = Client(Layout(folder).control_socket)
        self.status: Status | None = None
        """Its last answer."""
        self.folder = folder
        self.program = (sys.executable, "-m", "sfnode")
        self._log = folder / "node.log"
        self._process: asyncio.subprocess.Process | None = None
        self._started = time.monotonic()

    async def start(self, arguments: list[str], invitation: str = "") -> None:
        """Start its program's `join` with these arguments and by this invitation, which is a secret that no
        other user may see; its output goes to node.log in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        node = [*self.program, "join", "--data-dir", str(self.folder), *arguments]
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent.tied(node),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**_environment(), variable("--invitation"): invitation},
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the nodes
            )
        self._started = time.monotonic()

    async def look(self) -> Status | None:
        """Return its status as of now, or else its last one; None if it has not answered yet.

        Raises UserError SWARM_FAILED when the process has ended or does not answer from the start.
        """
        if self._process is None or self._process.returncode is not None:
            raise self._failure()
        try:
            self.status = await self.client.status()
        except UserError:
            if self.status is None and time.monotonic() - self._started > START_DEADLINE:
                raise self._failure() from None
        return self.status

    async def answering(self) -> Status:
        """Wait for its first status."""
        while True:
            if status := await self.look():
                return status
            await asyncio.sleep(START_POLL)

    async def ask(self, call: Awaitable[T]) -> T:
        """Await a call of its client; if its process has ended, raise UserError SWARM_FAILED instead."""
        try:
            return await call
        except UserError as error:
            if error.code in NO_ANSWER and await self._ends():
                raise self._failure() from error
            raise

    async def stop(self) -> None:
        """End it by SIGTERM, or after STOP_DEADLINE by SIGKILL."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_DEADLINE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _ends(self) -> bool:
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), END_DEADLINE)
        except TimeoutError:
            return False
        return True

    def _failure(self) -> UserError:
        status = self._process.returncode if self._process else None
        shown = "\n".join(_end_of_output(self._log))
        return UserError(
            Code.SWARM_FAILED,
            f"node {self.number} {_fate(status)}; its output ends with:\n{shown}",
            f"The whole output is in {self._log}",
        )


def _environment() -> dict[str, str]:
    """Our environment without the options in it: they are meant for this process, not for the nodes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, variable("--config"): os.devnull}


def _fate(status: int | None) -> str:
    if status is None:
        return f"did not answer for {START_DEADLINE:g} s"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _end_of_output(log: Path) -> list[str]:
    """The error that the node ended with, or else the last lines of its output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [number for number, line in enumerate(lines) if line.startswith("sfnode: SF")]
    return lines[errors[-1] :] if errors else lines[-SHOWN_LINES:]
