"""Write protocol/vectors/*.json, the test vectors, from the reference implementation (SPEC.md describes
them).

    python -m tests.protocol.vectors.generate

The output is deterministic. Byte strings are hexadecimal, 64-bit integers are decimal strings (`plain`). Each
file has a module of the same name, and none imports sfnode.
"""

from __future__ import annotations

import json

from tests.protocol.vectors import (
    codec,
    first_order,
    flood,
    invitations,
    manifest,
    organised,
    seeds,
    sharing,
    signing,
    weights,
)
from tests.protocol.vectors.plain import FOLDER


def vectors() -> dict[str, str]:
    """Return the text of every file by its name."""
    files = {
        "seeds.json": seeds.vectors(),
        "weights.json": weights.vectors(),
        "manifest.json": manifest.vectors(),
        "signing.json": signing.vectors(),
        "codec.json": codec.vectors(),
        "flood.json": flood.conversations(),
        "sharing.json": sharing.vectors(),
        "invitations.json": invitations.vectors(),
        "organised.json": organised.vectors(),
        "first_order.json": first_order.vectors(),
    }
    return {name: json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in files.items()}


if __name__ == "__main__":
    for name, text in vectors().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
