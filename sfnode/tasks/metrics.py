"""Metrics of a model with 95 % confidence intervals.

The rows are regarded as a sample of all possible rows. Nodes with the same predictions get the same
intervals, as the bootstrap draws integers from the protocol's random streams. This module knows arrays of
numbers; it knows no model and no task.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfprotocol.seeds import derive_key, stream

Z = 1.959963984540054
"""Number of standard deviations around the mean within which 95 % of a normal distribution lie."""

RESAMPLES = 1000
"""Number of resamples of a bootstrap. The ends of its interval are the 25th values from below and from
above."""

MAX_SURPRISAL = 700.0
"""Maximum surprisal, in nats per token, before it is exponentiated; the exponential of more overflows."""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class MeasuredMetric(NamedTuple):
    """A metric with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def share(hits: float, count: int) -> MeasuredMetric:
    """Return the share hits / count with Wilson's score interval, which stays between 0 and 1.

    The interval has all shares p from which the observed share is at most Z standard deviations away (Wilson
    1927). `hits` may be a sum of `count` numbers from 0 to 1. Their variance is at most that of zeros and
    ones with the same mean, so the interval may be wider than necessary.
    """
    value, spread = hits / count, Z * Z / count
    middle = (value + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(value * (1 - value) / count + spread / (4 * count))
    return MeasuredMetric(value, max(0.0, middle - half), min(1.0, middle + half))


def perplexity(surprisals: F64, tokens: F64) -> MeasuredMetric:
    """Return exp of the mean surprisal of a token, from each row's surprisal in nats and number of tokens,
    (rows,) each.

    The interval is that of a ratio of two sums over rows (the delta method), because tokens of one row are
    not independent. It is unbounded for a single row.
    """
    rows, total = len(tokens), tokens.sum()
    mean = float(surprisals.sum() / total)
    if rows < 2:
        return MeasuredMetric(_exp(mean), 1.0, math.inf)
    variance = ((surprisals - mean * tokens) ** 2).sum() * rows / (rows - 1) / total**2
    half = Z * math.sqrt(variance)
    return MeasuredMetric(_exp(mean), _exp(max(0.0, mean - half)), _exp(mean + half))


def macro_f1(predicted: I64, right: I64, classes: int) -> MeasuredMetric:
    """Return the mean F1 of the classes that occur in `predicted` or `right`, (rows,) each.

    A bootstrap estimates the interval. Rows are sorted first, so that their order does not matter.
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
    """Return the mean F1 of the classes that occur in each of N confusion matrices: (N,), from (N, right,
    predicted)."""
    hits = np.diagonal(tables, axis1=1, axis2=2)  # (N, classes)
    occurrences = tables.sum(1) + tables.sum(2)  # (N, classes): 2 * hits + misses + false alarms
    scores = np.divide(2.0 * hits, occurrences, out=np.zeros(hits.shape), where=occurrences > 0)
    means: F64 = scores.sum(1) / (occurrences > 0).sum(1)
    return means


def _exp(surprisal: float) -> float:
    return math.exp(min(surprisal, MAX_SURPRISAL))
