"""Trains LoRA with AdamW and a classification head, as a user with a GPU and all rows in one place would.

The adapters are PEFT's, of rank 8, on the query and value projections, with alpha 16 as in MeZO and in
sflab.baselines. The head is the one that transformers adds to the model. Mini-batches have 8 rows. The
learning rate rises over a tenth of the steps and then falls to 0. A training row counts as three
example-forwards, two of them for the backward pass. This module knows nothing of runs and updates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from benchmarks.texts import Texts, mean_loss
from sflab.baselines.model_problem import LORA_ALPHA

RANK = 8
BATCH = 8
FORWARDS = 3
"""Example-forwards of a training row, with its backward pass."""

WARMUP = 0.1


class Pass(NamedTuple):
    """Result at one evaluation during training."""

    forwards: int
    validation_loss: float


class Lora:
    """A model with trainable adapters."""

    def __init__(self, folder: Path, classes: int, seed: int) -> None:
        torch.manual_seed(seed)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=classes, dtype=torch.float32
        )
        settings = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=RANK,
            lora_alpha=LORA_ALPHA,
            target_modules=["q_proj", "v_proj"],
        )
        self.model: Any = get_peft_model(model, settings)
        self._order = np.random.default_rng(seed)

    def train(
        self, texts: Texts, validation: Texts, forwards: int, rate: float, looks: int
    ) -> Iterator[Pass]:
        """Train with `forwards` example-forwards, and yield results at `looks` evenly spaced evaluations."""
        rows = forwards // FORWARDS
        steps = -(-rows // BATCH)
        orders = [self._order.permutation(len(texts)) for _ in range(-(-rows // len(texts)))]
        order = np.concatenate(orders)[:rows]
        trained = [one for one in self.model.parameters() if one.requires_grad]
        optimiser = torch.optim.AdamW(trained, rate)
        warm = max(1, round(WARMUP * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )
        stops = {-(-steps * (look + 1) // looks) for look in range(looks)}
        for step in range(steps):
            drawn = order[step * BATCH : (step + 1) * BATCH]
            self.model.train()
            batch = texts.batch(drawn)
            loss = cross_entropy(self.model(**batch).logits, torch.from_numpy(texts.labels[drawn]))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            schedule.step()
            if step + 1 in stops:
                found = self.probabilities(validation)
                yield Pass(FORWARDS * min(rows, (step + 1) * BATCH), mean_loss(found, validation.labels))

    def probabilities(self, texts: Texts) -> NDArray[np.float64]:
        """Return the probability of each class for each text, (n, classes)."""
        self.model.eval()
        with torch.no_grad():
            return texts.map(lambda batch: self.model(**batch).logits.double().softmax(1))

    def keep(self) -> Any:
        """Return a copy of the trained weights."""
        return copy.deepcopy(get_peft_model_state_dict(self.model))

    def back_to(self, kept: Any) -> None:
        """Restore the weights that `keep` returned."""
        set_peft_model_state_dict(self.model, kept)


class Best(NamedTuple):
    """Results of the model with the least validation loss, over several trainings."""

    probabilities: NDArray[np.float64]
    """Probability of each class, (test rows, classes)."""
    rate: float
    forwards: int
    """Example-forwards of its own training until then, without validation."""


def best(
    folder: Path,
    train: Texts,
    test: Texts,
    *,
    forwards: int,
    looks: int,
    rates: Sequence[float],
    seed: int,
) -> Best:
    """Train with each of `rates`, and return the model with the least loss on validation rows: every eighth
    row of `train`."""
    validating = np.arange(len(train)) % 8 == 7
    found: tuple[float, float, Pass, Any] | None = None
    for rate in rates:
        lora = Lora(folder, train.classes, seed)
        for one in lora.train(train.part(~validating), train.part(validating), forwards, rate, looks):
            print(f"  lora, rate {rate:g}: {one.forwards:,} forwards, {one.validation_loss:.3f}", flush=True)
            if found is None or one.validation_loss < found[0]:
                found = one.validation_loss, rate, one, lora.keep()
    assert found
    lora = Lora(folder, train.classes, seed)
    lora.back_to(found[3])
    return Best(lora.probabilities(test), found[1], found[2].forwards)
