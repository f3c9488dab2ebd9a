"""Points at which the kept updates of feeds begin once a checkpoint stands for those before (SPEC O14).

Pure values. Which checkpoints are usable follows from the decisions (`run_state`); this module says what one
of them is about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from sfprotocol.messages import Feed


class Base(NamedTuple):
    """The step of a feed at which its kept updates begin, and what it takes to continue there."""

    feed: Feed
    step: int
    """Number of updates that come before; one at least."""
    chain: bytes
    """Chain hash after them, 32 bytes."""
    epoch: int
    """Label of the last of them."""
    labelled: int
    """Number of updates at their end that have this label: the quota counts them (SPEC O6)."""


def listing(feeds: bytes, cores: bytes) -> bytes:
    """Return the name by which peers give the state of the checkpoint with these digests (SPEC O15), 32
    bytes."""
    return hashlib.blake2b(feeds + cores, digest_size=32, person=b"sfnode-cp-state").digest()


def feeds_digest(run_id: bytes, bases: Iterable[tuple[int, Base]]) -> bytes:
    """Return the digest of these feeds as a Checkpoint has it (SPEC O14): of (number, base) of every feed, in
    the order of numbers; 32 bytes."""
    records = (
        number.to_bytes(4, "big")
        + base.step.to_bytes(8, "big")
        + base.chain
        + base.epoch.to_bytes(4, "big")
        + base.labelled.to_bytes(4, "big")
        for number, base in bases
    )
    return hashlib.blake2b(run_id + b"".join(records), digest_size=32, person=b"sfnode-feeds").digest()
