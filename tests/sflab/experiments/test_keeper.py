"""The node at client 0: its log is one that `sfnode verify` reads, and its seals are those of a desk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sflab.experiments import problem, runner
from sflab.experiments.cell import Cell, CellNetwork, Place
from sflab.experiments.replay import replay
from sflab.experiments.runner import run_cell
from sflab.experiments.seedflood import SeedFlood
from sfnode.engine.core import digest
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.organising import guard
from sfnode.organising.evaluation import line_search, searching
from sfnode.organising.guard import Guard
from sfnode.schema.results import VerifyResult
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.verification import verify_log
from tests.sflab.experiments.helpers import advance, small
from tests.sflab.experiments.test_runner import KilledError, untimed

OPEN = small(network={"hops": 1})
ORGANISED = small(network={"hops": 1}, options={"organised": 1.0, "subspace_epochs": 2.0})


GUARDED = small(
    network={"hops": 1}, refresh=2, learning_rate=0.5, steps=12, options={"organised": 1.0, "guard": 1.0}
)
SEARCHED = small(network={"hops": 1}, refresh=8, options={"organised": 1.0, "search": 1.0, "origins": 0.0})


@pytest.fixture
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch of a few updates can pay for a search, and whatever does best is evident."""
    monkeypatch.setattr(line_search, "EVIDENCE", 0.0)
    monkeypatch.setattr(searching, "FIRST_UPDATES", 8)
    monkeypatch.setattr(searching, "_per_forward", lambda share: 100.0)


def verified(folder: Path) -> VerifyResult:
    manifest = Manifest.from_toml(Layout(folder).manifest)
    with UpdateLog.open(Layout(folder).log, manifest.run_id, read_only=True) as update_log:
        return verify_log(manifest, update_log)


@pytest.mark.parametrize("cell", [OPEN, ORGANISED], ids=["open", "organised"])
def test_the_log_has_the_state_and_the_cores_of_client_0(cell: Cell, tmp_path: Path) -> None:
    run = SeedFlood(cell, problem.load(cell, Place()), tmp_path)
    advance(run, cell, 0, cell.steps)
    found = verified(tmp_path)
    assert found.updates == run.has()[0].sum()
    assert found.core_digest == digest(run.replicas.cores_of(0).items()).hex()
    if cell is ORGANISED:
        assert found.seals
        assert found.seals.sealed == found.seals.checked > 1
        assert found.seals.updates == found.updates  # at the end of a run what is left is sealed, too
        assert run.feeds[0].labels != [0] * cell.steps


@pytest.mark.usefixtures("short_epochs")
def test_factors_and_rates_are_found_and_every_client_follows_them(tmp_path: Path) -> None:
    run = SeedFlood(SEARCHED, problem.load(SEARCHED, Place()), tmp_path)
    advance(run, SEARCHED, 0, SEARCHED.steps)
    counting = run._keeper.machine.organised.counting  # type: ignore[union-attr]
    assert {found.factor for found in run.searched} != {1.0}
    assert len(counting.rates()) > 1
    assert verified(tmp_path).core_digest == digest(run.replicas.cores_of(0).items()).hex()
    for _ in range(3):  # decisions take a round from neighbour to neighbour
        before = run._known()
        run.flood.round(SEARCHED.steps)
        run._deliver(before, run._known())
    assert run.replicas.equal
    assert run.example_forwards > 2 * SEARCHED.batch_size * run.has()[0].sum()


@pytest.mark.parametrize("cell", [OPEN, ORGANISED], ids=["open", "organised"])
def test_the_replayed_log_floods_to_the_digests_that_verify_finds(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell, tmp_path / "results", log=tmp_path / "log")
    wanted = verified(tmp_path / "log")
    found = replay(tmp_path / "log", CellNetwork(clients=6, hops=1, loss=0.2), 0)
    assert found.rounds > 2
    assert (found.digest, found.core_digest) == (wanted.digest, wanted.core_digest)
    assert found.named_digest == (wanted.seals.named_digest if wanted.seals else None)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two evaluations without an improvement make a return, however little was made."""
    monkeypatch.setattr(guard, "PATIENCE", 2)
    monkeypatch.setattr(guard, "LEAST_BUDGET", 0.0)
    monkeypatch.setattr(Guard, "_has_moved", lambda *_: True)


@pytest.mark.usefixtures("little_patience")
def test_every_client_follows_a_guard_that_takes_back_what_did_harm(tmp_path: Path) -> None:
    run = SeedFlood(GUARDED, problem.load(GUARDED, Place()), tmp_path)
    advance(run, GUARDED, 0, GUARDED.steps)
    assert run._keeper
    assert run._keeper.machine.organised
    counting = run._keeper.machine.organised.counting
    named = sum(map(counting.closed_updates, range(counting.open_epoch)))
    assert counting.counted < named
    assert counting.rate(counting.open_epoch) < counting.rate(0)
    assert verified(tmp_path).core_digest == digest(run.replicas.cores_of(0).items()).hex()


@pytest.mark.parametrize(
    "cell", [ORGANISED, SEARCHED, GUARDED], ids=["", "that searches", "that has a guard"]
)
@pytest.mark.usefixtures("little_patience")
@pytest.mark.usefixtures("short_epochs")
def test_a_run_with_a_log_that_was_killed_goes_on_with_the_same_decisions(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(runner, "SAVE_REST", 0)
    run_cell(cell, tmp_path / "whole", log=tmp_path / "log")

    def killed(done: int, _total: int) -> None:
        if done == 5:
            raise KilledError

    with pytest.raises(KilledError):
        run_cell(cell, tmp_path / "parts", log=tmp_path / "log of parts", advance=killed)
    run_cell(cell, tmp_path / "parts", log=tmp_path / "log of parts")
    assert untimed(cell, tmp_path / "parts") == untimed(cell, tmp_path / "whole")
    assert verified(tmp_path / "log of parts") == verified(tmp_path / "log")


def refused(cell: Cell, folder: Path, log: Path) -> Any:
    with pytest.raises(UserError) as found:
        run_cell(cell, folder, log=log)
    return found.value.code


def test_a_log_is_not_written_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "run.toml.bak").write_text("precious")
    assert refused(small(steps=1), tmp_path / "results", tmp_path / "log") is Code.BAD_OPTION
    assert refused(small(method="dsgd", steps=1), tmp_path / "results", tmp_path / "new") is Code.BAD_OPTION
    run_cell(small(steps=1), tmp_path / "results")
    assert refused(small(steps=1), tmp_path / "results", tmp_path / "new") is Code.BAD_OPTION


def test_clients_that_nobody_can_reach_end_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sflab.experiments.replay.MOST_ROUNDS", 3)
    run_cell(OPEN, tmp_path / "results", log=tmp_path / "log")
    with pytest.raises(UserError) as found:
        replay(tmp_path / "log", CellNetwork(clients=6, churn=0.99), 0)
    assert found.value.code is Code.LOG_NOT_SIMULATED
