"""Runs cells in this process, in processes of this machine, or through Ray, with the same results.

A cell is given to a worker as a whole. A worker that dies costs the cell that it had, which is reported;
the others go on. There is no scheduling here: cells start in the order in which they were given, or whenever
Ray's own scheduler finds room for them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Self

from sflab.experiments import results
from sflab.experiments.cell import Cell
from sfnode import die_with_parent
from sfnode.errors import Code, UserError

RAY_PATIENCE = 10.0
"""Seconds in which a cluster has to answer."""

LOCAL = "local"
"""Address of a Ray that is started for the study alone, on this machine."""


class CellJob(NamedTuple):
    """Ways of running cells."""

    run: Callable[[Cell, Path, str, int], object]
    """Runs a cell to its end and writes its results to a folder; takes the device and the threads."""
    folder: Path
    device: str = "cpu"
    threads: int = 1


CellOutcome = tuple[str, str]
"""Results of a cell, if the worker could not write them to the folder, and the reason of its failure; empty
if it did not fail."""


def run_cells(cells: Iterable[Cell], pool: Pool, ended: Callable[[Cell, str, str], None]) -> None:
    """Run cells; `ended` is called with each one, its results if they are not in the folder, its failure."""
    waiting, running = deque(cells), dict[Future[CellOutcome], Cell]()
    while waiting or running:
        while waiting and len(running) < pool.size:
            cell = waiting.popleft()
            running[pool.submit(cell)] = cell
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in [one for one in running if one in finished]:
            cell = running.pop(future)
            ended(cell, *_outcome(future))


def run_here(cell: Cell, folder: Path, device: str, threads: int) -> object:
    """Run a cell with the runner; imports torch and transformers."""
    from sflab.experiments.cell import Place
    from sflab.experiments.runner import run_cell

    return run_cell(cell, folder, Place(device=device, threads=threads))


class Here:
    """Runs one cell after the other in this process."""

    size = 1

    def __init__(self, job: CellJob) -> None:
        self._job = job

    def submit(self, cell: Cell) -> Future[CellOutcome]:
        future: Future[CellOutcome] = Future()
        future.set_result(_attempt(self._job, cell))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Processes:
    """Runs cells in processes of this machine that serve one cell after the other.

    Each is an executor of its own, because an executor is lost as a whole when one of its processes dies.
    """

    def __init__(self, job: CellJob, count: int) -> None:
        self.size = count
        self._job = job
        self._free: list[_Worker] = []
        self._busy: dict[Future[CellOutcome], _Worker] = {}

    def submit(self, cell: Cell) -> Future[CellOutcome]:
        for future in [one for one in self._busy if one.done()]:
            worker = self._busy.pop(future)
            if isinstance(future.exception(), BrokenExecutor):
                worker.kill()
            else:
                self._free.append(worker)
        worker = self._free.pop() if self._free else _Worker()
        future = worker.executor.submit(_attempt, self._job, cell)
        self._busy[future] = worker
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in (*self._free, *self._busy.values()):
            if kind is None:
                worker.executor.shutdown()
            else:  # what they do is lost up to the last state that the runner has saved
                worker.kill()


class _Worker:
    """A process and what gives it work."""

    def __init__(self) -> None:
        self.executor = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
        )
        self._process = self.executor.submit(os.getpid)

    def kill(self) -> None:
        if self._process.done() and not self._process.exception():
            with suppress(ProcessLookupError):
                os.kill(self._process.result(), signal.SIGKILL)
        self.executor.shutdown(wait=False, cancel_futures=True)


class Ray:
    """Runs cells through Ray, whose scheduler finds places for them and shares out processors and GPUs.

    A worker's disk is its own: the results come back as text. `address` is that of a cluster, `auto`, or
    `local`. Entering it raises UserError EXTRA_MISSING or RAY_UNAVAILABLE.
    """

    size = sys.maxsize

    def __init__(self, job: CellJob, address: str) -> None:
        self._job = job
        self._address = address
        self._remote: Any = None

    def submit(self, cell: Cell) -> Future[CellOutcome]:
        future: Future[CellOutcome] = self._remote.remote(self._job, cell, os.getcwd()).future()
        return future

    def __enter__(self) -> Self:
        try:
            import ray
        except ImportError as error:
            raise UserError(
                Code.EXTRA_MISSING,
                "cells cannot be run through Ray, which is not installed",
                "Install it: pip install 'sfnode[lab]'; or leave --ray out.",
            ) from error
        try:
            _require_listener(self._address)
            ray.init(
                address=None if self._address == LOCAL else self._address,
                include_dashboard=False if self._address == LOCAL else None,
                log_to_driver=False,
                configure_logging=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                Code.RAY_UNAVAILABLE,
                f"there is no Ray at {self._address}: {error}",
                "Start one with `ray start --head`, or say --ray local.",
            ) from error
        gpus = 1 if self._job.device.startswith("cuda") else 0
        self._remote = ray.remote(num_cpus=self._job.threads, num_gpus=gpus)(_attempt_elsewhere)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()


Pool = Here | Processes | Ray
"""What runs cells, `size` of them at a time. It is entered once, and left in whatever way ends everything."""


def _require_listener(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT, for which Ray itself would wait for many minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), RAY_PATIENCE).close()


def _outcome(future: Future[CellOutcome]) -> CellOutcome:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        return "", "its worker process has died (killed, or out of memory)"
    return "", f"its worker was lost: {str(error).strip() or type(error).__name__}"


def _attempt(job: CellJob, cell: Cell) -> CellOutcome:
    """Run a cell. Errors become text: not all of them can be sent from process to process."""
    try:
        job.run(cell, job.folder, job.device, job.threads)
    except UserError as error:
        return "", str(error)
    except Exception:
        return "", traceback.format_exc().strip()
    return "", ""


def _attempt_elsewhere(job: CellJob, cell: Cell, current: str) -> CellOutcome:
    """Run a cell in a folder that nobody else sees; names of files are relative to `current`, if there."""
    if os.path.isdir(current):
        os.chdir(current)
    with tempfile.TemporaryDirectory(prefix="sfnode-cell-") as scratch:
        folder = Path(scratch)
        _, failure = _attempt(job._replace(folder=folder), cell)
        return ("", failure) if failure else (results.path_of(cell, folder).read_text(encoding="utf-8"), "")


def _begin(parent: int) -> None:
    """Prepare a worker process: the driver alone answers Ctrl-C, and a worker ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent.tie(parent)
