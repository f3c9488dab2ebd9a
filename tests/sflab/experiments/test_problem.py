"""Rows of a cell: each client has its own training rows, and nobody trains on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from sflab.experiments import problem
from sflab.experiments.cell import Cell, CellNetwork, Place, Problem, Topology
from sflab.experiments.problem import Conditions
from sfnode.errors import Code, UserError
from sfnode.tasks.dataset import load_rows
from tests.engine.helpers import SHARED
from tests.sflab.experiments.helpers import small


def cell(dirichlet: float = 0.0, seed: int = 0, clients: int = 8) -> Cell:
    return Cell(problem=Problem(dirichlet=dirichlet), network=CellNetwork(clients=clients), seed=seed)


LABELS = np.arange(1000) % 4


def skew(shards: list[list[int]]) -> float:
    """Return the mean share of the most frequent class of a client."""
    return float(np.mean([np.bincount(LABELS[shard]).max() / len(shard) for shard in shards]))


@pytest.mark.parametrize("dirichlet", [0.0, 0.1, 1.0])
def test_every_row_is_of_one_client_and_all_have_as_many(dirichlet: float) -> None:
    shards = problem.shards(cell(dirichlet), LABELS)
    assert sorted(row for shard in shards for row in shard) == list(range(1000))
    assert {len(shard) for shard in shards} == {125}
    assert shards == problem.shards(cell(dirichlet), LABELS)
    assert shards != problem.shards(cell(dirichlet, seed=1), LABELS)


def test_a_smaller_concentration_makes_shards_more_unequal() -> None:
    even, mild, strong = (skew(problem.shards(cell(alpha), LABELS)) for alpha in (0.0, 1.0, 0.1))
    assert even < 0.4 < mild < strong
    assert strong > 0.6


def test_with_a_tiny_concentration_a_client_has_one_class_as_long_as_there_is_some() -> None:
    dealt = problem.shards(cell(1e-9, clients=40), LABELS)
    assert skew(dealt[:10]) == 1.0
    assert skew(dealt) > 0.9


def test_a_client_needs_rows_for_a_mini_batch() -> None:
    with pytest.raises(UserError) as refused:
        problem.shards(cell(clients=300), LABELS)
    assert refused.value.code is Code.BAD_OPTION


def test_training_validation_and_test_rows_are_apart() -> None:
    found = problem.load(small(), Place())
    trained = [id(row) for shard in found.shards for row in shard]
    assert len(set(trained)) == 96
    train, test = found.manifest.data.train, found.manifest.data.test
    assert (train, test) == ("builtin:reviews:train", "builtin:reviews:test")
    texts = {which: [row["text"] for row in rows] for which, rows in found.held_out.items()}
    mine = [row["text"] for shard in found.shards for row in shard]
    assert len(texts["validation"]) == 32
    assert len(texts["test"]) == 64
    every = [row["text"] for row in load_rows(train, found.task, limit=128)]
    assert sorted(mine + texts["validation"]) == sorted(every)


def test_agnews_can_be_read_from_files_that_name_the_text_otherwise() -> None:
    files = {part: SHARED / "data" / "agnews" / f"{part}.tsv" for part in ("train", "test")}
    if not files["train"].exists():
        pytest.skip("shared data are not here")
    of = Problem(task="agnews", **{part: str(file) for part, file in files.items()})
    found = problem.manifest_of(Cell(problem=of))
    assert found.task.template == "{sentence} It was"
    assert load_rows(str(files["test"]), found.task, limit=3)


def test_the_run_of_a_cell_has_all_its_numbers(tmp_path: Path) -> None:
    found = problem.manifest_of(small(options={"organised": 1.0, "subspace_epochs": 3.0, "scalar_bits": 8.0}))
    numbers = found.training
    assert (numbers.rank, numbers.batch_size, numbers.scalar_limit) == (4, 3, 127)
    assert numbers.epoch_updates * 3 == 4 * 3  # a subspace lasts 3 local steps of 4 clients
    assert found.organised.organiser


def test_an_objective_is_the_loss_of_the_run_and_a_plain_one_leaves_names_as_they_were() -> None:
    centred = Cell(problem=Problem(objective="centred"))
    assert problem.manifest_of(centred).task.loss == "centred"
    assert problem.manifest_of(Cell()).task.loss == "plain"
    assert "objective" not in Cell().model_dump_json()
    assert centred.name != Cell().name
    assert Cell.model_validate_json(centred.model_dump_json()) == centred


def test_clients_that_have_one_class_each_calibrate_by_rows_of_all() -> None:
    cell = small(problem={"objective": "centred", "dirichlet": 0.01})
    found = problem.load(cell, Place())
    labels = problem.labels_of(found.task, found.public)
    assert min(np.bincount(labels)) > 10
    assert sorted(map(id, found.public)) == sorted(id(row) for shard in found.shards for row in shard)


# -- the network, round by round ----------------------------------------------------------------


@pytest.mark.parametrize("topology", get_args(Topology))
def test_who_is_away_has_no_links(topology: Topology) -> None:
    conditions = Conditions(CellNetwork(topology=topology, clients=16, churn=0.5), 5)
    there = conditions.present(0)
    assert 0 < there.sum() < 16
    assert set(conditions.edges(0)) < set(conditions.links(0))
    assert all(there[list(edge)].all() for edge in conditions.edges(0))


def test_links_change_where_the_topology_says_so() -> None:
    changing, ring = (
        Conditions(CellNetwork(topology=topology, clients=9), 5) for topology in ("changing", "ring")
    )
    assert changing.links(0) != changing.links(1)
    assert ring.links(0) == ring.links(1)
    assert len(ring.links(0)) == 9


def test_speeds_lie_evenly_between_the_slowest_and_the_fastest() -> None:
    conditions = Conditions(CellNetwork(clients=3, speeds=2.0), 0)
    made = sum(conditions.steps_by(number) for number in range(10))
    assert made.tolist() == [10, 15, 20]
