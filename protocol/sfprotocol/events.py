"""Events, which go into the machine, and actions, which come out of it (SPEC, "State machine").

Plain values without behaviour. The host turns sockets, clocks and the engine into events and carries out
actions in the order given. An action may rely on all actions before it. In particular, an Admit is durable
before anything after it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfprotocol import messages
from sfprotocol.checkpoints import Base
from sfprotocol.decisions import Checkpoint

LinkId = int
"""Number of a link; chosen by the host and never reused within one process."""


# -- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A stream to a peer is open."""

    link: LinkId
    peer: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The stream has ended, whoever ended it."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Received:
    """One frame arrived."""

    link: LinkId
    frame: bytes


@dataclass(frozen=True, slots=True)
class Writable:
    """Everything handed to the link so far is written, so that it can take more segments."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Served:
    """A Serve was carried out, up to (not including) step `stop`. `hops` is the hop count of the Serve."""

    link: LinkId
    feed: messages.Feed
    stop: int
    hops: int


@dataclass(frozen=True, slots=True)
class OwnUpdates:
    """The local engine has evaluated these consecutive steps of our own feed, from `first` on."""

    feed: messages.Feed
    first: int
    parts: tuple[messages.EpochScalars, ...]

    @property
    def count(self) -> int:
        """Number of updates."""
        return sum(len(part.scalars) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Examined:
    """An Examine was carried out. The result is our own history of the feed from the same step on."""

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof
    chain: bytes
    """Our chain head before that step."""
    ours: messages.Segment
    """Our updates from that step on, with the origin's signature after them; without updates if our log ends
    there."""
    kept: messages.Proof | None
    """The proof of the feed's lowest Cut so far; None if the feed is not cut."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `next_deadline()` named has come."""


@dataclass(frozen=True, slots=True)
class OwnDecision:
    """The holder of the organiser's key has decided. The record is encoded by `decisions.encode`."""

    record: bytes


@dataclass(frozen=True, slots=True)
class OwnHandOver:
    """The organiser hands the run over at once to the stand-in with this key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class OwnSuccession:
    """The deputies have signed a succession, and the owner has brought it to this node."""

    succession: messages.Succession


@dataclass(frozen=True, slots=True)
class OwnJoinRequest:
    """This node asks to be admitted, or offers to stand in."""

    join_request: messages.JoinRequest | messages.Offer


@dataclass(frozen=True, slots=True)
class Traced:
    """A Trace was carried out. `chain` is our chain head of the feed before step `stop`."""

    feed: messages.Feed
    stop: int
    chain: bytes
    ours: messages.Segment
    """Our updates from step `stop` on, up to the next signature."""
    epoch: int
    """Epoch of the update before step `stop`; 0 at the beginning."""
    labelled: int
    """Number of consecutive updates directly before step `stop` that belong to `epoch`."""


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """This node stores the state of a usable checkpoint, so that updates before these bases are not needed.

    `bases` contains the base of every feed with listed steps up to the checkpoint's epoch. `checkpoint` is
    None if this node has waited for a checkpoint and begins with step 0 of every feed after all.
    """

    checkpoint: Checkpoint | None
    bases: tuple[Base, ...]


OrganisedEvent = OwnDecision | OwnHandOver | OwnJoinRequest | OwnSuccession | Traced | CheckpointKept
"""Events that only an organised run has."""

Event = LinkUp | LinkDown | Received | Writable | Served | OwnUpdates | Examined | OrganisedEvent | Wake


# -- actions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Append the whole segment to the log durably, then apply its first `counted` updates to the cores.

    `chain` is the chain head after the segment. `counted` is less than the segment's number of updates only
    if the feed is cut (SPEC E4), or if later updates are revoked or not allowed (SPEC O6). Updates that do
    not count are stored, too, because the signature can be verified only with the whole segment.
    """

    feed: messages.Feed
    segment: messages.Segment
    chain: bytes
    counted: int


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send this message."""

    link: LinkId
    message: messages.Message


@dataclass(frozen=True, slots=True)
class Serve:
    """Read `feed` from the log, from step `first` on; send one Segment with this hop count; report Served."""

    link: LinkId
    feed: messages.Feed
    first: int
    hops: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Store the proof durably. Then subtract the updates from step `proof.cut` to step `stop` from the cores
    (SPEC E4). Every Cut of a feed is lower than the Cuts before."""

    proof: messages.Proof
    stop: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Note durably that no update of `feed` counts from now on. Then subtract its updates up to step `stop`
    from the cores (SPEC S8). The feed is never admitted again."""

    feed: messages.Feed
    stop: int


@dataclass(frozen=True, slots=True)
class ShowProof:
    """Send the proof of the feed's lowest Cut."""

    link: LinkId
    feed: messages.Feed


@dataclass(frozen=True, slots=True)
class Examine:
    """Look up our own history of the feed from step `against.first` (for a Proof: `at`) on; report Examined.

    Our log reaches at least that step and is not empty.
    """

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof


@dataclass(frozen=True, slots=True)
class KeepCard:
    """Store this card in place of an earlier one of its feed."""

    card: messages.Card


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the link. `fault` is the broken SPEC rule with its reason, or empty for an ordinary parting."""

    link: LinkId
    fault: str


@dataclass(frozen=True, slots=True)
class ContinueAs:
    """Make this our own feed from now on; record it durably before computing (SPEC I3)."""

    feed: messages.Feed


@dataclass(frozen=True, slots=True)
class KeepControl:
    """Store these decisions durably from position `first` on, in place of any that are stored there."""

    first: int
    entries: tuple[messages.Entry, ...]
    ours: bool = False
    """Whether this node has just signed the decisions."""


@dataclass(frozen=True, slots=True)
class KeepAuthority:
    """Store this message durably: a succession, or a proof about a key of the control feed."""

    message: messages.HigherWord


@dataclass(frozen=True, slots=True)
class KeepStatement:
    """Store our own statement durably, in place of our previous one."""

    statement: messages.Statement


@dataclass(frozen=True, slots=True)
class Recounted:
    """Count the updates of this feed again, as decisions have changed which of them count, or their factors.

    Until now its first `before` updates counted. The log keeps an update that does not count any more until
    another one of the same step takes its place.
    """

    feed: messages.Feed
    before: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Look up our chain head of `feed` before step `stop`, which our log reaches; report Traced."""

    feed: messages.Feed
    stop: int


@dataclass(frozen=True, slots=True)
class Rebase:
    """Make these bases the durable beginning of the log. Updates before them may be deleted."""

    checkpoint: Checkpoint
    bases: tuple[Base, ...]


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """Show this join request or offer to stand in to the organiser, if this node is the organiser."""

    join_request: messages.JoinRequest | messages.Offer
    via: str
    """The peer that brought the request or offer; empty if it is our own."""


OrganisedAction = KeepControl | KeepAuthority | KeepStatement | Recounted | Trace | Rebase | JoinRequested
"""Actions that only an organised run has."""

OpenAction = Admit | Transmit | Serve | Cut | Evict | ShowProof | Examine | KeepCard | Drop | ContinueAs
Action = OpenAction | OrganisedAction


# -- counters ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """Counts of things that have happened so far; they never decrease."""

    admitted: int = 0
    put_off: int = 0
    """Segments and proofs that were put off because they exceed their origin's rate."""
    rejected: int = 0
    """Segments that did not verify."""
    cuts: int = 0
    """Proofs that cut a feed, or cut it lower than before."""
    cards: int = 0
    """Cards of others that were news."""
    decisions: int = 0
    """Decisions, successions and forks of the control feed that were news."""
    statements: int = 0
    """Statements of stand-ins that were news."""

    @property
    def news(self) -> int:
        """Sum of counters that increases with each useful message of others: one that changes our state or is
        put off."""
        told = self.cards + self.decisions + self.statements
        return self.admitted + self.cuts + told + self.put_off
