"""Proofs of work: a hash of run, origin and a number that is small (SPEC S7, O13).

In an organised run the number is a petition's nonce. In an open run it is a feed's incarnation, so that a
feed carries its proof in its name and nothing more is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

BITS = 256
"""Bits of the hash."""

_WORK = b"sfnode-work"
_ASK_EVERY = 4096
"""Hashes between two looks whether to go on: some milliseconds."""


def value(run_id: bytes, origin: bytes, number: int) -> int:
    """Return the hash as an integer: the smaller, the more work it took to find the number."""
    named = run_id + origin + number.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(named, digest_size=BITS // 8, person=_WORK).digest(), "big")


def bound(bits: int) -> int:
    """Return what a value must be below to have that many leading zero bits."""
    return 1 << (BITS - bits)


def solutions(
    run_id: bytes,
    origin: bytes,
    below: int,
    numbers: Iterable[int],
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Yield those of `numbers` whose value is below a bound, until `interrupted`."""
    begun = hashlib.blake2b(run_id + origin, digest_size=BITS // 8, person=_WORK)
    threshold = min(below, (1 << BITS) - 1).to_bytes(BITS // 8, "big")
    for tried, number in enumerate(numbers):
        if not tried % _ASK_EVERY and interrupted():
            return
        hasher = begun.copy()
        hasher.update(number.to_bytes(8, "big"))
        if hasher.digest() < threshold:
            yield number
