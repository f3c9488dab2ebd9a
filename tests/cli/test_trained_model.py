"""The model of a folder: everything in its log, or what a checkpoint stands for and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from sfnode.cli.trained_model import _replay
from sfnode.engine.core import Core, UpdateBatch
from sfnode.store import checkpoint
from sfnode.store.checkpoint import compute, plan
from sfnode.store.replay import weighed
from sfprotocol.seeds import I64
from tests.store.organised import ORGANISED, Logged
from tests.store.test_verification import MEANT, train


class Sum:
    """As much of a trainer as adds up."""

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
    counting = machine.frontier.counting
    assert counting
    state = compute(MEANT, log, plan(counting, 2))
    assert state
    made.decide(state.decision(ORGANISED.run_id))
    made.swarm.run(2)
    checkpoint.keep(folder, state)
    log.rebase(state.bases.values())
    _replay(begun, log, machine, counted, folder)  # type: ignore[arg-type]
    assert begun.core.digest() == whole.core.digest()
    assert 0 < begun.added < whole.added


def test_updates_and_weights_one_by_one_add_up_to_the_same_model(made: Logged, tmp_path: Path) -> None:
    """What `sfnode log` prints is all that a model follows from."""
    machine, log = made["a"].machine, made.logs["a"]
    counted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    whole, listed = Sum(), Sum()
    _replay(whole, log, machine, counted, tmp_path)  # type: ignore[arg-type]
    lines = list(weighed(log, counted))
    for one in lines:
        subspace = np.array([one.epoch // machine.run.subspace_epochs])
        added = np.array([one.weight * one.scalar])
        listed.apply(UpdateBatch(subspace, np.array([one.seed], np.uint64), added))
    assert listed.core.digest() == whole.core.digest()
    assert [(one.feed, one.step) for one in lines] == sorted({(one.feed, one.step) for one in lines})

    counting = machine.frontier.counting
    assert counting
    state = compute(MEANT, log, plan(counting, 2))
    assert state
    made.decide(state.decision(ORGANISED.run_id))
    made.swarm.run(2)
    log.rebase(state.bases.values())
    later = list(weighed(log, counted))
    assert 0 < len(later) < len(lines)
    assert set(later) < set(lines)
