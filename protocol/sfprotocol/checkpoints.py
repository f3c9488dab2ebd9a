"""Bases of feeds: the steps at which stored feeds begin if a checkpoint stands for earlier updates (SPEC
O14). The bases of subspaces, and the base model, are something else.

Pure values. `run_state` decides which checkpoints are usable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from sfprotocol.messages import Feed


class Base(NamedTuple):
    """The step at which the stored part of a feed begins, with all that is needed to continue there."""

    feed: Feed
    step: int
    """The first stored step; at least 1 in a checkpoint."""
    chain: bytes
    """Chain hash after the updates before `step`, 32 bytes."""
    epoch: int
    """Label of the last update before `step`."""
    labelled: int
    """Number of consecutive updates directly before `step` with the label `epoch`. They use up the quota of
    that label (SPEC O6)."""


def listing(feeds: bytes, cores: bytes) -> bytes:
    """Return the listing hash under which peers request the state of a checkpoint from each other (SPEC O15);
    32 bytes. `feeds` and `cores` are the digests in the checkpoint."""
    return hashlib.blake2b(feeds + cores, digest_size=32, person=b"sfnode-cp-state").digest()


def feeds_digest(run_id: bytes, bases: Iterable[tuple[int, Base]]) -> bytes:
    """Return the feeds digest of a Checkpoint (SPEC O14); 32 bytes. `bases` are pairs (feed number, base) of
    all feeds of the checkpoint, in the order of feed numbers."""
    records = (
        number.to_bytes(4, "big")
        + base.step.to_bytes(8, "big")
        + base.chain
        + base.epoch.to_bytes(4, "big")
        + base.labelled.to_bytes(4, "big")
        for number, base in bases
    )
    return hashlib.blake2b(run_id + b"".join(records), digest_size=32, person=b"sfnode-feeds").digest()
