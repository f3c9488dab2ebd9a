"""The listing of a base model: its files, their sizes, and the hash of every piece (SPEC B1, B2).

One hash in the manifest, that of the listing, stands for all files. Published bases and data files have
listings in the same format, with one file each. This module knows bytes and names; it opens no file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from sfprotocol.fields import pack, require, unpack

PIECE = 1 << 20
"""Size of a piece, in bytes. Each piece has a hash of 32 bytes in the listing. A broken transfer loses at
most one piece."""

MAX_LISTING = 16 << 20
"""Maximum size of a listing, in bytes: enough for half a terabyte of weights."""

MAX_DATA = 4 << 30
"""Maximum size of a run's public data file, and of a data set on the hub, in bytes. The rows of data are held
in memory, where they take several times the size of the file."""

MAX_FILES = 4096
MAX_SIZE = (1 << 50) - 1
HASH_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_BOUNDS = {"max_array_len": MAX_FILES, "max_map_len": 0, "max_ext_len": 0, "max_bin_len": MAX_LISTING}


class ListedFile(NamedTuple):
    """One file. Its name contains no path and does not begin with a dot."""

    name: str
    size: int
    hashes: bytes
    """The hashes of the file's pieces, one after the other."""

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return pieces_of(self.size)


class Piece(NamedTuple):
    """One piece of a model: its file and offset in the file, its size and its hash."""

    name: str
    offset: int
    size: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a base model, in the order of names."""

    files: tuple[ListedFile, ...]

    @property
    def size(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def pieces(self) -> list[Piece]:
        """Return the pieces of the model in order; these are its parts 1, 2, ... (SPEC B2)."""
        return [_piece(file, number) for file in self.files for number in range(file.pieces)]


def pieces_of(size: int) -> int:
    """Return the number of pieces of a file of `size` bytes."""
    return -(-size // PIECE)


def hash_piece(data: bytes | memoryview) -> bytes:
    """Return the hash of a piece (SPEC B1)."""
    return hashlib.blake2b(data, digest_size=HASH_BYTES, person=b"sfnode-piece").digest()


def hash_listing(encoded: bytes) -> bytes:
    """Return the hash of an encoded listing of a base model, by which a manifest names the listing (SPEC
    B2)."""
    return hashlib.blake2b(encoded, digest_size=HASH_BYTES, person=b"sfnode-listing").digest()


def hash_bases(encoded: bytes) -> bytes:
    """Return the digest that names published bases: the hash of the encoded listing of the file that contains
    them (SPEC R10)."""
    return hashlib.blake2b(encoded, digest_size=HASH_BYTES, person=b"sfnode-bases").digest()


def hash_data(encoded: bytes) -> bytes:
    """Return the digest by which a manifest names a data file: the hash of the file's encoded listing (SPEC
    B9)."""
    return hashlib.blake2b(encoded, digest_size=HASH_BYTES, person=b"sfnode-data").digest()


def encode(files: Iterable[ListedFile]) -> bytes:
    """Return the only valid encoding of a listing of these files. Raises RemoteProtocolError if they break
    SPEC B1."""
    listing = _build([list(file) for file in sorted(files, key=lambda file: file.name.encode())])
    return _pack(listing)


def decode(encoded: bytes) -> Listing:
    """Return the listing that `encoded` encodes. Raises RemoteProtocolError (SPEC B1) if `encoded` is not the
    encoding of a listing."""
    require(len(encoded) <= MAX_LISTING, "B1", "it is too long")
    listing = _build(unpack(encoded, _BOUNDS, "B1"))
    require(_pack(listing) == encoded, "B1", "not in canonical form")
    return listing


def _pack(listing: Listing) -> bytes:
    return pack([list(file) for file in listing.files])


def _piece(file: ListedFile, number: int) -> Piece:
    offset = number * PIECE
    digest = file.hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]
    return Piece(file.name, offset, min(PIECE, file.size - offset), digest)


def _build(fields: Any) -> Listing:
    require(isinstance(fields, list) and 0 < len(fields) <= MAX_FILES, "B1", "no files, or too many")
    files = tuple(_file(item) for item in fields)
    ascending = all(a.name < b.name for a, b in pairwise(files))  # names are ASCII: as their bytes
    require(ascending, "B1", "names are not in strictly ascending order")
    return Listing(files)


def _file(value: Any) -> ListedFile:
    require(isinstance(value, list) and len(value) == 3, "B1", "a file has not three fields")
    name, size, hashes = value
    require(isinstance(name, str) and _NAME.fullmatch(name) is not None, "B1", "not the name of a file")
    require(type(size) is int and 0 <= size <= MAX_SIZE, "B1", "a size out of bounds")
    fitting = isinstance(hashes, bytes) and len(hashes) == HASH_BYTES * pieces_of(size)
    require(fitting, "B1", "not one hash for each piece")
    return ListedFile(name, size, hashes)
