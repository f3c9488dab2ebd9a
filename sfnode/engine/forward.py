"""Runs a model: from sequences to the log-probabilities of their targets.

A batch is cut into passes so that neither padding nor memory is wasted, and the logits of a pass, the widest
thing there is, are reduced at once. This module knows neither updates nor losses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfnode.engine.model import LoadedModel
from sfnode.engine.steering import Motion
from sfnode.engine.tasks import Encoded, Scored

PASS_TOKENS = {"cpu": 512}
"""Tokens of one pass, by kind of device. On a CPU more tokens make none of them cheaper (docs/benchmarks.md)
and their activations no longer fit the caches."""

OTHER_PASS_TOKENS = 65_536
"""For accelerators, which want all they can get; bounded for the sake of their memory."""

PASS_OVERHEAD = 128
"""Tokens whose computation takes as long as what a pass costs whatever its size (reading the weights, and
the interpreter's work): measured between 40 and 90. Padding worth more than this is worth another pass."""

LOGITS_AT_A_TIME = 1 << 24
"""Entries that are in float32 at a time: 64 MiB."""


class Batch(NamedTuple):
    """S sequences of T tokens and the P targets on them, as numpy arrays."""

    input_ids: NDArray[np.int64]
    """(S, T)."""
    attention_mask: NDArray[np.int64]
    """(S, T), 0 on padding, which is on the right."""
    sequences: NDArray[np.int64]
    """(P,)."""
    columns: NDArray[np.int64]
    """(P,)."""
    targets: NDArray[np.int64]
    """(P,)."""


class Pass(NamedTuple):
    """Some of a batch's sequences, no wider than they need to be, on the model's device."""

    input_ids: Tensor
    """(R, W)."""
    attention_mask: Tensor
    """(R, W)."""
    rows: Tensor
    """(p,), the row of each target."""
    columns: Tensor
    """(p,)."""
    targets: Tensor
    """(p,)."""


def score(loaded: LoadedModel, encoded: Encoded) -> Scored:
    """One plain pass over a batch."""
    with torch.inference_mode():
        batch = batch_of(encoded)
        this = take(batch, np.arange(len(batch.input_ids)), np.arange(len(batch.targets)), loaded.device)
        logits = _logits(loaded, this)  # (P, vocab)
        return Scored(_log_probs(logits, this.targets).cpu(), (logits.argmax(-1) == this.targets).cpu())


def log_probs(loaded: LoadedModel, this: Pass, motion: Motion | None) -> Tensor:
    """The log-probability of each target of a pass, (p,) float32, still on the device."""
    with loaded.steering.moving(motion):
        return _log_probs(_logits(loaded, this), this.targets)


def batch_of(encoded: Encoded) -> Batch:
    """The parts of an encoded batch that a model sees."""
    parts = (encoded.input_ids, encoded.attention_mask, encoded.sequences, encoded.columns, encoded.targets)
    return Batch(*(part.numpy() for part in parts))


def take(
    batch: Batch, sequences: NDArray[np.int64], targets: NDArray[np.int64], device: torch.device
) -> Pass:
    """The pass with these sequences in this order; `targets` are the numbers of those that lie on them."""
    width = int(batch.attention_mask[sequences].sum(1).max())
    row_of = np.zeros(len(batch.input_ids), np.int64)
    row_of[sequences] = np.arange(len(sequences))
    parts = (
        batch.input_ids[sequences, :width],
        batch.attention_mask[sequences, :width],
        row_of[batch.sequences[targets]],
        batch.columns[targets],
        batch.targets[targets],
    )
    return Pass(*(torch.from_numpy(part).to(device, non_blocking=True) for part in parts))


def groups(lengths: NDArray[np.int64], device: torch.device) -> list[NDArray[np.int64]]:
    """Sequences by number, cut into groups of like lengths, the longest first.

    A group is full when it has its share of PASS_TOKENS, and when another sequence would bring its padding
    above PASS_OVERHEAD.
    """
    order = np.argsort(-lengths, kind="stable")
    limit = PASS_TOKENS.get(device.type, OTHER_PASS_TOKENS)
    total = int(lengths.sum())
    share = total / max(1, -(-total // limit))  # equal parts: a small rest would be a wasteful pass
    cut, width, padding, size = [], 0, 0, 0
    for place, length in enumerate(lengths[order].tolist()):
        padding += width - length
        if size and (padding > PASS_OVERHEAD or (size + 1) * width > share + width / 2):
            cut.append(place)
            size = 0
        if size == 0:
            width, padding = length, 0
        size += 1
    return np.split(order, cut)


def _logits(loaded: LoadedModel, this: Pass) -> Tensor:
    """(p, vocab) for a language model, (p, classes) for a classification head.

    A causal model is not told of padding on the right, which no target can see: what transformers does with
    a mask costs time, and on an accelerator a synchronisation.
    """
    network: Any = loaded.model
    if loaded.classifies:
        logits: Tensor = network(input_ids=this.input_ids, attention_mask=this.attention_mask).logits
        return logits[this.rows]  # (R, classes) -> (p, classes)
    loaded.steering.picked = this.rows, this.columns
    try:
        found: Tensor = network(input_ids=this.input_ids, use_cache=False).logits
    finally:
        loaded.steering.picked = None
    return found


def _log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each target, (P,) float32 (float64 if the logits are), from logits (P, vocab), block by block."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    block = max(1, LOGITS_AT_A_TIME // logits.shape[1])
    parts = [
        -cross_entropy(part.to(dtype), wanted, reduction="none")
        for part, wanted in zip(torch.split(logits, block), torch.split(targets, block), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
