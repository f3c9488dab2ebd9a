"""The objective of tasks with given answers, where the loss follows from log-probabilities. This module also
has the public rows of a run, which tasks of all kinds use.

A trainer has one objective, which measures updates, and evaluates the model at given weights. Reward runs
have another one (`reward_objective`). A run's public rows are read once, when they are first needed. This
module knows neither earlier updates nor its callers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import forward, samples
from sfnode.engine.estimator import Estimate, estimates
from sfnode.engine.forward import KeepGoing, Perturb, always
from sfnode.engine.forward import paused as paused
from sfnode.engine.gradients import Gradient, gradient
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import Task
from sfnode.models.loader import LoadedModel
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import calibration, dataset
from sfnode.tasks.dataset import HeldOut
from sfnode.tasks.encoding import (
    Encoded,
    Forward,
    Prior,
    Scored,
    ScoredBatch,
    encode,
    measure,
    prior_of,
    scored_batches,
)
from sfnode.tasks.fitting import Fitting
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.prompts import Row
from sfnode.tasks.public_files import ELSEWHERE, NOWHERE, Places
from sfprotocol.seeds import derive_key, stream

RowLosses = Callable[[Perturb, KeepGoing], NDArray[np.float64]]
"""Function that measures the losses of some rows, (rows,), under a perturbation. Raises UserError PAUSED."""

OWN = b""
"""Placeholder for the digest where weights have none, as on a line. The prior of such weights is not kept."""

BASE = b"base"
"""Placeholder for the digest of the base model's weights."""


class Held(NamedTuple):
    """Some of the rows that nobody trains on."""

    which: HeldOut
    limit: int
    """Number of rows that the caller asked for. 0: as many as the manifest says."""
    rows: Sequence[Row]


class RunRows:
    """The public rows of one run."""

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Any,
        places: Places = NOWHERE,
        public: Sequence[dataset.Row] | None = None,
    ) -> None:
        """`places`: where the run's data may be. `public`: the run's training rows, if they were read
        already."""
        self._manifest = manifest
        self.fitting = Fitting(manifest.task, tokenizer)
        self.places = places
        self._public = None if public is None else dataset.select(list(public), calibration.CALIBRATION_ROWS)
        self._some: list[dataset.Row] | None = None
        self._held_out: dict[tuple[dataset.HeldOut, int], Held] = {}

    def held_out(self, which: dataset.HeldOut, limit: int = 0) -> Held:
        """Return `limit` (0: as many as the manifest says) of the rows `which`, on which models are measured.

        Raises UserError as `dataset.held_out_rows`.
        """
        if (which, limit) not in self._held_out:
            data, task = self._manifest.data, self._manifest.task
            found = dataset.held_out_rows(data, task, which, limit, self.places)
            self._held_out[which, limit] = Held(which, limit, self.fitting.of(found))
        return self._held_out[which, limit]

    def training(self) -> list[dataset.Row]:
        """Return the public training rows. Raises UserError as `dataset.training_rows`."""
        return dataset.training_rows(self._manifest.data, self._manifest.task, self.places)

    def some(self) -> list[dataset.Row]:
        """Return up to CALIBRATION_ROWS of the public training rows. Raises UserError as `training`."""
        if self._some is None:
            public = self.training() if self._public is None else self._public
            self._some = self.fitting.of(dataset.select(public, calibration.CALIBRATION_ROWS))
        return self._some

    def training_if_any(self) -> list[dataset.Row]:
        """Return the public training rows; empty if they are out of reach. Raises UserError for rows that are
        there but cannot be used, such as DATA_MALFORMED."""
        return _if_any(self.training)

    def some_if_any(self) -> list[dataset.Row]:
        """Return up to CALIBRATION_ROWS of the public training rows; empty if they are out of reach. Raises
        UserError as `training_if_any` does."""
        return _if_any(self.some)


def _if_any(read: Callable[[], list[dataset.Row]]) -> list[dataset.Row]:
    try:
        return read()
    except UserError as error:
        if error.code not in (Code.DATA_NEEDED, *ELSEWHERE):
            raise
        return []


EVALUATION_BATCH = 32
"""Number of an evaluation's rows that are tokenised and cut into passes together."""

BATCH_ROWS = 8
"""Number of rows of a batch for measuring slopes, before it is rounded up to a multiple of the number of
classes. It is small, because a backward pass keeps activations."""

LEAST_BATCHES = 2
"""Minimum number of batches for measuring slopes: a single batch gives no standard error."""


def scorer(
    loaded: LoadedModel, keep_going: KeepGoing = always, perturb: forward.Perturb | None = None
) -> Forward:
    """Return a function that scores a batch with the current model. It raises UserError PAUSED if
    `keep_going` returns False."""

    def score(encoded: Encoded) -> Scored:
        if not keep_going():
            raise paused()
        return forward.score_in_passes(loaded, encoded, perturb)

    return score


OWN_ROWS = 32
"""Minimum number of rows on which a node measures a first-order update of its own rows. A node that has fewer
rows uses all of them. A gradient of more rows reveals less about each."""


class Priors:
    """The priors of one run's models over the task's answers."""

    def __init__(self, task: Task, loaded: LoadedModel, rows: RunRows) -> None:
        self._task, self._loaded, self._rows = task, loaded, rows
        self._found: dict[bytes, Prior] = {}
        """Priors of the base model and of the last model asked about, keyed by the digest of their cores."""

    def of(self, weights: bytes, keep_going: KeepGoing = always) -> Prior:
        """Return the prior of the current weights, (K,). `weights` is the digest of their core.

        It is measured on CALIBRATION_ROWS of the run's public training rows, without their labels. If these
        rows are out of reach, or if the run's loss is calibrated, the manifest's prior is returned, which is
        the base model's. Raises UserError BAD_OPTION if the task has no fixed answers, DATA_* if there are
        neither rows nor a prior in the manifest, PAUSED.
        """
        if weights not in self._found:
            found = self.measured(keep_going)
            kept = {BASE: self._found[BASE]} if BASE in self._found else {}
            self._found = kept | {weights: found}
        return self._found[weights]

    def measured(self, keep_going: KeepGoing = always, perturb: forward.Perturb | None = None) -> Prior:
        """Return the prior of the current weights, perturbed by `perturb`. Raises as `of`."""
        task, tokenizer = self._task, self._loaded.tokenizer
        if task.loss == "calibrated" or (task.prior and not self._rows.some_if_any()):
            return prior_of(task)
        rows = self._rows.some() if task.labelled else []
        return calibration.prior(
            task, tokenizer, rows, scorer(self._loaded, keep_going, perturb), EVALUATION_BATCH
        )


class Losses:
    """The objective of one trainer for a task with given answers."""

    reading: tuple[int, int] | None = None
    """Progress of reading rows for the first update: number of rows read, and number of all rows. None at
    other times. Any thread may read it."""

    def __init__(
        self,
        manifest: Manifest,
        loaded: LoadedModel,
        rows: Sequence[Row],
        run_rows: RunRows,
        priors: Priors,
        secret: bytes = b"",
        *,
        noisy: bool = False,
    ) -> None:
        """`rows`: the rows that mini-batches are drawn from. `secret`: as for `Shard`. `noisy`: updates have
        noise, which hides rows, so mini-batches are not enlarged to OWN_ROWS."""
        self._task, self._loaded, self._priors = manifest.task, loaded, priors
        self._group = manifest.training.group
        size, once = manifest.training.batch_size, manifest.training.is_first_order
        size = max(size, OWN_ROWS) if secret and once and not noisy else size
        public = run_rows.some_if_any
        self.shard = Shard(self._task, loaded.tokenizer, rows, size, public, secret, each_once=once)
        self.odds = self.shard.odds
        self.mini_batch: Callable[[int], Any] = self.shard.mini_batch
        self._base_scored: dict[tuple[str, int], list[ScoredBatch]] = {}
        """Scores of the base model on held-out rows of a labelled task. A plain evaluation stores them, and a
        calibrated one drops them after use."""

    def estimates(
        self, space: Subspace, subspace: int, seeds: Sequence[int], batches: Sequence[Any], distance: float
    ) -> list[Estimate]:
        """Estimate slopes from the losses of the rows' given answers (`engine.estimator`)."""
        directions = space.directions(seeds, subspace)
        return estimates(self._loaded, directions, batches, distance, self._group)

    def gradient(
        self, space: Subspace, subspace: int, seed: int, batch: Any, longest: float = math.inf
    ) -> Gradient:
        """Return a mini-batch's gradient (`engine.gradients`). Drawn rows that were left out count as zero
        gradients."""
        return self.of_all_drawn(gradient(self._loaded, space, subspace, batch, longest), batch.examples)

    def of_all_drawn(self, found: Gradient, rows: int) -> Gradient:
        """Rescale the mean gradient of `rows` rows to a mean over all drawn rows. One row's influence then
        does not depend on the number of rows left out."""
        return found._replace(cells=found.cells * (rows / self.odds[0]))

    def evaluate(
        self,
        held: Held,
        of: bytes = OWN,
        keep_going: KeepGoing = always,
        perturb: forward.Perturb | None = None,
    ) -> Evaluation:
        """Measure the model on the rows `held`. Unless the run's loss is plain, the prior at the measured
        weights is subtracted from scores."""
        prior = None
        if self._task.less_prior:
            prior = self._priors.measured(keep_going, perturb) if perturb else self._priors.of(of, keep_going)
        return measure(self._task, self._scored(held, keep_going, perturb), prior)

    def evaluate_base(
        self, held: Held, keep_going: KeepGoing = always, *, calibrated: bool = False
    ) -> Evaluation:
        """Measure the base model. Its scores are computed once for both calibrated and plain results."""
        prior = self._priors.of(BASE, keep_going) if calibrated else None
        key = held.which, held.limit
        found = self._base_scored.pop(key, None) or list(self._scored(held, keep_going))
        if self._task.labelled and not calibrated:
            self._base_scored[key] = found
        return measure(self._task, found, prior)

    def losses_of(self, rows: Sequence[Row]) -> RowLosses:
        """Return a function that measures the loss of each of these rows, (rows,)."""
        batches = line_batches(self._task, self._loaded.tokenizer, rows)
        return lambda perturb, keep_going: losses_at(self._loaded, batches, perturb)

    def batches(self, rows: Sequence[Row], wanted: int, turn: int) -> list[Encoded]:
        """Return batches for measuring slopes, as `batches_of` does."""
        return batches_of(self._task, self._loaded.tokenizer, rows, wanted, turn)

    def answer(self, rows: Sequence[Row], of: bytes = OWN) -> list[samples.Answered]:
        """Return the best candidate for each row, or the text that the model writes. The prior is subtracted
        from scores unless the loss is plain. For the base model, whose answers every node of a run shows,
        that is the manifest's prior if there is one."""
        if not self._task.less_prior:
            prior = None
        elif of == BASE and self._task.prior:
            prior = prior_of(self._task)
        else:
            prior = self._priors.of(of)
        return samples.answer(self._loaded, self._task, rows, scorer(self._loaded), prior)

    def _scored(
        self, held: Held, keep_going: KeepGoing, perturb: forward.Perturb | None = None
    ) -> Iterator[ScoredBatch]:
        score = scorer(self._loaded, keep_going, perturb)
        return scored_batches(self._task, self._loaded.tokenizer, held.rows, score, EVALUATION_BATCH)


def losses_at(
    loaded: LoadedModel, batches: Sequence[Encoded], perturb: forward.Perturb
) -> NDArray[np.float64]:
    """Return the loss of each row of these batches under `perturb`, (rows,); empty without batches."""
    scored = [forward.score_in_passes(loaded, batch, perturb) for batch in batches]
    losses = [b.losses(s.log_probs).double().numpy() for b, s in zip(batches, scored, strict=True)]
    return np.concatenate([np.zeros(0), *losses])


def line_rows(task: Task, rows: Sequence[Row]) -> list[Row]:
    """Return rows in the order of a line search, which is the same on every node. Rows are shuffled, since
    files are often sorted. The classes of a labelled task alternate as long as each has rows."""
    order = np.argsort(stream(derive_key(b"sfnode line search"), 0, len(rows)))
    chosen = [rows[place] for place in order]
    if not task.labelled:
        return chosen
    labels = [str(row.get(task.label_field)) for row in chosen]
    seen: Counter[str] = Counter()
    turns = []
    for label in labels:
        turns.append(seen[label])
        seen[label] += 1
    return [chosen[place] for place in np.argsort(turns, kind="stable")]


def batches_of(task: Task, tokenizer: Any, rows: Sequence[Row], wanted: int, turn: int) -> list[Encoded]:
    """Return `wanted` of these rows as batches. Each `turn` takes the rows that follow those of the turn
    before; after the last row comes the first again.

    In `rows` the classes alternate as long as each class has rows left (`line_rows`). Rows after the first
    class has run out are left out, unless fewer than `wanted` would remain.
    """
    classes = len(task.verbalizer) if task.labelled else 1
    labels = Counter(str(row.get(task.label_field)) if task.labelled else "" for row in rows)
    kept = rows[: max(min(labels.values()) * len(labels), wanted)]
    first = turn * wanted % len(kept)
    chosen = [kept[(first + n) % len(kept)] for n in range(min(wanted, len(kept)))]
    least = classes * -(-BATCH_ROWS // classes)
    each = max(1, min(least, len(chosen) // LEAST_BATCHES))
    return [encode(task, tokenizer, chosen[n : n + each]) for n in range(0, len(chosen) - each + 1, each)]


def line_batches(task: Task, tokenizer: Any, rows: Sequence[Row]) -> list[Encoded]:
    """Return rows as the batches on which a line search measures losses: all rows in their order,
    EVALUATION_BATCH at a time. The batches are the same for every point of the line."""
    starts = range(0, len(rows), EVALUATION_BATCH)
    return [encode(task, tokenizer, rows[start : start + EVALUATION_BATCH]) for start in starts]
