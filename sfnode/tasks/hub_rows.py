"""Rows of a data set on the hub: Parquet, CSV and JSON files of one commit, read with `row_files`.

The name of a data set comes from other people. It is only passed to the hub's API, and never used as a path
on this machine or as the name of a program that reads data. Files are chosen by their names, and their sizes
are checked before the download.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.manifest import HubRows, hub_rows
from sfnode.printable import first_line, size_text
from sfnode.tasks import row_files
from sfnode.tasks.row_files import Placed
from sfprotocol.model_listing import MAX_DATA

DATASET = "dataset"
"""Name, in the hub's API, of the type of repositories with data."""

KINDS = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
"""File name extensions of files with rows. If a split has files with several of these extensions, only the
files with the first one in this list are read."""

CONVERTED = "refs/convert/parquet"
"""Branch in which the hub stores every data set as Parquet files named CONFIG/SPLIT/NUMBER.parquet."""

PATTERNS = tuple(f"*{kind}" for kind in KINDS)

_SPLITS = ("train", "validation", "valid", "dev", "test", "unlabeled", "unsupervised")
"""Words in file names that name a split. As is usual on the hub, a file whose name has none of these words
belongs to the split `train`."""

_OF = re.compile(r"-([0-9]{5})-of-([0-9]{5})")
"""Pattern in file names for the index of a file within its split, and the number of files of the split."""

_SOUND = re.compile(r"[\w.+@=,() -]+(/[\w.+@=,() -]+)*")


def read(source: str) -> Iterator[Placed]:
    """Yield the rows of a split. Raises UserError DATA_NOT_FOUND, DATA_TOO_LARGE, DISK_FULL, EXTRA_MISSING
    and DATA_MALFORMED."""
    wanted = hub_rows(source)
    if wanted is None:
        raise UserError(
            Code.DATA_NOT_FOUND,
            f"{source} is not of the form hf:OWNER/NAME[@COMMIT][:CONFIG]:SPLIT",
            row_files.FORMS,
        )
    row_files.require(source)
    try:
        files = _fetch(source, wanted)
    except UserError:
        raise
    except Exception as error:  # the library passes on errors of its storage and network layers
        raise _not_found(source, first_line(error)) from error
    return (row for file in files for row in row_files.read(str(file)))


def pinned(source: str) -> str:
    """Ask the hub for the current commit of a source, and return the source with this commit, so that all
    nodes read the same rows. Return the source unchanged if it has a commit, if it is not on the hub, or if
    the hub does not answer."""
    wanted = hub_rows(source)
    if wanted is None or wanted.commit or hub.unreachable():
        return source
    try:
        revision, _ = _offered(wanted)
        return str(wanted._replace(commit=hub.commit_of(wanted.name, revision, DATASET)))
    except Exception:  # as in `read`; a later use of the rows reports it
        return source


def _fetch(source: str, wanted: HubRows) -> list[Path]:
    """Return the paths of the files of a split, after downloading those that are not in the cache. Raises the
    errors of the hub's library."""
    if silent := hub.unreachable():
        for folder in _kept(wanted):
            names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))
            if chosen := choose(names, wanted.config, wanted.split):
                return [folder / name for name in chosen]
        raise _not_found(source, silent)
    revision, sizes = _offered(wanted)
    _check(source, sum(sizes.values()))
    folder = hub.download(wanted.name, revision, [*sizes], kind=DATASET)
    return [folder / name for name in sizes]


def _kept(wanted: HubRows) -> Iterator[Path]:
    """Yield the folders in the cache with downloaded files of a data set."""
    for revision in _revisions(wanted):
        with suppress(Exception):  # missing files raise various errors
            yield hub.kept(wanted.name, revision, PATTERNS, kind=DATASET)


def _offered(wanted: HubRows) -> tuple[str, dict[str, int]]:
    """Return the revision of a data set that has the split, and the sizes of the split's files in bytes,
    keyed by name. Raises ValueError if no revision has the split, and the errors of the hub's library."""
    for revision in _revisions(wanted):
        sizes = {file.name: file.size for file in hub.offered(wanted.name, revision, PATTERNS, DATASET)}
        if chosen := choose(sorted(sizes), wanted.config, wanted.split):
            return revision, {name: sizes[name] for name in chosen}
    raise ValueError("no Parquet, CSV or JSON file there has such a name")


def _revisions(wanted: HubRows) -> tuple[str, ...]:
    return (wanted.commit,) if wanted.commit else ("", CONVERTED)


def choose(names: Sequence[str], config: str, split: str) -> list[str]:
    """Choose the files of one split in one configuration from the sorted names of all files of a data set.
    Return their names. As on the hub, the names of folders and files show the split and the configuration.
    Raises ValueError if some of the split's files are missing, or if `config` is empty and the files belong
    to several configurations."""
    sound = [name for name in names if _SOUND.fullmatch(name) and ".." not in name]
    of_config = [name for name in sound if not config or config in _words(name)]
    of_config = of_config or (sound if config == "default" else [])
    named = [name for name in of_config if split in (*PurePosixPath(name).parts[:-1], _label(name))]
    named = named or [name for name in of_config if split in _words(name)]
    if not named and split == "train":
        named = [name for name in of_config if not any(one in _words(name) for one in _SPLITS)]
    for kind in KINDS:
        if found := [name for name in named if name.lower().endswith(kind)]:
            return _whole(found, config)
    return []


def _label(name: str) -> str:
    """Return the name of a file without its extension and without its index (`_OF`)."""
    return _OF.sub("", PurePosixPath(name).stem)


def _words(name: str) -> list[str]:
    """Return the names of the folders of a file, and the words in its own name."""
    return [*PurePosixPath(name).parts[:-1], _label(name), *re.split(r"[._ -]", _label(name))]


def _whole(names: list[str], config: str) -> list[str]:
    """Return `names` if they are all the files of one split; otherwise raise ValueError."""
    folders = sorted({str(PurePosixPath(name).parent) for name in names})
    if not config and len(folders) > 1:
        raise ValueError(f"it has several configurations, such as {', '.join(folders[:5])}: name one")
    counts = [int(found[2]) for name in names if (found := _OF.search(name))]
    if counts and (len(counts) != len(names) or counts != [len(names)] * len(names)):
        raise ValueError(f"{len(names)} of {max(counts)} files of the split are there")
    return names


def _check(source: str, size: int) -> None:
    if size > MAX_DATA:
        raise UserError(
            Code.DATA_TOO_LARGE,
            f"{source} has {size_text(size)}, where {size_text(MAX_DATA)} are allowed",
            "If you trust whoever started the run, get the data in another way and give them with --data.",
        )


def _not_found(source: str, why: str) -> UserError:
    return UserError(
        Code.DATA_NOT_FOUND,
        f"cannot load {source}: {why}",
        "Check the name, the configuration and the split on the hub, and that the hub can be reached.",
    )
