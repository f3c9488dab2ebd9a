"""Published bases in the engine: exact weights, directions in MeZO's scale, and bases that come later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine.core import UpdateBatch
from sfnode.engine.subspace import PublishedBasis
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.models import bases
from sfprotocol.decisions import Bases
from sfprotocol.seeds import coordinates
from tests.engine.helpers import data_file, live, part, same, trainer, updates
from tests.engine.published import pairs, published
from tests.engine.test_export import change
from tests.refusals import refused

EPOCHS = (0, 2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_directions_are_signed_columns_in_units_of_an_eighth(dtype: torch.dtype, tmp_path: Path) -> None:
    run = published("llama", tmp_path)
    targets, rank = run.model.parsed_targets(), run.training.rank
    node = trainer(run, bases=tmp_path, dtype=str(dtype).removeprefix("torch."))
    seeds = updates(5).seeds
    directions = node.space.directions(seeds.tolist(), 3)
    row, column, sign = coordinates(seeds, len(targets), rank)
    for layer, (u, v) in enumerate(pairs(targets, rank)):
        wanted = (u[:, row[:, layer]] * sign[:, layer]).T / 8
        assert torch.equal(directions.u[layer][-5:].double().cpu(), torch.from_numpy(wanted).double())
        wanted = v[:, column[:, layer]] / 8
        assert torch.equal(directions.v[layer][:, -5:].double().cpu(), torch.from_numpy(wanted).double())


def test_a_measured_slope_is_what_moving_the_weights_gives(tmp_path: Path) -> None:
    run = published("opt", tmp_path, scalar_delta=1e-3, learning_rate=1e-3)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        seeds = updates(1).seeds
        (estimate,) = node.estimate(seeds.tolist(), 0, 1e-3)
        losses = []
        for sign in (1, -1):
            moved = trainer(run, data_file(tmp_path), bases=tmp_path)
            # a scalar whose effect on the weights is to move them by 1e-3 along the direction
            steps = round(1e-3 / (run.training.rate(0) * run.training.scalar_delta))
            moved.apply(UpdateBatch(np.zeros(1, np.int64), seeds, np.array([-sign * steps], np.int64)))
            moved.weights.rebuild()
            losses.append(moved.estimate(seeds.tolist(), 0, 1e-9)[0].loss)
        assert estimate.alpha == pytest.approx((losses[0] - losses[1]) / 2e-3, rel=0.02)
        assert abs(estimate.alpha) > 0.1


def test_an_adapter_holds_the_same_change(tmp_path: Path) -> None:
    run = published("llama", tmp_path / "bases", learning_rate=1e-3)
    node = trainer(run, bases=tmp_path / "bases")
    node.apply(updates(40, EPOCHS))
    node.weights.rebuild()
    node.export(tmp_path / "lora", "lora")
    found = change(tmp_path / "lora")
    for layer, weight in enumerate(live(node)):
        wanted = weight - node.loaded.base_weights.read(layer).float()
        torch.testing.assert_close(found[node.space.targets[layer].name], wanted, rtol=1e-3, atol=1e-5)


class Later:
    """A run whose bases of subspaces from 2 on come later."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.run = published("gpt2", folder, learning_rate=1e-3)
        self.folder = folder
        self._elsewhere = folder / "elsewhere"
        targets = self.run.model.parsed_targets()
        later = bases.write(self._elsewhere, pairs(targets, self.run.training.rank, 1))
        self.schedule = [Bases(0, bytes.fromhex(self.run.training.bases)), Bases(2, bytes.fromhex(later))]
        self.dtype = dtype

    def node(self, rows: Path | None = None) -> Trainer:
        node = trainer(self.run, rows, bases=self.folder, dtype=self.dtype)
        node.use_bases(self.schedule)
        return node

    def arrive(self) -> None:
        digest = self.schedule[1].digest.hex()
        bases.path_in(self._elsewhere, digest).replace(bases.path_in(self.folder, digest))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_go_on_without_updates_whose_bases_are_not_here_and_nothing_else_does(
    dtype: str, tmp_path: Path
) -> None:
    case = Later(tmp_path, dtype)
    node, batch = case.node(data_file(tmp_path)), updates(30, (0, 1, 2, 3))
    node.apply(batch)
    measured = node.step(updates(1, key=5).seeds.tolist(), 1)
    assert not measured.failed
    without = case.node()
    without.apply(part(batch, batch.epochs < 2))
    without.weights.rebuild()
    if dtype == "float32":
        assert same(live(node), live(without))
    asked: list[Any] = [
        lambda: node.export(tmp_path / "out"),
        lambda: node.export(tmp_path / "out", "lora"),
        node.weights.rebuild,
        lambda: node.weights.at_base().__enter__(),
    ]
    for ask in asked:
        with refused(Code.BASES_MISSING):
            ask()
    assert not (tmp_path / "out").exists()
    node.apply(updates(3, (3,), key=9))  # while steps go on
    node.step(updates(1, key=6).seeds.tolist(), 1)
    case.arrive()
    node.use_bases(case.schedule)
    node.step(updates(1, key=7).seeds.tolist(), 3)
    node.weights.rebuild()
    whole = case.node()
    whole.apply(batch)
    whole.apply(updates(3, (3,), key=9))
    whole.weights.rebuild()
    assert same(live(node), live(whole))
    assert not same(live(node), live(without))


def test_bases_that_are_others_than_thought_are_taken_from_the_beginning(tmp_path: Path) -> None:
    """As after a succession that drops decisions."""
    case = Later(tmp_path, "float32")
    case.arrive()
    node, batch = trainer(case.run, data_file(tmp_path), bases=tmp_path), updates(30, (1, 2))
    node.apply(batch)
    node.step(updates(1, key=5).seeds.tolist(), 2)
    node.use_bases(case.schedule)
    node.weights.follow(2)
    other = case.node()
    other.apply(batch)
    other.weights.rebuild()
    assert same(live(node), live(other))


def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    run = published("opt", tmp_path)
    file = bases.path_in(tmp_path, run.training.bases)
    file.write_bytes(bytes(file.stat().st_size))
    node = trainer(run, bases=tmp_path)
    node.apply(updates(3))
    with refused(Code.BASES_UNUSABLE):
        node.weights.rebuild()


def test_the_latest_bases_before_a_subspace_are_its_own(tmp_path: Path) -> None:
    run = published("opt", tmp_path)
    targets, rank = run.model.parsed_targets(), run.training.rank
    basis = PublishedBasis(tmp_path, run, torch.device("cpu"))
    other = bases.write(tmp_path, pairs(targets, rank, 1))
    basis.follow([Bases(0, bytes.fromhex(run.training.bases)), Bases(3, bytes.fromhex(other))])
    of = [basis.matrices(subspace, 0)[0].numpy() for subspace in (0, 2, 3, 900)]
    first, second = (pairs(targets, rank, seed)[0][0] for seed in (0, 1))
    assert [np.array_equal(u, first) for u in of] == [True, True, False, False]
    assert [np.array_equal(u, second) for u in of] == [False, False, True, True]
