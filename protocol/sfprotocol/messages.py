"""Values that travel between nodes and that the machine keeps: plain, frozen, checked by the codec.

This module does not know how they are encoded (wire_codec), signed (signing) or acted upon (machine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sfprotocol.decisions import Part
from sfprotocol.fields import Values

ELECTED_TERMS = 1 << 20
"""Terms from one succession to the next where stand-ins elect (SPEC O4): one a minute for two years."""

PROTOCOL_VERSION = 4
"""The newest version of the protocol (SPEC V1). Each run has its own: peers with different versions part with
a Goodbye."""

OLDEST_VERSION = 3
"""The oldest version of runs in which a node takes part."""

MAX_UPDATE_BYTES = 16 * 1024
"""Bytes of one update of a first-order run at most (SPEC U11)."""

MAX_SIGNED_BYTES = 24 * 1024
"""Bytes of updates between two signatures of a first-order run at most: a proof of two branches is then far
below the largest frame, and below what a relay passes on at once (SPEC S4)."""

MAX_SEGMENT_UPDATES = 4096
"""Updates in one Segment (SPEC S4): 8 KiB of scalars. Even with an epoch of its own for each, 10 bytes with
the scalar, two segments stay below MAX_FRAME: what a node admits it can pass on, and prove a fork with."""


class Form(NamedTuple):
    """The form in which updates travel in a run (SPEC C6)."""

    scalar_bytes: int = 2
    """1 or 2."""
    cells: int = 0
    """Scalars of an update in a first-order run; 0: one, along a direction."""

    @property
    def width(self) -> int:
        """Bytes of an update."""
        return self.scalar_bytes * (self.cells or 1)

    @property
    def segment_updates(self) -> int:
        """Updates in one Segment at most (SPEC S4)."""
        return max(1, MAX_SIGNED_BYTES // self.width) if self.cells else MAX_SEGMENT_UPDATES


class Authority(NamedTuple):
    """Those whom the manifest trusts with a run (SPEC O1)."""

    run_id: bytes
    organiser: bytes
    deputies: tuple[bytes, ...]
    votes: int
    """Deputies that a succession needs, more than half of them."""
    terms: int = 1
    """Terms from one succession to the next: 1 in version 3, in which nobody is elected."""


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
    organised: Authority | None = None
    """Those whose decisions say what counts; None in an open run."""
    rate: int = 0
    """Rate of updates in an organised run until a seal says otherwise, in units of 2^-32."""
    subspace_epochs: int = 1
    """Epochs that share one subspace; 1 in an open run."""
    bases: bytes = b""
    """Digest of the published bases with which the run begins, 32 bytes; empty if its bases are random."""
    quota: int = 0
    """Updates that one feed of an open run may have in all; 0 if only the budget bounds them."""
    work_bits: int = 0
    """Leading zero bits of the proof of work that a feed of an open run needs."""
    last_subspace: int = (1 << 32) - 1
    """The subspace of all further epochs, so that the cores of a run are bounded (SPEC M9)."""
    version: int = OLDEST_VERSION
    cells: int = 0
    """Scalars of an update of a first-order run; 0 in a zeroth-order one (SPEC U11)."""
    norm_limit: int = 0
    """Largest root of an update's sum of squares until a seal says otherwise, in a first-order run."""

    @property
    def form(self) -> Form:
        """The form in which updates travel."""
        return Form(self.scalar_bytes, self.cells)

    @property
    def last_epoch(self) -> int:
        """The epoch in which the update budget is used up."""
        return -(-self.update_budget // self.epoch_updates) - 1

    @property
    def longest_feed(self) -> int:
        """The updates that one feed of an open run may have (SPEC U6)."""
        return min(self.quota or self.update_budget, self.update_budget)

    def epoch_of(self, known: int) -> int:
        """Return the epoch of a new update of a node that knows `known` updates (SPEC U5)."""
        return min(known // self.epoch_updates, self.last_epoch)

    def subspace_of(self, epoch: int) -> int:
        """Return the subspace of updates with this label (SPEC O8)."""
        return min(epoch // self.subspace_epochs, self.last_subspace)


class Feed(NamedTuple):
    """The name of one feed. Sorts by (origin, incarnation), the order of every digest."""

    origin: bytes
    """Ed25519 public key, 32 bytes."""
    incarnation: int


class EpochScalars(NamedTuple):
    """Values of consecutive updates that belong to one epoch."""

    epoch: int
    scalars: tuple[Values, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a link, in both directions (SPEC L2)."""

    version: int
    run_id: bytes
    role: int
    """0 trainer, 1 relay."""
    known: int
    """Number of updates that the sender knows."""


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
        """Number of updates."""
        return sum(len(part.scalars) for part in self.parts)

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.first + self.count


class Position(NamedTuple):
    """A position in a feed: `next` is the first step that somebody lacks."""

    feed: Feed
    next: int


class Claim(NamedTuple):
    """A position, and a tag of the history before it: equal positions with different tags are a fork, or a
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
    """The feeds that the sender has, as far as they have changed since its last Summary (SPEC A2).

    With `more` unset, the Summaries and Segments sent on this link up to here show everything the sender has.
    An entry with `next` 0 claims nothing and only teaches the feed's name (SPEC A3).
    """

    more: bool
    known: int
    digest: bytes
    entries: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """A request for everything from these positions on (SPEC A4)."""

    entries: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Have:
    """An announcement: what the sender has and does not push (SPEC FL9)."""

    entries: tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """A request to announce these feeds and not to push them: others bring them (SPEC FL8)."""

    feed_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """A fork proof: an origin has signed two histories of one feed (SPEC E1). It can be checked on its own.

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
    """The name and the team that the origin of a feed gives itself (SPEC K1)."""

    feed: Feed
    step: int
    """Number of updates of the feed that its origin had made by then; of two cards the later one counts."""
    name: str
    team: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A request for the manifest, by a node that does not know the run yet (SPEC L6)."""


@dataclass(frozen=True, slots=True)
class ManifestReply:
    """The canonical manifest (SPEC M2)."""

    manifest: bytes


@dataclass(frozen=True, slots=True)
class PartRequest:
    """A request for `length` bytes of one part of the base model (SPEC B3)."""

    listing: bytes
    """The hash of the model's listing."""
    part: int
    """0 for the listing itself, from 1 on the pieces in its order."""
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PartReply:
    """Bytes of a part; no bytes mean "not now", and size 0 means that the part is not here (SPEC B3)."""

    size: int
    """Bytes of the whole part."""
    data: bytes


class Entry(NamedTuple):
    """One decision as it is kept and sent."""

    term: int
    record: bytes
    """See `decisions.encode`."""
    signature: bytes
    """Signature by the key of the term, over `decision_message`."""


class Vote(NamedTuple):
    """The signature of one deputy, by its place in the manifest, over `succession_message`."""

    deputy: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Succession:
    """The deputies' decision that from a position on another key signs."""

    term: int
    kept: int
    """Number of decisions that stay."""
    chain: bytes
    """The chain hash after them."""
    key: bytes
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class ControlFork:
    """Two chain hashes that the key of one term has signed for the same position (SPEC O4)."""

    term: int
    stop: int
    """Number of decisions that either chain hash stands for."""
    chains: tuple[bytes, bytes]
    signatures: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ControlHead:
    """The extent to which the sender has the control feed (SPEC O12)."""

    term: int
    stop: int
    """Number of decisions."""
    chain: bytes


@dataclass(frozen=True, slots=True)
class ControlWant:
    """A request for the decisions from a position on."""

    first: int


@dataclass(frozen=True, slots=True)
class Control:
    """Consecutive decisions of the control feed."""

    first: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A newcomer's request to be admitted (SPEC O13): its key, and what speaks for it."""

    origin: bytes
    nonce: int
    """A proof of work; 0 if none is shown."""
    invitation: int
    """1 + number of the invitation; 0 if there is none."""
    voucher: bytes
    """The invitation key's signature of the origin; empty without an invitation."""
    signature: bytes
    """The origin's signature."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A member's word that it would stand in (SPEC O21), with the key that it has made for that."""

    origin: bytes
    key: bytes
    signatures: tuple[bytes, bytes]
    """Signatures by the origin and by the key."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The state of a stand-in: of two with one key the one with the higher number counts (SPEC O22)."""

    key: bytes
    number: int
    term: int
    """The term in which it takes part."""
    voted: int
    """The latest term for which it has elected somebody; 0 if none."""
    candidate: bytes
    """The key that it has elected then; empty if none."""
    ballot: bytes
    """Its signature over `control_feed.election_message` for the candidate; empty without one."""
    decided: int
    """Number of decisions that it has."""
    stop: int
    """The same with those that it holds and nobody has seen yet."""
    last: int
    """Term of the last of these."""
    chain: bytes
    """The chain hash after them."""
    heard: int
    """Number of the organiser's statement that it has heard last; its own if it organises."""
    silent: bool
    """Whether it has missed too many of these."""
    entries: tuple[Entry, ...]
    """Decisions after the first `decided`, from whoever organises or wants to."""
    signature: bytes
    """Signature by the key, over `control_feed.statement_message`."""


@dataclass(frozen=True, slots=True)
class DoubleVote:
    """Two statements with which one stand-in elects two keys for one term (SPEC O24)."""

    statements: tuple[Statement, Statement]
    """The two, without their entries."""
    hashes: tuple[bytes, bytes]
    """Hashes of their entries, as they were signed."""


HigherWord = Succession | ControlFork | DoubleVote
"""A word that stands above decisions: who signs them, and whose statements count no more."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The sender's word that it keeps nothing of what closes below an epoch have named (SPEC O15)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Commitment:
    """A promise of a validator of before 0.3; nobody heeds it, nor the finding that follows (SPEC O18)."""

    epoch: int
    origin: bytes
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """Figures that a validator of before 0.3 has measured (SPEC O18)."""

    epoch: int
    origin: bytes
    nonce: int
    rows: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last message on a link (SPEC L5)."""

    reason: str


Flooded = Hello | Segment | Summary | Want | Have | Prune | Proof | Card
"""Messages about feeds, on a link."""

Asked = ManifestRequest | ManifestReply | PartRequest | PartReply
"""A question and its answer, each on a stream of its own."""

OfDecisions = ControlHead | ControlWant | Control | HigherWord | Floor | JoinRequest | Offer | Statement
"""Messages that organised runs have besides, on a link."""

Message = Flooded | Asked | OfDecisions | Commitment | Finding | Goodbye
