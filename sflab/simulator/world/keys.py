"""Keys derived from the seed, and a cache of checked signatures.

A signature is the same at every node, so a network of a thousand nodes checks it once.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol.messages import Feed
from sfprotocol.signing import Verify, verifies

MAX_REMEMBERED = 200_000
"""Signatures in the cache: 40 MB."""


def signing_key(seed: int, name: str) -> Ed25519PrivateKey:
    """Return the key of the node called `name`, in the run of this seed."""
    secret = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=32, person=b"sfnode-sim").digest()
    return Ed25519PrivateKey.from_private_bytes(secret)


def origin_of(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def remembering() -> Verify:
    """Return `verifies` with a cache of its own; the oldest answer is dropped first."""
    known: dict[tuple[bytes, Feed, int, bytes, bytes], bool] = {}

    def verify(run_id: bytes, feed: Feed, stop: int, chain: bytes, signature: bytes) -> bool:
        question = (run_id, feed, stop, chain, signature)
        answer = known.get(question)
        if answer is None:
            if len(known) >= MAX_REMEMBERED:
                del known[next(iter(known))]
            answer = known[question] = verifies(*question)
        return answer

    return verify
