"""Before a run starts it is measured: how large its scalars are, and what the largest update would do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models.loader import matrix
from sfnode.models.targets import Selection
from sfnode.preparing import measuring, scalars, trial
from sfnode.preparing.manifest import build
from sfnode.preparing.scalars import SlopeSample
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import HEADED_TASK, ROWS, data_file, manifest, trainer
from tests.refusals import refused

FORWARDS = measuring.FORWARDS - scalars.PRIOR_ROWS
"""Example-forwards that `sfnode init` has for it."""


@pytest.fixture(scope="module")
def built_in() -> SlopeSample:
    """What is measured of the built-in run."""
    return measure(build({}), FORWARDS)


def measure(run: Manifest, forwards: int = scalars.FORWARDS) -> SlopeSample:
    found, reason = scalars.any_trainer(run, scalars.Means())
    with found:
        assert not reason
        return scalars.measure(found, forwards)


def slopes(spread: float, weight: float = 0.05) -> SlopeSample:
    """A sample of slopes with slopes of this root mean square."""
    return SlopeSample(np.array([spread, -spread]), weight)


def test_the_built_in_run_has_the_limit_that_is_measured_for_it(built_in: SlopeSample) -> None:
    assert len(built_in.slopes) == FORWARDS // (3 * 8)
    assert built_in.example_forwards <= FORWARDS
    assert scalars.with_limit(build({}), built_in) == build({})


@pytest.mark.parametrize(("present", "kept"), [(39, 80), (40, 40), (160, 160), (161, 80)])
def test_a_limit_that_is_near_the_one_that_is_measured_stays(present: int, kept: int) -> None:
    run = build({})
    training = run.training.model_copy(update={"scalar_delta": 0.1, "scalar_limit": present})
    found = slopes(spread=1, weight=1e12)
    chosen = scalars.with_limit(run.model_copy(update={"training": training}), found)
    assert chosen.training.scalar_limit == kept


def test_what_is_measured_does_not_depend_on_the_limit_that_the_manifest_has(built_in: SlopeSample) -> None:
    run = build({})
    other = run.model_copy(update={"training": run.training.model_copy(update={"scalar_limit": 7})})
    found = measure(other, FORWARDS // 4).slopes
    assert (found == built_in.slopes[: len(found)]).all()


@given(spread=st.floats(1e-6, 1e6), bits=st.sampled_from([8, 16]), delta=st.floats(1e-6, 1e3))
def test_the_limit_is_eight_times_the_scalars_rounded_up_to_two_digits(
    spread: float, bits: int, delta: float
) -> None:
    training = Training(scalar_bits=bits, scalar_delta=delta, scalar_limit=1)
    limit = scalars.suitable_limit(training, slopes(spread, weight=1e12))
    assert 1 <= limit <= training.largest_scalar
    least = min(8 * spread / delta, training.largest_scalar)
    assert limit >= least * (1 - 1e-9)
    assert limit <= max(1.11 * least, math.ceil(least) + 1)


@pytest.mark.parametrize(("rate", "limit"), [(1e-3, 800), (2e-3, 400), (6e-3, 200)])
def test_a_large_learning_rate_lowers_the_limit_down_to_twice_the_scalars(rate: float, limit: int) -> None:
    training = Training(learning_rate=rate, scalar_delta=0.01)
    found = slopes(spread=1, weight=4 * 2e-3 * 0.01 * 400 * 1.001)
    assert scalars.suitable_limit(training, found) == limit


@given(spread=st.floats(1e-6, 1e6), bits=st.sampled_from([8, 16]))
def test_the_unit_that_is_advised_is_a_power_of_two_of_which_scalars_are_32_or_16_in_8_bits(
    spread: float, bits: int
) -> None:
    units = spread / scalars.unit_for(Training(scalar_bits=bits, scalar_limit=1), spread)
    usual = 32 if bits == 16 else 127 / 8
    assert usual / 2**0.5 <= units * (1 + 1e-9)
    assert units <= usual * 2**0.5 * (1 + 1e-9)


def test_without_slopes_the_limit_stays_what_it_is() -> None:
    training = Training(scalar_limit=55)
    assert scalars.suitable_limit(training, SlopeSample(np.zeros(0), 0.05, "no data")) == 55


def test_scalars_that_are_lost_are_counted() -> None:
    found = SlopeSample(np.array([0.4, -0.4, 2, 9, -9.0]), 1)
    assert scalars.shares(Training(scalar_delta=1, scalar_limit=5), found) == (0.4, 0.4)


@pytest.fixture(scope="module")
def taught() -> Trainer:
    """A fifth of the built-in run, as so many nodes would make it that train at the same time."""
    trained, at_once = Trainer.load(build({})), 20
    training = trained.manifest.training
    seeds = update_seeds(2602, 0, training.update_budget // 5)
    for first in range(0, len(seeds), at_once):
        own, epoch = seeds[first : first + at_once], first // training.epoch_updates
        scalars = np.array(trained.step(own.tolist(), epoch).scalars)
        trained.apply(UpdateBatch(np.full(len(own), epoch), own, scalars))
    return trained


def test_an_update_that_wrecks_the_trained_model_is_refused(built_in: SlopeSample, taught: Trainer) -> None:
    numbers = taught.manifest.training
    limit = scalars.suitable_limit(numbers, built_in)
    fix = f"Lower training.scalar_limit to {limit}."
    with refused(Code.UPDATE_TOO_LARGE, "one update could wreck the model", fix=fix):
        scalars.check(numbers.model_copy(update={"scalar_limit": 32_767}), built_in)
    learnt = taught.evaluate(200).value
    assert learnt > 0.9, "a fifth of the default run teaches its model the question"
    assert min(after(taught, limit), after(taught, -limit)) > learnt - 0.05
    assert max(after(taught, 32_767), after(taught, -32_767)) < 0.7


def after(trained: Trainer, scalar: int) -> float:
    """The accuracy with one more update, which is taken back."""
    update = UpdateBatch(np.array([0]), update_seeds(99, 0, 1), np.array([scalar]))
    trained.apply(update)
    value = trained.evaluate(200).value
    trained.apply(update._replace(scalars=-update.scalars))
    return value


@given(rate=st.floats(1e-6, 1), limit=st.integers(1, 32_767), spread=st.sampled_from([0.0, 0.01, 1.0, 100.0]))
def test_who_follows_the_advice_is_not_refused_again(rate: float, limit: int, spread: float) -> None:
    found = slopes(spread) if spread else SlopeSample(np.zeros(0), 0.05, "no data")
    training = Training(learning_rate=rate, scalar_limit=limit)
    try:
        scalars.check(training, found)
    except UserError as error:
        words = error.fix.removeprefix("Lower ").removesuffix(".").split(" and ")
        advice = {key.removeprefix("training."): number for key, _, number in map(str.split, words)}
        better = Training.model_validate(training.model_dump() | advice)
        assert better.learning_rate <= rate
        assert better.scalar_limit <= limit
        scalars.check(better, found)


@pytest.mark.parametrize("family", ["opt", "gpt2"])
def test_a_weight_s_usual_size_is_that_of_a_typical_matrix_whatever_else_is_trained(family: str) -> None:
    every = trainer(manifest(family, selection=Selection(biases=True, norms=True)))
    matrices = trainer(manifest(family))
    sizes = [float(matrix(site).square().mean().sqrt()) for site in matrices.loaded.sites]
    assert scalars.typical_weight(matrices.loaded) == pytest.approx(float(np.median(sizes)))
    assert scalars.typical_weight(every.loaded) == scalars.typical_weight(matrices.loaded)


def test_where_only_vectors_are_trained_their_size_counts() -> None:
    run = trainer(manifest("opt", selection=Selection((), norms=True)))
    sizes = [float(matrix(site).square().mean().sqrt()) for site in run.loaded.sites]
    assert scalars.typical_weight(run.loaded) == pytest.approx(float(np.median(sizes)))


def test_a_run_that_has_test_data_only_is_measured_on_them() -> None:
    run = build({})
    private = run.model_copy(update={"data": run.data.model_copy(update={"train": ""})})
    assert measure(private).spread > 0


WORDS = Task(kind="classification", template="{sentence} It was", verbalizer={"0": "dull", "1": "rotten"})
CHOICE = Task(
    kind="choice",
    template="{sentence} It was",
    completion="{candidate}",
    candidates_field="options",
    label_field="label",
)
OPTIONS = [
    {"sentence": "a film", "options": ["rotten", "good", "superb"], "label": 0},
    {"sentence": "a story", "options": ["awful", "odd"], "label": 1},
]
"""Rows, each with two answers of which the tokenizer knows neither."""


def with_task(task: Task, rows: list[dict[str, Any]]) -> Trainer:
    run = manifest("opt", batch_size=2).model_copy(update={"task": task})
    return Trainer(run, trainer(manifest("opt")).loaded, rows)


def test_answers_that_are_the_same_tokens_to_the_model_are_refused_by_name() -> None:
    """Without rows, too, where all have the same answers: those of a private run."""
    alike = WORDS.model_copy(update={"verbalizer": {"0": "dull", "1": "rotten", "2": "superb"}})
    for task, rows, named in (
        *((alike, some, "'rotten', 'superb'") for some in (ROWS, [])),
        (CHOICE, OPTIONS, "'rotten', 'superb'"),
    ):
        with pytest.raises(UserError, match=f"cannot tell the answers {named} apart") as caught:
            scalars.require_answers(with_task(task, rows))
        assert caught.value.code is Code.LOSS_FLAT
        assert ("task.kind=sequence-classification" in caught.value.fix) == task.labelled


def test_answers_that_differ_in_some_row_are_not_refused() -> None:
    fine = {"sentence": "a film", "options": ["good", "bad"], "label": 0}
    for task, rows in ((WORDS, ROWS), (CHOICE, [*OPTIONS, fine]), (CHOICE, []), (HEADED_TASK, [])):
        scalars.require_answers(with_task(task, rows))


def test_a_loss_that_no_direction_changes_is_refused(tmp_path: Path) -> None:
    task = WORDS.model_copy(update={"verbalizer": {"0": "superb", "1": "rotten"}})
    flat = with_task(task, ROWS)
    for measured in (scalars.measure, trial.run):
        with refused(Code.LOSS_FLAT, "the loss is the same at both points along all of"):
            measured(flat)


def test_what_groups_tell_follows_from_slopes_and_bends(tmp_path: Path) -> None:
    """Of directions on mini-batches of their own; updates of a group share one."""
    run, distance = trainer(manifest("opt", group=5, batch_size=4), data_file(tmp_path)), 0.02
    seeds, slopes, bends, taken = scalars.three_points(run, distance, 3 * 4 * 30, lambda done, total: None)
    assert (len(seeds), taken) == (30, 3 * 4 * 30)
    measured = [one.alpha for one in run.estimate(scalars.seeds_of(run, 60), 0, distance)]
    found = scalars.as_scalars(run.manifest.training, slopes, bends, distance)
    assert np.sqrt(np.mean(found**2)) == pytest.approx(np.sqrt(np.mean(np.square(measured))), rel=0.4)


def test_large_mini_batches_are_measured_in_part_and_few_directions_where_they_cost_much() -> None:
    run = build({})
    large = run.model_copy(update={"training": run.training.model_copy(update={"batch_size": 512})})
    found = measure(large, forwards=3 * 8 * 5)
    assert (len(found.slopes), found.example_forwards) == (5, 120)
    assert len(measure(large, forwards=0).slopes) == scalars.LEAST_SLOPES
