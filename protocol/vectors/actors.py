"""The run of the vectors, and the origins in it: sound ones, and keys that nobody may have."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
