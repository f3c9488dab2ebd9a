"""Clients with their own updates measure the same as nodes that merged these updates into their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from sflab.experiments.problem import LoadedProblem
from sflab.experiments.shared_engine import SharedEngine
from sfnode.engine.estimator import quantise
from sfnode.engine.loading import load_model, usable_device
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models.loader import LoadedModel, matrix
from sfnode.models.targets import Selection
from sfnode.tasks.mini_batches import Shard
from tests.engine.helpers import ROWS, manifest, model_folder, updates
from tests.engine.published import published

SEEDS = [11, 12, 13, 14, 15]
EPSILON = 1e-2


def model_of(run: Manifest, family: str) -> LoadedModel:
    return load_model(run, model_folder(family), usable_device("cpu"), "float32")


@contextmanager
def clients(
    run: Manifest, loaded: LoadedModel, count: int, bases: Path | None = None
) -> Iterator[SharedEngine]:
    engine = SharedEngine(LoadedProblem(run, loaded, (ROWS,) * count, {"test": ROWS}), bases)
    for _ in range(count):
        shard = Shard(run.task, loaded.tokenizer, ROWS, run.training.batch_size)
        engine.add(shard, lambda sent, seed, measured: measured)
    try:
        yield engine
    finally:
        engine.trainer.close()


def scalars(engine: SharedEngine, epochs: list[int]) -> list[int]:
    """Return the measurements of the clients, each with its own seed and epoch."""
    asked = zip(engine.clients, SEEDS, epochs, strict=False)
    return [one.step([seed], epoch).scalars[0] for one, seed, epoch in asked]


def wanted(
    run: Manifest, loaded: LoadedModel, client: int, epoch: int, theirs: Any, bases: Any = None
) -> int:
    """Return the measurement of a node with these updates, in place of a client."""
    with Trainer(run, loaded, ROWS, bases=bases) as node:
        if theirs is not None:
            node.apply(theirs)
        (found,) = node.estimate([SEEDS[client]], epoch, node.epsilon)
    return quantise(found.alpha, run.training.scalar_delta, run.training.scalar_limit)


@pytest.mark.parametrize(
    ("family", "embeddings"),
    [("opt", False), ("opt", True), ("gpt2", True), ("llama", False), ("gemma2", True)],
)
def test_a_client_measures_what_a_node_with_its_updates_measures(family: str, embeddings: bool) -> None:
    run = manifest(family, selection=Selection(embeddings=embeddings), learning_rate=1e-2, epsilon=EPSILON)
    loaded, theirs = model_of(run, family), updates(30, (0, 1))
    with clients(run, loaded, 3) as engine:
        for client in (1, 2):
            engine.clients[client].apply(theirs)
        found = scalars(engine, [1, 1, 1])
    for client, scalar in enumerate(found):
        asked = wanted(run, model_of(run, family), client, 1, theirs if client else None)
        assert scalar == pytest.approx(asked, rel=1e-2, abs=1)


def test_updates_are_measured_in_the_subspaces_of_their_labels() -> None:
    run, epochs = manifest("llama", epsilon=EPSILON), [1, 0, 1, 1, 0]
    loaded = model_of(run, "llama")
    with clients(run, loaded, 5) as engine:
        found = scalars(engine, epochs)
    asked = [wanted(run, loaded, client, epoch, None) for client, epoch in enumerate(epochs)]
    assert torch.allclose(torch.tensor(found), torch.tensor(asked), atol=1)


def test_clients_with_published_bases_measure_what_nodes_measure(tmp_path: Path) -> None:
    run = published("opt", tmp_path, learning_rate=1e-3, epsilon=EPSILON)
    theirs, moved = updates(30, (0, 1)), []
    with clients(run, model_of(run, "opt"), 2, tmp_path) as engine:
        engine.clients[1].apply(theirs)
        found, consensus = scalars(engine, [1, 1]), engine.consensus()
    for client in range(2):
        loaded = model_of(run, "opt")
        asked = wanted(run, loaded, client, 1, theirs if client else None, tmp_path)
        assert found[client] == pytest.approx(asked, rel=1e-2, abs=1)
        moved.append([matrix(site).double() for site in loaded.sites])
    apart = sum(float(((one - other) ** 2).sum()) for one, other in zip(*moved, strict=True)) / 4
    assert consensus == pytest.approx(apart, rel=1e-3)  # each is half of it from their mean


def test_the_mean_model_is_that_of_the_clients_weights_and_leaves_no_trace() -> None:
    run = manifest("llama", learning_rate=1e-2)
    loaded, parts = model_of(run, "llama"), [updates(20, (0,)), updates(30, (0, 1))]
    weights = []
    for part in parts:
        with Trainer(run, loaded, ROWS) as node:
            node.apply(part)
            node.rebuild()
            weights.append(torch.cat([matrix(site).double().flatten() for site in loaded.sites]))
    with clients(run, loaded, 2) as engine:
        for client, part in zip(engine.clients, parts, strict=True):
            client.apply(part)
        with engine.averaged():
            mean = torch.cat([matrix(site).double().flatten() for site in loaded.sites])
        engine.at(engine.clients[0].cores())
        after = torch.cat([matrix(site).double().flatten() for site in loaded.sites])
    assert torch.allclose(mean, torch.stack(weights).mean(0), atol=1e-6)
    assert torch.equal(after, weights[0])
