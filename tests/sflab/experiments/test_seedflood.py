"""Virtual clients of SeedFlood: the same numbers as those of nodes, whoever has received what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sflab.experiments import problem
from sflab.experiments.cell import Cell, Place
from sflab.experiments.runner import check
from sflab.experiments.seedflood import SeedFlood
from sflab.studies import study
from sfnode.errors import Code, UserError
from sfnode.models import bases
from sfnode.models.loader import matrix
from sfprotocol.seeds import update_seeds
from tests.sflab.experiments.helpers import advance, held, method, node_of, small

EQUAL = small(local_steps=1)
DELAYED = small(network={"clients": 5, "hops": 1})
ROUGH = small(network={"loss": 0.3, "churn": 0.3, "speeds": 2.0, "topology": "changing"})

CENTRED = small(problem={"objective": "centred"}, batch_size=4)

EIGHTS = np.array([-8, 8], np.int8)

GROUPS = small(network={"clients": 5, "hops": 1}, group=3)


@pytest.mark.parametrize(
    "cell",
    [EQUAL, small(), DELAYED, ROUGH, CENTRED, GROUPS],
    ids=["equal", "local", "delayed", "rough", "centred", "groups"],
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
            seeds = update_seeds(feed.key, made[client], max(1, cell.group)).tolist()
            scalars = node.step(seeds, feed.labels[made[client]]).scalars
        assert feed.made == made[client] + len(seeds)
        assert scalars == pytest.approx(feed.scalars[made[client] :], abs=1)


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


def test_an_update_of_a_group_costs_one_forward_of_its_mini_batch_and_is_one_update() -> None:
    cell = small(local_steps=1, group=5)
    run, pairs = method(cell), method(small(local_steps=1))
    advance(run, cell, 0, 2)
    advance(pairs, small(local_steps=1), 0, 2)
    rows = 2 * cell.network.clients * cell.batch_size
    assert (run.example_forwards, pairs.example_forwards) == (5 * rows, 2 * rows)
    assert [feed.made for feed in run.feeds] == [10] * cell.network.clients
    assert run.run.epoch_updates == 5 * pairs.run.epoch_updates
    assert study.training_work(cell) == 5 * study.training_work(small(local_steps=1)) / 2


def test_other_methods_have_no_groups() -> None:
    with pytest.raises(UserError, match="dsgd has no groups"):
        check(small(method="dsgd", group=2))


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


def test_at_the_end_of_an_organised_run_all_have_what_the_last_seals_say(tmp_path: Path) -> None:
    """Also round a ring, in which decisions take several rounds."""
    cell = small(options={"organised": 1}, network={"clients": 6, "hops": 1}, steps=6)
    run = SeedFlood(cell, problem.load(cell, Place()), tmp_path)
    advance(run, cell, 0, 6)
    assert run._keeper
    assert (run.flood.known[:, -1] == run._keeper.decided).all()
    assert run.replicas.equal


def test_bases_made_anew_are_in_the_log_and_a_run_that_goes_on_has_them(tmp_path: Path) -> None:
    plain, signs = problem.manifest_of(small()), np.random.default_rng(0)
    pairs = [
        tuple(signs.choice(EIGHTS, (n, plain.training.rank)) for n in (t.out_features, t.in_features))
        for t in plain.model.parsed_targets()
    ]
    file = bases.path_in(tmp_path, bases.write(tmp_path, pairs))
    cell = small(options={"organised": 1, "renew": 8}, problem={"bases": str(file)}, steps=10)
    whole = SeedFlood(cell, problem.load(cell, Place()), tmp_path / "whole")
    advance(whole, cell, 0, 6)
    state = whole.state()
    assert state["bases"]
    kept = {file.name for file in (tmp_path / "whole" / "bases").iterdir()}
    assert kept == {file.name, *state["bases"]}
    whole._step([0, 1, 2, 3])
    rest = SeedFlood(cell, problem.load(cell, Place()), tmp_path / "rest")
    rest.restore(state)
    rest._step([0, 1, 2, 3])
    assert [feed.scalars for feed in rest.feeds] == [feed.scalars for feed in whole.feeds]
    assert {file.name for file in (tmp_path / "rest" / "bases").iterdir()} == kept


def test_a_file_of_bases_has_the_name_of_its_digest(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    with pytest.raises(UserError) as caught:
        problem.load(small(problem={"bases": str(tmp_path / "mine")}), Place())
    assert caught.value.code == Code.BASES_UNUSABLE


def test_cells_from_before_there_were_published_bases_keep_their_names() -> None:
    assert Cell().name == "56f91b086a7dcdc7"
