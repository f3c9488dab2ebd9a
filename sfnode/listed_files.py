"""Files as listings name them, with the hash of every piece (SPEC B1). Knows bytes, not what they mean."""

from __future__ import annotations

from pathlib import Path

from sfprotocol.model_listing import PIECE, ListedFile, hash_piece


def listed(file: Path, name: str) -> ListedFile:
    """Return what a listing says under this name of a file; reads and hashes it. Raises OSError."""
    hashes, size = bytearray(), 0
    with file.open("rb") as handle:
        while data := handle.read(PIECE):
            hashes += hash_piece(data)
            size += len(data)
    return ListedFile(name, size, bytes(hashes))
