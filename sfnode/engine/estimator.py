"""The two-point estimate: what one update measures (DESIGN 3; Malladi et al. 2023, definition 1).

For q seeds and q mini-batches, one forward pass over both points of each gives q directional derivatives,
which are then quantised to the integers that peers exchange. This module writes no weight, and knows
neither cores nor where the batches come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sfnode.engine.model import LoadedModel, logits_at
from sfnode.engine.subspace import Directions, moved
from sfnode.engine.tasks import Encoded


class Estimate(NamedTuple):
    """One query's result, in units of the task's loss."""

    alpha: float
    """(L+ - L-) / (2 eps)."""
    loss: float
    """The mean of L+ and L-, which is the loss at the unmoved point up to eps squared."""


class Rows(NamedTuple):
    """Several mini-batches stacked to one batch of S sequences of T tokens."""

    input_ids: Tensor
    """(S, T), right-padded with any token that `attention_mask` hides."""
    attention_mask: Tensor
    """(S, T)."""
    positions: Tensor
    """(P,), flat indices into (S * T)."""
    owners: Tensor
    """(S,), the mini-batch that each sequence belongs to."""


def two_point(
    loaded: LoadedModel, directions: Directions, batches: Sequence[Encoded], epsilon: float
) -> list[Estimate]:
    """Estimate k is the derivative of mini-batch k's mean loss along direction k.

    `directions` are those of `Subspace.directions` for as many seeds, scaled by the same `epsilon`.
    """
    rows = stack(batches)
    device = directions.u[0].device
    points = rows.positions.numel()
    with torch.inference_mode(), moved(loaded.layers, directions, row_signs(rows, len(batches)).to(device)):
        logits = logits_at(loaded.model, *(part.to(device) for part in mirrored(rows)))  # (2P, vocab)
        plus = _losses(batches, logits[:points])
        minus = _losses(batches, logits[points:])
    return [_estimate(high, low, epsilon) for high, low in zip(plus, minus, strict=True)]


def quantise(alpha: float, delta: float, limit: int) -> int:
    """`clip(round(alpha / delta), -limit, limit)`, halves to even.

    An alpha that is not finite becomes 0: the measurement failed, and 0 moves nothing.
    """
    if not math.isfinite(alpha):
        return 0
    return round(min(max(alpha / delta, -limit), limit))


def stack(batches: Sequence[Encoded]) -> Rows:
    """The sequences of all mini-batches in order, padded on the right to the longest."""
    width = max(batch.input_ids.shape[1] for batch in batches)
    first = 0  # flat index of the mini-batch's first token
    positions = []
    for batch in batches:
        sequences, length = batch.input_ids.shape
        row, column = batch.positions // length, batch.positions % length
        positions.append(first + row * width + column)
        first += sequences * width
    sizes = torch.tensor([batch.input_ids.shape[0] for batch in batches])
    return Rows(
        torch.cat([_widened(batch.input_ids, width) for batch in batches]),
        torch.cat([_widened(batch.attention_mask, width) for batch in batches]),
        torch.cat(positions),
        torch.repeat_interleave(torch.arange(len(batches)), sizes),
    )


def mirrored(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (2S, T), mask (2S, T) and positions (2P,) of the batch twice over: first at +eps, then at -eps."""
    positions = torch.cat([rows.positions, rows.positions + rows.input_ids.numel()])
    return rows.input_ids.repeat(2, 1), rows.attention_mask.repeat(2, 1), positions


def row_signs(rows: Rows, queries: int) -> Tensor:
    """The signs (2 * S * T, q) of the rows of `mirrored` for `subspace.moved`; 0 for other queries' rows."""
    own = torch.nn.functional.one_hot(rows.owners, queries).float()  # (S, q)
    own = own.repeat_interleave(rows.input_ids.shape[1], 0)  # (S * T, q)
    return torch.cat([own, -own])


def _losses(batches: Sequence[Encoded], logits: Tensor) -> list[Tensor]:
    """Per mini-batch the losses of its examples, (B,) float64, from their logits (P, vocab)."""
    parts = torch.split(logits, [batch.positions.numel() for batch in batches])
    return [batch.losses(part).double() for batch, part in zip(batches, parts, strict=True)]


def _estimate(plus: Tensor, minus: Tensor, epsilon: float) -> Estimate:
    """The difference is taken example by example in float64: it is a small part of either loss."""
    return Estimate(alpha=float((plus - minus).mean()) / (2 * epsilon), loss=float((plus + minus).mean()) / 2)


def _widened(tokens: Tensor, width: int) -> Tensor:
    return pad(tokens, (0, width - tokens.shape[1]))
