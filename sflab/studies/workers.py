"""Runs cells in this process or in several processes of this machine, with the same results.

A worker runs one cell at a time. If a worker dies, its cell fails, and the others continue. Cells start in
the order in which they were given.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, Self

from sflab.experiments.cell import Cell
from sfnode import die_with_parent
from sfnode.errors import UserError


class CellJob(NamedTuple):
    """Function that runs cells, and its arguments."""

    run: Callable[[Cell, Path, str, int], object]
    """Function that runs a cell to its end and writes its results to a folder. Its other arguments are the
    device and the number of threads."""
    folder: Path
    device: str = "cpu"
    threads: int = 1


CellFailure = str
"""Reason why a cell failed; empty if it did not."""


def run_cells(cells: Iterable[Cell], pool: Pool, ended: Callable[[Cell, CellFailure], None]) -> None:
    """Run cells, and call `ended` with each cell and its failure."""
    waiting, running = deque(cells), dict[Future[CellFailure], Cell]()
    while waiting or running:
        while waiting and len(running) < pool.size:
            cell = waiting.popleft()
            running[pool.submit(cell)] = cell
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in [one for one in running if one in finished]:
            cell = running.pop(future)
            ended(cell, _outcome(future))


def run_here(cell: Cell, folder: Path, device: str, threads: int) -> object:
    """Run a cell with the runner. Imports torch and transformers."""
    from sflab.experiments.cell import Place
    from sflab.experiments.runner import run_cell

    return run_cell(cell, folder, Place(device=device, threads=threads))


class Here:
    """Runs one cell after the other in this process."""

    size = 1

    def __init__(self, job: CellJob) -> None:
        self._job = job

    def submit(self, cell: Cell) -> Future[CellFailure]:
        future: Future[CellFailure] = Future()
        future.set_result(_attempt(self._job, cell))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Processes:
    """Runs cells in several processes of this machine. Each process runs one cell after the other.

    Each process has its own executor: an executor is lost as a whole when one of its processes dies.
    """

    def __init__(self, job: CellJob, count: int) -> None:
        self.size = count
        self._job = job
        self._free: list[_Worker] = []
        self._busy: dict[Future[CellFailure], _Worker] = {}

    def submit(self, cell: Cell) -> Future[CellFailure]:
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
            else:  # their cells continue later from the last state that the runner saved
                worker.kill()


class _Worker:
    """A process and its executor."""

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


Pool = Here | Processes
"""Context manager that runs `size` cells at a time, and can be entered only once. Its exit ends all work,
even after an error."""


def _outcome(future: Future[CellFailure]) -> CellFailure:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        return "its worker process has died (killed, or out of memory)"
    return f"its worker was lost: {str(error).strip() or type(error).__name__}"


def _attempt(job: CellJob, cell: Cell) -> CellFailure:
    """Run a cell. Return an error as text, because not every exception can be sent to another process."""
    try:
        job.run(cell, job.folder, job.device, job.threads)
    except UserError as error:
        return str(error)
    except Exception:
        return traceback.format_exc().strip()
    return ""


def _begin(parent: int) -> None:
    """Prepare a worker process: only the driver answers Ctrl-C, and the worker ends with the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent.tie(parent)
