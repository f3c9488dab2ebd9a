"""The prior of a model over a task's answers. Subtracting the base model's prior from its scores gives the
calibrated base model. Every result of a run is shown beside that of the calibrated base model, as a control.

If a base model is biased towards one answer, removing this bias improves it without labels or training. The
method is contextual calibration (Zhao et al. 2021, arXiv 2102.09690), with unlabelled rows in place of inputs
without content. This module knows scores; it knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfnode.errors import Code, UserError
from sfnode.manifest.task import PRIOR_ONE, Task
from sfnode.schema.measurements import Evaluation
from sfnode.tasks.encoding import Forward, Prior, batches, evaluate, prior_of
from sfnode.tasks.prompts import Row, unanswered

CALIBRATION_ROWS = 512
"""Number of unlabelled rows on which a prior is measured. If the scores of rows have a standard deviation of
2 nats, the standard error of the prior is below 0.1 nats. Biases that matter are 0.5 nats or more."""


def for_manifest(prior: Prior) -> tuple[int, ...]:
    """Return a prior in the form of the manifest: integers in units of 2^-16 nats. The prior is shifted so
    that its largest entry is 0. The shift has no effect, because the same constant for all answers changes no
    probability."""
    return tuple(round(float(part)) for part in PRIOR_ONE * (prior - prior.max()))


def mean_score(scores: Tensor) -> Tensor:
    """Return the mean score of each answer, (K,), from the scores of all rows, (n, K).

    The scores need not be normalised over the K answers. Normalisation would change all K means by the same
    number, and so change neither probabilities nor choices.
    """
    return scores.mean(0)


def mean_probability(scores: Tensor) -> Tensor:
    """Return the logarithm of each answer's mean probability, (K,), from the scores of all rows (SPEC T7). In
    each row the probabilities of the K answers add up to 1.

    With this prior, all answers are about equally likely on average at the start of training. With
    `mean_score` instead, the few rows on which the model is sure would have large gradients
    (docs/research-log.md).
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
    """Return the prior, (K,) float64, which is the `average` of the scores of `rows`. Labels are not used.

    Raises UserError BAD_OPTION if the task's answers differ from row to row, or if there are no rows.
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
    """Measure a model on `rows`. If the task's loss is centred, the model's prior over the `public` rows is
    subtracted from the scores. If the loss is calibrated, the manifest's prior is subtracted. For a plain
    loss nothing is subtracted."""
    leaning = prior(task, tokenizer, public, forward, batch_size) if task.loss == "centred" else None
    if task.loss == "calibrated":
        leaning = prior_of(task)
    return evaluate(task, tokenizer, rows, forward, batch_size, leaning)
