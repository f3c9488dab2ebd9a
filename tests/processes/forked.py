"""Commands in processes that are forked from a process with all libraries loaded: they start ten times
faster.

A process that is started in the usual way needs 2 CPU seconds to import torch and other libraries. After the
start, a forked process differs in two ways: all forked processes have the same hashes of strings, and some
waits are shorter.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from sfnode.defaults import variable
from sfnode.swarm import NodeProcess, _environment
from tests.network.namespaces import move_to

LIBRARIES = (
    "sfnode.cli.join",
    "sfnode.engine.trainer",
    "sfnode.daemon",
    "sfnode.transport.libp2p.transport",
    "transformers.models.opt.modeling_opt",
)

SHORTER = {
    ("sfnode.node.contacts_page", "ALONE"): 2.0,
    ("sfnode.node.readiness", "BEGIN_ALONE"): 4.0,
    ("sfnode.node.readiness", "SETTLE_TIME"): 0.5,
    ("sfnode.organising.organiser", "SETTLE_TIME"): 3.0,
    ("sfnode.organising.organiser", "FIRST_TIME"): 1.0,
    ("sfprotocol.elections", "BEAT"): 1.0,
    ("sfprotocol.elections", "LEASE"): 6.0,
    ("sfprotocol.elections", "SPREAD"): 1.0,
    ("sfprotocol.join_requests", "SEND_AGAIN"): 3.0,
    ("sfprotocol.join_requests", "REPEAT_TIME"): 2.0,
}
"""Shortened waits for distant peers, in seconds, keyed by module and name: in these tests all peers are on
one machine. The real waits are tested with clocks (`test_readiness.py` and `test_contacts.py` of
`tests/node`, `tests/organising`)."""

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads this variable when it is imported
_forking = get_context("forkserver")
_forking.set_forkserver_preload(list(LIBRARIES))


def sfnode(words: list[str]) -> None:
    """Run the command `sfnode`."""
    from sfnode.cli.main import main

    main(words)


def hivemind_dht(words: list[str]) -> None:
    """Run the command `hivemind-dht` in its own process group, because it starts processes that outlive
    it."""
    from hivemind.hivemind_cli.run_dht import main

    os.setpgrp()
    sys.argv = ["hivemind-dht", *words]
    main()


class Forked:
    """A command in its own process, with the methods of `subprocess.Popen` that these tests need."""

    def __init__(
        self,
        arguments: Sequence[object],
        environment: Mapping[str, str],
        folder: Path,
        out: Path,
        err: Path,
        namespace: str = "",
        main: Callable[[list[str]], object] = sfnode,
    ) -> None:
        """Output is appended to the files `out` and `err`, which may be the same file. `namespace` names the
        network namespace of the process, if it is to have one."""
        words = [str(argument) for argument in arguments]
        given = main, words, dict(environment), folder, out, err, namespace
        self._process = _forking.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, patience: float) -> int:
        """Wait until the process has ended. Return its exit status. Raises subprocess.TimeoutExpired."""
        self._process.join(patience)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("sfnode", patience)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)


class ForkedNode(NodeProcess):
    """A node of a local swarm, which replaces `swarm.NodeProcess`."""

    async def start(self, arguments: list[str], invitation: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        surroundings = {**_environment(), variable("--invitation"): invitation}
        words = ("join", "--data-dir", self.folder, *arguments)
        self._process = _Awaited(Forked(words, surroundings, Path.cwd(), self._log, self._log))  # type: ignore[assignment]
        self._started = time.monotonic()


class _Awaited:
    """Process with the methods of `asyncio.subprocess.Process` that a local swarm needs."""

    def __init__(self, process: Forked) -> None:
        self._process = process
        self.terminate = partial(process.send_signal, signal.SIGTERM)
        self.kill = partial(process.send_signal, signal.SIGKILL)

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> None:
        while self.returncode is None:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.02)


def _run(
    main: Callable[[list[str]], object],
    words: list[str],
    environment: dict[str, str],
    folder: Path,
    out: Path,
    err: Path,
    namespace: str,
) -> None:
    if namespace:
        move_to(namespace)

    for stream, file in ((1, out), (2, err)):
        with file.open("ab") as written:
            os.dup2(written.fileno(), stream)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # use the present TMPDIR
    for (module, name), seconds in SHORTER.items():
        setattr(import_module(module), name, seconds)
    main(words)
