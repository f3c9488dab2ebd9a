"""The linear probe finds a linear boundary, chooses its penalty, and says when it has too few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from sfnode.engine.core import UpdateBatch
from sfnode.engine.probe import FLAT, STRENGTHS, linear_probe
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.tasks.public_files import Places
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import data_file, manifest, trainer
from tests.engine.test_head import headed, no_states_of_other_tests
from tests.refusals import refused

__all__ = ["no_states_of_other_tests"]

CLASSES, FEATURES = 3, 40


def data(rows: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """States around three centres, of features whose sizes differ by a factor of a million."""
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = draws.integers(CLASSES, size=rows)
    states = centres[labels] + noise * draws.normal(size=(rows, FEATURES))
    scaled = (states * np.logspace(-3, 3, FEATURES)).astype(np.float32)
    return torch.from_numpy(scaled), torch.from_numpy(labels)


def loss(found: Tensor, labels: Tensor) -> float:
    return float(nll_loss(found, labels))


def test_it_tells_classes_apart_whatever_the_sizes_of_features() -> None:
    states, labels = data(300, 1.0, 1)
    test, right = data(200, 1.0, 2)
    found = linear_probe(states, labels, CLASSES)(test)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(200, dtype=torch.float64))
    assert (found.argmax(1) == right).double().mean() > 0.95


def test_it_is_where_no_other_weights_have_a_smaller_loss_with_one_of_the_penalties() -> None:
    """There the features' mean products with what the probabilities lack are the penalty's pull."""
    states, labels = data(120, 2.0, 1)
    probe = linear_probe(states, labels, CLASSES)
    x = (states.double() - states.double().mean(0)) / states.double().std(0, correction=0)
    lacking = torch.eye(CLASSES)[labels].double() - probe(states).exp()
    pull = lacking.T @ x / len(x)  # (classes, features): strength times weights
    unit = states.double().mean(0) + torch.eye(FEATURES) * states.double().std(0, correction=0)
    zero = states.double().mean(0, keepdim=True)
    weights = (probe(unit) - probe(zero)).T  # but for what all classes of a state share
    pull, weights = pull - pull.mean(0), weights - weights.mean(0)
    strength = float((pull * weights).sum() / weights.square().sum())
    assert min(abs(strength / one - 1) for one in STRENGTHS) < 1e-3
    assert (pull - strength * weights).abs().max() < 10 * FLAT
    assert lacking.mean(0).abs().max() < 10 * FLAT


def test_where_nothing_can_be_learnt_it_says_little_instead_of_knowing_rows_by_heart() -> None:
    states, _ = data(300, 1.0, 1)
    labels = torch.from_numpy(np.random.default_rng(5).integers(CLASSES, size=300))
    test, _ = data(200, 1.0, 2)
    other = torch.from_numpy(np.random.default_rng(6).integers(CLASSES, size=200))
    assert loss(linear_probe(states, labels, CLASSES)(test), other) < np.log(CLASSES) + 0.05


def test_the_same_rows_give_the_same_probabilities() -> None:
    states, labels = data(100, 3.0, 1)
    once, again = (linear_probe(states, labels, CLASSES)(states[:9]) for _ in range(2))
    assert torch.equal(once, again)


def test_a_feature_that_never_varies_does_no_harm() -> None:
    states, labels = data(100, 1.0, 1)
    states[:, 7] = 3.0
    assert linear_probe(states, labels, CLASSES)(states).isfinite().all()


@pytest.mark.parametrize("labels", [[0] * 8, [0, 1, 0, 1, 0, 1, 0, 1], []])
def test_too_few_rows_are_an_error_with_a_fix(labels: list[int]) -> None:
    with refused(Code.DATA_MALFORMED, f"{len(labels)} rows"):
        linear_probe(data(len(labels), 1.0, 1)[0], torch.tensor(labels, dtype=torch.int64), 2)


# -- beside a run --------------------------------------------------------------------------------------


def written(folder: Path, rows: int) -> str:
    """So many short reviews, which one word tells apart, in a file."""
    said = {"0": "bad", "1": "good"}
    lines = [f"{'the film was ' * (row % 7)}{said[str(row % 2)]}\t{row % 2}" for row in range(rows)]
    path = folder / "reviews.tsv"
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return str(path)


def running(rows: str, **numbers: Any) -> Trainer:
    """A run of these rows. No folder enters its manifest: with another id, a step has other directions."""
    file = Path(rows)
    return trainer(
        headed("llama", rows=file.name, **numbers), file, places=Places(named={"train": file, "test": file})
    )


def forwards(run: Trainer) -> int:
    assert run.loaded.kept
    return run.loaded.kept.forwards


def test_it_stands_beside_a_head_and_costs_no_forward_of_a_training_row(tmp_path: Path) -> None:
    run = running(written(tmp_path, 40))
    run.evaluate()
    before = forwards(run)
    found = run.probe()
    assert found
    assert (found.rows, found.count, found.metric) == (14, 40, "accuracy")  # 14 texts differ
    assert forwards(run) == before
    assert found.value > 0.9
    assert found.better, "the head is zero"
    assert found.lead == pytest.approx(np.log(2) - found.loss, abs=1e-6)


def test_a_head_that_knows_more_is_not_told_that_the_probe_is_better(tmp_path: Path) -> None:
    run = running(written(tmp_path, 40), learning_rate=1e-3)
    before = run.probe()
    assert before
    for number in range(12):
        seeds = update_seeds(number, 0, 50)
        scalars = np.array(run.step(seeds.tolist(), 0).scalars)
        run.apply(UpdateBatch(np.zeros(50, np.int64), seeds, scalars))
    found = run.probe()
    assert found
    assert found.loss == before.loss
    assert found.lead < before.lead


def test_where_training_rows_are_unknown_to_the_model_there_is_none(tmp_path: Path) -> None:
    held = data_file(tmp_path)
    run = headed("llama", rows=written(tmp_path, 40))
    apart = run.data.model_copy(update={"test": str(held)})
    assert trainer(run.model_copy(update={"data": apart})).probe() is None


def test_a_run_that_trains_more_than_its_head_has_none(tmp_path: Path) -> None:
    rows = written(tmp_path, 40)
    assert trainer(manifest("llama", rows), Path(rows)).probe() is None
