"""Virtual clients of SeedFlood are nodes in virtual time, and measure the same numbers as real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest

from sflab.experiments import problem, runner, seedflood
from sflab.experiments.cell import Attack, Cell, Place
from sflab.experiments.runner import check, run_cell
from sflab.simulator.world.disk import signatures
from sflab.studies import study
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.organising import guard
from sfnode.organising.evaluation import line_search, searching
from sfnode.organising.guard import Guard
from sfnode.schema.results import VerifyResult
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.verification import verify_log
from sfnode.tasks.dataset import Row
from sfprotocol.seeds import update_seeds
from tests.cli.helpers import bases_file
from tests.refusals import refused
from tests.sflab.experiments.helpers import advance, has, node_of, running, small, told
from tests.sflab.experiments.test_runner import KilledError, untimed

EQUAL = small(local_steps=1)
DELAYED = small(network={"clients": 5, "hops": 1})
ROUGH = small(network={"loss": 0.3, "churn": 0.3, "speeds": 2.0})
CENTRED = small(problem={"objective": "centred"}, batch_size=4)
GROUPS = small(network={"clients": 5, "hops": 1}, group=3)
ORGANISED = small(network={"hops": 1}, refresh=6, options={"organised": 1.0, "subspace_epochs": 2.0})
SEARCHED = small(refresh=8, options={"organised": 1.0, "search": 1.0, "origins": 0.0})
GUARDED = small(refresh=2, learning_rate=0.5, steps=12, options={"organised": 1.0, "guard": 1.0})


@pytest.fixture
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every epoch of a few updates pay for a search, and let the best factor always be significant."""
    monkeypatch.setattr(line_search, "EVIDENCE", 0.0)
    monkeypatch.setattr(searching, "FIRST_UPDATES", 8)
    monkeypatch.setattr(searching, "_per_forward", lambda share: 100.0)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two evaluations without an improvement cause a return to the best state, whatever their cost."""
    monkeypatch.setattr(guard, "PATIENCE", 2)
    monkeypatch.setattr(guard, "LEAST_BUDGET", 0.0)
    monkeypatch.setattr(Guard, "_has_moved", lambda *_: True)


def verified(folder: Path) -> VerifyResult:
    manifest = Manifest.from_toml(Layout(folder).manifest)
    with UpdateLog.open(Layout(folder).log, manifest.run_id, read_only=True) as update_log:
        return verify_log(manifest, update_log)


# -- updates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [EQUAL, small(), DELAYED, ROUGH, CENTRED, GROUPS],
    ids=["equal", "local", "delayed", "rough", "centred", "groups"],
)
def test_a_client_makes_the_scalars_that_a_node_with_its_updates_and_shard_makes(cell: Cell) -> None:
    with running(cell) as run:
        advance(run, cell, 0, 4)
        before = [(engine.cores(), engine.made) for engine in run.engine.clients]
        epochs = [client.machine.epoch for client in run.clients]
        run.world.do(run._compute, run.clients)
        run._pass(1.0)
        for client, (cores, made), epoch in zip(run.clients, before, epochs, strict=True):
            sent = run.engine.clients[client.number].sent[made:]
            assert len(sent) == max(1, cell.group)
            with node_of(cell, client.number, cores) as node:
                seeds = update_seeds(client.machine.frontier.state(client.own).key, made, len(sent)).tolist()
                assert node.step(seeds, epoch).scalars == pytest.approx(sent, abs=1)


def test_a_client_holds_the_cores_of_what_is_on_its_disk(tmp_path: Path) -> None:
    with running(DELAYED, tmp_path) as run:
        advance(run, DELAYED, 0, 8)
        digest = run.engine.clients[0].core.digest().hex()
        updates = sum(has(run)[0])
    found = verified(tmp_path)
    assert (found.updates, found.core_digest) == (updates, digest)


def test_epochs_end_by_count_of_known_updates_as_in_a_node() -> None:
    cell = small(local_steps=1, refresh=3)
    with running(cell) as run:
        advance(run, cell, 0, 8)
        assert [label for label, _ in told(run.clients[0], run.clients[0])] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_an_update_of_a_group_costs_one_forward_of_its_mini_batch_and_is_one_update() -> None:
    cell, pairs = small(local_steps=1, group=5), small(local_steps=1)
    rows = 2 * cell.network.clients * cell.batch_size
    for one, forwards, made in ((cell, 5 * rows, 10), (pairs, 2 * rows, 2)):
        with running(one) as run:
            advance(run, one, 0, 2)
            assert run.example_forwards == forwards
            assert has(run)[0] == [made] * cell.network.clients
    assert study.training_work(cell) == 5 * study.training_work(pairs) / 2


def test_the_updates_of_a_round_are_one_segment_and_wait_for_more_if_the_cell_says_so() -> None:
    cell = small(steps=8, options={"segment_updates": 6.0})
    with running(cell) as run:
        for steps, wanted in ((2, 0), (4, 0), (6, 6), (8, 8)):  # at the end, all that is left
            advance(run, cell, steps - 2, steps)
            assert has(run) == [[wanted] * 4] * 4
        layout = run.clients[0].layout
        assert signatures(layout, run.clients[1].own) == [6]


# -- who has what ----------------------------------------------------------------------------------------


def test_with_a_full_flood_all_clients_are_equal_after_each_round() -> None:
    cell = small()
    with running(cell) as run:
        advance(run, cell, 0, 2)
        assert run.consensus() == 0
        assert has(run) == [[2] * 4] * 4


def test_with_k_hops_an_update_takes_rounds_to_get_around() -> None:
    cell = small(network={"clients": 9, "hops": 2}, local_steps=1, problem={"rows": 160})
    with running(cell) as run:
        for done, ahead in ((1, 2), (2, 4), (3, 4)):
            advance(run, cell, done - 1, done)
            reached = [client for client in range(9) if told(run.clients[client], run.clients[0])]
            assert reached == sorted({distance % 9 for distance in range(-ahead, ahead + 1)})
        assert run.consensus() > 0


def test_who_is_away_neither_sends_nor_receives_and_catches_up_afterwards() -> None:
    cell = small(network={"clients": 6, "topology": "complete", "churn": 0.5}, problem={"rows": 160})
    with running(cell) as run:
        away = [n for n, there in enumerate(run._conditions.present(0)) if not there]
        advance(run, cell, 0, 2)
        assert 0 < len(away) < 6
        assert all(sum(row) == 0 for client, row in enumerate(has(run)) if client in away)
        advance(run, cell, 2, 8)
        assert len({tuple(row) for row in has(run)}) == 1  # at the end all are there


def test_what_is_lost_is_repaired() -> None:
    cell = small(network={"loss": 0.3})
    with running(cell) as run:
        advance(run, cell, 0, 8)
        assert has(run) == [[8] * 4] * 4


@pytest.mark.parametrize("network", [{"topology": "changing"}, {"topology": "complete", "clients": 8}])
def test_links_that_nodes_would_not_keep_are_refused(network: dict[str, Any]) -> None:
    with refused(Code.BAD_OPTION, "keep their links"):
        check(small(network=network))


def test_other_methods_have_no_groups() -> None:
    with pytest.raises(UserError, match="dsgd has no groups"):
        check(small(method="dsgd", group=2))


# -- restarts, and folders -------------------------------------------------------------------------------


def test_a_state_goes_on_with_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(ROUGH) as whole:
        advance(whole, ROUGH, 0, 5)
        state = whole.state()
        advance(whole, ROUGH, 5, 8)
        wanted = [engine.sent for engine in whole.engine.clients], whole.traffic.sent, has(whole)
        ended = whole.evaluate("test")
    with running(ROUGH) as rest:
        with monkeypatch.context() as patch:
            patch.setattr(rest.engine, "_measure", None)  # what was measured is not measured again
            rest.restore(state)
        advance(rest, ROUGH, 5, 8)
        assert ([engine.sent for engine in rest.engine.clients], rest.traffic.sent, has(rest)) == wanted
        assert rest.evaluate("test") == ended


def test_a_node_that_fails_ends_the_cell_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(small()) as run:
        full = UserError(Code.OUT_OF_MEMORY, "the device is full", "Take a smaller batch.")
        monkeypatch.setattr(run.engine, "_measure", Mock(side_effect=full))
        with refused(Code.OUT_OF_MEMORY):
            run.step(0)


def test_a_log_is_not_written_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "run.toml.bak").write_text("precious")
    for method, log in (("seedflood", "log"), ("dsgd", "new")):
        with refused(Code.BAD_OPTION):
            run_cell(small(method=method, steps=1), tmp_path / "results", log=tmp_path / log)
    run_cell(small(steps=1), tmp_path / "results")
    with refused(Code.BAD_OPTION):
        run_cell(small(steps=1), tmp_path / "results", log=tmp_path / "new")


def test_a_file_of_bases_has_the_name_of_its_digest(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    with refused(Code.BASES_UNUSABLE):
        problem.load(small(problem={"bases": str(tmp_path / "mine")}), Place())


def test_cells_from_before_there_were_published_bases_and_hostile_clients_keep_their_names() -> None:
    assert Cell().name == "56f91b086a7dcdc7"


# -- organised runs --------------------------------------------------------------------------------------


def test_at_the_end_of_an_organised_run_all_is_sealed_and_all_have_the_model_of_the_last_seal(
    tmp_path: Path,
) -> None:
    """Test a ring, in which decisions take several rounds."""
    with running(ORGANISED, tmp_path) as run:
        advance(run, ORGANISED, 0, 8)
        assert run.complete
        assert has(run) == [[8] * 4] * 4
        assert run.consensus() == 0
        digest = run.engine.clients[3].core.digest().hex()
        moving = sum(scalar != 0 for client in run.clients for _, scalar in told(client, client))
        assert len({label for label, _ in told(run.clients[0], run.clients[0])}) > 1
    found = verified(tmp_path)
    assert found.seals
    assert found.seals.sealed == found.seals.checked > 1
    assert found.seals.updates == moving
    assert found.core_digest == digest


@pytest.mark.usefixtures("short_epochs")
def test_factors_and_rates_are_found_and_every_client_follows_them() -> None:
    with running(SEARCHED) as run:
        advance(run, SEARCHED, 0, 8)
        run_state = run.clients[0].organised.run_state
        assert len(run_state.rates()) > 1
        assert run.consensus() == 0
        assert has(run) == [[8] * 4] * 4
        assert run.example_forwards > 2 * SEARCHED.batch_size * sum(has(run)[0])


@pytest.mark.usefixtures("little_patience")
def test_every_client_follows_a_guard_that_takes_back_what_did_harm() -> None:
    with running(GUARDED) as run:
        advance(run, GUARDED, 0, GUARDED.steps)
        run_state = run.clients[0].organised.run_state
        assert run_state.counted < sum(map(run_state.closed_updates, range(run_state.open_epoch)))
        assert run_state.rate(run_state.open_epoch) < run_state.rate(0)
        assert run.consensus() == 0


def test_bases_made_anew_are_with_all_clients(tmp_path: Path) -> None:
    file = bases_file(tmp_path, problem.manifest_of(small()).training.rank)
    cell = small(options={"organised": 1, "renew": 8}, problem={"bases": str(file)}, steps=10)
    with running(cell) as run:
        advance(run, cell, 0, 8)
        kept = [{file.name for file in client.layout.bases.iterdir()} for client in run.clients]
        assert kept == [kept[0]] * 4
        assert kept[0] > {file.name}
        before = [len(engine.sent) for engine in run.engine.clients]
        run.step(8)
        assert [len(engine.sent) for engine in run.engine.clients] == [made + 1 for made in before]


@pytest.mark.parametrize("cell", [ORGANISED, SEARCHED], ids=["", "that searches"])
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


# -- clients that are admitted and harm ---------------------------------------------------------


LIMIT = 100


def sent(attack: str, measured: list[int], **fields: object) -> list[int]:
    cell = small(network={"hostile": 0.5, "attack": attack}, **fields)
    found: list[int] = []
    for seed, scalar in enumerate(measured):
        found.append(seedflood.scalar_of(cell, LIMIT, found, seed, scalar))
    return found


MEASURED = [5, -3, 7, 0, 2, -9, 4, 1]


@pytest.mark.parametrize(
    ("attack", "wanted"),
    [
        ("flip", [-5, 3, -7, 0, -2, 9, -4, -1]),
        ("turncoat", [5, -3, 7, 0, -2, 9, -4, -1]),
        ("scale", [-100, 100, -100, -100, -100, 100, -100, -100]),
        ("constant", [5] * 8),
        ("lazy", [5, 5, 5, 5, 2, 2, 2, 2]),
        ("target", MEASURED),
    ],
)
def test_a_hostile_client_sends_something_else_than_it_has_measured(attack: str, wanted: list[int]) -> None:
    assert sent(attack, MEASURED) == wanted


def test_signs_of_a_coin_follow_from_the_seed_and_sizes_are_the_honest_ones_or_the_largest() -> None:
    random, noise = sent("random", [6] * 200), sent("noise", [6] * 200)
    assert {abs(scalar) for scalar in random} == {6}
    assert {abs(scalar) for scalar in noise} == {LIMIT}
    assert 70 < sum(scalar > 0 for scalar in random) < 130
    assert [one > 0 for one in random] == [one > 0 for one in noise]


def test_the_last_clients_are_hostile_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small(network={"hostile": 0.6, "attack": "flip"})
    assert seedflood.hostile_clients(cell) == range(2, 4)
    monkeypatch.setattr(seedflood, "scalar_of", lambda *said: 1_000)
    with running(cell) as run:
        run.step(0)
        assert [engine.sent[0] == 1_000 for engine in run.engine.clients] == [False, False, True, True]
        run.communicate(0)
        assert run.updates() == {
            "honest_updates": 2, "honest_counted": 2, "hostile_updates": 2, "hostile_counted": 2,
        }  # fmt: skip


def test_a_target_is_taught_by_rows_that_all_have_one_label(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small(network={"hostile": 0.5, "attack": "target"})
    loaded = problem.load(cell, Place())
    field = loaded.task.label_field
    assert {row[field] for row in seedflood.shard_of("target", loaded.task, loaded.shards[3])} == {
        next(iter(loaded.task.verbalizer))
    }
    assert len({row[field] for row in loaded.shards[3]}) == 2
    dealt: list[Sequence[Row]] = []
    monkeypatch.setattr(
        seedflood, "shard_of", lambda attack, task, rows: dealt.append(rows) or rows[: cell.batch_size]
    )
    with running(cell) as run:
        odds = [engine.odds[1] for engine in run.engine.clients]
    assert dealt == list(loaded.shards[2:])
    assert odds == [len(loaded.shards[0])] * 2 + [cell.batch_size] * 2


def test_a_run_without_them_has_as_many_honest_updates_and_none_of_theirs(tmp_path: Path) -> None:
    counts = {}
    for attack in ("random", "absent"):
        cell = small(network={"hostile": 0.5, "attack": attack}, options={"organised": 1}, refresh=4)
        values = run_cell(cell, tmp_path, log=tmp_path / attack)
        counts[attack] = [
            values[f"{who}_{what}"] for who in ("honest", "hostile") for what in ("updates", "counted")
        ]
    assert counts == {"random": [16, 16, 16, 16], "absent": [16, 16, 0, 0]}


def test_clients_of_a_baseline_cannot_be_hostile(tmp_path: Path) -> None:
    with refused(Code.BAD_OPTION, "dsgd has no hostile clients"):
        run_cell(small(method="dsgd", network={"hostile": 0.5}), tmp_path)


def test_every_attack_has_a_name_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    assert not [attack for attack in get_args(Attack) if f"| `{attack}` |" not in text]
    assert Cell().network.attack == "random"
