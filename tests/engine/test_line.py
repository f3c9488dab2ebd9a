"""Losses along a line through the weights are those of models whose weights were moved along it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.engine.line import Line, difference
from sfnode.engine.losses import line_batches, line_rows
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.models.targets import DEFAULT, Selection
from sfnode.organising.evaluation.line_search import AMOUNTS, LineSearch
from tests.engine.helpers import EVERYTHING, ROWS, TASK, data_file, manifest, trainer, updates


def moved(run: Manifest, by: int) -> Trainer:
    """A trainer whose weights were rebuilt with some updates, and with others `by` times."""
    other = trainer(run)
    other.apply(updates(30, (0, 1)))
    more = updates(60, (0, 1, 2))
    other.apply(more._replace(scalars=more.scalars * by))
    other.weights.rebuild()
    return other


def losses(run: Trainer, after: Trainer | None, amount: float) -> NDArray[np.float64]:
    batches = line_batches(run.manifest.task, run.loaded.tokenizer, ROWS)
    cores = difference(after.core.cores(), run.core.cores()) if after else {}
    return Line(run.loaded, run.space, run.scale, cores).losses(batches, [amount])[:, 0]


@pytest.mark.parametrize(
    ("family", "selection"),
    [("opt", DEFAULT), ("gpt2", EVERYTHING), ("llama", EVERYTHING), ("modernbert", DEFAULT)],
)
def test_losses_are_those_of_a_model_that_was_moved(family: str, selection: Selection) -> None:
    described = manifest(family, selection=selection, learning_rate=1e-3)
    run, after, far = (moved(described, by) for by in (0, 1, 3))
    before = losses(run, None, 0.0)
    for amount, there in ((0, run), (1, after), (3, far)):
        expected = losses(there, None, 0.0)
        assert losses(run, after, amount) == pytest.approx(expected, rel=2e-5, abs=2e-5)
    assert abs(losses(run, after, 3) - before).max() > 1e-3, "the line leads somewhere"
    assert (losses(run, None, 0.0) == before).all(), "vectors are where they were"


def test_a_search_takes_the_rows_that_it_asks_for_and_writes_nothing(tmp_path: Path) -> None:
    run = manifest("opt", learning_rate=1e-3)
    file = data_file(tmp_path)
    run = run.model_copy(
        update={"data": Data(train=str(file), validation=str(file.rename(tmp_path / "v.tsv")))}
    )
    one, other = trainer(run), trainer(run)
    other.apply(updates(40, (0,)))
    before, search = one.core.digest(), LineSearch(len(ROWS))
    assert one.search(other.cores(), search) == len(ROWS) * len(AMOUNTS)
    assert search.found.rows == len(ROWS)
    assert one.core.digest() == before
    towards = one.evaluate_towards(other.cores(), 1.0, rows="validation")
    assert towards.loss == pytest.approx(other.evaluate(rows="validation").loss, rel=1e-5)
    assert one.evaluate(rows="validation") == trainer(run).evaluate(rows="validation")


def test_rows_of_a_search_are_shuffled_with_the_classes_by_turns() -> None:
    rows = [{"sentence": str(n), "label": "01"[n >= 60]} for n in range(100)]
    found = line_rows(TASK, rows)
    labels = [row["label"] for row in found]
    assert all(sorted(labels[n : n + 2]) == ["0", "1"] for n in range(0, 80, 2))
    assert sorted(found, key=lambda row: int(row["sentence"])) == rows
    assert [int(row["sentence"]) for row in found[:6]] != sorted(int(row["sentence"]) for row in found[:6])
    assert line_rows(TASK, rows) == found


def test_a_search_that_doubts_an_epoch_ends_with_the_rows_there_are() -> None:
    """What looks like harm is looked at on up to 128 rows, however few were planned and there are."""
    described, search = manifest("opt"), LineSearch(16)
    run, after = trainer(described), moved(described, 1)
    line = Line(run.loaded, run.space, run.scale, difference(after.core.cores(), run.core.cores()))
    assert line.losses([], search.amounts).shape == (0, len(AMOUNTS))
    search.take(np.ones((16, len(AMOUNTS))) + np.arange(len(AMOUNTS)) + np.linspace(0, 0.1, 16)[:, None])
    search.take(line.losses([], search.amounts))
    assert not search.wanted
