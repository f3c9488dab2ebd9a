"""Prepares a run: makes the bases that it publishes, and measures the numbers that its manifest is to have.

This module knows what is measured in which order, and what of it goes into a manifest; it prints nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from sfnode.engine import head_numbers, making_bases, pilot, reward_trial, trial
from sfnode.engine.making_bases import Made
from sfnode.engine.pilot import Advance, Pilot, prior_of
from sfnode.engine.reward_trial import RewardTrial
from sfnode.engine.trainer import Trainer
from sfnode.engine.trial import Trial
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.data import Data, DataRole, is_file
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.models.kept_states import HEADS
from sfnode.sizes import size_text
from sfnode.store.disk_errors import disk_faults, write_whole
from sfnode.tasks import dataset, prompts, public_files, row_files
from sfprotocol.model_listing import MAX_DATA

Waiting = Callable[[str], AbstractContextManager[Advance]]
"""Told what begins; it gives what is told how far that is, and ends with it."""


class Means(NamedTuple):
    """Device, number format and folder of bases with which a run is measured."""

    device: str = "cpu"
    dtype: str = "float32"
    bases: Path | None = None
    """Folder with published ones, and with files of the run's data."""


class Shared(NamedTuple):
    """Files of data that others get from nodes of the run."""

    names: list[str]
    """Names that they have beside the manifest."""
    copied: list[str]
    """Those that have been copied there."""
    size: int
    """Bytes of all together."""


class LeftOut(NamedTuple):
    """Rows that are left out of a run's data."""

    file: Path
    """A file with the others."""
    bad: str
    """Places of the first of them, and what is wrong there."""


class Prepared(NamedTuple):
    """A manifest, and what its numbers follow from."""

    manifest: Manifest
    trial: Trial | RewardTrial | str | None
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


def without_bad_rows(task: Task, data: Data, folder: Path) -> dict[DataRole, LeftOut]:
    """Write the rows of data that fit a task to files in a folder, where not all do; return these files.

    So nodes read the same rows, whatever each would call bad. Raises UserError as `dataset.load_rows`,
    DISK_FULL, DATA_DIR_UNUSABLE.
    """
    made: dict[str, LeftOut | None] = {"": None}
    for role in public_files.ROLES:
        source = data.source(role)
        if source not in made:
            made[source] = _sifted(source, task, folder, role)
    found = {role: made[data.source(role)] for role in public_files.ROLES}
    return {role: one for role, one in found.items() if one}


def _sifted(source: str, task: Task, folder: Path, role: DataRole) -> LeftOut | None:
    rows, bad = dataset.sifted(source, task)
    if not bad:
        return None
    if not rows:
        raise row_files.malformed(f"no row of {source} is good: {bad}")
    read = () if task.verifier else prompts.fields(task)  # a verifier may read any column
    kept = ({name: row[name] for name in read or row} for row in rows)
    lines = "".join(f"{json.dumps(row, default=str)}\n" for row in kept).encode()
    name = Path(source).stem if is_file(source) else role
    digest = hashlib.blake2b(lines, digest_size=4).hexdigest()  # the file of another run may be there
    file = folder / f"{name}-{digest}.jsonl"
    write_whole(file, lines)
    return LeftOut(file, str(bad))


def share_data(manifest: Manifest, folder: Path) -> tuple[Manifest, Shared]:
    """Return a manifest with digests of the files that its data are in, and with their names in place of
    their paths; copy to the folder, where the manifest is to be, those that are elsewhere.

    Raises UserError DATA_NOT_FOUND, DATA_TOO_LARGE, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    shared, fields = Shared([], [], 0), manifest.data.model_dump()
    size = 0
    for role in public_files.ROLES:
        source = manifest.data.source(role)
        if not is_file(source):
            continue
        file = Path(source)
        digest = fields["digests"][role] = _digest_of(file)
        name = fields[role] = _beside(file, folder, digest, shared.copied)
        if name not in shared.names:
            shared.names.append(name)
            size += (folder / name).stat().st_size
    try:
        data = Data(**fields)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise UserError(Code.BAD_OPTION, reason, "Two of the files have the same rows.") from error
    return manifest.model_copy(update={"data": data}), shared._replace(size=size)


def _digest_of(file: Path) -> str:
    """Return the digest of a file of data. Raises UserError DATA_TOO_LARGE, DATA_NOT_FOUND."""
    if file.is_file() and (size := file.stat().st_size) > MAX_DATA:
        raise UserError(
            Code.DATA_TOO_LARGE,
            f"{file} has {size_text(size)}, and nodes give each other files of up to {size_text(MAX_DATA)}: "
            "they hold the rows in memory",
            "Take fewer rows, put the data on the hub, or add --no-share-data: others then need the file at "
            "the same path.",
        )
    if not (digest := public_files.digest_of(file)):
        raise UserError(
            Code.DATA_NOT_FOUND, f"cannot read {file}", "Check that it exists, and its permissions."
        )
    return digest


def _beside(file: Path, folder: Path, digest: str, copied: list[str]) -> str:
    """Return the name of a file of data in a folder; copy it there if need be, and note that."""
    there = folder / file.name
    if public_files.digest_of(there) != digest:
        if there.exists():
            there = folder / f"{file.stem}-{digest[:8]}{file.suffix}"
        with disk_faults(folder):
            public_files.keep(file, there, digest)
        copied.append(there.name)
    return there.name


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
    prior and the limit of the scalars. In a reward run answers are written for either. Raises UserError as
    `pilot.measure`, `pilot.check` and `reward_trial.run` do.
    """
    if not manifest.task.has_slopes:
        return _prepare_rewards(manifest, given, means, calibrate=calibrate, measure=measure, waiting=waiting)
    if calibrate and (headed := _with_features(manifest, given, means, waiting)):
        return headed
    tried = _trial(manifest, "epsilon" in given, means, waiting) if calibrate else None
    if isinstance(tried, Trial):
        manifest = _with_suitable(manifest, tried, given)
    if not measure:
        return Prepared(manifest, tried, None)
    manifest = with_prior(manifest, means, waiting)
    found = tried.pilot if isinstance(tried, Trial) else _slopes(manifest, means, waiting)
    return _limited(manifest, given, tried, found)


def takes_features(manifest: Manifest) -> bool:
    """Return whether a run trains a linear head alone, whose directions follow from the features it sees."""
    target, *others = manifest.model.parsed_targets()
    numbers = manifest.training
    plain = manifest.task.loss == "plain" and not numbers.group and not numbers.bases
    return plain and not others and target.name in HEADS


def _with_features(
    manifest: Manifest, given: Container[str], means: Means, waiting: Waiting
) -> Prepared | None:
    """Return a run that trains a linear head with numbers for it; None for another run, and where there are
    no rows."""
    if not takes_features(manifest):
        return None
    with waiting("reading rows through the model") as advance:
        found = head_numbers.prepare(manifest, advance=advance, **means._asdict())
    if found is None:
        return None
    kept = {name: getattr(manifest.training, name) for name in head_numbers.CHOSEN if name in given}
    return _limited(_changed(found[0], "training", **kept), given, None, found[1])


def _prepare_rewards(
    manifest: Manifest,
    given: Container[str],
    means: Means,
    *,
    calibrate: bool,
    measure: bool,
    waiting: Waiting,
) -> Prepared:
    if not (calibrate or measure):
        return Prepared(manifest, None, None)
    with waiting("writing answers along some directions") as advance:
        keep = not calibrate or "epsilon" in given
        found = reward_trial.run(manifest, keep_epsilon=keep, advance=advance, **means._asdict())
    if isinstance(found, Pilot):
        return _limited(manifest, given, found.reason if calibrate else None, found)
    if calibrate:
        manifest = _with_suitable(manifest, found, given)
    return _limited(manifest, given, found if calibrate else None, found.pilot)


def _limited(
    manifest: Manifest, given: Container[str], tried: Trial | RewardTrial | str | None, found: Pilot
) -> Prepared:
    """Return the manifest with a limit that suits these slopes, unless one is given."""
    if "scalar_limit" in given:
        pilot.check(manifest.training, found)
        return Prepared(manifest, tried, found)
    return Prepared(pilot.with_limit(manifest, found), tried, found)


def _with_suitable(manifest: Manifest, found: Trial | RewardTrial, given: Container[str]) -> Manifest:
    chosen = {name: value for name, value in suitable(found).items() if name not in given}
    return _changed(manifest, "training", **chosen)


def suitable(found: Trial | RewardTrial) -> dict[str, float]:
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
        prior = prior_of(manifest, device=means.device, dtype=means.dtype, folder=means.bases)
    return _changed(manifest, "task", prior=prior)


def _slopes(manifest: Manifest, means: Means, waiting: Waiting) -> Pilot:
    with waiting("measuring scalars") as advance:
        return pilot.measure(manifest, advance=advance, **means._asdict())


def _changed(manifest: Manifest, section: str, **fields: Any) -> Manifest:
    return manifest.model_copy(update={section: getattr(manifest, section).model_copy(update=fields)})
