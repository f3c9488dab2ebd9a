"""Node processes as a user runs them: the command `sfnode`, signals, files, and what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from sfnode.cli.main import main
from sfnode.control.client import Client
from sfnode.errors import UserError
from sfnode.schema.organising import OfferStatus, OrganiserStatus
from sfnode.schema.status import Status
from sfnode.schema.views import FeedStatus
from sfnode.store.data_folder import Layout
from sfprotocol import invitation
from tests.processes.forked import Forked

T = TypeVar("T")

SFNODE = (sys.executable, "-m", "sfnode")

PATIENCE = 240.0
"""Timeout, in seconds, for each expected event, even on a busy machine."""

ENDING = 5.0
"""Maximum seconds that a node may take to end. It promises two."""

LOOPBACK = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user without configuration and without access to the hub. Each process has
    one thread.

    Device and number of threads are the ones set for pytest, if they are set.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SFNODE_") or name == "SFNODE_DEVICE"
    }
    return {"OMP_NUM_THREADS": "1", **kept, "HOME": str(home), "HF_HUB_OFFLINE": "1"}


class Command:
    """A command that runs until it ends by itself, in a process with loaded libraries."""

    def __init__(self, home: Path, *arguments: object, **variables: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        self._arguments = arguments
        self.process = Forked(arguments, environment(home) | variables, home, self._out, self._err)

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait until the command has ended. Return its status and its output."""
        with self._folder:
            status = self.process.wait(PATIENCE)
            return subprocess.CompletedProcess(
                self._arguments, status, self._out.read_text(), self._err.read_text()
            )


def sfnode(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of sfnode to its end."""
    return Command(home, *arguments).ended()


def fresh(home: Path, *arguments: object, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command of sfnode to its end in a new interpreter, which gets the options `python`."""
    command = [SFNODE[0], *python, *SFNODE[1:], *(str(argument) for argument in arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(home), timeout=PATIENCE, cwd=home
    )


def here(*arguments: object) -> str:
    """Run a command of sfnode in this process, where torch is loaded already. Return its output."""
    with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 0
    return out.getvalue()


def printed_json(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def until(what: str, condition: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """Wait until the result of `condition` is true. Return this result."""
    give_up = time.monotonic() + patience
    while not (result := condition()):
        assert time.monotonic() < give_up, f"waited {patience:g} s in vain: {what}"
        time.sleep(0.05)
    return result


def p2pd_of(node: Node) -> psutil.Process | None:
    """Return the network daemon of a running node; None if it has none yet."""
    children = psutil.Process(node.pid).children()
    return next((child for child in children if "p2pd" in child.name()), None)


class Node:
    """One `sfnode join` with its own folder. Every start uses the same command."""

    def __init__(
        self,
        home: Path,
        name: str,
        *arguments: object,
        inside: tuple[str, ...] | None = None,
        namespace: str = "",
        **variables: str,
    ) -> None:
        """`inside` has the words to put before the command of a node that runs in a new interpreter; it may
        be empty. If it is None, the node runs in a process with loaded libraries, in the network namespace
        `namespace` if given."""
        self.folder = home / name
        self._inside = inside
        self._namespace = namespace
        self._environment = environment(home) | variables
        self.arguments = ("join", "--data-dir", self.folder, *arguments)
        self._home = home
        self._output = home / f"{name}.out"
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self) -> Node:
        if self._inside is None:
            files = self._output, self._output
            self._process = Forked(
                self.arguments, self._environment, self._home, *files, namespace=self._namespace
            )
            return self
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._inside, *SFNODE, *(str(argument) for argument in self.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._home,
            )
        return self

    def status(self) -> Status | None:
        """Return the node's status; None while it does not answer."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.folder.name} has ended: {self.output()}"
        try:
            return asyncio.run(Client(Layout(self.folder).control_socket).status())
        except UserError:
            return None

    def feeds(self) -> list[FeedStatus]:
        """Return the contributions of all nodes."""
        return asyncio.run(Client(Layout(self.folder).control_socket).every_feed())

    def until(self, what: str, condition: Callable[[Status], object]) -> Status:
        """Wait until `condition` is true for the node's status. Return this status."""

        def met() -> Status | None:
            status = self.status()
            return status if status and condition(status) else None

        try:
            return until(f"{self.folder.name}: {what}", met)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status()} and said {self.output()}") from None

    def organised(self) -> OrganiserStatus | None:
        """Return how the run is organised according to this node; None while it does not answer."""
        try:
            return asyncio.run(Client(Layout(self.folder).control_socket).organising())
        except UserError:
            return None

    def offers(self) -> list[OfferStatus]:
        """Return the offers of stand-ins that this organiser has received."""
        return asyncio.run(Client(Layout(self.folder).control_socket).join_requests()).offers

    def until_organised(self, what: str, condition: Callable[[OrganiserStatus], object]) -> OrganiserStatus:
        """Wait until `condition` is true for how the run is organised according to this node. Return that
        status."""

        def met() -> OrganiserStatus | None:
            assert self.running, f"{self.folder.name} has ended: {self.output()}"
            said = self.organised()
            return said if said and condition(said) else None

        return until(f"{self.folder.name}: {what}", met)

    def link(self) -> str:
        """Return the invitation that the node prints."""

        def shown() -> list[str]:
            lines = self.output().partition("sfnode join ")[2].splitlines()
            assert lines or self.running, f"{self.folder.name} has ended: {self.output()}"
            return lines

        return until("a link", shown)[0]

    def address(self) -> str:
        """Return the address in the invitation that the node prints."""
        return invitation.read(self.link()).addresses[0]

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait until the node has ended. Return its exit status."""
        assert self._process is not None
        return self._process.wait(patience)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the node, and wait until it has ended. Return its exit status."""
        self.send(number)
        return self.wait()

    def output(self) -> str:
        """Return everything that the node has printed since its first start."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def close(self, grace: float = 0.0) -> None:
        """Kill the node if it still runs after `grace` seconds."""
        if self._process and self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
            self.send(signal.SIGKILL)
            self.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextmanager
def nodes(home: Path) -> Iterator[Callable[..., Node]]:
    """Yield a function that makes nodes from a name and arguments. All of them have ended after the block."""
    made: list[Node] = []

    def make(name: str, *arguments: object, **where: Any) -> Node:
        made.append(Node(home, name, *arguments, **where))
        return made[-1]

    try:
        yield make
    finally:
        for node in made:
            if node.running:
                node.send(signal.SIGTERM)  # a killed node leaves its sockets in /tmp
        for node in made:
            node.close(ENDING)
