"""Metrics of a model with 95 % confidence intervals.

Intervals regard the measured rows as a random sample of all possible rows. Nodes with the same predictions
get the same intervals, because the bootstrap draws integers from the protocol's random streams. This module
knows arrays of numbers; it knows no model and no task.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfprotocol.seeds import derive_key, stream

Z = 1.959963984540054
"""Number of standard deviations. 95 % of a normal distribution lie within this distance of its mean."""

RESAMPLES = 1000
"""Number of resamples of a bootstrap. The ends of the 95 % interval are the 25th smallest and the 25th
largest value."""

MAX_SURPRISAL = 700.0
"""Maximum surprisal, in nats per token, that is exponentiated. The exponential of a larger one would
overflow."""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class MeasuredMetric(NamedTuple):
    """A metric with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def share(hits: float, count: int) -> MeasuredMetric:
    """Return the share hits / count with Wilson's score interval, which stays between 0 and 1.

    The interval contains all shares p that are at most Z standard deviations from the observed share (Wilson
    1927). `hits` may also be a sum of `count` numbers from 0 to 1. The variance of such numbers is at most
    that of zeros and ones with the same mean, so the interval may be wider than necessary.
    """
    value, spread = hits / count, Z * Z / count
    middle = (value + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(value * (1 - value) / count + spread / (4 * count))
    return MeasuredMetric(value, max(0.0, middle - half), min(1.0, middle + half))


def perplexity(surprisals: F64, tokens: F64) -> MeasuredMetric:
    """Return the exponential of the mean surprisal of a token. `surprisals` and `tokens`, (rows,) each, are
    the surprisal of each row in nats and its number of tokens.

    The interval is that of a ratio of two sums over rows, computed with the delta method, because tokens of
    one row are not independent. For a single row the interval has no upper bound.
    """
    rows, total = len(tokens), tokens.sum()
    mean = float(surprisals.sum() / total)
    if rows < 2:
        return MeasuredMetric(_exp(mean), 1.0, math.inf)
    variance = ((surprisals - mean * tokens) ** 2).sum() * rows / (rows - 1) / total**2
    half = Z * math.sqrt(variance)
    return MeasuredMetric(_exp(mean), _exp(max(0.0, mean - half)), _exp(mean + half))


def macro_f1(predicted: I64, right: I64, classes: int) -> MeasuredMetric:
    """Return the mean F1 of the classes that occur in `predicted` or `right`, which have the class of each
    row, (rows,) each.

    The interval is estimated by a bootstrap. Rows are sorted before it, so that their order does not affect
    the result.
    """
    cells = np.sort(right * classes + predicted)  # (rows,)
    counts = [_table(cells, classes)]
    key, rows = derive_key(b"sfnode bootstrap"), len(cells)
    for number in range(RESAMPLES):
        chosen = stream(key, number * rows, rows) % np.uint64(rows)
        counts.append(_table(cells[chosen], classes))
    value, *resampled = _mean_f1(np.array(counts))
    ordered = np.sort(resampled)
    outside = RESAMPLES // 40  # 2.5 % on either side
    return MeasuredMetric(float(value), float(ordered[outside - 1]), float(ordered[-outside]))


def _table(cells: I64, classes: int) -> I64:
    """Return the confusion matrix, (right, predicted)."""
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _mean_f1(tables: I64) -> F64:
    """Return, for each of N confusion matrices, the mean F1 of the classes that occur in it, (N,). `tables`
    has the shape (N, right, predicted)."""
    hits = np.diagonal(tables, axis1=1, axis2=2)  # (N, classes)
    occurrences = tables.sum(1) + tables.sum(2)  # (N, classes): 2 * hits + misses + false alarms
    scores = np.divide(2.0 * hits, occurrences, out=np.zeros(hits.shape), where=occurrences > 0)
    means: F64 = scores.sum(1) / (occurrences > 0).sum(1)
    return means


def _exp(surprisal: float) -> float:
    return math.exp(min(surprisal, MAX_SURPRISAL))
