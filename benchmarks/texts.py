"""Rows as batches for an unpatched model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.manifest.task import Task
from sfnode.tasks.encoding import encode
from sfnode.tasks.prompts import Row

TOKENS = 512
"""Maximum number of tokens of a batch, padding included."""


class Texts:
    """Texts of some rows, in the form that a classification head reads."""

    def __init__(self, task: Task, tokenizer: Any, rows: Sequence[Row]) -> None:
        self.classes = len(task.verbalizer)
        self._task, self._tokenizer, self._rows = task, tokenizer, list(rows)
        each = [encode(task, tokenizer, [row]) for row in rows]
        self.labels = np.array([int(one.right[0].int().argmax()) for one in each])
        self._lengths = np.array([one.input_ids.shape[1] for one in each])

    def __len__(self) -> int:
        return len(self._rows)

    def part(self, chosen: NDArray[np.bool_]) -> Texts:
        """Return the texts of these rows."""
        rows = [self._rows[index] for index in np.flatnonzero(chosen)]
        return Texts(self._task, self._tokenizer, rows)

    def batch(self, chosen: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the model's inputs for these rows, padded on the right."""
        encoded = encode(self._task, self._tokenizer, [self._rows[index] for index in chosen])
        return {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}

    def map(self, function: Callable[[dict[str, Tensor]], Tensor]) -> NDArray[Any]:
        """Return the result of `function` for every row, (n, ...), in the order of the rows. `function` gets
        batches of texts of similar length."""
        order = np.argsort(self._lengths, kind="stable")
        found, start = [], 0
        while start < len(order):
            size = 1
            while start + size < len(order) and (size + 1) * self._lengths[order[start + size]] <= TOKENS:
                size += 1
            found.append(function(self.batch(order[start : start + size])))
            start += size
        return torch.cat(found)[torch.from_numpy(np.argsort(order))].numpy()


def mean_loss(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy in nats of rows with `probabilities` (n, classes)."""
    right = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())
