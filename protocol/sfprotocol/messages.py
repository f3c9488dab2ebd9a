"""Messages and their parts, as plain immutable values; nodes send them to each other, and keep some of them.

`wire_codec` encodes messages and checks the ranges of their fields, `signing` has the signatures, and
`machine` acts on messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sfprotocol.decisions import Part
from sfprotocol.fields import Values

ELECTED_TERMS = 1 << 20
"""Number of terms from one succession to the next in runs in which stand-ins can elect organisers (SPEC O4).
It suffices for an election every minute for two years."""

PROTOCOL_VERSION = 4
"""The newest version of the protocol (SPEC V1). Each run uses one version. Peers with different versions send
each other a Goodbye and close the link."""

OLDEST_VERSION = 3
"""The oldest version of the protocol whose runs a node can take part in."""

MAX_UPDATE_BYTES = 16 * 1024
"""Maximum size of one update of a first-order run, in bytes (SPEC U11)."""

MAX_SIGNED_BYTES = 24 * 1024
"""Maximum size of the updates between two signatures of a first-order run, in bytes (SPEC S4). A fork proof,
which has two such branches, is then far smaller than the largest frame, and a circuit relay can forward
it."""

MAX_SEGMENT_UPDATES = 4096
"""Maximum number of updates in one Segment (SPEC S4): 8 KiB of scalars. Even if each update has its own epoch
and therefore takes 10 bytes, two segments together stay below MAX_FRAME. So every segment fits a frame, and
so does every fork proof, whose two branches are as large as two segments at most."""


class Form(NamedTuple):
    """The form in which updates travel in a run (SPEC C6)."""

    scalar_bytes: int = 2
    """Bytes of a scalar: 1 or 2."""
    cells: int = 0
    """Number of scalars of an update in a first-order run; 0 in a zeroth-order run, where an update has one
    scalar."""

    @property
    def width(self) -> int:
        """Size of the scalars of one update, in bytes."""
        return self.scalar_bytes * (self.cells or 1)

    @property
    def segment_updates(self) -> int:
        """Maximum number of updates in one Segment (SPEC S4)."""
        return max(1, MAX_SIGNED_BYTES // self.width) if self.cells else MAX_SEGMENT_UPDATES


class Authority(NamedTuple):
    """The keys that may sign decisions and successions of a run, according to its manifest (SPEC O1)."""

    run_id: bytes
    organiser: bytes
    deputies: tuple[bytes, ...]
    votes: int
    """Number of deputies that must sign a succession: more than half of the deputies."""
    terms: int = 1
    """Number of terms from one succession to the next; 1 in runs of version 3, which have no elections."""


@dataclass(frozen=True, slots=True)
class RunParameters:
    """The part of the manifest that the protocol must know (SPEC M4)."""

    run_id: bytes
    """The hash of the manifest, 32 bytes."""
    epoch_updates: int
    update_budget: int
    scalar_bytes: int
    """Bytes of a scalar: 1 or 2."""
    scalar_limit: int
    """Largest magnitude of a scalar."""
    organised: Authority | None = None
    """The keys whose decisions say which updates count; None in an open run."""
    rate: int = 0
    """Rate of updates in an organised run until a Seal sets another, in units of 2^-32."""
    subspace_epochs: int = 1
    """Number of epochs that share one subspace; 1 in an open run."""
    bases: bytes = b""
    """Digest of the published bases with which the run begins, 32 bytes; empty if its bases are random."""
    quota: int = 0
    """Maximum number of updates of one feed of an open run; 0 if only the budget bounds it."""
    work_bits: int = 0
    """Number of leading zero bits that the proof-of-work hash of a feed of an open run must have."""
    last_subspace: int = (1 << 32) - 1
    """The last subspace. All later epochs use it, too, so that the size of a run's cores is bounded (SPEC
    M9)."""
    version: int = OLDEST_VERSION
    cells: int = 0
    """Number of scalars of an update of a first-order run; 0 in a zeroth-order run (SPEC U11)."""
    norm_limit: int = 0
    """Maximum norm of an update of a first-order run until a Seal changes it; 0 in a zeroth-order run."""

    @property
    def form(self) -> Form:
        """The form in which updates travel."""
        return Form(self.scalar_bytes, self.cells)

    @property
    def last_epoch(self) -> int:
        """The epoch in which the update budget of an open run is used up."""
        return -(-self.update_budget // self.epoch_updates) - 1

    @property
    def longest_feed(self) -> int:
        """Maximum number of updates of one feed of an open run (SPEC U6)."""
        return min(self.quota or self.update_budget, self.update_budget)

    def epoch_of(self, known: int) -> int:
        """Return the epoch of a new update of a node that knows `known` updates (SPEC U5)."""
        return min(known // self.epoch_updates, self.last_epoch)

    def subspace_of(self, epoch: int) -> int:
        """Return the subspace of updates with this label (SPEC O8)."""
        return min(epoch // self.subspace_epochs, self.last_subspace)


class Feed(NamedTuple):
    """The name of one feed. Names sort by (origin, incarnation). This is the order of feeds in digests and
    messages."""

    origin: bytes
    """Ed25519 public key, 32 bytes."""
    incarnation: int


class EpochScalars(NamedTuple):
    """The scalars of consecutive updates that belong to one epoch; one item of `scalars` for each update."""

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
    """Consecutive updates of one feed, with the origin's signature over the chain head after the last update.

    The feed is named by its 64-bit key only; the receiver has learnt the full name from a Summary. Two
    consecutive segments can be joined by dropping the first signature: the second signature is over a chain
    head that commits to all earlier updates (SPEC S6).
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
        """The step after the last update."""
        return self.first + self.count


class Position(NamedTuple):
    """A position in a feed: `next` is the first step that the sender lacks."""

    feed: Feed
    next: int


class Claim(NamedTuple):
    """A position in a feed, with a tag of the history before it. Equal positions with different tags show a
    fork, or a cut that one side does not know (SPEC A8)."""

    feed: Feed
    next: int
    tag: bytes
    """4 bytes, see SPEC D4."""


class Ahead(NamedTuple):
    """A position in a feed whose name the receiver knows (SPEC FL9)."""

    feed_key: int
    next: int


class Branch(NamedTuple):
    """One of two histories of a feed: its updates from some step on, possibly none, with the origin's
    signature after them."""

    parts: tuple[EpochScalars, ...]
    signature: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """The sender's state digest, with entries for all its feeds (a full Summary, SPEC A1), for none (SPEC
    A2), or for feeds whose names the receiver must learn (SPEC A3).

    If `more` is not set, the messages sent on this link so far show everything the sender has. An entry with
    `next` 0 claims no update and only teaches the feed's name.
    """

    more: bool
    known: int
    digest: bytes
    entries: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """A request for all updates from these positions on (SPEC A4)."""

    entries: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Have:
    """An announcement of updates that the sender has and does not push (SPEC FL9)."""

    entries: tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """A request to announce updates of these feeds instead of pushing them, as other links bring these
    updates sooner (SPEC FL8)."""

    feed_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """A fork proof: an origin has signed two histories of one feed (SPEC E1). Nothing else need be known of
    the feed to check the proof.

    Both branches begin at step `at`. If their chain heads before this step are equal, the histories differ in
    step `at`. If these chain heads differ, the histories differ in an unknown earlier step.
    """

    feed: Feed
    at: int
    chains: tuple[bytes, bytes]
    branches: tuple[Branch, Branch]

    @property
    def cut(self) -> int:
        """The first step that does not count: `at`, or 0 if the first step in which the two histories differ
        is unknown."""
        return self.at if self.chains[0] == self.chains[1] else 0


@dataclass(frozen=True, slots=True)
class Card:
    """The name and the team that the origin of a feed gives itself (SPEC K1)."""

    feed: Feed
    step: int
    """Number of updates in the feed when the card was signed. Of two cards of one feed, the card with the
    larger `step` is used."""
    name: str
    team: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A request for the manifest by a node that does not know the run yet (SPEC L6)."""


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
    """0 for the listing itself; 1, 2, ... for the pieces in the order of the listing."""
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PartReply:
    """The answer to a PartRequest. Empty `data` means "not now", and size 0 means that the sender does not
    have the part (SPEC B3)."""

    size: int
    """Bytes of the whole part."""
    data: bytes


class Entry(NamedTuple):
    """One signed decision, as it is stored and sent."""

    term: int
    record: bytes
    """The decision, as `decisions.encode` encodes it."""
    signature: bytes
    """Signature with the key of the term, over `control_feed.decision_message`."""


class Vote(NamedTuple):
    """The signature of one deputy over `control_feed.succession_message`. `deputy` is the index of the deputy
    in the manifest."""

    deputy: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Succession:
    """The deputies' decision that another key signs the control feed from a position on."""

    term: int
    kept: int
    """Number of decisions that stay valid."""
    chain: bytes
    """The chain hash after the kept decisions."""
    key: bytes
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class ControlFork:
    """Two chain hashes that the key of one term has signed for the same position (SPEC O4)."""

    term: int
    stop: int
    """Number of decisions that each of the two chain hashes covers."""
    chains: tuple[bytes, bytes]
    signatures: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ControlHead:
    """The end of the sender's control feed (SPEC O12)."""

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
    """A newcomer's request to be admitted (SPEC O13): its key, with a proof of work or an invitation."""

    origin: bytes
    nonce: int
    """The number that is the proof of work; 0 without one."""
    invitation: int
    """1 + number of the invitation; 0 without one."""
    voucher: bytes
    """The signature over the origin with the key of the invitation; empty without an invitation."""
    signature: bytes
    """The origin's signature over `join_requests.join_request_message`."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A member's offer to become a stand-in (SPEC O21), with the key that the member would use in this
    role."""

    origin: bytes
    key: bytes
    signatures: tuple[bytes, bytes]
    """Signatures with the key of the origin and with `key`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A stand-in's signed statement of its state. Of two statements with the same `key`, the one with the
    higher `number` counts (SPEC O22)."""

    key: bytes
    number: int
    term: int
    """The term in which the stand-in takes part."""
    voted: int
    """The latest term for which the stand-in has voted; 0 if it has never voted."""
    candidate: bytes
    """The key for which the stand-in has voted in the term `voted`; empty if there is none."""
    ballot: bytes
    """The stand-in's signature over `control_feed.election_message` for the candidate; empty without a
    candidate."""
    decided: int
    """Number of decisions in the stand-in's control feed, which has only decided ones: more than half of the
    stand-ins hold them."""
    stop: int
    """Number of all decisions that the stand-in holds: the decided ones, and undecided ones after them."""
    last: int
    """Term of the last decision that the stand-in holds."""
    chain: bytes
    """The chain hash after all decisions that the stand-in holds."""
    heard: int
    """The `number` of the organiser's latest statement that the stand-in has heard. In the organiser's own
    statements, it is their own `number`."""
    silent: bool
    """Whether the stand-in has heard no statement of an organiser for too long."""
    entries: tuple[Entry, ...]
    """The undecided decisions, which follow the first `decided` decisions. Only an organiser or a candidate
    sends them."""
    signature: bytes
    """Signature by the key, over `control_feed.statement_message`."""


@dataclass(frozen=True, slots=True)
class DoubleVote:
    """Two statements in which one stand-in elects two keys for one term (SPEC O24)."""

    statements: tuple[Statement, Statement]
    """Both statements, without their entries."""
    hashes: tuple[bytes, bytes]
    """The hashes of the entries that both statements had. The signatures of the statements cover these
    hashes."""


HigherWord = Succession | ControlFork | DoubleVote
"""A message that overrules decisions: it changes which key signs decisions, or proves that the statements of
a stand-in do not count."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A notice that the sender does not keep the steps listed by the Closes of epochs before `epoch` (SPEC
    O15)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Commitment:
    """A validator's promise of a Finding, as sent by sfnode before version 0.3; ignored (SPEC O18)."""

    epoch: int
    origin: bytes
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """A validator's measurements, as sent by sfnode before version 0.3; ignored (SPEC O18)."""

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
"""Requests and their answers. Each request has a stream of its own."""

OfDecisions = ControlHead | ControlWant | Control | HigherWord | Floor | JoinRequest | Offer | Statement
"""Additional messages of organised runs, on a link."""

Message = Flooded | Asked | OfDecisions | Commitment | Finding | Goodbye
