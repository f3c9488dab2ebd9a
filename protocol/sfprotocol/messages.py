"""The values that travel between nodes and that the machine keeps: plain, frozen, checked at the codec.

This module refuses to know how they are encoded (codec), signed (signing) or acted upon (machine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Scalar = int
"""A quantised directional derivative, in units of the manifest's scalar_delta."""


@dataclass(frozen=True, slots=True)
class RunParameters:
    """The part of the manifest that the protocol must know (SPEC M4)."""

    run_id: bytes
    """32 bytes."""
    epoch_updates: int
    update_budget: int
    scalar_bytes: int
    """1 or 2."""
    scalar_limit: int
    """Largest magnitude of a scalar."""

    @property
    def last_epoch(self) -> int:
        return -(-self.update_budget // self.epoch_updates) - 1

    def epoch_of(self, known: int) -> int:
        """The epoch of a new update of a node that knows `known` updates (SPEC U5)."""
        return min(known // self.epoch_updates, self.last_epoch)


class Feed(NamedTuple):
    """The name of one feed. Sorts by (origin, incarnation), the order of every digest."""

    origin: bytes
    """Ed25519 public key, 32 bytes."""
    incarnation: int


class Update(NamedTuple):
    """One two-point evaluation as everything above the wire sees it."""

    feed: Feed
    step: int
    seed: int
    scalar: Scalar
    epoch: int


class EpochScalars(NamedTuple):
    """Scalars of consecutive updates that belong to one epoch."""

    epoch: int
    scalars: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a link, both ways (SPEC L2)."""

    version: int
    run_id: bytes
    role: int
    """0 trainer, 1 relay."""
    known: int
    """How many updates the sender knows."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive updates of one feed, with the origin's signature over the chain head after the last.

    The feed is named by its 64-bit key only; the receiver has learnt the full name from a Summary. A segment
    may be joined with the next one of its feed by dropping the first signature, because the chain head that
    the second signs commits to everything before it (SPEC S6).
    """

    feed_key: int
    first: int
    parts: tuple[EpochScalars, ...]
    signature: bytes
    hops: int = 0

    @property
    def count(self) -> int:
        return sum(len(part.scalars) for part in self.parts)

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.first + self.count


class Position(NamedTuple):
    """How far somebody is in a feed: `next` is the first step they lack."""

    feed: Feed
    next: int


class Claim(NamedTuple):
    """A position, and a tag of what stands before it: equal positions with different tags are a fork, or a
    cut that one side has not heard of (SPEC A8)."""

    feed: Feed
    next: int
    tag: bytes
    """4 bytes, see SPEC D4."""


class Ahead(NamedTuple):
    """A position in a feed whose name the receiver knows (SPEC FL9)."""

    feed_key: int
    next: int


class Branch(NamedTuple):
    """One of two histories of a feed: updates from some step on, possibly none, and the origin's signature
    after them."""

    parts: tuple[EpochScalars, ...]
    signature: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """What the sender has, as far as it has changed since its last Summary on this link (SPEC A2).

    With `more` unset, the Summaries and Segments sent on this link up to here show everything the sender has.
    An entry with `next` 0 claims nothing and only teaches the feed's name (SPEC A3).
    """

    more: bool
    known: int
    digest: bytes
    entries: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Ask for everything from these positions on (SPEC A4)."""

    entries: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Have:
    """What the sender has and does not push, because the receiver has said that others do (SPEC FL9)."""

    entries: tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """The sender of this gets these feeds from elsewhere: announce them, do not push them (SPEC FL8)."""

    feed_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """An origin has signed two histories of one feed (SPEC E1). Anybody can check it, whatever they know.

    Both branches begin at step `at`. With equal chain heads there they part in their first update; with
    different ones they have parted somewhere before, and nobody has shown where.
    """

    feed: Feed
    at: int
    chains: tuple[bytes, bytes]
    branches: tuple[Branch, Branch]

    @property
    def cut(self) -> int:
        """The first step that does not count: `at`, or 0 where nobody can say what the two have in common."""
        return self.at if self.chains[0] == self.chains[1] else 0


@dataclass(frozen=True, slots=True)
class Card:
    """What the origin of a feed calls itself (SPEC K1)."""

    feed: Feed
    step: int
    """How many updates of the feed its origin had made by then; of two cards the later one counts."""
    name: str
    team: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """Asked by a node that does not know the run yet (SPEC L6)."""


@dataclass(frozen=True, slots=True)
class ManifestReply:
    """The canonical manifest (SPEC M2)."""

    manifest: bytes


@dataclass(frozen=True, slots=True)
class PartRequest:
    """Asked by a node that lacks the base model: `length` bytes of one part of it (SPEC B3)."""

    listing: bytes
    """The hash of the model's listing."""
    part: int
    """0 for the listing itself, from 1 on the pieces in its order."""
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PartReply:
    """Bytes of a part; none means not now, and size 0 that it is not to be had here (SPEC B3)."""

    size: int
    """Of the whole part."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Last message on a link (SPEC L5)."""

    reason: str


Message = (
    Hello
    | Segment
    | Summary
    | Want
    | Have
    | Prune
    | Proof
    | Card
    | ManifestRequest
    | ManifestReply
    | PartRequest
    | PartReply
    | Goodbye
)
