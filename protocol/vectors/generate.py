"""Write the test vectors beside this file from the reference implementation (SPEC.md says what they pin).

    python protocol/vectors/generate.py

Deterministic: the same code writes the same bytes. Byte strings are written in hexadecimal, 64-bit integers
as decimal strings (`plain`). Each file has a module beside this one. They know nothing of sfnode.
"""

from __future__ import annotations

import json
from pathlib import Path

import codec_vectors
import flood_vectors
import invitation_vectors
import manifest_vectors
import organised_vectors
import seed_vectors
import sharing_vectors
import signing_vectors
import weight_vectors

HERE = Path(__file__).parent


def vectors() -> dict[str, str]:
    """Return the text of every file by its name."""
    files = {
        "seeds.json": seed_vectors.vectors(),
        "weights.json": weight_vectors.vectors(),
        "manifest.json": manifest_vectors.vectors(),
        "signing.json": signing_vectors.vectors(),
        "codec.json": codec_vectors.vectors(),
        "flood.json": flood_vectors.conversations(),
        "sharing.json": sharing_vectors.vectors(),
        "invitations.json": invitation_vectors.vectors(),
        "organised.json": organised_vectors.vectors(),
    }
    return {name: json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in files.items()}


if __name__ == "__main__":
    for name, text in vectors().items():
        (HERE / name).write_text(text, encoding="utf-8")
