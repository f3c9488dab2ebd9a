"""Files that others may have, piece by piece, and the map that says which pieces are here (SPEC B3).

Knows pieces and files; does not know who asks, nor how files come here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sfnode.models.files import read_piece
from sfprotocol.model_listing import Piece, decode


def map_bytes(pieces: int) -> int:
    """Return the size, in bytes, of the map of `pieces` pieces, which has one bit for each."""
    return -(-pieces // 8)


def has_piece(held: bytes | bytearray, part: int) -> bool:
    """Return whether a map marks part `part` as stored. An empty map marks none."""
    byte, bit = divmod(part - 1, 8)
    return byte < len(held) and bool(held[byte] & 128 >> bit)


def add_piece(held: bytearray, part: int) -> None:
    """Mark part `part` as stored in a map."""
    byte, bit = divmod(part - 1, 8)
    held[byte] |= 128 >> bit


class Listed(NamedTuple):
    """Files that others may have, piece by piece."""

    listing: bytes
    """The encoded listing of the files."""
    pieces: list[Piece]
    """Pieces of the files, with the names that the files have in `folder`."""
    folder: Path
    held: bytearray | None = None
    """Map of the pieces that are stored here while the files are downloaded; None if all are stored."""

    def size(self, part: int) -> int:
        """Return the bytes of a part; 0 for a part that is not here."""
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
    """Return the `Listed` of a single file, whose name on this disk may differ from its name in the
    listing."""
    pieces = [piece._replace(name=file.name) for piece in decode(listing).pieces()]
    return Listed(listing, pieces, file.parent)
