"""Clients with updates of their own: as nodes that have folded them into their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sflab.experiments.replicas import Query, Replicas
from sfnode.engine.devices import usable_device
from sfnode.engine.estimator import quantise
from sfnode.engine.loading import load_model
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfnode.models.perturbation import Perturbation
from sfnode.models.targets import Selection
from tests.engine.helpers import ROWS, manifest, model_folder, updates
from tests.engine.published import published

SEEDS = [11, 12, 13]
EPSILON = 1e-2


@pytest.mark.parametrize(
    ("family", "embeddings"),
    [("opt", False), ("opt", True), ("gpt2", True), ("llama", False), ("gemma2", True)],
)
def test_a_client_measures_what_a_node_with_its_updates_measures(family: str, embeddings: bool) -> None:
    run = manifest(family, selection=Selection(embeddings=embeddings), learning_rate=1e-2, epsilon=EPSILON)
    loaded = load_model(run, model_folder(family), usable_device("cpu"), "float32")
    replicas = Replicas(run, loaded, 3)
    with Trainer(run, loaded, ROWS) as node:
        batches = node.mini_batches.take(SEEDS)
    theirs = updates(30, (0, 1))
    for client in (1, 2):  # client 0 has nothing that is not in the weights
        replicas.give(client, replicas.moves(theirs))
    queries = [Query(n, seed, 1, batch) for n, (seed, batch) in enumerate(zip(SEEDS, batches, strict=True))]
    found = [estimate.alpha for estimate in replicas.measure(queries, EPSILON)]
    for client in range(3):
        with Trainer(run, loaded, ROWS) as node:
            if client:
                node.apply(theirs)
            (wanted,) = node.estimate([SEEDS[client]], 1, EPSILON)
        assert found[client] == pytest.approx(wanted.alpha, rel=1e-2, abs=2e-3)


def test_clients_are_measured_in_groups_and_subspaces_and_answer_in_order(monkeypatch: Any) -> None:
    monkeypatch.setattr("sflab.experiments.replicas.MOST_QUERIES", 2)
    run = manifest("llama")
    loaded = load_model(run, model_folder("llama"), usable_device("cpu"), "float32")
    replicas = Replicas(run, loaded, 5)
    with Trainer(run, loaded, ROWS) as node:
        batches = node.mini_batches.take([*SEEDS, 14, 15])
        subspaces = [1, 0, 1, 1, 0]
        wanted = [
            quantise(node.estimate([seed], subspace, EPSILON)[0].alpha, 1 / 64, 1000)
            for seed, subspace in zip([*SEEDS, 14, 15], subspaces, strict=True)
        ]
    queries = [
        Query(n, seed, subspace, batch)
        for n, (seed, subspace, batch) in enumerate(zip([*SEEDS, 14, 15], subspaces, batches, strict=True))
    ]
    found = [quantise(one.alpha, 1 / 64, 1000) for one in replicas.measure(queries, EPSILON)]
    assert torch.allclose(torch.tensor(found), torch.tensor(wanted), atol=1)


@pytest.mark.parametrize("rank", [1, 8])
def test_clients_that_differ_in_many_subspaces_take_memory_for_each_and_not_for_their_square(
    monkeypatch: Any, rank: int
) -> None:
    """As after the guard has taken back a hundred epochs, of which client 0 hears first."""
    applied: list[Perturbation] = []

    def kept(*parts: Any) -> Perturbation:
        applied.append(Perturbation(*parts))
        return applied[-1]

    monkeypatch.setattr("sflab.experiments.replicas.Perturbation", kept)
    run = manifest("llama", rank=rank)
    loaded = load_model(run, model_folder("llama"), usable_device("cpu"), "float32")
    replicas = Replicas(run, loaded, 1)
    with Trainer(run, loaded, ROWS) as node:
        batch = node.mini_batches.take(SEEDS[:1])[0]
    sizes = []
    for subspaces in (range(1, 5), range(5, 17)):
        replicas.give(0, replicas.moves(updates(100, subspaces)))
        replicas.measure([Query(0, SEEDS[0], 1, batch)], EPSILON)
        sizes.append(sum(core.numel() for core in applied[-1].cores))
    assert sizes[1] == 4 * sizes[0]


def test_clients_with_published_bases_measure_what_nodes_measure(tmp_path: Path) -> None:
    run = published("opt", tmp_path, learning_rate=1e-3, epsilon=EPSILON)
    loaded = load_model(run, model_folder("opt"), usable_device("cpu"), "float32")
    replicas = Replicas(run, loaded, 2, tmp_path)
    with Trainer(run, loaded, ROWS, bases=tmp_path) as node:
        batches = node.mini_batches.take(SEEDS[:2])
    theirs = updates(30, (0, 1))
    replicas.give(1, replicas.moves(theirs))
    queries = [Query(n, seed, 1, batch) for n, (seed, batch) in enumerate(zip(SEEDS, batches, strict=False))]
    found = [estimate.alpha for estimate in replicas.measure(queries, EPSILON)]
    moved = []
    for client in range(2):
        with Trainer(run, loaded, ROWS, bases=tmp_path) as node:
            if client:
                node.apply(theirs)
            (wanted,) = node.estimate([SEEDS[client]], 1, EPSILON)
            moved.append([matrix(site).double() for site in loaded.sites])
        assert found[client] == pytest.approx(wanted.alpha, rel=1e-2, abs=2e-3)
    apart = sum(float(((one - other) ** 2).sum()) for one, other in zip(*moved, strict=True)) / 4
    assert replicas.consensus() == pytest.approx(apart, rel=1e-3)  # each is half of it from their mean
