"""Tests of the embedded sums: their text, their model's answers, and what rewards teach it."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import product

import numpy as np
import pytest

from scripts import sums
from scripts.sums import SumProblem, split_of
from sfnode.engine.core import UpdateBatch
from sfnode.engine.generation import complete
from sfnode.engine.trainer import Trainer
from sfnode.preparing.manifest import build
from sfnode.tasks.dataset import load_rows
from sfprotocol.seeds import update_seeds

ROWS = {split: sums.rows(split) for split in sums.ROWS}


@pytest.fixture
def run() -> Trainer:
    return Trainer.load(build({"preset": "sums", "learning_rate": 4e-5, "update_budget": 1024}))


def test_the_rows_are_pinned_because_every_node_must_write_the_same() -> None:
    assert blake2b(json.dumps(ROWS).encode(), digest_size=8).hexdigest() == "bc5fc73e442389bc"


def test_answers_are_right_and_no_problem_occurs_twice() -> None:
    for split, rows in ROWS.items():
        assert len({row["sum"] for row in rows}) == len(rows) == sums.ROWS[split]
        for row in rows:
            one, other = row["sum"].split("+")
            assert row["answer"] == str(int(one) + int(other))


def test_a_problem_is_of_one_split_whichever_number_comes_first() -> None:
    for split, rows in ROWS.items():
        assert {split_of(sums.read(row["sum"])) for row in rows} == {split}
    assert all(
        split_of(SumProblem(one, other)) == split_of(SumProblem(other, one))
        for one, other in product(range(9), repeat=2)
    )


def test_the_pretraining_text_forgets_to_carry_in_seven_of_ten_and_has_no_problem_of_another_split() -> None:
    texts = list(sums.pretraining_text(2000))
    assert texts == list(sums.pretraining_text(2000))
    counted = {"right": 0, "forgetful": 0}
    for text in texts:
        problem, answer = sums.read(text.partition("=")[0]), text.partition("=")[2]
        assert split_of(problem) == "train"
        assert answer in (problem.answer, problem.forgetful)
        if problem.answer != problem.forgetful:
            counted["right" if answer == problem.answer else "forgetful"] += 1
    assert counted["forgetful"] / sum(counted.values()) == pytest.approx(sums.FORGETFUL / 100, abs=0.04)


def test_who_forgets_to_carry_adds_every_place_by_itself() -> None:
    pairs = ((23, 41), (23, 48), (58, 67), (50, 50), (60, 70))
    assert [SumProblem(*pair).forgetful for pair in pairs] == ["64", "61", "15", "0", "30"]


@pytest.mark.parametrize("split", sums.ROWS)
def test_the_splits_are_data_that_a_run_can_name(run: Trainer, split: sums.Split) -> None:
    assert load_rows(f"builtin:sums:{split}", run.manifest.task) == ROWS[split]


def test_the_embedded_model_writes_numbers_and_forgets_to_carry(run: Trainer) -> None:
    assert sum(parameter.numel() for parameter in run.loaded.model.parameters()) <= 1_000_000
    written = complete(run.loaded, [f"{row['sum']}=" for row in ROWS["test"]], 4)
    assert np.mean([text.isdecimal() and len(text) <= 3 for text in written]) >= 0.95
    right = np.mean([text == row["answer"] for text, row in zip(written, ROWS["test"], strict=True)])
    assert 0.2 <= right <= 0.4
    assert run.evaluate().value == pytest.approx(right)
    wrong = [sums.read(row["sum"]).forgetful for row in ROWS["test"]]
    assert np.mean([text == other for text, other in zip(written, wrong, strict=True)]) >= 0.95


def test_rewards_teach_it_to_carry(run: Trainer) -> None:
    """The run has twice the rate and a sixth of the budget of the ready-made one."""
    numbers = run.manifest.training
    seeds = update_seeds(2617, 0, numbers.update_budget)
    for first in range(0, len(seeds), numbers.group):
        own, epoch = seeds[first : first + numbers.group], first // numbers.epoch_updates
        scalars = np.array(run.recompute(own.tolist(), epoch).scalars)
        run.apply(UpdateBatch(np.full(len(own), epoch), own, scalars))
    assert run.evaluate().value >= 0.6


def test_the_run_is_called_by_its_task_or_by_its_model() -> None:
    run = build({"preset": "sums"})
    assert build({"preset": "builtin:sums"}) == build({"model": "builtin:sums"}) == run
    assert (run.model.source, run.name, run.training.group) == ("builtin:sums", "sums", 16)
