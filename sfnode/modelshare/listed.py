"""Files that this node offers to others piece by piece, and the map of the pieces that it has (SPEC B3).

This module knows pieces and files, but neither the peers that ask for them nor the source of the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sfnode.models.model_files import read_piece
from sfprotocol.model_listing import Piece, decode


def map_bytes(pieces: int) -> int:
    """Return the size, in bytes, of the map of `pieces` pieces. A map has one bit for each piece."""
    return -(-pieces // 8)


def has_piece(held: bytes | bytearray, part: int) -> bool:
    """Return whether a map marks part `part` as stored. An empty map marks no part."""
    byte, bit = divmod(part - 1, 8)
    return byte < len(held) and bool(held[byte] & 128 >> bit)


def add_piece(held: bytearray, part: int) -> None:
    """Mark part `part` as stored in a map."""
    byte, bit = divmod(part - 1, 8)
    held[byte] |= 128 >> bit


class Listed(NamedTuple):
    """The files of one listing, which this node offers to others piece by piece."""

    listing: bytes
    """The encoded listing of the files."""
    pieces: list[Piece]
    """Pieces of the files, with the names that the files have in `folder`."""
    folder: Path
    held: bytearray | None = None
    """Map of the pieces that are stored here while the files are downloaded; None if all are stored."""

    def size(self, part: int) -> int:
        """Return the size of a part, in bytes; 0 for a part that is not stored here. Part 0 is the listing;
        parts 1, 2, ... are the pieces; the part after the last piece is the map."""
        if part == 0:
            return len(self.listing)
        if part == len(self.pieces) + 1:
            return len(self.held or b"")
        here = part <= len(self.pieces) and (self.held is None or has_piece(self.held, part))
        return self.pieces[part - 1].size if here else 0

    def read(self, part: int, offset: int, length: int) -> bytes:
        """Return at most `length` bytes of a part from `offset` on. Raises OSError."""
        if 0 < part <= len(self.pieces):
            return read_piece(self.folder, self.pieces[part - 1], offset, length)
        whole = self.held or b"" if part else self.listing
        return bytes(whole[offset : offset + length])


def one_file(listing: bytes, file: Path) -> Listed:
    """Return the `Listed` of a listing with one file. The file's name on this disk may differ from its name
    in the listing."""
    pieces = [piece._replace(name=file.name) for piece in decode(listing).pieces()]
    return Listed(listing, pieces, file.parent)
