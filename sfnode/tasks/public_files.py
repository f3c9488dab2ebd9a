"""Finds the files of a run's data on this machine. All nodes read the same rows from files whose digests are
in the manifest. Other files must be named by the machine's owner.

Only this module turns a source in a manifest into a local file. A manifest comes from other people. A file
name in a manifest is shown to the user, and looked for in the run's folders. It is never used as a path to
any other place. This module knows names and bytes; it knows neither the meaning of rows nor how a file gets
to a machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sfnode.errors import Code, UserError
from sfnode.manifest import hub_rows, public_name
from sfnode.manifest.sections import BUILTIN, Data, DataRole, is_file
from sfprotocol.model_listing import MAX_DATA, PIECE, ListedFile, Listing, encode, hash_data, hash_piece


def listed(file: Path, name: str) -> ListedFile:
    """Read and hash a file, and return its entry for a listing, with the name `name`. Raises OSError."""
    hashes, size = bytearray(), 0
    with file.open("rb") as handle:
        while data := handle.read(PIECE):
            hashes += hash_piece(data)
            size += len(data)
    return ListedFile(name, size, bytes(hashes))


FILE = "data"
"""Name of the file in a listing of a run's data, whatever the file's name on disk. Such a listing has only
one file. The digest in a manifest is the hash of the listing."""

ROLES: tuple[DataRole, ...] = ("train", "test", "validation")
"""Roles of files in a run, in the order in which a node needs the files."""

WORDS: dict[DataRole, str] = {"train": "training data", "test": "test data", "validation": "validation data"}
"""Names of roles, for people."""


class Places(NamedTuple):
    """The places on this machine where the files of a run's data may be."""

    folders: tuple[Path, ...] = ()
    """Folders of the run. Files in these folders are found by their digests or by their names."""
    named: Mapping[DataRole, Path] = {}
    """Files that this machine's owner has named, keyed by role."""


NOWHERE = Places()

ELSEWHERE = (Code.DATA_NOT_FOUND, Code.DATA_DIFFERS, Code.DATA_NOT_NAMED)
"""Codes of errors for data that are not on this machine. Other machines may have them."""


def typed(data: Data) -> Places:
    """Return the places of data whose sources this machine's owner has just typed, for example in a command
    line of `sfnode init`. Only such sources may be used as paths."""
    sources = {role: data.source(role) for role in ROLES}
    return Places(named={role: Path(source) for role, source in sources.items() if source})


def beside(data: Data, folder: Path) -> Places:
    """Return the places of a manifest's data that lie in the manifest's own folder."""
    found = ((role, inside(folder, data.source(role))) for role in ROLES if is_file(data.source(role)))
    return Places((folder,), {role: file for role, file in found if file and file.is_file()})


def with_run(places: Places, run: Path | None) -> Places:
    """Return `places`, extended by the folder of the manifest's file `run` if this machine's owner has given
    such a file. The folder may contain files with the digests in the manifest."""
    return places._replace(folders=(*places.folders, run.parent)) if run else places


def inside(folder: Path, source: str) -> Path | None:
    """Return the file to which the path `source`, or only its last part, leads from a folder. Return None if
    the file is missing, or if it is outside the folder, for example because of a symbolic link."""
    for name in (source, public_name(source)):
        with suppress(OSError, ValueError, RuntimeError):  # no file, a null byte, links in a circle
            path = (folder / name).resolve(strict=True)
            if folder.resolve() in path.parents:
                return path
    return None


def local(data: Data, role: DataRole, places: Places) -> str:
    """Return the source from which this machine reads the rows of a role. If the manifest names a file with a
    digest, this is the local file with the digest. If it names a file without a digest, this is the file that
    the machine's owner has named.

    Raises UserError DATA_NOT_FOUND, DATA_DIFFERS and DATA_NOT_NAMED.
    """
    source = data.source(role)
    if role in data.digests:
        found = find(data, role, places)
        if found is None:
            raise missing(data, role, places)
        return str(found)
    if source.startswith(BUILTIN) or hub_rows(source):
        return source
    if role in places.named:
        return str(places.named[role])
    raise unnamed(data, role)


def find(data: Data, role: DataRole, places: Places) -> Path | None:
    """Return the local file of a role that has the digest in the manifest; None if there is no such file. The
    folders are searched for the digest and for the file's own name, and the files that the owner has named
    are tried."""
    kept = (path_in(folder, data, role) for folder in places.folders)
    possible = (*kept, *_by_name(data, role, places))
    return next((file for file in possible if digest_of(file) == data.digests[role]), None)


def _by_name(data: Data, role: DataRole, places: Places) -> Iterator[Path]:
    """Yield the existing files in the folders with the own name of a role's file, then the file that the
    owner has named for the role."""
    source = data.source(role)
    yield from (file for folder in places.folders if (file := inside(folder, source)))
    if role in places.named:
        yield places.named[role]


def path_in(folder: Path, data: Data, role: DataRole) -> Path:
    """Return the path of a role's file in a folder whose files are named by their digests. The file may be
    missing."""
    return folder / (data.digests[role] + Path(public_name(data.source(role))).suffix)


def listing_of(file: Path) -> bytes:
    """Read a file with data completely, and return its encoded listing (SPEC B9). Raises OSError."""
    return encode([listed(file, FILE)])


def digest_of(file: Path) -> str:
    """Return the digest of a file with data, in hex; "" if the file cannot be read, or if nodes would refuse
    it."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_DATA:
            return ""
        return hash_data(listing_of(file)).hex()
    except OSError:
        return ""


def is_right(listing: Listing) -> bool:
    """Return whether a listing has the form of a listing of a run's data."""
    return [file.name for file in listing.files] == [FILE] and listing.size <= MAX_DATA


def keep(file: Path, kept: Path, digest: str) -> None:
    """Copy a file, which must have this digest, to the path `kept`, completely or not at all.

    Raises UserError DATA_DIFFERS if the file has another digest, for example because it was changed in the
    meantime. Raises OSError.
    """
    partial = kept.with_name(f".{os.getpid()}.{kept.name}")
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, partial)
        if digest_of(partial) != digest:
            raise UserError(Code.DATA_DIFFERS, f"{file} has changed while it was copied", "Try again.")
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)


def bring(data: Data, places: Places, folder: Path) -> None:
    """Copy all files of a run's data to `folder`. A copy is named by the digest in the manifest or, if there
    is none, has the file's own name.

    Raises UserError DATA_NOT_FOUND, DATA_DIFFERS, OSError.
    """
    for role, digest in data.digests.items():
        kept = path_in(folder, data, role)
        if digest_of(kept) != digest:
            keep(Path(local(data, role, places)), kept, digest)
    for role, file in places.named.items():
        if role not in data.digests and is_file(data.source(role)):
            shutil.copyfile(file, folder / public_name(data.source(role)))


def unnamed(data: Data, role: DataRole) -> UserError:
    """Return the error for data that the manifest names as a file without a digest, so that the machine's
    owner must name the file."""
    own = "rows of your own" if role == "train" else "the file"
    return UserError(
        Code.DATA_NOT_NAMED,
        f"the run's {WORDS[role]}, {public_name(data.source(role))}, have neither a digest nor the name of a "
        "data set on the hub, and no file of yours is opened because a run names it",
        f"Name {own} with --{'data' if role == 'train' else role} FILE of `sfnode join`; or start "
        "with --run if the file lies beside the run's manifest.",
    )


def missing(data: Data, role: DataRole, places: Places) -> UserError:
    """Return the error for data that are missing on this machine, or whose digest differs from that in the
    manifest."""
    name, digest = public_name(data.source(role)), data.digests[role][:16]
    if file := next(filter(Path.is_file, _by_name(data, role, places)), None):
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
