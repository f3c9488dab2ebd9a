"""Prepares a run: makes the bases that it publishes, and measures the numbers that its manifest is to have.

This module knows what is measured in which order, and what of it goes into a manifest; it prints nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import ValidationError

from sfnode import first_order
from sfnode.engine import making_bases, reward_trial, scalar_limit, trial
from sfnode.engine.head import takes_features
from sfnode.engine.making_bases import Made
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.reward_trial import RewardTrial
from sfnode.engine.scalar_limit import Advance, SlopeSample
from sfnode.engine.trainer import Trainer
from sfnode.engine.trial import Trial
from sfnode.errors import Code, UserError
from sfnode.first_order import Tell
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, DataRole, is_file
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.printable import size_text
from sfnode.store.disk_errors import disk_faults, write_whole
from sfnode.tasks import dataset, hub_rows, prompts, public_files, row_files
from sfnode.tasks.dataset import Examine, Row, unexamined
from sfnode.tasks.presets import PRESETS, of_model
from sfnode.tasks.public_files import NOWHERE, Places
from sfprotocol.model_listing import MAX_DATA


class Waiting(Protocol):
    """Shows what is under way."""

    def __call__(self, what: str, seconds: float = 0.0, /) -> AbstractContextManager[Advance]:
        """Take what begins, and how many seconds it may take (0: unknown); give what is told how far it
        is, and end with it."""


FORWARDS = 990
"""Example-forwards that `prepare` takes at most: with the few short rows by which loading a model checks its
layers, no more than 1,000; a minute or two on two cores with a model of 135 M parameters. Most of them find
the first rate: 8 updates, which 600 left for it, told a bend to within a half, and short runs stayed at rates
that were 4 times too small (docs/research-log.md)."""

LOADING = 100
"""Loading the model, in example-forwards that take as long: both grow with its size."""

SECONDS = 7e-10
"""Seconds of an example-forward on a CPU for each trained parameter, until it is known: SmolLM2-135M takes
0.07 s for a row of 60 tokens on two cores."""

RANKS = {"errors": 4, "gradients": 1}
"""Usual ranks by kind of published bases (docs/research-log.md): the stronger the directions, the fewer it
takes, and the fewer there are the more an update learns."""

DEFAULT_BASIS, REWARD_BASIS = "errors", "gradients"
"""Usual kinds of bases where numbers are tried out. With errors a real model's answers in words are learnt
best of what forward passes alone can do; of rewards those that were tried brought nothing
(docs/research-log.md)."""

TRIED = ("epsilon", "scalar_delta", "learning_rate")
"""Numbers that are tried out."""


class Means(NamedTuple):
    """Device, number format and places of files with which a run is measured."""

    device: str = "cpu"
    dtype: str = "float32"
    bases: Path | None = None
    """Folder with published ones."""
    model: Path | None = None
    """Folder of the base model, if its owner names one."""
    places: Places = NOWHERE
    """Places where the run's data may be."""


class Shared(NamedTuple):
    """Files of a run's data beside its manifest."""

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


class Wanted(NamedTuple):
    """Measurements to be made before a run starts."""

    basis: str
    """Kind of the bases that are made; empty: none."""
    asked: bool
    """Whether its owner asked for that kind: then that none can be made is an error."""
    trial: bool
    """Whether epsilon, scalar_delta and a first learning rate are tried out, where they are not given."""
    limit: bool
    """Whether the limit of the scalars and the base model's prior are measured."""


class Prepared(NamedTuple):
    """A manifest, and what its numbers follow from."""

    manifest: Manifest
    trial: Trial | RewardTrial | str | None
    """Or why there was none; None if it was not asked for."""
    sample: SlopeSample | None
    """None if it was not asked for."""
    bases: Made | str | None = None
    """Or why none were made; None if none were asked for."""
    example_forwards: int = 0
    """A backward pass counts as two forward passes."""
    seconds: float = 0.0
    """Seconds that all updates of a first-order run take one node here; 0 where that is not known."""


def wanted(
    manifest: Manifest, given: Container[str], basis: str | None, calibrate: bool | None, measure: bool
) -> Wanted:
    """Decide what is to be measured for a run whose numbers `given` by name are as its owner wants them.

    `basis` is the kind that was asked for, and `calibrate` whether a trial was, where somebody said so.
    """
    if manifest.training.is_first_order:
        if not (measure or manifest.training.norm_limit):
            raise UserError(
                Code.BAD_OPTION,
                "init.measure: a first-order run has bases and a unit that are measured",
                "Leave it out, or take training.estimator=zeroth-order.",
            )
        return Wanted("gradients", basis is not None, trial=False, limit=False)
    if basis and takes_features(manifest):
        raise UserError(
            Code.BAD_OPTION,
            "training.basis: this run trains a linear head, whose directions follow from the features that "
            "it sees",
            "Leave it out, or name other layers with model.target_modules.",
        )
    taken = basis or manifest.training.basis
    known = all(name in given for name in TRIED) or (taken == "random" and _is_built_in(manifest))
    usual = measure and not known
    random = manifest.training.basis == "random" and not takes_features(manifest)
    unasked = usual and calibrate is None and random
    usual_basis = REWARD_BASIS if manifest.task.is_rewarded else DEFAULT_BASIS
    kind = basis or (usual_basis if unasked else "")
    return Wanted(
        "" if kind == "random" else kind,
        basis is not None,
        usual if calibrate is None else calibrate,
        measure,
    )


def _is_built_in(manifest: Manifest) -> bool:
    """Return whether a run is a built-in one, whose numbers were measured for random bases."""
    ready = PRESETS.get(of_model(manifest.model.source) or "")
    found = manifest.data.train, manifest.task.kind
    return ready is not None and found == (ready.data.train, ready.task.kind)


Note = Callable[[Path], None]
"""Told of a file that is about to be written."""


@contextmanager
def all_or_nothing() -> Iterator[Note]:
    """Yield what is told of files; if the block fails or is interrupted, those that it made are removed."""
    made: list[Path] = []
    try:
        yield lambda file: None if file.exists() else made.append(file)
    except BaseException:
        for file in made:
            with suppress(OSError):
                file.unlink(missing_ok=True)
        raise


def unnoted(file: Path) -> None:
    """Take no note."""


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


def keep_bases(file: Path, folder: Path, manifest: Manifest, note: Note = unnoted) -> tuple[Path, int]:
    """Copy a manifest's bases to a folder once they are found right; return the copy, and its bytes.

    Raises UserError BASES_UNUSABLE, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    targets, columns = manifest.model.parsed_targets(), manifest.basis_columns
    with disk_faults(folder):
        note(bases.path_in(folder, bases.digest_of(file)))
        kept = bases.path_in(folder, bases.keep(file, folder, targets, columns))
    return kept, bases.size_of(targets, columns)


def without_bad_rows(
    task: Task, data: Data, folder: Path, note: Note = unnoted, examine: Examine = unexamined
) -> dict[DataRole, LeftOut]:
    """Write the rows of data that fit a task to files in a folder, where not all do; return these files.

    So nodes read the same rows, whatever each would call bad. Raises UserError as `dataset.load_rows`,
    DISK_FULL, DATA_DIR_UNUSABLE.
    """
    made: dict[str, LeftOut | None] = {"": None}
    for role in public_files.ROLES:
        source = data.source(role)
        if source not in made:
            made[source] = _sifted(source, task, folder, role, note, examine)
    found = {role: made[data.source(role)] for role in public_files.ROLES}
    return {role: one for role, one in found.items() if one}


def _sifted(
    source: str, task: Task, folder: Path, role: DataRole, note: Note, examine: Examine
) -> LeftOut | None:
    rows, bad = dataset.sifted(source, task, examine)
    if not bad:
        return None
    if not rows:
        raise row_files.malformed(f"no row of {source} is good: {bad}")
    name = Path(source).stem if is_file(source) else role
    return LeftOut(write_rows(rows, task, folder, name, note), str(bad))


def write_rows(rows: Sequence[Row], task: Task, folder: Path, name: str, note: Note = unnoted) -> Path:
    """Write what a task reads of rows to a new file in a folder, and return it.

    Raises UserError DISK_FULL, DATA_DIR_UNUSABLE.
    """
    read = () if task.verifier else prompts.fields(task)  # a verifier may read any column
    kept = ({name: row[name] for name in read or row} for row in rows)
    lines = "".join(f"{json.dumps(row, default=str)}\n" for row in kept).encode()
    digest = hashlib.blake2b(lines, digest_size=4).hexdigest()  # the file of another run may be there
    file = folder / f"{name}-{digest}.jsonl"
    note(file)
    with disk_faults(folder):
        write_whole(file, lines)
    return file


def settle_data(
    manifest: Manifest, folder: Path, shared: bool, note: Note = unnoted
) -> tuple[Manifest, Shared]:
    """Return a manifest with the names of the files that its data are in, in place of their paths; and, if
    they are to be `shared`, with their digests. Files that are elsewhere are copied to the folder, where the
    manifest is to be; data on the hub get the commit that they have now.

    Raises UserError DATA_NOT_FOUND, DATA_TOO_LARGE, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    beside, fields = Shared([], [], 0), manifest.data.model_dump()
    size = 0
    for role in public_files.ROLES:
        source = manifest.data.source(role)
        if not is_file(source):
            fields[role] = hub_rows.pinned(source)
            continue
        file = Path(source)
        digest = _digest_of(file)
        if shared:
            fields["digests"][role] = digest
        name = fields[role] = _beside(file, folder, digest, beside.copied, note)
        if name not in beside.names:
            beside.names.append(name)
            size += (folder / name).stat().st_size
    try:
        data = Data(**fields)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise UserError(Code.BAD_OPTION, reason, "Two of the files have the same rows.") from error
    return manifest.model_copy(update={"data": data}), beside._replace(size=size)


def _digest_of(file: Path) -> str:
    """Return the digest of a file of data. Raises UserError DATA_TOO_LARGE, DATA_NOT_FOUND."""
    if file.is_file() and (size := file.stat().st_size) > MAX_DATA:
        raise UserError(
            Code.DATA_TOO_LARGE,
            f"{file} has {size_text(size)}, and nodes give each other files of up to {size_text(MAX_DATA)}: "
            "they hold the rows in memory",
            "Take fewer rows, or put the data on the hub.",
        )
    if not (digest := public_files.digest_of(file)):
        raise UserError(
            Code.DATA_NOT_FOUND, f"cannot read {file}", "Check that it exists, and its permissions."
        )
    return digest


def _beside(file: Path, folder: Path, digest: str, copied: list[str], note: Note) -> str:
    """Return the name of a file of data in a folder; copy it there if need be, and note that."""
    there = folder / file.name
    if public_files.digest_of(there) != digest:
        if there.exists():
            there = folder / f"{file.stem}-{digest[:8]}{file.suffix}"
        note(there)
        with disk_faults(folder):
            public_files.keep(file, there, digest)
        copied.append(there.name)
    return there.name


def prepare(
    manifest: Manifest, given: Container[str], means: Means, asked: Wanted, waiting: Waiting
) -> Prepared:
    """Make bases and choose a manifest's numbers by its model, but for those that were `given` by name.

    Whatever is `asked` takes FORWARDS example-forwards at most, but for bases from gradients. In a reward run
    answers are written in their place. Raises UserError as `making_bases.make`, `scalar_limit.measure`,
    `scalar_limit.require_answers`, `scalar_limit.check` and `reward_trial.run` do.
    """
    if manifest.training.is_first_order and not manifest.training.norm_limit:
        return _by_gradients(manifest, given, means, waiting)
    if not (asked.basis or asked.trial or asked.limit):
        return Prepared(manifest, None, None)
    total = LOADING + max(FORWARDS, _for_bases(asked) + scalar_limit.PRIOR_ROWS + scalar_limit.FORWARDS)
    with waiting("measuring what suits the model", _seconds(manifest, means, total)) as advance:
        trainer, reason = scalar_limit.any_trainer(manifest, **means._asdict())
        with trainer:
            tell: Tell = lambda taken: advance(LOADING + taken, total)  # noqa: E731
            tell(0)
            scalar_limit.require_answers(trainer)
            found = _measured(manifest, given, means, asked, trainer, reason, tell)
    return _limited(found, given)


def _by_gradients(manifest: Manifest, given: Container[str], means: Means, waiting: Waiting) -> Prepared:
    """Return a first-order run with all its numbers (`first_order`). Raises UserError BAD_OPTION where no
    public row is within reach."""
    total = LOADING + first_order.cost(manifest)
    with waiting("measuring what suits the model", _seconds(manifest, means, total)) as advance:
        trainer, reason = scalar_limit.any_trainer(first_order.begun(manifest), **means._asdict())
        with trainer:
            if reason:
                raise UserError(
                    Code.BAD_OPTION,
                    f"no gradient can be taken before the run starts: {reason}",
                    "Name training data, or make a run of forward passes, which learns less from them: "
                    "--set training.estimator=zeroth-order.",
                )
            if not first_order.is_head(manifest):
                scalar_limit.require_answers(trainer)
            found = first_order.complete(
                *(manifest, given, trainer, means.bases or Path()),
                lambda taken: advance(min(LOADING + taken, total), total),
            )
    forwards, seconds = found.example_forwards, found.seconds
    return Prepared(found.manifest, None, None, found.bases, forwards, seconds)


def _measured(
    manifest: Manifest,
    given: Container[str],
    means: Means,
    asked: Wanted,
    trainer: Trainer,
    reason: str,
    tell: Tell,
) -> Prepared:
    """Measure what is asked: bases, prior, and with what is left of FORWARDS the numbers."""
    found = Prepared(manifest, None, None)
    if asked.basis:
        found, trainer = _with_bases(found, given, means, asked, trainer, tell)
    if reason:
        nothing = SlopeSample(np.zeros(0), scalar_limit.typical_weight(trainer.loaded), reason)
        return found._replace(trial=reason if asked.trial else None, sample=nothing if asked.limit else None)
    if asked.limit and manifest.task.loss == "centred":
        prior, taken = scalar_limit.prior_of(trainer)
        found = found._replace(
            manifest=_changed(found.manifest, "task", prior=prior),
            example_forwards=found.example_forwards + taken,
        )
    if takes_features(manifest):
        return _with_features(found, given if asked.trial else trial.CHOSEN, asked, trainer, tell)
    spent = found.example_forwards
    left = max(FORWARDS - spent, scalar_limit.FORWARDS)
    onward = _share(spent, left, tell)
    if isinstance(trainer.objective, Rewards):
        return _by_answers(found, given, asked, trainer, onward)
    if asked.trial:
        tried = trial.run(trainer, keep_epsilon="epsilon" in given, forwards=left, advance=onward)
        return found._replace(
            manifest=_with_suitable(found.manifest, tried, given),
            trial=tried,
            sample=tried.sample if asked.limit else None,
            example_forwards=spent + tried.sample.example_forwards,
        )
    if asked.limit:
        slopes = scalar_limit.measure(trainer, left, onward)
        found = found._replace(sample=slopes, example_forwards=spent + slopes.example_forwards)
    return found


def _by_answers(
    found: Prepared, given: Container[str], asked: Wanted, trainer: Trainer, advance: Advance
) -> Prepared:
    """Return with numbers that suit a reward run, but for those that are given."""
    if not (asked.trial or asked.limit):
        return found
    tried = reward_trial.run(trainer, advance)
    if asked.trial:
        found = found._replace(manifest=_with_suitable(found.manifest, tried, given), trial=tried)
    return found._replace(sample=tried.sample if asked.limit else None)


def _with_features(
    found: Prepared, given: Container[str], asked: Wanted, trainer: Trainer, tell: Tell
) -> Prepared:
    """Return with the features of a head, and with numbers that suit them, but for those that are given."""
    trainer = trial.with_features(trainer, given, _share(0, trial.HEAD_ROWS, tell))
    measured = trainer.estimate(scalar_limit.seeds_of(trainer, trial.HEAD_SLOPES), 0, trainer.epsilon)
    slopes = np.nan_to_num([one.alpha for one in measured])
    scalar_limit.require_slopes(slopes)
    chosen = {name: getattr(trainer.manifest.training, name) for name in trial.CHOSEN}
    manifest = _changed(found.manifest, "training", **chosen)
    return found._replace(
        manifest=manifest,
        sample=SlopeSample(slopes, scalar_limit.typical_weight(trainer.loaded)) if asked.limit else None,
        example_forwards=trainer.loaded.kept.forwards if trainer.loaded.kept else 0,
    )


def _with_bases(
    found: Prepared,
    given: Container[str],
    means: Means,
    asked: Wanted,
    trainer: Trainer,
    tell: Tell,
) -> tuple[Prepared, Trainer]:
    """Return with bases of the kind that is asked for, at a rank for it, and a trainer that has them."""
    manifest, folder = found.manifest, means.bases or Path()
    rank = manifest.training.rank if "rank" in given else RANKS[asked.basis]
    try:
        if not manifest.data.train:
            raise dataset.needed(manifest.task)
        ranked = trainer.like(_changed(trainer.manifest, "training", rank=rank), None)
        file, made = make_bases(ranked, asked.basis, folder, _share(0, _for_bases(asked), tell))
    except UserError as error:
        if asked.asked:
            raise
        return found._replace(bases=error.what), trainer
    chosen = {"rank": rank, "basis": "published", "bases": bases.digest_of(file)}
    manifest = _changed(manifest, "training", **chosen)
    if manifest.organised.organiser and "subspace_epochs" not in given:
        manifest = _changed(manifest, "organised", subspace_epochs=1)  # cores are small, and bases change
    found = found._replace(manifest=manifest, bases=made, example_forwards=made.example_forwards)
    return found, trainer.like(_changed(trainer.manifest, "training", **chosen), folder)


def with_prior(manifest: Manifest, means: Means, waiting: Waiting) -> Manifest:
    """Return the manifest with the base model's prior, if its loss is centred: for nodes that have no public
    rows to measure one on."""
    if manifest.task.loss != "centred":
        return manifest
    with waiting("measuring the base model's prior"):
        trainer, reason = scalar_limit.any_trainer(manifest, **means._asdict())
        with trainer:
            prior = () if reason else scalar_limit.prior_of(trainer)[0]
    return _changed(manifest, "task", prior=prior)


def _for_bases(asked: Wanted) -> int:
    return making_bases.cost(asked.basis) if asked.basis else 0


def _share(before: int, units: int, tell: Tell) -> Advance:
    """Return what tells how much is taken when a part of it, of so many units, is so far."""
    return lambda done, total: tell(before + units * done // total)


def _seconds(manifest: Manifest, means: Means, forwards: int) -> float:
    """Return about how long so many example-forwards take; 0 where that is not known before, as on other
    devices and of answers that are written."""
    if means.device != "cpu" or manifest.task.is_rewarded:
        return 0.0
    trained = sum(one.out_features * one.in_features for one in manifest.model.parsed_targets())
    return SECONDS * forwards * trained


def _limited(found: Prepared, given: Container[str]) -> Prepared:
    """Return with a limit that suits the slopes, unless one is given."""
    if found.sample is None:
        return found
    if "scalar_limit" in given:
        scalar_limit.check(found.manifest.training, found.sample)
        return found
    return found._replace(manifest=scalar_limit.with_limit(found.manifest, found.sample))


def _with_suitable(manifest: Manifest, found: Trial | RewardTrial, given: Container[str]) -> Manifest:
    chosen: dict[str, Any] = {name: value for name, value in suitable(found).items() if name not in given}
    if isinstance(found, Trial) and "epsilon" not in given:
        chosen["epsilons"] = found.epsilons
    return _changed(manifest, "training", **chosen)


def suitable(found: Trial | RewardTrial) -> dict[str, float]:
    """Return the numbers that suit the model, by name."""
    epsilon = {"epsilon": found.epsilon} if isinstance(found, Trial) else {}
    return epsilon | {"scalar_delta": found.delta, "learning_rate": found.rate}


def _changed(manifest: Manifest, section: str, **fields: Any) -> Manifest:
    return manifest.model_copy(update={section: getattr(manifest, section).model_copy(update=fields)})
