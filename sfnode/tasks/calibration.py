"""The prior of a model over a task's answers, and with it the control beside every learning figure.

A base model that leans towards one answer improves by losing that leaning alone. That takes neither labels
nor training (contextual calibration, Zhao et al. 2021, arXiv 2102.09690, with unlabelled rows in place of
inputs without content). This module knows scores; it knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfnode.errors import Code, UserError
from sfnode.manifest.task import PRIOR_ONE, Task
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks.encoding import Forward, Prior, batches, evaluate, prior_of
from sfnode.tasks.prompts import Row, unanswered

CALIBRATION_ROWS = 512
"""Number of unlabelled rows on which a prior is measured. Its standard error is then below 0.1 nats if scores
vary by 2 from row to row. Leanings that matter are half a nat or more."""


def for_manifest(prior: Prior) -> tuple[int, ...]:
    """Return a prior in the manifest's form: in units of 2^-16 nats, rounded. The largest entry is 0, since a
    constant for all answers changes nothing."""
    return tuple(round(float(part)) for part in PRIOR_ONE * (prior - prior.max()))


def mean_score(scores: Tensor) -> Tensor:
    """Return the mean score of each answer, (K,), from the scores of all rows, (n, K).

    Normalising the log-probabilities over the K answers would change all means by the same number, and so
    neither a probability nor a choice.
    """
    return scores.mean(0)


def mean_probability(scores: Tensor) -> Tensor:
    """Return the logarithm of each answer's mean probability among the K answers, (K,), from the scores of
    all rows (SPEC T7).

    With such a prior, training begins where all answers are equally likely on average. With the mean score,
    rows with a sure answer would have steep gradients, few as they are (docs/research-log.md).
    """
    return scores.log_softmax(1).logsumexp(0) - math.log(len(scores))


def prior(
    task: Task,
    tokenizer: Any,
    rows: Sequence[Row],
    forward: Forward,
    batch_size: int,
    average: Callable[[Tensor], Tensor] = mean_score,
) -> Prior:
    """Return the prior over `rows`, (K,) float64, without looking at their labels.

    Raises UserError BAD_OPTION for a task whose answers differ from row to row, or without rows.
    """
    if not task.labelled or not rows:
        raise UserError(
            Code.BAD_OPTION,
            f"no prior over the answers can be measured: a task of kind {task.kind} has no fixed answers"
            if rows or not task.labelled
            else "no prior over the answers can be measured without rows",
            "Calibrate a classification, on rows of its data, with labels or without.",
        )
    scores = [
        encoded.scores(forward(encoded).log_probs).double().cpu()
        for encoded in batches(task, tokenizer, [unanswered(task, row) for row in rows], batch_size)
    ]
    found: Prior = average(torch.cat(scores)).numpy()
    return found


def measure(
    task: Task, tokenizer: Any, rows: Sequence[Row], public: Sequence[Row], forward: Forward, batch_size: int
) -> Evaluation:
    """Measure a model on `rows`. With a centred loss its prior over `public` rows is subtracted from scores,
    with a calibrated loss the manifest's prior, with a plain loss none."""
    leaning = prior(task, tokenizer, public, forward, batch_size) if task.loss == "centred" else None
    if task.loss == "calibrated":
        leaning = prior_of(task)
    return evaluate(task, tokenizer, rows, forward, batch_size, leaning)
