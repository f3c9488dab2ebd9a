"""Writes the files next to a run's manifest: its rows, its data and its bases. It writes all or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import BUILTIN, HUB, Data, is_file
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.preparing.manifest import beginning
from sfnode.preparing.plan import Plan, name_of
from sfnode.printable import size_text
from sfnode.store.disk_errors import disk_faults, write_whole
from sfnode.tasks import dataset, hub_rows, prompts, public_files, row_files
from sfnode.tasks.dataset import Examine, Row
from sfprotocol.model_listing import MAX_DATA

OWN_KINDS = (".txt", ".json")
"""Suffixes of files whose rows `sfnode init FILE` writes to new files."""


class Shared(NamedTuple):
    """Files of a run's data next to its manifest."""

    names: list[str]
    """Names of the files next to the manifest."""
    copied: list[str]
    """Names of the files that were copied there."""
    size: int
    """Bytes of all files together."""


Note = Callable[[Path], None]
"""Function that is told of a file before it is written."""


@contextmanager
def all_or_nothing() -> Iterator[Note]:
    """Yield a function that must be told of each file before it is written. If the block fails or is
    interrupted, the files that it made are removed."""
    made: list[Path] = []
    try:
        yield lambda file: None if file.exists() else made.append(file)
    except BaseException:
        for file in made:
            with suppress(OSError):
                file.unlink(missing_ok=True)
        raise


def unnoted(_file: Path) -> None:
    """Do nothing. This `Note` is for callers that remove no files after a failure."""


def keep_bases(file: Path, folder: Path, manifest: Manifest, note: Note = unnoted) -> tuple[Path, int]:
    """Copy a manifest's bases to a folder after checking them. Return the path of the copy, and its size in
    bytes.

    Raises UserError BASES_UNUSABLE, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    targets, columns = manifest.model.parsed_targets(), manifest.basis_columns
    with disk_faults(folder):
        note(bases.path_in(folder, bases.digest_of(file)))
        kept = bases.path_in(folder, bases.keep(file, folder, targets, columns))
    return kept, bases.size_of(targets, columns)


def require_shareable(given: Mapping[str, Any]) -> None:
    """Raise UserError DATA_NOT_FOUND for a file of a kind that `init` can read but nodes do not share
    (OWN_KINDS)."""
    for source in (str(given.get(role, "")) for role in public_files.ROLES):
        if source.lower().endswith(OWN_KINDS) and not source.startswith((HUB, BUILTIN)):
            what = f"{source} is not a kind of data that nodes share"
            raise UserError(Code.DATA_NOT_FOUND, what, row_files.FORMS)


def take_rows(
    given: dict[str, Any], plan: Plan | None, folder: Path, note: Note, examine: Examine
) -> list[str]:
    """Write rows to new files in a folder: the held-out rows, and the rows that fit the task, if rows that do
    not fit are left out. Enter these files in `given`. Return messages for the user.

    All nodes then read the same rows, even if different nodes would reject different rows. Raises UserError
    as `dataset.load_rows`, DISK_FULL, DATA_DIR_UNUSABLE.
    """
    said = []
    if plan:
        rows, bad = dataset.sift(plan.bad.source, plan.placed, plan.task, examine)
        if bad.count > plan.bad.count and not given["skip_bad_rows"]:
            bad.refuse()
        name, (kept, held) = name_of(bad.source), dataset.hold_out(plan.task, rows, plan.held_out)
        new = bool(bad or plan.held_out or plan.anew)
        for role, rows in (("train", kept if new else []), ("test", held or plan.test)):
            if rows:
                given[role] = str(write_rows(rows, plan.task, folder, f"{name}-{role}", note))
        said += [f"Left out: {bad}."] if bad else []
    return said + (_skip_bad_rows(given, folder, note, examine) if given["skip_bad_rows"] else [])


def _skip_bad_rows(given: dict[str, Any], folder: Path, note: Note, examine: Examine) -> list[str]:
    begun, said = beginning(given), []
    made: dict[str, str] = {"": ""}
    for role in public_files.ROLES:
        source = begun.data.source(role)
        if source not in made:
            rows, bad = dataset.sifted(source, begun.task, examine)
            made[source] = ""
            if bad and not rows:
                raise row_files.malformed(f"no row of {source} is good: {bad}")
            if bad:
                name = Path(source).stem if is_file(source) else role
                made[source] = str(write_rows(rows, begun.task, folder, name, note))
                said.append(f"Left out: {bad}. The other rows are in {made[source]}.")
        if made[source]:
            given[role] = made[source]
    given |= {"preset": begun.name} if begun.preset else {}  # the new files imply no preset
    return said


def write_rows(rows: Sequence[Row], task: Task, folder: Path, name: str, note: Note = unnoted) -> Path:
    """Write rows to a new file in a folder, with only the fields that a task reads. Return the file.

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
    """Return a manifest that names its data files without their paths and, if they are `shared`, has their
    digests. Files elsewhere are copied to the folder of the manifest. Data on the hub are pinned to their
    present commit.

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
    """Return the name of a data file in a folder, after copying it there if necessary."""
    there = folder / file.name
    if public_files.digest_of(there) != digest:
        if there.exists():
            there = folder / f"{file.stem}-{digest[:8]}{file.suffix}"
        note(there)
        with disk_faults(folder):
            public_files.keep(file, there, digest)
        copied.append(there.name)
    return there.name
