"""The export that a page offers: copied beside it, with sums, and only where it has changed.

A folder is complete when its sums are there: they are written last, and are not written anew while names,
sizes and times of the export's files stay as they are. So hashing gigabytes happens once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sfnode.errors import Code, UserError

FOLDER = "model"
"""Folder of the page with the export."""

OURS = r"epoch-[0-9]+|export|[.].+[.]partial"
"""Names of what is written to it, and goes once there is a later one."""

SUMS = "SHA256SUMS"

MAX_FILES = 1_000
"""Files of an export: the shards of the largest models are fewer."""


class Download(NamedTuple):
    """A file of the export."""

    name: str
    path: str
    """Path from the page."""
    size: int
    sha256: str


class Downloads(NamedTuple):
    """An export beside a page."""

    files: tuple[Download, ...]
    sums: str
    """Path of the sums from the page."""
    epoch: int | None
    """Epoch of its seal, where the folder is named by it."""


def offer(export: Path, site: Path) -> Downloads:
    """Copy the export in a folder, or the last of those in it, to the site; keep no earlier one.

    Raises UserError BAD_OPTION if there is none, OSError.
    """
    export = _latest(export)
    name = export.resolve().name if _epoch(export) is not None else "export"
    target = site / FOLDER / name
    if not (target / SUMS).is_file() or _stamp(export) != _stamp(target):
        _copy(export, target)
    for other in (site / FOLDER).iterdir():
        if other != target and re.fullmatch(OURS, other.name):
            shutil.rmtree(other, ignore_errors=True)
    return _described(target, site)


def offered(site: Path) -> Downloads | None:
    """Return the export that a site has already; None if it has none as a whole."""
    folders = sorted(path.parent for path in site.glob(f"{FOLDER}/*/{SUMS}"))
    return _described(folders[-1], site) if folders else None


def _latest(export: Path) -> Path:
    """Return the folder with the export's files."""
    folders = [export, *sorted(export.glob("epoch-*"), reverse=True)] if export.is_dir() else []
    for folder in folders:
        if any(folder.glob("*.safetensors")):
            return folder
    raise UserError(
        Code.BAD_OPTION,
        f"--export: there is no export in {export}",
        "Name a folder with an export, or the `exports` of a node with --export-every.",
    )


def _epoch(export: Path) -> int | None:
    form = re.fullmatch(r"epoch-(\d{1,6})", export.resolve().name, re.ASCII)
    return int(form[1]) if form else None


def _files(folder: Path) -> list[Path]:
    """Return the files of an export: those that stand in it, without hidden ones."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return [path for path in found if path.name != SUMS][:MAX_FILES]


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _files(folder)]


def _copy(export: Path, target: Path) -> None:
    """Make `target` a copy that is whole if it exists; on the same disk, another name for the same bytes."""
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    sums = []
    for path in _files(export):
        _link_or_copy(path, scratch / path.name)
        with path.open("rb") as data:
            sums.append(f"{hashlib.file_digest(data, 'sha256').hexdigest()}  {path.name}\n")
    (scratch / SUMS).write_text("".join(sums), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    scratch.replace(target)


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copy2(path, target)


def _described(target: Path, site: Path) -> Downloads:
    where = target.relative_to(site)
    return Downloads(tuple(_listed(target, where)), f"{where}/{SUMS}", _epoch(target))


def _listed(target: Path, where: Path) -> Iterator[Download]:
    for line in (target / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if (target / name).is_file():
            yield Download(name, f"{where}/{name}", (target / name).stat().st_size, digest)
