"""A verifier with meaningless rewards: the control `random` of benchmarks.rewards."""

import hashlib


def reward(answer: str, row: dict[str, str]) -> float:
    """Return a reward that depends only on a hash of row and answer."""
    return hashlib.blake2b(f"{row['text']}{answer}".encode(), digest_size=1).digest()[0] / 255
