"""Baselines that need no pretrained model: always the commonest label, and TF-IDF with logistic regression.

Reports show these baselines beside a run's results, because a practitioner with all rows in one place would
try them first. This module knows rows and classes; it knows no model.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfnode.manifest.task import Task
from sfnode.schema.measurements import BaselineEvaluation
from sfnode.tasks import metrics, prompts
from sfnode.tasks.prompts import Row

COMMONEST, TF_IDF = "the commonest label", "TF-IDF with logistic regression"
"""Names of the baselines, for people."""

MOST_ROWS = 8192
"""Maximum number of rows to which a baseline is fitted. Fitting to so many rows takes a few seconds."""

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of the L2 penalty that are tried (scikit-learn's C). The one with the least loss on every
fifth training row, with a fit to the other rows, is taken."""

FOLD = 5

MOST_ITERATIONS = 300

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def measured(task: Task, train: Sequence[Row], test: Sequence[Row]) -> tuple[BaselineEvaluation, ...]:
    """Fit the baselines to `train` rows, and return their results on `test` rows. TF-IDF is included if
    scikit-learn is installed. The result is empty if the task has no labels or there are no rows."""
    if not (task.labelled and train and test):
        return ()
    train = train[:MOST_ROWS]
    labels = _labels(task, train)
    shares = np.bincount(labels, minlength=len(task.verbalizer)) + 1.0
    found = {COMMONEST: np.tile(shares / shares.sum(), (len(test), 1))}
    if len(set(labels.tolist())) > 1 and is_installed():
        found[TF_IDF] = _tf_idf(_texts(task, train), labels, _texts(task, test), len(task.verbalizer))
    return tuple(_scored(task, name, each, _labels(task, test), len(train)) for name, each in found.items())


def is_installed() -> bool:
    """Return whether scikit-learn is installed."""
    try:
        importlib.import_module("sklearn")
    except ImportError:
        return False
    return True


def _tf_idf(train: list[str], labels: I64, test: list[str], classes: int) -> F64:
    """Return the probability of each class for each test text, (len(test), classes)."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    try:
        x = words.fit_transform(train)
    except ValueError:  # texts without a word
        return np.full((len(test), classes), 1 / classes)

    def fitted(rows: Any, right: I64, strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(rows, right)

    apart = np.arange(len(labels)) % FOLD == FOLD - 1
    losses = []
    for strength in STRENGTHS if len(set(labels[~apart].tolist())) > 1 else ():
        model = fitted(x[~apart], labels[~apart], strength)
        losses.append(_losses(_spread(model, x[apart], classes), labels[apart]).mean())
    best = STRENGTHS[int(np.argmin(losses))] if losses else STRENGTHS[0]
    return _spread(fitted(x, labels, best), words.transform(test), classes)


def _spread(model: Any, x: Any, classes: int) -> F64:
    """Return a model's probabilities of all classes. Classes without training rows get a small
    probability."""
    found = np.full((x.shape[0], classes), 1e-6)
    found[:, model.classes_] = np.maximum(model.predict_proba(x), 1e-6)
    normal: F64 = found / found.sum(1, keepdims=True)
    return normal


def _scored(task: Task, name: str, found: F64, labels: I64, rows: int) -> BaselineEvaluation:
    chosen = found.argmax(1)
    hits = int((chosen == labels).sum())
    f1 = task.metric == "f1"
    value = metrics.macro_f1(chosen, labels, found.shape[1]) if f1 else metrics.share(hits, len(labels))
    return BaselineEvaluation(
        metric=task.metric or "accuracy",
        **value._asdict(),
        loss=float(_losses(found, labels).mean()),
        count=len(labels),
        name=name,
        rows=rows,
    )


def _losses(found: F64, labels: I64) -> F64:
    losses: F64 = -np.log(found[np.arange(len(labels)), labels])
    return losses


def _labels(task: Task, rows: Sequence[Row]) -> I64:
    return np.array([prompts.class_of(task, row) for row in rows], np.int64)


def _texts(task: Task, rows: Sequence[Row]) -> list[str]:
    return [" ".join(prompts.text_of(task, row)) for row in rows]
