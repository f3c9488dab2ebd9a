"""Feeds of virtual clients: updates that were made, and the signed segments that they are published in.

Keys, seeds, chain hashes, signatures and encodings are those of the protocol. This module knows neither
models nor who has received what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from sfprotocol import segments, wire_codec
from sfprotocol.messages import EpochScalars, Feed, RunParameters, Segment
from sfprotocol.seeds import feed_key, update_seeds
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.signing import extend, genesis, head_message

SIGNATURE = 64
"""Bytes of a signature."""


class ClientFeed:
    """The feed of one virtual client."""

    def __init__(self, run: RunParameters, key: Ed25519PrivateKey, segment_updates: int = 0) -> None:
        """Begin an empty feed. With `segment_updates` every segment has so many, but for the last one; else
        it has all that was made since the last."""
        self.feed = Feed(key.public_key().public_bytes_raw(), 0)
        self.key = feed_key(run.run_id, *self.feed)
        self.labels: list[int] = []
        """Epoch of each update."""
        self.scalars: list[int] = []
        self.segments: list[Segment] = []
        self._run = run
        self._sign = key.sign
        self._chain = genesis(run.run_id, self.feed)
        self._each = segment_updates
        self._from_log = lru_cache(maxsize=64)(self._joined)

    @property
    def made(self) -> int:
        """Number of updates."""
        return len(self.scalars)

    @property
    def published(self) -> int:
        """Number of updates in segments: those that others can have."""
        return self.segments[-1].stop if self.segments else 0

    def seeds(self, count: int) -> list[int]:
        """Return the seeds of the next updates."""
        found: list[int] = update_seeds(self.key, self.made, count).tolist()
        return found

    def add(self, label: int, scalar: int) -> None:
        """Add an update that was made."""
        self.labels.append(label)
        self.scalars.append(scalar)

    def publish(self, *, everything: bool) -> None:
        """Sign what is due; `everything` also what does not fill a segment."""
        while waiting := self.made - self.published:
            count = min(self._each or waiting, waiting, MAX_SEGMENT_UPDATES)
            if self._each and count < self._each and not everything:
                return
            self._add_segment(self.published + count)

    def _add_segment(self, stop: int, signature: bytes = b"") -> None:
        first = self.published
        parts = self._parts(first, stop)
        self._chain = extend(self._chain, parts)
        message = head_message(self._run.run_id, self.feed, stop, self._chain)
        self.segments.append(Segment(self.key, first, parts, signature or self._sign(message)))

    def _parts(self, first: int, stop: int) -> tuple[EpochScalars, ...]:
        told = zip(self.labels[first:stop], self.scalars[first:stop], strict=True)
        return tuple(
            EpochScalars(label, tuple(scalar for _, scalar in group))
            for label, group in groupby(told, itemgetter(0))
        )

    def size(self, first: int, stop: int) -> int:
        """Return the bytes in which updates `first .. stop - 1` travel, as somebody sends them who has the
        segments that end with `stop`."""
        return self._from_log(first, stop)

    def _joined(self, first: int, stop: int) -> int:
        return sum(len(wire_codec.encode(one, *self._run.form)) for one in self.between(first, stop))

    def between(self, first: int, stop: int) -> Iterator[Segment]:
        """Yield what is sent to somebody who has `first` updates and is to have `stop`."""
        while first < stop:
            place = next(n for n in reversed(range(len(self.segments))) if self.segments[n].first <= first)
            held = (one for one in self.segments[place:] if one.stop <= stop)
            yield (joined := segments.join(held, first, MAX_SEGMENT_UPDATES))
            first = joined.stop

    # -- restarts ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Return all that `restore` needs."""
        signatures = b"".join(one.signature for one in self.segments)
        return {
            "labels": torch.tensor(self.labels, dtype=torch.int64),
            "scalars": torch.tensor(self.scalars, dtype=torch.int64),
            "stops": torch.tensor([one.stop for one in self.segments], dtype=torch.int64),
            "signatures": torch.frombuffer(bytearray(signatures or b"-"), dtype=torch.uint8),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` has returned; the feed is empty."""
        self.labels, self.scalars = state["labels"].tolist(), state["scalars"].tolist()
        signatures = state["signatures"].numpy().tobytes()
        for number, stop in enumerate(state["stops"].tolist()):
            self._add_segment(stop, signatures[SIGNATURE * number : SIGNATURE * (number + 1)])
