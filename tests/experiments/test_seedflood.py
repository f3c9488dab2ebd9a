"""Virtual clients of SeedFlood: the same numbers as those of nodes, whoever has received what."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfnode.experiments.cell import Cell
from sfnode.models.loader import matrix
from sfprotocol.seeds import update_seeds
from tests.experiments.helpers import advance, held, method, node_of, small

EQUAL = small(local_steps=1)
DELAYED = small(network={"clients": 5, "hops": 1})
ROUGH = small(network={"loss": 0.3, "churn": 0.3, "speeds": 2.0, "topology": "changing"})

CENTRED = small(problem={"objective": "centred"}, batch_size=4)


@pytest.mark.parametrize(
    "cell",
    [EQUAL, small(), DELAYED, ROUGH, CENTRED],
    ids=["equal", "local", "delayed", "rough", "centred"],
)
def test_a_client_makes_the_scalars_that_a_node_with_its_updates_and_shard_makes(cell: Cell) -> None:
    run, done = method(cell), 5
    advance(run, cell, 0, done)
    before = [held(run, client) for client in range(cell.network.clients)]
    made = [feed.made for feed in run.feeds]
    run._step(range(cell.network.clients))
    for client, feed in enumerate(run.feeds):
        with node_of(cell, client) as node:
            node.apply(before[client])
            seed = int(update_seeds(feed.key, made[client], 1)[0])
            (scalar,) = node.step([seed], feed.labels[made[client]]).scalars
        assert abs(scalar - feed.scalars[made[client]]) <= 1


@pytest.mark.parametrize("cell", [small(), DELAYED, ROUGH], ids=["local", "delayed", "rough"])
def test_a_client_has_the_cores_of_the_updates_that_it_has(cell: Cell) -> None:
    run = method(cell)
    advance(run, cell, 0, 7)
    run._give()
    for client in range(cell.network.clients):
        with node_of(cell, client) as node:
            node.apply(held(run, client))
            wanted = node.core.cores()
        found = run.replicas.cores_of(client)
        assert found.keys() == wanted.keys()
        assert all((found[subspace] == wanted[subspace]).all() for subspace in wanted)


def test_the_mean_model_and_the_consensus_error_are_those_of_the_clients_weights() -> None:
    cell = DELAYED
    run = method(cell)
    advance(run, cell, 0, 7)
    before = torch.cat([matrix(site).flatten() for site in run.replicas.loaded.sites])
    consensus = run.consensus()
    with run.replicas.averaged():
        mean = torch.cat([matrix(site).double().flatten() for site in run.replicas.loaded.sites])
    assert torch.equal(torch.cat([matrix(site).flatten() for site in run.replicas.loaded.sites]), before)
    weights = []
    for client in range(cell.network.clients):
        with node_of(cell, client) as node:
            node.apply(held(run, client))
            node.weights.rebuild()
            weights.append(torch.cat([matrix(site).double().flatten() for site in node.loaded.sites]))
    every = torch.stack(weights)  # (clients, P)
    wanted = float(((every - every.mean(0)) ** 2).sum(1).mean())
    assert wanted > 0
    assert consensus == pytest.approx(wanted, rel=1e-3)
    assert torch.allclose(mean, every.mean(0), atol=1e-6)


def test_with_a_full_flood_all_clients_are_equal_after_each_round() -> None:
    cell = small()
    run = method(cell)
    advance(run, cell, 0, 1)
    run._give()
    assert not run.replicas.equal  # own updates count at once, those of others when they come
    assert run.consensus() > 0
    advance(run, cell, 1, 2)
    assert run.replicas.equal
    assert run.consensus() == 0


def test_epochs_end_by_count_of_known_updates_as_in_a_node() -> None:
    cell = small(local_steps=1, refresh=3)
    run = method(cell)
    advance(run, cell, 0, 8)
    assert run.feeds[0].labels == [0, 0, 0, 1, 1, 1, 2, 2]


def test_segments_wait_until_they_are_full_if_the_cell_says_so() -> None:
    cell = small(steps=8, options={"segment_updates": 6.0})
    run = method(cell)
    advance(run, cell, 0, 6)
    assert [one.stop for one in run.feeds[0].segments] == [6]
    advance(run, cell, 6, 8)
    assert [one.stop for one in run.feeds[0].segments] == [6, 8]  # at the end, all that is left
    assert run.replicas.equal


def test_a_state_goes_on_with_the_same_updates() -> None:
    cell = ROUGH
    whole = method(cell)
    advance(whole, cell, 0, 8)
    ended = whole.evaluate("test")
    begun = method(cell)
    advance(begun, cell, 0, 5)
    rest = method(cell)
    rest.restore(begun.state())
    advance(rest, cell, 5, 8)
    assert [feed.scalars for feed in rest.feeds] == [feed.scalars for feed in whole.feeds]
    assert rest.traffic.sent == whole.traffic.sent
    assert rest.evaluate("test") == ended
    assert np.array_equal(rest.has(), whole.has())
