"""Hostile clients: what they send follows from what they have measured, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from sfnode.errors import Code, UserError
from sfnode.experiments import attacks, problem
from sfnode.experiments.cell import Attack, Cell, Place
from sfnode.experiments.runner import run_cell
from tests.experiments.helpers import advance, method, small

LIMIT = 100


def sent(attack: str, measured: list[int], **fields: object) -> list[int]:
    cell = small(network={"hostile": 0.5, "attack": attack}, **fields)
    found: list[int] = []
    for seed, scalar in enumerate(measured):
        found.append(attacks.scalar_of(cell, LIMIT, found, seed, scalar))
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


def test_the_last_clients_are_hostile_and_the_others_measure_as_if_they_were_not_there() -> None:
    honest, flipped = (
        method(small(network={"hostile": share, "attack": "flip"}, local_steps=8)) for share in (0, 0.6)
    )
    for run in (honest, flipped):
        run.step(0)
    wanted = [feed.scalars[0] for feed in honest.feeds]
    assert attacks.hostile_clients(small(network={"hostile": 0.6})) == range(2, 4)
    assert [feed.scalars[0] for feed in flipped.feeds] == [*wanted[:2], -wanted[2], -wanted[3]]
    assert {**flipped.updates()} == {
        "honest_updates": 2, "honest_counted": 2, "hostile_updates": 2, "hostile_counted": 2,
    }  # fmt: skip


def test_a_target_is_taught_from_true_scalars_of_rows_with_one_label() -> None:
    cell = small(network={"hostile": 0.5, "attack": "target"})
    loaded = problem.load(cell, Place())
    field = loaded.task.label_field
    rows = attacks.shard_of("target", loaded.task, loaded.shards[3])
    assert {row[field] for row in rows} == {next(iter(loaded.task.verbalizer))}
    assert len({row[field] for row in loaded.shards[3]}) == 2
    run = method(cell)
    run.step(0)
    other = method(small(network={}))
    other.step(0)
    changed = [a.scalars != b.scalars for a, b in zip(run.feeds, other.feeds, strict=True)]
    assert changed == [False, False, True, True]


def test_a_run_without_them_has_as_many_honest_updates_and_none_of_theirs(tmp_path: Path) -> None:
    counts = {}
    for attack in ("random", "absent"):
        cell = small(
            network={"hostile": 0.5, "attack": attack}, options={"organised": 1, "subspace_epochs": 2}
        )
        values = run_cell(cell, tmp_path)
        counts[attack] = [
            values[f"{who}_{what}"] for who in ("honest", "hostile") for what in ("updates", "counted")
        ]
    assert counts == {"random": [16, 16, 16, 16], "absent": [16, 16, 0, 0]}


def test_names_of_cells_without_hostile_clients_are_what_they_were() -> None:
    assert "hostile" not in small().model_dump_json()
    assert "attack" not in small().model_dump_json()


def test_a_run_goes_on_with_the_same_scalars_after_a_restart() -> None:
    cell = small(network={"hostile": 0.5, "attack": "lazy"})
    straight, first, second = method(cell), method(cell), method(cell)
    advance(straight, cell, 0, 8)
    advance(first, cell, 0, 5)
    second.restore(first.state())
    advance(second, cell, 5, 8)
    assert [feed.scalars for feed in second.feeds] == [feed.scalars for feed in straight.feeds]


def test_clients_of_a_baseline_cannot_be_hostile(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be hostile") as refused:
        run_cell(small(method="sgd", network={"hostile": 0.5}), tmp_path)
    assert refused.value.code is Code.BAD_OPTION


def test_every_attack_has_a_name_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    assert not [attack for attack in get_args(Attack) if f"| `{attack}` |" not in text]
    assert Cell().network.attack == "random"
