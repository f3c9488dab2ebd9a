"""The vectors of shared files: listings and hashes of parts."""

from __future__ import annotations

from typing import Any

from sfprotocol import model_listing

FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(model_listing.PIECE) + bytes(range(256)) * 4096 + b"the last piece",
}
"""The second file has three pieces: zeros, repeated bytes 0 to 255, and a short rest."""


ROWS = b"text\tlabel\na fine day\t1\n"
"""A file of data (B9)."""


def vectors() -> dict[str, Any]:
    files = [_listed(name, content) for name, content in FILES.items()]
    encoded = model_listing.encode(files)
    pieces = [
        {"name": piece.name, "offset": piece.offset, "size": piece.size, "hash": piece.hash.hex()}
        for piece in model_listing.decode(encoded).pieces()
    ]
    rows = model_listing.encode([_listed("data", ROWS)])
    return {
        "listing": encoded.hex(),
        "hash": model_listing.hash_listing(encoded).hex(),
        "parts": pieces,
        "data": {"file": ROWS.decode(), "listing": rows.hex(), "digest": model_listing.hash_data(rows).hex()},
    }


def _listed(name: str, content: bytes) -> model_listing.ListedFile:
    cuts = range(0, len(content), model_listing.PIECE)
    hashes = b"".join(model_listing.hash_piece(content[cut : cut + model_listing.PIECE]) for cut in cuts)
    return model_listing.ListedFile(name, len(content), hashes)
