"""Files of a run's public data: named by digests, so that all nodes read the same rows wherever they lie.

The one place that turns a source of a manifest into a local file. Knows names and bytes; what rows are, and
how a file gets to a machine, is for others to know.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data, DataRole
from sfprotocol.model_listing import MAX_DATA, PIECE, ListedFile, Listing, encode, hash_data, hash_piece


def listed(file: Path, name: str) -> ListedFile:
    """Return what a listing says under this name of a file; reads and hashes it. Raises OSError."""
    hashes, size = bytearray(), 0
    with file.open("rb") as handle:
        while data := handle.read(PIECE):
            hashes += hash_piece(data)
            size += len(data)
    return ListedFile(name, size, bytes(hashes))


FILE = "data"
"""Name of the one file in the listing of which a digest is the hash, whatever it is called on a disk."""

ROLES: tuple[DataRole, ...] = ("train", "test", "validation")
"""Those that are needed first come first."""

WORDS: dict[DataRole, str] = {
    "train": "training data",
    "test": "test data",
    "validation": "validation data",
}
"""Roles as people call them."""


def local(data: Data, role: DataRole, folder: Path | None = None) -> str:
    """Return the source from which this machine reads rows: a file with the digest that the manifest names.

    As `find` finds it; a source without a digest stays as it is. Raises UserError DATA_NOT_FOUND and
    DATA_DIFFERS.
    """
    if role not in data.digests:
        return data.source(role)
    folders = (folder,) if folder else ()
    found = find(data, role, folders)
    if found is None:
        raise missing(data, role, folders)
    return str(found)


def find(data: Data, role: DataRole, folders: Sequence[Path] = ()) -> Path | None:
    """Return a file with the digest of a role: in one of the folders, by its digest or by its name, or where
    the source says."""
    kept = (path_in(folder, data, role) for folder in folders)
    possible = (*kept, *_by_name(data, role, folders))
    return next((file for file in possible if digest_of(file) == data.digests[role]), None)


def _by_name(data: Data, role: DataRole, folders: Sequence[Path]) -> list[Path]:
    """Return where the file of a role may be under its own name."""
    source = Path(data.source(role)).expanduser()
    return [*(folder / source for folder in folders), source]


def path_in(folder: Path, data: Data, role: DataRole) -> Path:
    """Return where a folder has the file of a role by its digest, if it has it."""
    return folder / (data.digests[role] + Path(data.source(role)).suffix)


def listing_of(file: Path) -> bytes:
    """Return the encoded listing of a file with data (SPEC B9); reads all of it. Raises OSError."""
    return encode([listed(file, FILE)])


def digest_of(file: Path) -> str:
    """Return the digest of a file with data, in hex; "" if there is none that nodes would take."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_DATA:
            return ""
        return hash_data(listing_of(file)).hex()
    except OSError:
        return ""


def is_right(listing: Listing) -> bool:
    """Return whether this can be the listing of a run's data."""
    return [file.name for file in listing.files] == [FILE] and listing.size <= MAX_DATA


def keep(file: Path, kept: Path, digest: str) -> None:
    """Copy a file with this digest to where it is kept, all or nothing.

    Raises UserError DATA_DIFFERS if it has changed meanwhile, OSError.
    """
    partial = kept.with_name(f".{os.getpid()}.{kept.name}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, partial)
        if digest_of(partial) != digest:
            raise UserError(Code.DATA_DIFFERS, f"{file} has changed while it was copied", "Try again.")
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)


def bring(data: Data, source: Path | None, folder: Path) -> None:
    """Copy the files of all data from a folder, or from where their sources say, to another folder.

    Raises UserError DATA_NOT_FOUND, DATA_DIFFERS, OSError.
    """
    for role, digest in data.digests.items():
        kept = path_in(folder, data, role)
        if digest_of(kept) != digest:
            keep(Path(local(data, role, source)), kept, digest)


def missing(data: Data, role: DataRole, folders: Sequence[Path] = ()) -> UserError:
    """Return the error for data that are not on this machine, or are others than the run's."""
    name, digest = Path(data.source(role)).name, data.digests[role][:16]
    if file := next(filter(Path.is_file, _by_name(data, role, folders)), None):
        return UserError(
            Code.DATA_DIFFERS,
            f"{file} is not what the run has as its {WORDS[role]}: it has changed since, or another file has "
            f"the same name ({(digest_of(file) or 'too large')[:16]}, and the run names {digest})",
            "Put back the file as it was, or remove it: a node that runs gets the right one from its peers. "
            "For other data make another run with `sfnode init`; to train on it as your own data: --data.",
        )
    return UserError(
        Code.DATA_NOT_FOUND,
        f"the run's {WORDS[role]}, {name} ({digest}), are not on this machine",
        "A node that runs gets them from its peers: start it with a link, and wait until it has. Or put the "
        "file beside the run's manifest, or into the folder `data` of the data folder.",
    )
