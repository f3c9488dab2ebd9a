"""Hostile clients: what they send follows from what they have measured, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from sflab.experiments import problem, seedflood
from sflab.experiments.cell import Attack, Cell, Place
from sflab.experiments.runner import run_cell
from sfnode.errors import Code, UserError
from sfnode.tasks.dataset import Row
from tests.sflab.experiments.helpers import running, small

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


def test_names_of_cells_without_hostile_clients_are_what_they_were() -> None:
    assert "hostile" not in small().model_dump_json()
    assert "attack" not in small().model_dump_json()


def test_clients_of_a_baseline_cannot_be_hostile(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sgd has no hostile clients") as refused:
        run_cell(small(method="sgd", network={"hostile": 0.5}), tmp_path)
    assert refused.value.code is Code.BAD_OPTION


def test_every_attack_has_a_name_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    assert not [attack for attack in get_args(Attack) if f"| `{attack}` |" not in text]
    assert Cell().network.attack == "random"
