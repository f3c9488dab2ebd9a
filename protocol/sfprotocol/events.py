"""Events, which go into the machine, and actions, which come out of it (SPEC, "State machine").

Plain values without behaviour. The host turns sockets, clocks and the engine into events and carries out
actions in the order given. An action may rely on all actions before it being done; in particular an Admit is
durable before anything after it is sent.
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
    """Everything handed to the link so far has been written: it can take more segments."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Served:
    """A Serve was carried out up to (not including) step `stop`; `hops` is as in the Serve."""

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
    """An Examine was carried out: the result is what our log has of the same feed from the same step on."""

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof
    chain: bytes
    """Our chain head before that step."""
    ours: messages.Segment
    """Our updates from that step on, none where our log ends, and the origin's signature after them."""
    kept: messages.Proof | None
    """The proof of the lowest Cut of the feed so far, if it was cut."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `next_deadline()` named has come."""


@dataclass(frozen=True, slots=True)
class OwnDecision:
    """Whoever holds the organiser's key here has decided; the record is as `decisions.encode` returns it."""

    record: bytes


@dataclass(frozen=True, slots=True)
class OwnHandOver:
    """Whoever organises here wants a stand-in, by its key, to go on at once."""

    key: bytes


@dataclass(frozen=True, slots=True)
class OwnSuccession:
    """The deputies have decided, and their owner has brought the result here."""

    succession: messages.Succession


@dataclass(frozen=True, slots=True)
class OwnJoinRequest:
    """This node wants to be admitted, or to stand in."""

    join_request: messages.JoinRequest | messages.Offer


@dataclass(frozen=True, slots=True)
class Traced:
    """A Trace was carried out: `chain` is our chain head of the feed before step `stop`."""

    feed: messages.Feed
    stop: int
    chain: bytes
    ours: messages.Segment
    """Our updates from that step on, up to the next signature."""
    epoch: int
    """Epoch of the update before that step; 0 at the beginning."""
    labelled: int
    """Number of updates before that step, without a gap, that belong to this epoch."""


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """This node keeps the state of a usable checkpoint: of these feeds, all those with named steps up to its
    epoch, nothing before their bases has to be kept or fetched any more.

    None if a node that has waited for one is to begin with step 0 of every feed after all.
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

    `chain` is the head after the segment. `counted` is less than all only for a feed that is cut (SPEC E4);
    the updates behind the cut are kept because the signature vouches for the whole segment.
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
    """Read `feed` from the log from step `first` on, send one Segment with this hop count, report Served."""

    link: LinkId
    feed: messages.Feed
    first: int
    hops: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep the proof durably; then take the updates from step `proof.cut` on, which counted up to step
    `stop`, out of the cores again (SPEC E4). Every Cut of a feed is lower than those before."""

    proof: messages.Proof
    stop: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Note durably that nothing of `feed` counts from now on; then take its updates, which counted up to step
    `stop`, out of the cores again (SPEC S8). It is never admitted again."""

    feed: messages.Feed
    stop: int


@dataclass(frozen=True, slots=True)
class ShowProof:
    """Send the proof that the feed is cut, as kept with the lowest Cut."""

    link: LinkId
    feed: messages.Feed


@dataclass(frozen=True, slots=True)
class Examine:
    """Look up what our log has of the feed from step `against.first` (for a Proof: `at`) on; report Examined.

    Our log reaches at least that far, and has something of the feed.
    """

    link: LinkId
    feed: messages.Feed
    against: messages.Segment | messages.Proof


@dataclass(frozen=True, slots=True)
class KeepCard:
    """Keep this card instead of an earlier one of its feed."""

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
    """Keep these decisions durably, from position `first` on, instead of any that were kept from there on."""

    first: int
    entries: tuple[messages.Entry, ...]
    ours: bool = False
    """Whether they were signed here, just now."""


@dataclass(frozen=True, slots=True)
class KeepAuthority:
    """Keep this succession or fork of the control feed durably."""

    message: messages.HigherWord


@dataclass(frozen=True, slots=True)
class KeepStatement:
    """Keep this statement of our own durably, in the place of the one before."""

    statement: messages.Statement


@dataclass(frozen=True, slots=True)
class Recounted:
    """Look again at what of this feed counts, and with which factors: decisions have changed it.

    So far its first `before` updates did. The log keeps what does not count any more until other updates of
    the same steps take its place.
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
    """Let the log begin with these bases, durably: what it has before them may go."""

    checkpoint: Checkpoint
    bases: tuple[Base, ...]


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """Show this join request, or offer to stand in, to whoever organises the run here."""

    join_request: messages.JoinRequest | messages.Offer
    via: str
    """The peer that brought it; empty if it is our own."""


OrganisedAction = KeepControl | KeepAuthority | KeepStatement | Recounted | Trace | Rebase | JoinRequested
"""Actions that only an organised run has."""

OpenAction = Admit | Transmit | Serve | Cut | Evict | ShowProof | Examine | KeepCard | Drop | ContinueAs
Action = OpenAction | OrganisedAction


# -- counters ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """Numbers of things that have happened so far; they only ever increase."""

    admitted: int = 0
    gaps: int = 0
    unnamed: int = 0
    """Segments whose key names no feed that we know, or several feeds."""
    put_off: int = 0
    """Segments and proofs beyond their origin's rate, left for later."""
    rejected: int = 0
    cuts: int = 0
    """Proofs that have cut a feed, or cut it shorter."""
    cards: int = 0
    """Cards of others that were news."""
    decisions: int = 0
    """Decisions, successions and forks of the control feed that were news."""

    statements: int = 0
    """Statements of stand-ins that were news."""

    @property
    def news(self) -> int:
        """Number that increases with everything from others that is no waste: it changes our state, or it is
        put off for now."""
        told = self.cards + self.decisions + self.statements
        return self.admitted + self.cuts + told + self.put_off
