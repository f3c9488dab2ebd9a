"""Events, which are the input of the machine, and actions, which are its output (SPEC, "State machine").

Plain values without behaviour. The host makes events from what sockets, clocks and the engine bring, and
carries out actions in the given order. An action may rely on all earlier actions. In particular, an Admit is
durable before any later message is sent.
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
    """A stream to a peer is open: the link is up."""

    link: LinkId
    peer: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The stream of a link has ended; either side may have ended it."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Received:
    """One frame has arrived on a link."""

    link: LinkId
    frame: bytes


@dataclass(frozen=True, slots=True)
class Writable:
    """Everything handed to the link so far is written. The link can take more segments."""

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
    """An Examine was carried out. The event has our own history of the feed, from the first step of `against`
    on."""

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof
    chain: bytes
    """Our chain head before the first step of `against`."""
    ours: messages.Segment
    """Our updates from the first step of `against` on, up to a signature; a segment without updates if our
    log ends there."""
    kept: messages.Proof | None
    """The proof that cuts the feed at the lowest step; None if no proof cuts the feed."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `next_deadline()` named has come."""


@dataclass(frozen=True, slots=True)
class OwnDecision:
    """The organiser has made a decision at this node, which has the organiser's key. `decisions.encode` has
    encoded the record."""

    record: bytes


@dataclass(frozen=True, slots=True)
class OwnHandOver:
    """The organiser, at this node, hands the run over to the stand-in with this key."""

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
    """Number of consecutive updates directly before step `stop` whose label is `epoch`."""


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """This node has stored the state of a usable checkpoint, so that updates before `bases` are not needed
    any more.

    `bases` contains the base of every feed with listed steps up to the checkpoint's epoch. `checkpoint` is
    None if this node has waited for a checkpoint in vain, and now begins every feed with step 0.
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
    if the other updates lie beyond a cut (SPEC E4), have a label for which the origin is revoked, or are not
    allowed (SPEC O6). These updates are stored, too, because the signature can be verified only with the
    whole segment.
    """

    feed: messages.Feed
    segment: messages.Segment
    chain: bytes
    counted: int


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send this message on the link."""

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
    """Store the proof durably. Then subtract the updates from step `proof.cut` up to step `stop` from the
    cores (SPEC E4). Every Cut of a feed is at a lower step than the Cut before."""

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
    """Send the stored proof that cuts the feed at the lowest step."""

    link: LinkId
    feed: messages.Feed


@dataclass(frozen=True, slots=True)
class Examine:
    """Look up our own history of the feed from step `against.first` (for a Proof: `at`) on; report Examined.

    Our log of the feed is not empty and reaches that step.
    """

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof


@dataclass(frozen=True, slots=True)
class KeepCard:
    """Store this card in place of an earlier card of the same feed."""

    card: messages.Card


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the link. `fault` is the SPEC rule that the peer broke, with the reason; empty if the peer broke
    none."""

    link: LinkId
    fault: str


@dataclass(frozen=True, slots=True)
class ContinueAs:
    """Make this our own feed from now on; record it durably before computing (SPEC I3)."""

    feed: messages.Feed


@dataclass(frozen=True, slots=True)
class KeepControl:
    """Store these decisions durably from position `first` on, in place of all decisions stored from that
    position on."""

    first: int
    entries: tuple[messages.Entry, ...]
    ours: bool = False
    """Whether this node has just signed the decisions."""


@dataclass(frozen=True, slots=True)
class KeepAuthority:
    """Store this message durably: a succession, or a proof that a key of the control feed has signed two
    histories or two votes."""

    message: messages.HigherWord


@dataclass(frozen=True, slots=True)
class KeepStatement:
    """Store our own statement durably, in place of our previous one."""

    statement: messages.Statement


@dataclass(frozen=True, slots=True)
class Recounted:
    """Determine again which updates of this feed count, and with which factors, as decisions have changed
    this.

    Until now its first `before` updates counted. An update that does not count any more stays in the log
    until another update with the same step replaces it.
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
    """Make these bases, durably, the beginning of the log. Updates before them may be deleted."""

    checkpoint: Checkpoint
    bases: tuple[Base, ...]


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """Show a join request, or an offer to stand in, to the organiser, if this is the organiser's node."""

    join_request: messages.JoinRequest | messages.Offer
    via: str
    """The peer that has brought the request or offer; empty if this node has made it."""


OrganisedAction = KeepControl | KeepAuthority | KeepStatement | Recounted | Trace | Rebase | JoinRequested
"""Actions that only an organised run has."""

OpenAction = Admit | Transmit | Serve | Cut | Evict | ShowProof | Examine | KeepCard | Drop | ContinueAs
Action = OpenAction | OrganisedAction


# -- counters ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """Counts of what has happened at this machine so far; the counts never decrease."""

    admitted: int = 0
    put_off: int = 0
    """Number of segments and proofs that were put off because they exceed the rate of their origin."""
    rejected: int = 0
    """Number of segments that did not verify."""
    cuts: int = 0
    """Number of proofs that cut a feed, or that cut it at a lower step than before."""
    cards: int = 0
    """Number of cards of other origins that were new here."""
    decisions: int = 0
    """Number of decisions of the control feed, successions, and proofs about its keys that were new here."""
    statements: int = 0
    """Number of statements of stand-ins that were new here."""

    @property
    def news(self) -> int:
        """Sum of all counters except `rejected`. A message of a peer counts as waste of its link if handling
        the message does not increase this sum."""
        told = self.cards + self.decisions + self.statements
        return self.admitted + self.cuts + told + self.put_off
