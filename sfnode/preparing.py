"""Prepares a run: makes the bases that it publishes, and measures the numbers that its manifest is to have.

This module knows what is measured in which order, and what of it goes into a manifest; it prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.engine import making_bases, pilot, trial
from sfnode.engine.making_bases import Made
from sfnode.engine.pilot import Advance, Pilot
from sfnode.engine.trainer import Trainer, prior_of
from sfnode.engine.trial import Trial
from sfnode.manifest import Manifest
from sfnode.models import bases
from sfnode.store.disk_errors import disk_faults

Waiting = Callable[[str], AbstractContextManager[Advance]]
"""Told what begins; it gives what is told how far that is, and ends with it."""


class Means(NamedTuple):
    """Device, number format and folder of bases with which a run is measured."""

    device: str = "cpu"
    dtype: str = "float32"
    bases: Path | None = None
    """Folder with published ones."""


class Prepared(NamedTuple):
    """A manifest, and what its numbers follow from."""

    manifest: Manifest
    trial: Trial | str | None
    """Or why there was none; None if it was not asked for."""
    pilot: Pilot | None
    """None if it was not asked for."""


def make_bases(
    trainer: Trainer, kind: str, folder: Path, advance: Advance = lambda done, total: None
) -> tuple[Path, Made]:
    """Make bases at the model as it is, write them to a folder, and return the file and what they are.

    Raises UserError as `making_bases.make`, DISK_FULL and DATA_DIR_UNUSABLE.
    """
    made = making_bases.make(trainer, kind, advance)
    with disk_faults(folder):
        digest = bases.write(folder, made.pairs)
    return bases.path_in(folder, digest), made


def keep_bases(file: Path, folder: Path, manifest: Manifest) -> tuple[Path, int]:
    """Copy a manifest's bases to a folder once they are found right; return the copy, and its bytes.

    Raises UserError BASES_UNUSABLE, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    targets, rank = manifest.model.parsed_targets(), manifest.training.rank
    with disk_faults(folder):
        kept = bases.path_in(folder, bases.keep(file, folder, targets, rank))
    return kept, bases.size_of(targets, rank)


def prepare(
    manifest: Manifest,
    given: Container[str],
    means: Means,
    *,
    calibrate: bool,
    measure: bool,
    waiting: Waiting,
) -> Prepared:
    """Choose a manifest's numbers by its model, but for those that were `given` by name.

    `calibrate` tries out epsilon, scalar_delta and a first learning rate; `measure` takes the base model's
    prior and the limit of the scalars. Raises UserError as `pilot.measure` and `pilot.check` do.
    """
    tried = _trial(manifest, "epsilon" in given, means, waiting) if calibrate else None
    if isinstance(tried, Trial):
        numbers = suitable(tried)
        chosen = {name: value for name, value in numbers.items() if name not in given}
        manifest = _changed(manifest, "training", **chosen)
    if not measure:
        return Prepared(manifest, tried, None)
    manifest = with_prior(manifest, means, waiting)
    found = tried.pilot if isinstance(tried, Trial) else _slopes(manifest, means, waiting)
    if "scalar_limit" in given:
        pilot.check(manifest.training, found)
        return Prepared(manifest, tried, found)
    return Prepared(pilot.with_limit(manifest, found), tried, found)


def suitable(found: Trial) -> dict[str, float]:
    """Return the numbers that suit the model, by name."""
    return {"epsilon": found.epsilon, "scalar_delta": found.delta, "learning_rate": found.rate}


def _trial(manifest: Manifest, keep_epsilon: bool, means: Means, waiting: Waiting) -> Trial | str:
    with waiting("trying out numbers") as advance:
        return trial.run(manifest, keep_epsilon=keep_epsilon, advance=advance, **means._asdict())


def with_prior(manifest: Manifest, means: Means, waiting: Waiting) -> Manifest:
    """Return the manifest with the base model's prior, if its loss is centred: for nodes that have no public
    rows to measure one on."""
    if manifest.task.loss == "plain":
        return manifest
    with waiting("measuring the base model's prior"):
        prior = prior_of(manifest, device=means.device, dtype=means.dtype)
    return _changed(manifest, "task", prior=prior)


def _slopes(manifest: Manifest, means: Means, waiting: Waiting) -> Pilot:
    with waiting("measuring scalars") as advance:
        return pilot.measure(manifest, advance=advance, **means._asdict())


def _changed(manifest: Manifest, section: str, **fields: Any) -> Manifest:
    return manifest.model_copy(update={section: getattr(manifest, section).model_copy(update=fields)})
