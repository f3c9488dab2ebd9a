"""What stands beside a run on a real model, tried on the built-in one: the probe and LoRA."""

from __future__ import annotations

import pytest

from benchmarks import lora
from benchmarks.texts import Texts
from sfnode.models import loader
from sfnode.models.model_files import EMBEDDED
from sfnode.tasks import dataset, presets

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""PEFT asks transformers under a name that the latter is about to drop."""

FOLDER = EMBEDDED / "tiny"


def reviews(split: str, rows: int) -> Texts:
    task = presets.task_of(presets.preset("reviews"), headed=True)
    found = dataset.load_rows(f"builtin:reviews:{split}", task, limit=rows)
    return Texts(task, loader.tokenizer_of(FOLDER), found)


def test_lora_learns_and_a_row_counts_as_three_forwards() -> None:
    train, test = reviews("train", 64), reviews("test", 100)
    found = lora.best(FOLDER, train, test, forwards=3 * 320, looks=5, rates=(3e-3,), seed=0)
    assert found.forwards in {3 * 64 * look for look in range(1, 6)}
    right = (found.probabilities.argmax(1) == test.labels).mean()
    assert right > 0.6
