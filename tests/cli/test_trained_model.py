"""Tests of the model of a folder: from its whole log or from a checkpoint, and refusals before anything is
computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from sfnode.cli import trained_model
from sfnode.cli.trained_model import _replay, base_model
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.limits import Limits
from sfnode.models import bases
from sfnode.preparing.manifest import build
from sfnode.resources.sensors import Sensors
from sfnode.store import checkpoint
from sfnode.store.checkpoint import compute, plan
from sfnode.store.data_folder import Layout
from sfnode.store.replay import weighed
from sfnode.tasks import public_files
from sfprotocol.seeds import I64
from tests.cli.helpers import Run, bases_file
from tests.store.folders import Folder, joined
from tests.store.organised import ORGANISED, Logged
from tests.store.test_verification import MEANT, train


class Sum:
    """A trainer that only adds up updates."""

    manifest = MEANT

    def __init__(self) -> None:
        self.core, self.added = Core(2, 4), 0

    def begin(self, cores: Mapping[int, I64]) -> None:
        self.core.put(cores)

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)
        self.added += len(batch.seeds)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Logged]:
    logged = Logged(tmp_path)
    train(logged, 4)
    yield logged
    logged.close_logs()


def test_what_was_let_go_is_in_the_model_all_the_same(made: Logged, tmp_path: Path) -> None:
    machine, log, folder = made["a"].machine, made.logs["a"], tmp_path / "checkpoints"
    whole, begun = Sum(), Sum()
    counted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    _replay(whole, log, machine, counted, folder)  # type: ignore[arg-type]
    run_state = machine.frontier.run_state
    assert run_state
    state = compute(MEANT, log, plan(run_state, 2))
    assert state
    made.decide(state.decision(ORGANISED.run_id))
    made.swarm.run(2)
    checkpoint.keep(folder, ORGANISED.run_id, state)
    log.rebase(state.bases.values())
    _replay(begun, log, machine, counted, folder)  # type: ignore[arg-type]
    assert begun.core.digest() == whole.core.digest()
    assert 0 < begun.added < whole.added


def test_updates_and_weights_one_by_one_add_up_to_the_same_model(made: Logged, tmp_path: Path) -> None:
    """The model follows from the output of `sfnode log --updates` alone."""
    machine, log = made["a"].machine, made.logs["a"]
    counted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    whole, listed = Sum(), Sum()
    _replay(whole, log, machine, counted, tmp_path)  # type: ignore[arg-type]
    lines = list(weighed(log, counted))
    for one in lines:
        subspace = np.array([machine.run.subspace_of(one.epoch)])
        added = np.array([one.weight * one.scalar])
        listed.apply(UpdateBatch(subspace, np.array([one.seed], np.uint64), added))
    assert listed.core.digest() == whole.core.digest()
    assert [(one.feed, one.step) for one in lines] == sorted({(one.feed, one.step) for one in lines})

    run_state = machine.frontier.run_state
    assert run_state
    state = compute(MEANT, log, plan(run_state, 2))
    assert state
    made.decide(state.decision(ORGANISED.run_id))
    made.swarm.run(2)
    log.rebase(state.bases.values())
    later = list(weighed(log, counted))
    assert 0 < len(later) < len(lines)
    assert set(later) < set(lines)


# -- before anything is computed -----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a node's folder. Loading its model fails."""

    def too_late(*_: object, **__: object) -> None:
        raise AssertionError("the model was to be loaded")

    monkeypatch.setattr(trained_model, "load", too_late)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    return joined(tmp_path / "node", build({}))


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ("export --out full", 1, "SF010: full exists already"),
        ("export --out full/mine.txt/out", 1, "SF010: cannot write full/mine.txt/out"),
        ("export --out out --device quantum", 1, "SF024: there is no device 'quantum'"),
        ("eval --device quantum:1", 1, "SF024: there is no device 'quantum:1'"),
        ("history checkout 3 --out full", 1, "SF010: full exists already"),
        ("export --out out --lora-rank 4", 2, "--lora-rank is for --format lora"),
        ("export --out out --format lora --lora-rank 0", 2, "--lora-rank"),
        ("export --out out --format gguf", 2, "--format"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(
    arguments: str, status: int, says: str, folder: Path, sfnode: Run
) -> None:
    ended = sfnode(*arguments.split(), "--data-dir", folder)
    assert (ended.status, ended.out) == (status, "")
    assert says in ended.err


def test_an_adapter_of_trained_vectors_is_refused_at_once(folder: Path, sfnode: Run) -> None:
    run = build({})
    model = run.model.model_copy(update={"targets": (*run.model.targets, "model.decoder.final_norm:64x1")})
    other = run.model_copy(update={"model": model})
    other_folder = joined(folder.parent / "other", other)
    ended = sfnode("export", "--out", "out", "--format", "lora", "--data-dir", other_folder)
    assert "SF010: the run trains model.decoder.final_norm, which a LoRA adapter cannot hold" in ended.err


def test_without_its_bases_a_run_has_no_model_and_its_log_verifies_all_the_same(
    sfnode: Run, tmp_path: Path
) -> None:
    targets = build({}).model.parsed_targets()
    file = bases_file(tmp_path, 4)
    digest = bases.digest_of(file)
    run = build({"rank": 4, "basis": "published", "bases": digest, "loss": "plain"})
    with Folder(tmp_path / "node", run, "a") as made:
        kept = bases.keep(file, made.layout.bases, targets, (4, 4))
        made.make(5)
    assert kept == digest
    here = ("--data-dir", tmp_path / "node")
    verified = sfnode("verify", *here).out
    assert "1 of 1 published directions are here, each as named" in verified
    assert sfnode("export", "--out", tmp_path / "model", *here).status == 0
    bases.path_in(made.layout.bases, digest).unlink()
    sfnode("export", "--out", tmp_path / "again", *here).failed("SF081")
    assert not (tmp_path / "again").exists()
    assert "0 of 1 published directions are here" in sfnode("verify", *here).out


def test_a_busy_machine_has_no_more_threads_than_find_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more threads than free cores, computing took ten times as long (docs/benchmarks.md)."""
    folder = joined(tmp_path / "node", build({}))
    used: list[tuple[int | None, int | None]] = []
    monkeypatch.setattr(Trainer, "use_threads", lambda _, count, most: used.append((count, most)))
    readings = Sensors("cpu").look(Limits())
    for free in (0.1, 7.9):
        monkeypatch.setattr(Sensors, "look", lambda *_, free=free: readings._replace(free=free))
        trained_model.load(folder, None, "cpu", "stored")
    assert used == [(None, 1), (None, 8)]


def test_what_measures_reads_the_data_that_came_with_the_link(home: Path, tmp_path: Path) -> None:
    """A node that joined by a link has the data in its folder only."""
    layout, rows = Layout(tmp_path / "node"), tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nfine food\t1\nstale bread\t0\n")
    run = build({})
    told = {"train": "rows.tsv", "digests": {"train": public_files.digest_of(rows)}}
    run = run.model_copy(update={"data": run.data.model_copy(update=told)})
    kept = public_files.path_in(layout.data, run.data, "train")
    kept.parent.mkdir(parents=True)
    rows.rename(kept)
    with base_model(run, layout, None, "cpu", "float32") as trainer:
        assert [row["text"] for row in trainer.run_rows.training()] == ["fine food", "stale bread"]
