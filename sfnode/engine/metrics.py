"""How good a model is, and how sure one can be of it: metrics with 95 % confidence intervals.

The rows are taken for a sample of all the rows there could be. Everything is the same on every node that has
the same predictions: the bootstrap draws integers from the protocol's own streams. This module knows numbers;
it knows no model and no task.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfprotocol.seeds import derive_key, stream

Z = 1.959963984540054
"""Of a normal distribution, 95 % lie within so many standard deviations."""

RESAMPLES = 1000
"""Of a bootstrap: the ends of its interval are then the 25th value from below and from above."""

HIGHEST_SURPRISE = 700.0
"""In nats a token; the exponential of more is no number."""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Measured(NamedTuple):
    """A metric with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def share(hits: int, count: int) -> Measured:
    """A share of `count` rows, with Wilson's score interval, which stays between 0 and 1 and needs no luck.

    Wilson 1927: the shares p for which the observed one is not further than Z standard deviations from p.
    """
    value, spread = hits / count, Z * Z / count
    middle = (value + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(value * (1 - value) / count + spread / (4 * count))
    return Measured(value, max(0.0, middle - half), min(1.0, middle + half))


def perplexity(surprises: F64, tokens: F64) -> Measured:
    """exp of the mean surprise of a token; of each row its tokens' surprise in nats and their number.

    The interval is that of a ratio of two sums over rows (the delta method), since the tokens of one row are
    not independent of each other. One row says nothing of others: then it is everything.
    """
    rows, total = len(tokens), tokens.sum()
    mean = float(surprises.sum() / total)
    if rows < 2:
        return Measured(_exp(mean), 1.0, math.inf)
    variance = ((surprises - mean * tokens) ** 2).sum() * rows / (rows - 1) / total**2
    half = Z * math.sqrt(variance)
    return Measured(_exp(mean), _exp(max(0.0, mean - half)), _exp(mean + half))


def macro_f1(predicted: I64, right: I64, classes: int) -> Measured:
    """The mean F1 of the classes that occur in `predicted` or `right`, (rows,) each; interval by bootstrap.

    Rows are sorted first, so that their order says nothing.
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
    return Measured(float(value), float(ordered[outside - 1]), float(ordered[-outside]))


def _table(cells: I64, classes: int) -> I64:
    """The confusion matrix, (right, predicted)."""
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _mean_f1(tables: I64) -> F64:
    """Of confusion matrices (N, right, predicted) the mean F1 of the classes that occur, (N,)."""
    hits = np.diagonal(tables, axis1=1, axis2=2)  # (N, classes)
    occurrences = tables.sum(1) + tables.sum(2)  # (N, classes): 2 * hits + misses + false alarms
    scores = np.divide(2.0 * hits, occurrences, out=np.zeros(hits.shape), where=occurrences > 0)
    means: F64 = scores.sum(1) / (occurrences > 0).sum(1)
    return means


def _exp(surprise: float) -> float:
    return math.exp(min(surprise, HIGHEST_SURPRISE))
