"""Node processes on this machine: started, watched through their control sockets, stopped.

What is shown of them is somebody else's business. No node outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sfnode.cli.options import PREFIX, variable
from sfnode.client import Client
from sfnode.errors import Code, UserError
from sfnode.runtime.status import Status
from sfnode.store.datadir import Layout
from sfnode.transport import leash

T = TypeVar("T")

START_DEADLINE = 120.0
"""Seconds for a node to answer on its control socket: importing torch on a busy machine takes ten."""

STOP_DEADLINE = 10.0
"""Seconds for a node to end after it was asked to; it takes less than two."""

END_DEADLINE = 5.0
"""Seconds for a process whose control socket has gone to be gone itself."""

START_POLL = 0.2

LAST_WORDS = 8
"""Lines of a node's output that are shown when it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    nodes: int
    run: Path
    folder: Path
    """Each node has a folder in here."""
    split_data: bool
    threads: int
    device: str
    dtype: str


class SwarmNode:
    """One node process and its folder. `number` counts from 1."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.client = Client(Layout(folder).control_socket)
        self.status: Status | None = None
        """Its last answer."""
        self._folder = folder
        self._log = folder / "node.log"
        self._process: asyncio.subprocess.Process | None = None
        self._started = time.monotonic()

    async def start(self, arguments: list[str]) -> None:
        """Start `sfnode join` with these arguments; its output goes to node.log in its folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        node = [sys.executable, "-m", "sfnode", "join", "--data-dir", str(self._folder), *arguments]
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *_leashed(node),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for us; the nodes are told by us
            )
        self._started = time.monotonic()

    async def look(self) -> Status | None:
        """Its status now, or else its last one.

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
        """Its first status."""
        while True:
            if status := await self.look():
                return status
            await asyncio.sleep(START_POLL)

    async def ask(self, call: Awaitable[T]) -> T:
        """The answer to a call of its client; if its process has ended instead, that is the error."""
        try:
            return await call
        except UserError as error:
            if error.code is Code.NODE_NOT_RUNNING and await self._ends():
                raise self._failure() from error
            raise

    async def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
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
        words = "\n".join(f"    {line}" for line in _last_words(self._log))
        return UserError(
            Code.SWARM_FAILED,
            f"node {self.number} {_fate(status)}; its last words:\n{words}",
            f"All that it said is in {self._log}",
        )


class LocalSwarm:
    """The nodes of a plan. Use it as an async context manager: at the end no process is left."""

    def __init__(self, plan: Plan) -> None:
        self.nodes = [SwarmNode(n, plan.folder / f"node-{n}") for n in range(1, plan.nodes + 1)]
        self._plan = plan

    async def __aenter__(self) -> LocalSwarm:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def start(self) -> None:
        """Start the first node alone, and once it answers the others, who join through it."""
        first, *others = self.nodes
        await first.start([*self._arguments(first), "--run", str(self._plan.run)])
        address = (await first.answering()).addresses[0]
        for node in others:
            await node.start([*self._arguments(node), "--peers", address])

    async def look(self) -> list[Status | None]:
        """The status of every node, None of those that have not answered yet. Raises UserError."""
        return list(await asyncio.gather(*(node.look() for node in self.nodes)))

    def _arguments(self, node: SwarmNode) -> list[str]:
        plan = self._plan
        arguments = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
        arguments += ["--threads", str(plan.threads), "--device", plan.device, "--dtype", plan.dtype]
        if plan.split_data and plan.nodes > 1:
            arguments += ["--shard", f"{node.number}/{plan.nodes}"]
        return arguments


def _leashed(command: list[str]) -> list[str]:
    """The command as a process that is killed when we are, whatever kills us (on Linux)."""
    return [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command]


def _environment() -> dict[str, str]:
    """Ours without the options in it: they are meant for this command, not for the nodes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, variable("--config"): os.devnull}


def _fate(status: int | None) -> str:
    if status is None:
        return f"did not answer for {START_DEADLINE:g} s"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last_words(log: Path) -> list[str]:
    """The error it ended with, or else the end of its output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [number for number, line in enumerate(lines) if line.startswith("sfnode: SF")]
    return lines[errors[-1] :] if errors else lines[-LAST_WORDS:]
