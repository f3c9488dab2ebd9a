"""Authors of real feeds: their segments carry genuine chain heads and signatures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.store.log import Record
from sfprotocol import seeds, signing
from sfprotocol.messages import EpochScalars, Feed, Segment

RUN_ID = bytes(range(32))

verifies = cache(signing.verifies)

Updates = list[tuple[int, int]]
"""Pairs (epoch, scalar) of consecutive updates."""


class Author:
    """Author of one feed, who remembers every update and every chain head."""

    def __init__(self, number: int = 1, incarnation: int = 0, run_id: bytes = RUN_ID) -> None:
        self.run_id = run_id
        self._key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
        self.feed = Feed(self._key.public_key().public_bytes_raw(), incarnation)
        self.key = seeds.feed_key(run_id, *self.feed)
        self.updates: Updates = []
        self.chains = [signing.genesis(run_id, self.feed)]
        self.boundaries: list[int] = []

    def write(self, scalars: Iterable[int], epoch: int = 0) -> Record:
        """Write the next segment of the feed, all of one epoch."""
        return self.write_parts([EpochScalars(epoch, tuple(scalars))])

    def write_parts(self, parts: Iterable[EpochScalars]) -> Record:
        parts, first = tuple(parts), len(self.updates)
        for epoch, scalars in parts:
            for scalar in scalars:
                self.updates.append((epoch, scalar))
                one = [EpochScalars(epoch, (scalar,))]
                self.chains.append(signing.extend(self.chains[-1], one))
        stop, head = len(self.updates), self.chains[-1]
        self.boundaries.append(stop)
        signature = self._key.sign(signing.head_message(self.run_id, self.feed, stop, head))
        return Record(self.feed, Segment(self.key, first, parts, signature), head)

    def assert_genuine(self, segment: Segment) -> None:
        """Assert that this author wrote `segment`, and that the signature at its end verifies."""
        assert segment.feed_key == self.key
        assert unpacked(segment.parts) == self.updates[segment.first : segment.stop]
        head = signing.extend(self.chains[segment.first], segment.parts)
        assert verifies(self.run_id, self.feed, segment.stop, head, segment.signature)


def unpacked(parts: Iterable[EpochScalars]) -> Updates:
    return [(part.epoch, scalar) for part in parts for scalar in part.scalars]


def scalar_of(step: int) -> int:
    """Return the scalar that authors in other processes write at `step`."""
    return step * 7919 % 4001 - 2000
