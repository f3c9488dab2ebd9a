"""What stands beside a run on a real model, tried on the built-in one: the probe and LoRA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from sfnode.models import loader
from sfnode.models.files import EMBEDDED
from sfnode.tasks import dataset, presets
from tests.bench import lora, real
from tests.bench.texts import Texts, last_states

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""PEFT asks transformers under a name that the latter is about to drop."""

FOLDER = EMBEDDED / "tiny"


def reviews(split: str, rows: int) -> Texts:
    task = presets.task_of(presets.preset("reviews"), headed=True)
    found = dataset.load_rows(f"builtin:reviews:{split}", task, limit=rows)
    return Texts(task, loader.tokenizer_of(FOLDER), found)


def test_a_state_is_that_of_its_text_alone_whatever_it_is_padded_with() -> None:
    texts = reviews("test", 60)
    body: Any = AutoModel.from_pretrained(FOLDER).eval()
    found = last_states(body, texts)
    assert len({len(texts.batch(np.array([row]))["input_ids"][0]) for row in range(60)}) > 5
    for row in (0, 17, 59):
        with torch.no_grad():
            alone = body(**texts.batch(np.array([row]))).last_hidden_state[0, -1]
        np.testing.assert_allclose(found[row], alone.numpy(), atol=1e-5)


def test_the_probe_costs_one_forward_a_row_and_is_better_than_chance() -> None:
    found = real.probe(FOLDER, reviews("train", 256), reviews("test", 200))
    assert found.forwards == 256
    assert found.accuracy > 0.6


def test_lora_learns_and_a_row_counts_as_three_forwards() -> None:
    train, test = reviews("train", 64), reviews("test", 100)
    found = lora.best(FOLDER, train, test, forwards=3 * 320, looks=5, rates=(3e-3,), seed=0)
    assert found.forwards in {3 * 64 * look for look in range(1, 6)}
    right = (found.probabilities.argmax(1) == test.labels).mean()
    assert right > 0.6
