"""JSON of protocol values, and the run and the origins that all vectors share.

A value with a type is an object with its name under "type". Bytes are hexadecimal, and 64-bit fields are
decimal strings. A feed on its own is two fields, "origin" and "incarnation"; elsewhere it is an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol import messages
from sfprotocol.decisions import RateFrom

FOLDER = Path(__file__).parents[3] / "protocol" / "vectors"
WIDE = frozenset({"feed_key", "known", "nonce", "number", "heard"})
"""Names of fields that have 64 bits."""


def plain(value: Any) -> Any:
    """Return the JSON of a message, event or action, or of a part of one."""
    match value:
        case bytes():
            return value.hex()
        case messages.Position(feed=feed, next=following):
            return {**plain(feed), "next": following}
        case messages.Claim(feed=feed, next=following, tag=tag):
            return {**plain(feed), "next": following, "tag": tag.hex()}
        case messages.Ahead(feed_key=key, next=following):
            return {"feed_key": str(key), "next": following}
        case (
            messages.Feed() | messages.EpochScalars() | messages.Branch() | messages.Entry() | messages.Vote()
        ):
            return {name: plain(item) for name, item in value._asdict().items()}
        case RateFrom(limit=0):
            return list(value[:2])
        case tuple():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {"type": name_of(type(value)), **_fields(value)}
    return value


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def load(name: str) -> Any:
    """Return the content of a file of vectors."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def name_of(kind: type) -> str:
    """Return the name of a message or decision in the vectors, where a JoinRequest is called Petition."""
    return "Petition" if kind is messages.JoinRequest else kind.__name__


def integers(values: Iterable[int]) -> list[str]:
    """Return 64-bit integers as decimal strings."""
    return [str(int(value)) for value in values]


def _fields(value: Any) -> dict[str, Any]:
    named = [field.name for field in fields(value)]
    if isinstance(value, messages.RunParameters) and not value.cells:
        named = [name for name in named if name not in ("version", "cells", "norm_limit")]
    if isinstance(value, messages.RunParameters) and value.organised is None:
        others = "organised", "rate", "subspace_epochs", "bases", "last_subspace"
        named = [name for name in named if name not in others]
    found = {name: plain(getattr(value, name)) for name in named}
    found = {name: str(item) if name in WIDE else item for name, item in found.items()}
    return {name: [str(key) for key in item] if name == "feed_keys" else item for name, item in found.items()}


# -- the run of the vectors, and the origins in it: sound ones, and keys that nobody may have --------------

RUN_ID = bytes(range(32))
SECRETS = (b"\x01" * 32, b"\x02" * 32)
"""Private keys of two origins."""


def origin(secret: bytes) -> bytes:
    """Return the public key."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def weak_origins() -> list[bytes]:
    """Return keys of small order, then encodings of y that are not below the prime (SPEC S5)."""
    prime = 2**255 - 19
    eight = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
    values = [0, 1, prime - 1, eight, prime - eight, eight + 2**255, prime, prime + 1, prime + 3, 2**255 - 1]
    return [value.to_bytes(32, "little") for value in values]
