"""The linear probe: logistic regression on a frozen model's hidden states, which take one forward pass for
each row.

A user with all rows in one place would begin with this probe. So its results are shown beside those of a
run's head, and beside every figure on a real model (docs/benchmarks.md). torch's L-BFGS fits the probe. The
problem is convex, so any solver finds the same weights, and no extra package is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfnode.engine import forward
from sfnode.engine.evaluation import evaluate
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.models.cuts import HEADS
from sfnode.models.kept_states import Text, texts_of
from sfnode.models.loader import LoadedModel
from sfnode.schema.measurements import BaselineEvaluation, EvaluationOfRows, ProbeEvaluation
from sfnode.tasks import baselines as without_a_model
from sfnode.tasks import dataset, encoding, prompts
from sfnode.tasks.encoding import Encoded, Scored
from sfnode.tasks.prompts import Row

MOST_ROWS = 4096
"""Maximum number of a trainer's rows, and of a run's public rows, to which a run's probe is fitted. A fit
then takes a few seconds, and more rows would improve it little."""

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""L2 penalties that are tried, the strongest first. Half a penalty times the weights' squared norm is added
to the mean loss of a row. A penalty thus means the same for any number of rows."""

FOLD = 5
"""One in FOLD rows of each class is used to choose the penalty."""

MOST_ITERATIONS = 5_000
"""Maximum iterations of L-BFGS: a hundred times the number that standardised states have needed."""

FLAT = 1e-6
"""Maximum component of the gradient at which a fit ends. Where a component is a thousand times as large, a
result may still change in its third digit."""

Probe = Callable[[Tensor], Tensor]
"""Function that returns the log-probability of each class, (m, classes) float64, for hidden states (m,
features)."""


def linear_probe(states: Tensor, labels: Tensor, classes: int) -> Probe:
    """Fit the probe to training rows: their hidden `states` (n, features) and their `labels` (n,), counted
    from 0.

    Features are standardised with the mean and deviation of these rows. To choose the penalty, a fifth of
    each class's rows is left out of a first fit, and the penalty with the least loss on that fifth wins. The
    final fit uses all rows. The same rows in the same order give the same probe. Raises UserError
    DATA_MALFORMED unless each class has rows, and at least one class has FOLD rows.
    """
    if not suffice(labels, classes):
        raise UserError(
            Code.DATA_MALFORMED,
            f"no probe can be fitted to {len(labels)} rows of {len(set(labels.tolist()))} classes",
            f"Give it rows of each class, and {FOLD} rows of one of them.",
        )
    states = states.double()
    mean, spread = states.mean(0), states.std(0, correction=0)
    spread[spread == 0] = 1.0
    x, validating = (states - mean) / spread, _validating(labels)
    losses = []
    for strength in STRENGTHS:
        weights = _fitted(x[~validating], labels[~validating], strength, classes)
        losses.append(float(cross_entropy(_logits(x[validating], weights), labels[validating])))
    best = _fitted(x, labels, STRENGTHS[int(np.argmin(losses))], classes)
    return lambda rows: _logits((rows.double() - mean) / spread, best).log_softmax(1)


def suffice(labels: Tensor, classes: int) -> bool:
    """Return whether a probe can be fitted to rows with these labels."""
    counts = torch.bincount(labels, minlength=classes)
    return bool(counts.min() > 0 and counts.max() >= FOLD)


def baselines(model: TrainableModel, limit: int = 0) -> tuple[BaselineEvaluation, ...]:
    """Return the results of the baselines that need no model on `limit` test rows. They are fitted to this
    trainer's rows and the run's public ones (`tasks.baselines`). Raises UserError as `RunRows.held_out`."""
    if not model.manifest.task.labelled:
        return ()
    held = model.run_rows.held_out("test", limit).rows
    return without_a_model.measured(model.manifest.task, _rows(model), held)


def _rows(model: TrainableModel) -> list[Row]:
    """Return the rows of a trainer and the run's public ones, without duplicates."""
    rows = [*model.rows[:MOST_ROWS], *dataset.select(model.run_rows.training_if_any(), MOST_ROWS)]
    task = model.manifest.task
    return list({(prompts.text_of(task, row), prompts.class_of(task, row)): row for row in rows}.values())


def probe(model: TrainableModel, limit: int = 0) -> ProbeEvaluation | None:
    """Return the results of a linear probe and of the current model on `limit` test rows. The probe is fitted
    to those training rows, this trainer's and the run's public ones, whose hidden states are kept. Returns
    None unless the run trains only a linear head with the plain loss, and enough states are kept. Raises as
    `evaluate`."""
    target, *others = model.manifest.model.parsed_targets()
    plain = model.manifest.task.loss == "plain" and model.manifest.task.labelled
    if not (plain and model.loaded.kept and target.name in HEADS and not others):
        return None
    rows = model.run_rows.fitting.of(_rows(model))
    found, held = evaluate(model, limit), model.run_rows.held_out("test", limit).rows
    assert isinstance(found, EvaluationOfRows)
    return beside(found, model.loaded, model.manifest.task, rows, held)


def beside(
    model: EvaluationOfRows, loaded: LoadedModel, task: Task, rows: Sequence[Row], held: Sequence[Row]
) -> ProbeEvaluation | None:
    """Fit a probe to those of `rows` whose hidden states are kept. Return its results on the rows `held`, and
    its comparison with `model`, the results of a model on the same rows. Returns None if too few states are
    kept. No training row goes through the model."""
    states, labels = _kept(loaded, encoding.batches(task, loaded.tokenizer, rows, EVALUATION_BATCH))
    if not suffice(labels, classes := len(task.verbalizer)):
        return None
    fitted = linear_probe(states, labels, classes)

    def score(encoded: Encoded) -> Scored:
        found = fitted(forward.states(loaded, encoded).cpu())[encoded.sequences]  # (P, classes)
        chosen = found.gather(1, encoded.targets[:, None]).flatten()
        return Scored(chosen.float(), chosen >= found.amax(1))

    found = encoding.evaluate(task, loaded.tokenizer, held, score, EVALUATION_BATCH)
    lead = np.subtract(model.losses, found.losses)
    error = lead.std(ddof=1) / math.sqrt(len(lead)) if len(lead) > 1 else math.inf
    return ProbeEvaluation(**dict(found), rows=len(labels), lead=lead.mean(), error=error)


def _kept(loaded: LoadedModel, batches: Iterable[Encoded]) -> tuple[Tensor, Tensor]:
    """Return the kept hidden states of some rows, (n, features), and their classes. Rows without kept states
    are left out, and equal texts count once."""
    assert loaded.kept is not None
    labels: dict[Text, int] = {}
    for encoded in batches:
        texts = texts_of(*forward.batch_of(encoded)[:3])
        lacking, right = loaded.kept.lacking(texts), encoded.right.int().argmax(1).tolist()
        labels |= {text: label for text, label in zip(texts, right, strict=True) if text not in lacking}
    states = loaded.kept.of(list(labels))[:, 0].cpu() if labels else torch.empty(0, 0)
    return states, torch.tensor(list(labels.values()), dtype=torch.int64)


def _validating(labels: Tensor) -> Tensor:
    """Return a mask of the rows that are left out to choose the penalty, (n,) bool. It has every fifth row of
    each class, so that no class loses its only row."""
    found = torch.zeros(len(labels), dtype=torch.bool)
    for label in set(labels.tolist()):
        found[torch.nonzero(labels == label).flatten()[FOLD - 1 :: FOLD]] = True
    return found


def _fitted(x: Tensor, labels: Tensor, strength: float, classes: int) -> Tensor:
    """Return the weights of a fitted probe, (classes, features + 1) float64. The last column is a bias, to
    which the penalty does not apply."""
    weights = torch.zeros(classes, x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    solver: Any = torch.optim.LBFGS(
        [weights],
        max_iter=MOST_ITERATIONS,
        tolerance_grad=FLAT,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        solver.zero_grad()
        loss = cross_entropy(_logits(x, weights), labels) + strength / 2 * weights[:, :-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(objective)
    return weights.detach()


def _logits(x: Tensor, weights: Tensor) -> Tensor:
    return x @ weights[:, :-1].T + weights[:, -1]
