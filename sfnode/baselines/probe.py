"""The linear probe: logistic regression on a frozen model's states, one forward pass a row.

Who has all rows in one place would begin with it, so it stands beside every figure on a real model
(docs/benchmarks.md). Knows states and labels; whoever has a model
computes the states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfnode.errors import Code, UserError

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""L2 penalties that are tried, the strongest first: half of one times the weights' squared norm is added to
the mean loss of a row, so that it means the same for any number of rows."""

FOLD = 5
"""One row of this many of each class validates the penalty."""

MOST_ITERATIONS = 5_000
"""Iterations of L-BFGS: a hundred times what standardised states have needed."""


def linear_probe(
    states: NDArray[np.float32], labels: NDArray[np.int64], test: NDArray[np.float32], classes: int
) -> NDArray[np.float64]:
    """Return the probability of each class for the rows `test` (m, d), (m, classes) float64.

    `states`: (n, d), of the training rows; `labels`: (n,), from 0. Features are standardised by the training
    rows; the penalty is the one with the least loss on the validation rows, a fifth of the training rows of
    each class, and the last fit is to all of them. A class without rows has the probability 0. The same rows
    in the same order give the same probabilities. Raises UserError EXTRA_MISSING without scikit-learn, and
    DATA_MALFORMED unless there are rows of two classes and five of one.
    """
    counts = np.bincount(labels, minlength=classes)
    if (counts > 0).sum() < 2 or counts.max() < FOLD:
        raise UserError(
            Code.DATA_MALFORMED,
            f"no probe can be fitted to {len(labels)} rows of {int((counts > 0).sum())} classes",
            f"Give it rows of two classes at least, and {FOLD} rows of one of them.",
        )
    mean, spread = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
    spread[spread == 0] = 1.0
    x, held_out = (states - mean) / spread, (test - mean) / spread
    validating = _validating(labels)
    losses = []
    for strength in STRENGTHS:
        found = _fitted(x[~validating], labels[~validating], strength, classes)(x[validating])
        losses.append(mean_loss(found, labels[validating]))
    return _fitted(x, labels, STRENGTHS[int(np.argmin(losses))], classes)(held_out)


def mean_loss(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy in nats of rows with `probabilities` (n, classes)."""
    right = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())


def _validating(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows validate: every fifth of each class, so that none loses its only row."""
    found = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        found[np.flatnonzero(labels == label)[FOLD - 1 :: FOLD]] = True
    return found


def _fitted(
    x: NDArray[np.float64], labels: NDArray[np.int64], strength: float, classes: int
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return a function from standardised states (m, d) to probabilities (m, classes)."""
    model = _library().LogisticRegression(C=1 / (strength * len(x)), max_iter=MOST_ITERATIONS)
    model.fit(x, labels)

    def probabilities(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.zeros((len(rows), classes))
        found[:, model.classes_] = model.predict_proba(rows)
        return found

    return probabilities


def _library() -> Any:
    """Return sklearn.linear_model. Raises UserError EXTRA_MISSING."""
    try:
        import sklearn.linear_model
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "the linear probe is fitted by scikit-learn, which is not installed",
            "Install it: pip install 'sfnode[experiments]'.",
        ) from error
    return sklearn.linear_model
