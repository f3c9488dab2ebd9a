"""Measures the hyperparameters of a run's manifest, and makes the bases that the run publishes.

This module decides which measurements are made, in which order, and which results go into the manifest.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from sfnode.engine import making_bases
from sfnode.engine.head import takes_features
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.preparing import first_order, rewards, scalars, trial
from sfnode.preparing.scalars import Means, Prepared, SlopeSample, Tell, Waiting
from sfnode.tasks import dataset
from sfnode.tasks.presets import PRESETS, of_model

FORWARDS = 990
"""Maximum number of example-forwards of `prepare`. With the few short rows that check a model's layers the
total is 1,000 at most: a minute or two on two cores with a model of 135 M parameters. Most of the forwards
serve to find the first rate. With 600 forwards the second derivative was known only to within 50 %, and short
runs kept rates that were 4 times too small (docs/research-log.md)."""

RANKS = {"errors": 4, "gradients": 1}
"""Default ranks, keyed by the kind of published bases (docs/research-log.md). If the gradient is large along
the directions of a kind, fewer directions suffice, and with fewer directions an update learns more."""

DEFAULT_BASIS, REWARD_BASIS = "errors", "gradients"
"""Default kinds of bases of runs whose hyperparameters are tried out: REWARD_BASIS for reward runs,
DEFAULT_BASIS for others. Among the kinds that are made from forward passes alone, `errors` is best for
learning answers in words on a real model. In reward runs models learnt nothing with any kind made from
forward passes alone (docs/research-log.md)."""

TRIED = ("epsilon", "scalar_delta", "learning_rate")
"""Names of the hyperparameters that are tried out."""


def prepare(
    manifest: Manifest,
    given: Container[str],
    means: Means,
    waiting: Waiting,
    basis: str | None = None,
    measure: bool = True,
) -> Prepared:
    """Make bases and choose the hyperparameters that suit a manifest's model, except those named in `given`.

    `basis` is the kind of bases that the user asked for, if any; a failure to make this kind is an error.
    With `measure` the limit of the scalars and a centred loss's prior are measured. Epsilon, scalar_delta and
    a first learning rate are tried out with suitable bases, unless all are given or the run is a built-in
    one. This takes FORWARDS example-forwards at most, not counting bases from gradients. In a reward run it
    takes written answers instead, as `rewards.run` says. Raises UserError BAD_OPTION, and as
    `first_order.prepare`, `making_bases.make`, `scalars.measure`, `scalars.require_answers`, `scalars.check`
    and `rewards.run` do.
    """
    if manifest.training.is_first_order:
        return first_order.prepare(manifest, given, means, waiting, measure)
    built_in = (basis or manifest.training.basis) == "random" and _is_built_in(manifest)
    tried = measure and not built_in and not all(name in given for name in TRIED)
    kind = _kind_of_bases(manifest, basis, tried)
    if not (kind or measure):
        return Prepared(manifest)
    for_bases = making_bases.cost(kind) if kind else 0
    total = scalars.LOADING + max(FORWARDS, for_bases + scalars.PRIOR_ROWS + scalars.FORWARDS)
    with waiting("measuring what suits the model", scalars.seconds_of(manifest, means, total)) as advance:
        trainer, reason = scalars.any_trainer(manifest, means)
        with trainer:
            tell: Tell = lambda taken: advance(scalars.LOADING + taken, total)  # noqa: E731
            tell(0)
            scalars.require_answers(trainer)
            found = Prepared(manifest)
            if kind:
                found, trainer = _with_bases(found, given, means, kind, trainer, tell, needed=bool(basis))
            if measure:
                found = _measured(found, given, tried, trainer, reason, tell)
    return _limited(found, given)


def _kind_of_bases(manifest: Manifest, basis: str | None, tried: bool) -> str:
    """Return the kind of bases to make; empty if no bases are made, as for random bases or for a head."""
    if takes_features(manifest):
        if basis:
            raise UserError(
                Code.BAD_OPTION,
                "training.basis: this run trains a linear head, whose directions follow from the features "
                "that it sees",
                "Leave it out, or name other layers with model.target_modules.",
            )
        return ""
    usual = REWARD_BASIS if manifest.task.is_rewarded else DEFAULT_BASIS
    found = basis or (usual if tried and manifest.training.basis == "random" else "random")
    return "" if found == "random" else found


def _is_built_in(manifest: Manifest) -> bool:
    """Return whether a run is a built-in one, whose hyperparameters were measured with random bases."""
    ready = PRESETS.get(of_model(manifest.model.source) or "")
    found = manifest.data.train, manifest.task.kind
    return ready is not None and found == (ready.data.train, ready.task.kind)


def _with_bases(
    found: Prepared,
    given: Container[str],
    means: Means,
    kind: str,
    trainer: Trainer,
    tell: Tell,
    *,
    needed: bool,
) -> tuple[Prepared, Trainer]:
    """Return the run with bases of this kind, at the rank that suits the kind, and a trainer that has them.
    Without `needed`, bases that cannot be made leave both unchanged."""
    manifest, folder = found.manifest, means.bases or Path()
    rank = manifest.training.rank if "rank" in given else RANKS[kind]
    try:
        if not manifest.data.train:
            raise dataset.needed(manifest.task)
        ranked = trainer.like(scalars.changed(trainer.manifest, "training", rank=rank), None)
        made = making_bases.make(ranked, kind, scalars.share(0, making_bases.cost(kind), tell))
    except UserError as error:
        if needed:
            raise
        return found._replace(no_bases=f"none were made from {kind}: {error.what}"), trainer
    chosen = {"rank": rank, "basis": "published", "bases": scalars.write_bases(folder, made.pairs)}
    manifest = scalars.changed(manifest, "training", **chosen)
    if manifest.organised.organiser and "subspace_epochs" not in given:
        # cores are small, and bases change
        manifest = scalars.changed(manifest, "organised", subspace_epochs=1)
    return Prepared(manifest, example_forwards=made.example_forwards), trainer.like(
        scalars.changed(trainer.manifest, "training", **chosen), folder
    )


def _measured(
    found: Prepared, given: Container[str], tried: bool, trainer: Trainer, reason: str, tell: Tell
) -> Prepared:
    """Return the run with a sample of slopes, and the prior of a centred loss. With `tried` hyperparameters
    are tried out, too, in the rest of FORWARDS. `reason` tells why there are no rows; it is empty if there
    are rows."""
    if reason:
        nothing = SlopeSample(np.zeros(0), scalars.typical_weight(trainer.loaded), reason)
        return found._replace(untried=reason if tried else "", sample=nothing)
    manifest, spent = found.manifest, found.example_forwards
    if manifest.task.loss == "centred":
        prior, taken = scalars.prior_of(trainer)
        manifest, spent = scalars.changed(manifest, "task", prior=prior), spent + taken
    left = max(FORWARDS - spent, scalars.FORWARDS)
    onward = scalars.share(spent, left, tell)
    suited: dict[str, Any] = {}
    if takes_features(manifest):
        onward = scalars.share(0, trial.HEAD_ROWS, tell)
        suited, sample = trial.of_head(trainer, given if tried else trial.CHOSEN, onward)
    elif isinstance(trainer.objective, Rewards):
        suited, sample = rewards.run(trainer, onward)
    elif tried:
        keep = "epsilon" in given
        suited, sample = trial.run(trainer, keep_epsilon=keep, forwards=left, advance=onward)
    else:
        sample = scalars.measure(trainer, left, onward)
    if tried:
        chosen = {name: value for name, value in suited.items() if name not in given}
        manifest, found = scalars.changed(manifest, "training", **chosen), found._replace(suited=suited)
    spent += sample.example_forwards
    return found._replace(manifest=manifest, sample=sample, example_forwards=spent)


def _limited(found: Prepared, given: Container[str]) -> Prepared:
    """Return the run with a `scalar_limit` that suits the slopes, unless one is given."""
    if found.sample is None:
        return found
    if "scalar_limit" in given:
        scalars.check(found.manifest.training, found.sample)
        return found
    return found._replace(manifest=scalars.with_limit(found.manifest, found.sample))


def with_prior(manifest: Manifest, means: Means, waiting: Waiting) -> Manifest:
    """Return the manifest with the base model's prior, if the loss of its task is centred. Nodes without
    public rows, which cannot measure a prior, need it."""
    if manifest.task.loss != "centred":
        return manifest
    with waiting("measuring the base model's prior"):
        trainer, reason = scalars.any_trainer(manifest, means)
        with trainer:
            prior = () if reason else scalars.prior_of(trainer)[0]
    return scalars.changed(manifest, "task", prior=prior)
