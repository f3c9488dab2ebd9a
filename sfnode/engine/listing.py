"""Which files of a base model travel between nodes, and their listing (SPEC B1, B5).

Hashes whatever lies in a folder; it neither loads a model nor knows who asks for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from sfnode.engine.folder import CONFIG, INDEX, SINGLE, TOKENIZER_FILES, weight_files
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.listing import PIECE, ListedFile, Listing, Piece, encode, hash_listing, hash_piece

SAFE = frozenset({CONFIG, INDEX, *TOKENIZER_FILES})
"""What may travel besides safetensors: no code and no pickle among it."""


def files_of(folder: Path) -> list[Path]:
    """All files that a node needs to load this base model as it is. Raises UserError MODEL_*."""
    weights = weight_files(folder)
    index = [] if weights == [folder / SINGLE] else [folder / INDEX]
    others = (folder / name for name in (CONFIG, *TOKENIZER_FILES))
    return [*weights, *index, *(file for file in others if file.is_file())]


def list_model(folder: Path) -> bytes:
    """The encoded listing of the base model in a folder; reads all of it."""
    return encode(_listed(file) for file in files_of(folder))


def hash_of(folder: Path) -> str:
    """What a manifest says of this model's listing; empty for one that cannot be listed."""
    try:
        return hash_listing(list_model(folder)).hex()
    except RemoteProtocolError:  # a shard with an odd name, or more terabytes than a listing holds
        return ""


def require_safe(listing: Listing) -> None:
    """Raises RemoteProtocolError for a listing with a file that no base model needs."""
    for file in listing.files:
        if file.name not in SAFE and not file.name.endswith(".safetensors"):
            raise RemoteProtocolError("B5", f"{file.name} is not a file of a base model")


def read_piece(folder: Path, piece: Piece, offset: int, length: int) -> bytes:
    """So many bytes of a piece from `offset` in it on. Raises OSError."""
    with (folder / piece.name).open("rb") as file:
        return os.pread(file.fileno(), max(0, min(length, piece.size - offset)), piece.offset + offset)


def write_piece(folder: Path, piece: Piece, data: bytes) -> None:
    """Put a piece where it belongs. Raises OSError."""
    descriptor = os.open(folder / piece.name, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, piece.offset)
    finally:
        os.close(descriptor)


def missing(folder: Path, listing: Listing) -> list[int]:
    """Numbers (SPEC B2) of the parts that are not in this folder as they should be; reads what is there.

    The files are all that is remembered of an earlier attempt: what they hold cannot be wrong about itself.
    """
    lacking = []
    for number, piece in enumerate(listing.pieces(), start=1):
        file = folder / piece.name
        there = file.is_file() and file.stat().st_size >= piece.offset + piece.size
        if not there or hash_piece(read_piece(folder, piece, 0, piece.size)) != piece.hash:
            lacking.append(number)
    return lacking


def _listed(file: Path) -> ListedFile:
    hashes, size = bytearray(), 0
    with file.open("rb") as handle:
        while data := handle.read(PIECE):
            hashes += hash_piece(data)
            size += len(data)
    return ListedFile(file.name, size, bytes(hashes))
