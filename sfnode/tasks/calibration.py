"""The prior of a model over a task's answers. The calibrated base model, from whose scores it is subtracted,
is the control beside the result of every run.

A base model that leans towards one answer improves if only this leaning is removed, without labels or
training (contextual calibration, Zhao et al. 2021, arXiv 2102.09690, with unlabelled rows in place of inputs
without content). This module knows scores; it knows no model.
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
"""Number of unlabelled rows on which a prior is measured. Its standard error is then below 0.1 nats if the
scores of rows have a standard deviation of 2 nats. Leanings that matter are 0.5 nats or more."""


def for_manifest(prior: Prior) -> tuple[int, ...]:
    """Return a prior in the manifest's form: in units of 2^-16 nats, rounded. It is shifted so that the
    largest entry is 0; a constant for all answers changes nothing."""
    return tuple(round(float(part)) for part in PRIOR_ONE * (prior - prior.max()))


def mean_score(scores: Tensor) -> Tensor:
    """Return the mean score of each answer, (K,), from the scores of all rows, (n, K).

    Scores need not be normalised over the K answers first. That would change all means by the same number,
    and so neither a probability nor a choice.
    """
    return scores.mean(0)


def mean_probability(scores: Tensor) -> Tensor:
    """Return the logarithm of each answer's mean probability among the K answers, (K,), from the scores of
    all rows (SPEC T7).

    With this prior, training begins where all answers are equally likely on average. With `mean_score`
    instead, the few rows on which the model is sure would have steep gradients (docs/research-log.md).
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
    """Return the prior, (K,) float64: the `average` of the scores of `rows`, whose labels are not used.

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
    """Measure a model on `rows`. A prior is subtracted from the scores: for a centred loss the model's prior
    over `public` rows, for a calibrated loss the manifest's prior, for a plain loss none."""
    leaning = prior(task, tokenizer, public, forward, batch_size) if task.loss == "centred" else None
    if task.loss == "calibrated":
        leaning = prior_of(task)
    return evaluate(task, tokenizer, rows, forward, batch_size, leaning)
