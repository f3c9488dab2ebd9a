"""Tests of the numbers of the update rule: their bounds, and their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfnode.engine.estimator import quantise
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.task import READING, Task
from sfnode.manifest.training import (
    LEAST_DELTA,
    LEAST_EPSILON,
    MAX_GROUP,
    MOST_DELTA,
    Training,
    units_of,
)
from tests.manifest.fields import FIELDS, REWARD, changed, organised
from tests.refusals import refused


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 24},
        {"scalar_delta": float("inf")},
        {"scalar_delta": float("nan")},
        {"epsilon": LEAST_EPSILON * 0.99},
        {"epsilon": 1.01},
        {"epsilons": {"bfloat16": LEAST_EPSILON * 0.99}},
        {"epsilons": {"float16": 1.01}},
        {"epsilons": {"float32": 1e-3}},
        {"scalar_delta": LEAST_DELTA * 0.99},
        {"scalar_delta": MOST_DELTA * 1.01},
        {"learning_rate": 5e-324},
        {"learning_rate": 1e-30, "scalar_delta": 2.0**-36},
        {"scalar_bits": 8, "scalar_limit": 128},
        {"epoch_updates": 1, "update_budget": 65_537},
        {"learning_rte": 1e-3},
    ],
)
def test_numbers_that_no_run_can_have_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training"):
        Manifest.model_validate(changed("training", **fields))


def test_a_manifest_file_with_such_a_number_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The file may come from a peer, or from an editor."""
    file = tmp_path / "run.toml"
    file.write_text(Manifest.model_validate(FIELDS).to_toml().replace("epsilon = 0.001", "epsilon = 1e-300"))
    with refused(Code.BAD_MANIFEST, "is not valid: training.epsilon: points nearer than"):
        Manifest.from_toml(file)


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON, 1.0])
@pytest.mark.parametrize("delta", [LEAST_DELTA, MOST_DELTA])
@pytest.mark.parametrize("rate", [2.0**-32, 0.5])
def test_numbers_at_their_bounds_are_those_of_a_run(epsilon: float, delta: float, rate: float) -> None:
    numbers = {"epsilon": epsilon, "scalar_delta": delta, "learning_rate": rate}
    said = Manifest.model_validate(organised(training=numbers))
    assert Manifest.from_canonical(said.canonical(), "a peer").training == said.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_least_epsilon_is_a_number_in_every_format_of_an_engine(dtype: torch.dtype) -> None:
    assert torch.tensor(LEAST_EPSILON, dtype=dtype) == LEAST_EPSILON
    assert torch.tensor(LEAST_EPSILON * 0.99, dtype=torch.float32) + 1 == 1


def test_at_the_bounds_of_the_unit_a_scalar_is_the_largest_or_none() -> None:
    """Two losses in float32 differ by 2^-24 at least between 1/2 and 1, and here by 128 nats at most."""
    largest = Training().largest_scalar
    assert quantise(2.0**-24 / 2, LEAST_DELTA, largest) == largest
    assert quantise(128 / (2 * LEAST_EPSILON), LEAST_DELTA, largest) == largest
    assert quantise(128 / (2 * LEAST_EPSILON), MOST_DELTA, largest) == 0


def test_schedules_start_at_the_learning_rate_and_fall() -> None:
    for schedule in ("constant", "linear", "cosine"):
        training = Manifest.model_validate(
            changed("training", schedule=schedule, epoch_updates=10, update_budget=100)
        ).training
        rates = [training.rate(epoch) for epoch in range(training.epochs)]
        assert rates[0] == training.learning_rate
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] > 0


def test_an_update_takes_as_many_forwards_as_its_points_have_rows() -> None:
    run = Manifest.model_validate(changed("training", batch_size=6))
    assert run.update_forwards == 12
    assert Manifest.model_validate(changed("training", batch_size=6, group=8)).update_forwards == 6


def test_an_update_of_rewards_takes_the_answers_that_could_be_written_meanwhile() -> None:
    run = Manifest.model_validate(changed("training", batch_size=6, group=8))
    rewarded = run.model_copy(update={"task": Task(**REWARD)})
    assert rewarded.update_forwards == (24 + 3 * 24 * READING) / 8


def test_the_numbers_of_a_run_say_how_it_is_measured() -> None:
    plain, grouped = Training(), Training(group=8)
    assert (plain.batch_updates, plain.points) == (1, 2)
    assert (grouped.batch_updates, grouped.points) == (8, 1)
    own = Training(epsilon=1e-3, epsilons={"bfloat16": 8e-3})
    assert [own.epsilon_in(name) for name in ("float32", "float16", "bfloat16")] == [1e-3, 1e-3, 8e-3]


def test_entries_of_published_bases_are_eighths() -> None:
    plain = Manifest.model_validate(FIELDS)
    said = Manifest.model_validate(changed("training", basis="published", bases="ab" * 32))
    (target, *_) = plain.model.parsed_targets()
    assert units_of(plain.training, target) == (1, 1)
    assert units_of(said.training, target) == (1 / 8, 1 / 8)
    assert said.parameters().bases == b"\xab" * 32
    again = said.model_copy(update={"training": said.training.with_random_bases()})
    assert again.run_id == plain.run_id


@pytest.mark.parametrize("group", [-1, 1, MAX_GROUP + 1])
def test_a_group_has_two_updates_or_more_and_not_too_many(group: int) -> None:
    with pytest.raises(ValueError, match="group"):
        Manifest.model_validate(changed("training", group=group))


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.0001, float("nan")])
def test_a_decay_leaves_something_and_adds_nothing(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        Manifest.model_validate(organised(training={"decay": decay}))


@pytest.mark.parametrize("fields", [{"basis": "published"}, {"bases": "ab" * 32}, {"bases": "AB" * 32}])
def test_bases_are_published_if_and_only_if_a_digest_names_them(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bases"):
        Manifest.model_validate(changed("training", **fields))
