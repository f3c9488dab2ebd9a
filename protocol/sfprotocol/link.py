"""One link: its state and everything that is known about the peer (SPEC L2-L4).

Theory of operation. Both sides of a link do the same, each in its own direction. The state of a link says how
much the peer has told so far:

    UP       the stream is open and our Hello is sent; the peer's Hello is awaited
    GREETED  a valid Hello has arrived, and we have told the peer everything we have (SPEC A1). The peer may
             now send any message of a link, and feeds that advance are noted in its outbox. Nothing is served
             yet, as we do not know which updates the peer has.
    SYNCED   the peer has told everything it has (a Summary without `more`); from now on it is served

A link that ends is deleted with all its data (SPEC L4), so there is no state for that. TRANSITIONS is the
whole table, and only `Link.enter` changes the state. A change that the table does not allow is our own error
(LocalProtocolError). ALLOWED lists the messages that a peer may send in each state. `check_allowed` refuses
any other as the peer's error (RemoteProtocolError).

The data of a link has one part for each concern: names of feeds, outbox, inbox, agreement of digests, intake,
waste. The parts are plain data. The modules plumtree, anti_entropy, pulls, fork_resolution and cards use
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

from sfprotocol import messages
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import LinkId
from sfprotocol.frontier import MAX_FEEDS, Frontier
from sfprotocol.messages import ControlHead, Feed, Goodbye, Hello, Message
from sfprotocol.rate_limit import Bucket, Intake, Waste
from sfprotocol.run_state import NEVER


class LinkState(Enum):
    """The stage of a link: how much the peer has told so far."""

    UP = "up"
    GREETED = "greeted"
    SYNCED = "synced"


TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.UP: frozenset({LinkState.GREETED}),
    LinkState.GREETED: frozenset({LinkState.SYNCED}),
    LinkState.SYNCED: frozenset(),
}
"""The states that may follow, keyed by the present state."""

_AFTER_HELLO = frozenset(
    get_args(messages.Flooded | messages.OfDecisions | messages.Commitment | messages.Finding | Goodbye)
) - {Hello}

ALLOWED: dict[LinkState, frozenset[type]] = {
    LinkState.UP: frozenset({Hello, Goodbye}),
    LinkState.GREETED: _AFTER_HELLO,
    LinkState.SYNCED: _AFTER_HELLO,
}
"""The types of messages that a peer may send, keyed by the state of its link."""


@dataclass(slots=True)
class FeedNames:
    """The feeds whose full names were told on a link, so that their keys are enough from then on (SPEC
    A3)."""

    known: set[Feed] = field(default_factory=set)
    """Feeds whose full name the peer knows."""
    taught: dict[int, list[Feed]] = field(default_factory=dict)
    """Feeds without stored updates whose names this peer taught us, keyed by feed key. They are forgotten
    with the link, so that invented names cost only the link that brought them."""
    strange_at: int = NEVER
    """Number of members of the run when the peer last named a feed whose origin was no member. NEVER if it
    has named no such feed since it was asked to tell everything again (SPEC O19)."""

    def learn(self, feed: Feed, frontier: Frontier) -> bool:
        """Note that the peer has named `feed` in full, and return True. Return False if the peer has taught
        MAX_FEEDS names already, or the feed may not be held (SPEC S7, S8, O19)."""
        if feed not in frontier:
            if frontier.run_state and frontier.is_strange(feed):
                self.strange_at = len(frontier.run_state.members)
                return False
            if frontier.excludes(feed):
                return False
            if feed in self.known:
                return True
            if len(self.taught) >= MAX_FEEDS:
                return False
            self.taught.setdefault(frontier.state(feed).key, []).append(feed)
        self.known.add(feed)
        return True

    def held(self, feed: Feed, key: int) -> None:
        """Note that updates of `feed` are stored now, so that this link need not remember the feed's name any
        more."""
        if feed in self.taught.get(key, ()):
            self.taught[key].remove(feed)
            if not self.taught[key]:
                del self.taught[key]

    def matching(self, key: int, frontier: Frontier) -> list[Feed]:
        """Return the feeds with this key on this link; several where keys collide (SPEC S5)."""
        return list(dict.fromkeys([*frontier.keyed(key), *self.taught.get(key, ())]))


@dataclass(slots=True)
class Outbox:
    """The feeds that must still be sent or announced to the peer (SPEC FL1). An outbox holds no messages."""

    writable: bool = True
    """Whether everything handed to the link has been written (SPEC FL7)."""
    sent: dict[Feed, int] = field(default_factory=dict)
    """The step up to which the peer was served or can pull by itself, keyed by feed."""
    dirty: dict[Feed, int] = field(default_factory=dict)
    """Feeds to serve, in order, each with the hop count of its next segment."""
    serving: dict[Feed, int] = field(default_factory=dict)
    """Feeds with a Serve that was not reported as Served yet, each with the first step of that Serve."""
    changed: dict[Feed, None] = field(default_factory=dict)
    """Feeds that advanced since they were last announced on this link."""
    lazy: set[Feed] = field(default_factory=set)
    """Feeds that the peer has asked us not to push: the link is lazy for them (SPEC FL8)."""
    announce_at: float = float("inf")
    """Time at which to announce the changed feeds that are not pushed (SPEC FL9)."""


@dataclass(slots=True)
class Inbox:
    """State of the feeds that the peer claims to have, was asked for, or has brought."""

    ahead: dict[Feed, int] = field(default_factory=dict)
    """Feeds in which the peer is or was ahead of us, each with the step that the peer had reached when the
    link came up; 0 if it got ahead later."""
    asked: dict[Feed, int] = field(default_factory=dict)
    """Feeds of the outstanding pulls on this link, each with the step up to which the peer claimed to have
    the feed when it was asked."""
    early: dict[Feed, int] = field(default_factory=dict)
    """Feeds of which the peer has updates that the decisions stored here do not allow yet, each with the step
    up to which the peer has the feed."""
    pruned: dict[Feed, float] = field(default_factory=dict)
    """Feeds that the peer was asked not to push, with the time of the request."""
    useful: int = 0
    """Number of updates that this link was the first to bring."""
    brought_at: float = float("-inf")
    """Time at which the peer last brought something that we lacked."""
    broken: int = 0
    """Number of pulls in a row that the peer left unanswered although it claims to have the updates."""
    let_down: int = 0
    """Number of pulls that have failed, after WANT_TIMEOUT without progress, since the peer last brought
    news."""
    withheld: set[Feed] = field(default_factory=set)
    """Feeds with a failed pull (see `let_down`) of which the peer has brought no updates since."""


@dataclass(slots=True)
class Agreement:
    """The comparison of both sides' digests (SPEC A6)."""

    agreed: bool = False
    """Whether the peer's last Summary carried our own digest."""
    differs_since: float | None = None
    """Time of the first Summary with another digest than ours; None while the digests agree."""
    told_at: float = 0.0
    """Time at which we last told this peer everything."""
    patience: float = 1.0
    """Factor by which the interval between full Summaries has grown."""


@dataclass(slots=True)
class Inquiry:
    """A question to a peer about its history of one feed (SPEC A7)."""

    until: float
    """Time after which the peer may be asked about the feed again."""
    stage: int = 0
    """Index into fork_resolution.LOOK_BACK; the length of LOOK_BACK if there is nothing more to ask for."""


@dataclass(slots=True)
class ControlKnown:
    """The heads of the control feed that both sides have told each other, and the progress of requests for
    decisions (SPEC O12)."""

    told: ControlHead | None = None
    """Our head as the peer was last told it; None if it was never told."""
    theirs: ControlHead | None = None
    """The peer's head as the peer last told it to us; None if it never did."""
    sent: int = 0
    """The position up to which decisions were sent to the peer at its request."""
    asked_at: float = float("-inf")
    """Time of the last request for decisions that the peer has not answered; -inf if there is none."""
    back: int = 0
    """Number of decisions that the next request to the peer goes back from the end of the shorter sequence.
    It grows until the point is found where the two sequences part; 0 if there is nothing to search for."""
    join_requests: Bucket = field(default_factory=lambda: Bucket(float("inf"), 0.0))
    """Token bucket for the join requests that this link may bring."""


@dataclass(slots=True)
class Link:
    """Everything that the machine knows about one link and its peer."""

    id: LinkId
    peer: str
    heard: float
    """Time at which the last frame arrived."""
    state: LinkState = LinkState.UP
    role: int = 0
    """The role in the peer's Hello: 0 trainer, 1 relay (SPEC L2)."""
    known: int = 0
    """Number of updates that the peer knew, as told in its last Hello or Summary."""
    floor: int = 0
    """The first epoch whose listed steps the peer stores; 0 if it stores all steps (SPEC O15)."""
    informed: bool = False
    """Whether a Summary of the peer has ever told a number of updates above half of ours, or above the number
    that the peer had told before."""
    retelling: bool = False
    """Whether the peer was asked to tell everything again and is not done yet (SPEC O19)."""
    has: dict[Feed, int] = field(default_factory=dict)
    """The step up to which the peer has a feed, as it has told or shown us, keyed by feed."""
    cards: dict[Feed, int] = field(default_factory=dict)
    """The step of the newest card that either side has sent on this link, keyed by feed (SPEC K4)."""
    inquiries: dict[Feed, Inquiry] = field(default_factory=dict)
    """Inquiries about feeds of which this peer sent updates that do not continue ours, keyed by feed."""
    names: FeedNames = field(default_factory=FeedNames)
    outbox: Outbox = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    agreement: Agreement = field(default_factory=Agreement)
    shown: dict[Feed, tuple[int, float]] = field(default_factory=dict)
    """The cut of the last fork proof that the peer was sent, and the time of sending, keyed by feed (SPEC
    E3)."""
    to_show: dict[Feed, None] = field(default_factory=dict)
    """Feeds with a new, lower cut, whose proof will be sent at the next tick."""
    intake: Intake = field(default_factory=lambda: Intake(Bucket(0.0, 0.0)))
    waste: Waste = field(default_factory=Waste)
    control: ControlKnown = field(default_factory=ControlKnown)

    def enter(self, state: LinkState) -> None:
        """Change to `state`. Raises LocalProtocolError unless TRANSITIONS allows it."""
        if state not in TRANSITIONS[self.state]:
            raise LocalProtocolError(
                f"link {self.id} cannot become {state.value} while it is {self.state.value}"
            )
        self.state = state

    @property
    def greeted(self) -> bool:
        """Whether the peer's Hello has arrived."""
        return self.state is not LinkState.UP

    @property
    def synced(self) -> bool:
        """Whether the peer has told everything it has."""
        return self.state is LinkState.SYNCED

    @property
    def heard_out(self) -> bool:
        """Whether the peer has told everything it has, and has done so again if it was asked to. Its later
        claims are then about new updates."""
        return self.synced and not self.retelling

    @property
    def agreed(self) -> bool:
        """Whether the peer had the same updates as we do when it last told its digest."""
        return self.agreement.agreed

    @property
    def useful(self) -> int:
        """Number of updates that this link was the first to bring."""
        return self.inbox.useful

    @property
    def blank(self) -> bool:
        """Whether the peer has shown nothing: it claims no update and has taken none of ours."""
        return not self.has and not self.agreed and not self.informed

    def expected(self, feed: Feed) -> int:
        """Return the step up to which the peer had `feed` when the link came up or when it was asked."""
        return max(self.inbox.ahead.get(feed, 0), self.inbox.asked.get(feed, 0))

    def forget(self, feed: Feed) -> None:
        """Forget how much of `feed` either side has: it may not be held any more (SPEC S8)."""
        box, inbox = self.outbox, self.inbox
        tables: tuple[dict[Feed, Any], ...] = (
            self.has, self.cards, self.inquiries, box.sent, box.dirty, box.serving, box.changed, inbox.ahead,
            inbox.early, inbox.pruned, self.shown, self.to_show,
        )  # fmt: skip
        for table in tables:
            table.pop(feed, None)
        box.lazy.discard(feed)

    def position(self, feed: Feed) -> int:
        """Return the first step of `feed` that we still have to send to the peer."""
        return max(self.has.get(feed, 0), self.outbox.sent.get(feed, 0))


def check_allowed(link: Link, message: Message) -> None:
    """Raise RemoteProtocolError for a message that a peer may not send in this state (SPEC L2, L6)."""
    if type(message) in ALLOWED[link.state]:
        return
    if not link.greeted:
        raise RemoteProtocolError("L2", "the first message is not a Hello")
    if isinstance(message, Hello):
        raise RemoteProtocolError("L2", "a second Hello")
    raise RemoteProtocolError("L6", "a question or its answer on a flood link")
