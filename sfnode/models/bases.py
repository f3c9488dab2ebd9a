"""Published bases as a file: U and V of every target as int8, named by a digest (SPEC R10).

This module knows targets and bytes. It does not know how bases were made, which subspace they are for, or how
a file gets to a machine.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Target
from sfnode.printable import size_text
from sfnode.tasks.public_files import listed
from sfprotocol.model_listing import Listing, encode, hash_bases

FILE = "bases"
"""Name that a file of bases has in its own listing, whatever its name on disk. The digest of bases is the
hash of that listing."""

SUFFIX = ".bases"

I8 = NDArray[np.int8]

Columns = tuple[int, int]
"""Numbers of columns of U and of V, the same for all targets of a run."""

LEAST = -127
"""Smallest entry. -128 is excluded, because it has no negative in 8 bits."""


class Pair(NamedTuple):
    """The bases of one target."""

    u: I8
    """(out_features, columns)."""
    v: I8
    """(in_features, columns)."""

    @property
    def largest(self) -> int:
        """Largest product of the magnitudes of an entry of U and an entry of V."""
        return _largest(self.u) * _largest(self.v)


def path_in(folder: Path, digest: str) -> Path:
    """Return the path in a folder for the bases with this digest (hex). The file may be missing."""
    return folder / f"{digest}{SUFFIX}"


def remove(folder: Path, digest: str) -> None:
    """Remove bases that nobody needs any more, and what was downloaded of them so far. Raises OSError."""
    path_in(folder, digest).unlink(missing_ok=True)
    shutil.rmtree(path_in(folder, digest).with_suffix(".partial"), ignore_errors=True)


def size_of(targets: Iterable[Target], columns: Columns) -> int:
    """Return the size of bases for these targets, in bytes."""
    of_u, of_v = columns
    return sum(target.out_features * of_u + target.in_features * of_v for target in targets)


def listing_of(file: Path) -> bytes:
    """Return the encoded listing of a file with bases (SPEC B8); reads all of it. Raises OSError."""
    return encode([listed(file, FILE)])


def digest_of(file: Path) -> str:
    """Return the digest of a file with bases, in hex. Raises UserError BASES_MISSING."""
    try:
        return hash_bases(listing_of(file)).hex()
    except OSError as error:
        raise missing(f"{file} cannot be read: {error.strerror}") from error


def is_right(listing: Listing, targets: Sequence[Target], columns: Columns) -> bool:
    """Return whether a listing has the one file, of the right size, that bases for these targets have."""
    return [(file.name, file.size) for file in listing.files] == [(FILE, size_of(targets, columns))]


def write(folder: Path, pairs: Sequence[tuple[I8, I8]]) -> str:
    """Write U and V of every target, in their order, to a file of the folder; return its digest in hex.

    The file gets its name (`path_in`) only when it is complete. Raises UserError BASES_UNUSABLE for numbers
    that are not int8 between -127 and 127, OSError.
    """
    partial = folder / f".{os.getpid()}{SUFFIX}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            for number, side in enumerate(side for pair in pairs for side in pair):
                if side.dtype != np.int8 or side.min() < LEAST:
                    where = f"{'UV'[number % 2]} of target {number // 2}"
                    raise unusable(where, "is not of int8 above -128")
                file.write(np.ascontiguousarray(side).tobytes())
            file.flush()
            os.fsync(file.fileno())
        digest = digest_of(partial)
        partial.replace(path_in(folder, digest))
        return digest
    finally:
        partial.unlink(missing_ok=True)


def read(file: Path, targets: Sequence[Target], columns: Columns, digest: str) -> list[Pair]:
    """Return the bases of each target, after checking the file's size and digest, and the range of its
    entries.

    The arrays are the file mapped into memory. Raises UserError BASES_MISSING, BASES_UNUSABLE.
    """
    if (found := digest_of(file)) != digest:
        raise unusable(str(file), f"has the digest {found[:16]}..., and {digest[:16]}... was named")
    if (size := file.stat().st_size) != (wanted := size_of(targets, columns)):
        sizes = f"{size_text(size)} ({size:,} bytes)"
        raise unusable(
            str(file),
            f"has {sizes}, and these targets at rank {max(columns)} have {size_text(wanted)} ({wanted:,})",
        )
    # Private pages that nobody writes: torch warns of arrays that cannot be written.
    whole: I8 = np.memmap(file, np.int8, "c")
    pairs, place = [], 0
    for target in targets:
        sides = []
        for shape in zip((target.out_features, target.in_features), columns, strict=True):
            sides.append(whole[place : place + math.prod(shape)].reshape(shape))
            place += math.prod(shape)
            if sides[-1].min() < LEAST:
                raise unusable(str(file), f"has an entry of -128 for {target.name}")
        pairs.append(Pair(*sides))
    return pairs


def keep(file: Path, folder: Path, targets: Sequence[Target], columns: Columns) -> str:
    """Copy a file with bases for these targets to a folder, unless the folder has these bases already. Return
    their digest in hex.

    Raises UserError as `read`, OSError.
    """
    digest = digest_of(file)
    pairs = read(file, targets, columns, digest)
    kept = path_in(folder, digest)
    if not (kept.is_file() and digest_of(kept) == digest):
        write(folder, pairs)
    return digest


def missing(what: str) -> UserError:
    """Return the error for bases that are missing on this machine."""
    return UserError(
        Code.BASES_MISSING,
        what,
        "A node that runs gets them from its peers; wait until it has, or put the file into the folder "
        "`bases` of the data folder, named by its digest.",
    )


def _largest(side: I8) -> int:
    return max(int(side.max()), -int(side.min()))


def unusable(where: str, what: str) -> UserError:
    """Return the error for a file that cannot be a run's bases."""
    return UserError(
        Code.BASES_UNUSABLE,
        f"these are not bases for this run: {where} {what}",
        "Get the file again from whoever published it, or remove it: nodes that run get it from peers.",
    )
