"""Cells in worker processes and through Ray: the same results; a worker that dies costs its cell alone."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.studies.workers import CellJob, Here, Pool, Processes, Ray, run_cells
from sfnode.errors import UserError
from tests.sflab.studies import synthetic

CELLS = [Cell(seed=seed, steps=4) for seed in range(5)]


def run(pool: Pool, folder: Path, cells: list[Cell]) -> dict[int, str]:
    """Run cells as a study does; return failures by seed."""
    failed: dict[int, str] = {}

    def ended(cell: Cell, text: str, failure: str) -> None:
        if failure:
            failed[cell.seed] = failure
        elif text:
            results.write_text(cell, folder, text)

    with pool:
        run_cells(cells, pool, ended)
    return failed


def files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.jsonl")}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, str]:
    """The results of all cells, made here one after the other."""
    folder = tmp_path / "expected"
    folder.mkdir()
    assert run(Here(CellJob(synthetic.run, folder)), folder, CELLS) == {}
    assert len(files(folder)) == len(CELLS)
    return files(folder)


def test_processes_give_the_same_results_and_one_that_dies_costs_its_cell_alone(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    bad = [Cell(seed=synthetic.DEADLY), Cell(seed=synthetic.FAULTY)]
    failed = run(Processes(CellJob(synthetic.run, tmp_path), 2), tmp_path, [*bad, *CELLS])
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


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a Ray of two nodes with one processor each."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'sfnode[lab]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    bounds = {"num_cpus": 1, "object_store_memory": 100 << 20}
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=bounds | {"include_dashboard": False})
    try:
        nodes.add_node(**bounds)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_same_results_on_two_nodes(
    tmp_path: Path, expected: dict[str, str], cluster: str
) -> None:
    """The nodes' workers write nothing to the folder: the results come back as text."""
    failed = run(
        Ray(CellJob(synthetic.run, tmp_path), cluster), tmp_path, [Cell(seed=synthetic.FAULTY), *CELLS]
    )
    assert files(tmp_path) == expected
    assert not (tmp_path / "runs").exists()
    assert "RuntimeError: the weights were not finite" in failed[synthetic.FAULTY]


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    """Ray itself would wait for many minutes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'sfnode[lab]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=f"SF077: there is no Ray at 127.0.0.1:{port}"):
        run(Ray(CellJob(synthetic.run, tmp_path), f"127.0.0.1:{port}"), tmp_path, CELLS)


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"SF078.*not installed\n.*sfnode\[lab\]"):
        run(Ray(CellJob(synthetic.run, tmp_path), "local"), tmp_path, CELLS)
