"""The files of a base model that nodes send each other, their listing and their pieces (SPEC B1, B5).

Hashes whatever is in a folder; it neither loads a model nor knows who asks for it. `sfprotocol.model_listing`
says how a listing is encoded.
"""

from __future__ import annotations

import os
from pathlib import Path

from sfnode.listed_files import listed
from sfnode.models.files import CONFIG, INDEX, SAFETENSORS, TOKENIZER_FILES, covered, most_bytes
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import Listing, Piece, encode, hash_listing, hash_piece

SAFE = frozenset({CONFIG, INDEX, *TOKENIZER_FILES})
"""Names of the files that may be sent besides safetensors: no code and no pickles."""


def list_model(folder: Path) -> bytes:
    """Return the encoded listing of the base model in a folder; reads all of its files."""
    return encode(listed(file, file.name) for file in covered(folder))


def listing_hash(folder: Path) -> str:
    """Return the hash of a model's listing in hex, as a manifest has it; "" if it cannot be listed."""
    try:
        return hash_listing(list_model(folder)).hex()
    except RemoteProtocolError:  # a shard with an odd name, or more terabytes than a listing holds
        return ""


def require_safe(listing: Listing) -> None:
    """Raise RemoteProtocolError for a listing with a file that no base model needs, or none that large (SPEC
    B5)."""
    for file in listing.files:
        if file.name.endswith(SAFETENSORS):
            continue
        if file.name not in SAFE:
            raise RemoteProtocolError("B5", f"{file.name} is not a file of a base model")
        if file.size > most_bytes(file.name):
            raise RemoteProtocolError("B5", f"{file.name} is larger than that of any base model")


def read_piece(folder: Path, piece: Piece, offset: int, length: int) -> bytes:
    """Return at most `length` bytes of a piece from `offset` in it on. Raises OSError."""
    with (folder / piece.name).open("rb") as file:
        return os.pread(file.fileno(), max(0, min(length, piece.size - offset)), piece.offset + offset)


def write_piece(folder: Path, piece: Piece, data: bytes) -> None:
    """Write a piece to its place. Raises OSError."""
    descriptor = os.open(folder / piece.name, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, piece.offset)
    finally:
        os.close(descriptor)


def missing(folder: Path, listing: Listing) -> list[int]:
    """Return the numbers (SPEC B2) of the pieces that this folder lacks; reads and hashes what is there.

    Nothing else is remembered of an earlier attempt: the files cannot be wrong about themselves.
    """
    lacking = []
    for number, piece in enumerate(listing.pieces(), start=1):
        file = folder / piece.name
        there = file.is_file() and file.stat().st_size >= piece.offset + piece.size
        if not there or hash_piece(read_piece(folder, piece, 0, piece.size)) != piece.hash:
            lacking.append(number)
    return lacking
