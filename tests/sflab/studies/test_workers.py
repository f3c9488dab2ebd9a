"""Cells in worker processes have the same results, and a worker that dies costs only its cell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sflab.experiments.cell import Cell
from sflab.studies.workers import CellJob, Here, Pool, Processes, run_cells
from tests.sflab.studies import synthetic

CELLS = [Cell(seed=seed, steps=4) for seed in range(5)]


def run(pool: Pool, cells: list[Cell]) -> dict[int, str]:
    """Run cells as a study does; return failures by seed."""
    outcomes: dict[int, str] = {}
    with pool:
        run_cells(cells, pool, lambda cell, failure: outcomes.update({cell.seed: failure}))
    assert outcomes.keys() == {cell.seed for cell in cells}
    return {seed: failure for seed, failure in outcomes.items() if failure}


def files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.jsonl")}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, str]:
    """Return the results of all cells, run one after the other in this process."""
    folder = tmp_path / "expected"
    folder.mkdir()
    assert run(Here(CellJob(synthetic.run, folder)), CELLS) == {}
    assert len(files(folder)) == len(CELLS)
    return files(folder)


def test_processes_give_the_same_results_and_one_that_dies_costs_its_cell_alone(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    bad = [Cell(seed=synthetic.DEADLY), Cell(seed=synthetic.FAULTY)]
    failed = run(Processes(CellJob(synthetic.run, tmp_path), 2), [*bad, *CELLS])
    assert files(tmp_path) == expected
    assert sorted(failed) == [synthetic.DEADLY, synthetic.FAULTY]
    assert "its worker process has died" in failed[synthetic.DEADLY]
    assert "RuntimeError: the weights were not finite" in failed[synthetic.FAULTY]


DRIVER = f"""
import signal
from pathlib import Path
from sflab.studies.workers import *
from tests.sflab.studies import synthetic
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
with Processes(CellJob(synthetic.run, Path()), 2) as pool:
    run_cells([Cell(seed={synthetic.ENDLESS}, steps=steps) for steps in (1, 2)], pool, print)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_driver_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent is gone")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while len(found := list(tmp_path.glob("*.pid"))) < 2:
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(number)
    driver.wait()
    for file in found:
        while Path("/proc", file.stem).exists():  # the test's own time limit ends this
            time.sleep(0.01)
