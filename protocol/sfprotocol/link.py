"""One link: its state and everything that is known about the peer (SPEC L2-L4).

Theory of operation. Both sides of a link do the same, each in its own direction. The state of a link says how
much the peer has told so far:

    UP       the stream is open and our Hello is sent; the peer's Hello is awaited
    GREETED  a valid Hello has arrived, and we have told the peer everything we have (SPEC A1). The peer may
             now send any message of a link, and feeds that advance are noted in its outbox. Nothing is served
             yet, as we do not know which updates the peer has.
    SYNCED   the peer has told everything it has (a Summary without `more`); from now on it is served

A link that ends is deleted with all its data (SPEC L4), so there is no state for ended links. TRANSITIONS
lists all changes of state, and only `Link.enter` makes them. A change that is not listed is our own error
(LocalProtocolError). ALLOWED lists the messages that a peer may send in each state. `check_allowed` refuses
any other message as the peer's error (RemoteProtocolError).

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
    """The feeds whose full names were told on a link. From then on, messages on this link name them by their
    64-bit keys (SPEC A3)."""

    known: set[Feed] = field(default_factory=set)
    """Feeds whose full name the peer knows."""
    taught: dict[int, list[Feed]] = field(default_factory=dict)
    """Feeds without stored updates whose names this peer taught us, keyed by feed key. These names are
    forgotten when the link ends, so that invented names do not take memory for longer."""
    strange_at: int = NEVER
    """Number of members of the run when the peer last named a feed whose origin was no member. NEVER if the
    peer has named no such feed since it was last asked to tell all its feeds again (SPEC O19)."""

    def learn(self, feed: Feed, frontier: Frontier) -> bool:
        """Note that the peer has named `feed` in full, and return True. Do nothing and return False if no
        update of the feed may be held here (SPEC S7, S8, O19), or if the peer has taught us MAX_FEEDS names
        already."""
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
    """The step up to which we need not push updates to the peer, keyed by feed: earlier updates were served,
    or are left for the peer to request."""
    dirty: dict[Feed, int] = field(default_factory=dict)
    """Feeds of which the peer is to be sent a segment, in order, each with the hop count of that segment."""
    serving: dict[Feed, int] = field(default_factory=dict)
    """Feeds with an unfinished Serve (no Served was reported yet), each with the first step of the Serve."""
    changed: dict[Feed, None] = field(default_factory=dict)
    """Feeds that advanced since they were last announced on this link."""
    lazy: set[Feed] = field(default_factory=set)
    """Feeds whose updates the peer has asked us not to push: the link is lazy for these feeds (SPEC FL8)."""
    announce_at: float = float("inf")
    """Time at which to announce those of the `changed` feeds that are not pushed (SPEC FL9)."""


@dataclass(slots=True)
class Inbox:
    """State of the feeds that the peer claims to have, was asked for, or has brought."""

    ahead: dict[Feed, int] = field(default_factory=dict)
    """Feeds in which the peer is or was ahead of us, each with the step that the peer had reached when the
    link came up; 0 for a feed in which the peer got ahead later."""
    asked: dict[Feed, int] = field(default_factory=dict)
    """Feeds that were requested on this link and have not fully arrived, each with the step up to which the
    peer claimed to have the feed at the time of the request."""
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
    """Number of pulls in a row that the peer has left unanswered although it claims to have the requested
    updates."""
    let_down: int = 0
    """Number of pulls from the peer that have failed since it last brought new updates. A pull fails after
    WANT_TIMEOUT without progress."""
    withheld: set[Feed] = field(default_factory=set)
    """Feeds with a failed pull (see `let_down`) of which the peer has brought no updates since."""


@dataclass(slots=True)
class Agreement:
    """The comparison of the state digests of both sides (SPEC A6)."""

    agreed: bool = False
    """Whether the peer's last Summary carried our own digest."""
    differs_since: float | None = None
    """Time of the first Summary with another digest than ours; None while the digests agree."""
    told_at: float = 0.0
    """Time at which we last told this peer everything."""
    patience: float = 1.0
    """Factor by which the interval between full Summaries on this link has grown (see
    anti_entropy.MOST_PATIENCE)."""


@dataclass(slots=True)
class Inquiry:
    """A question to a peer about its history of one feed (SPEC A7)."""

    until: float
    """Time after which the peer may be asked about the feed again."""
    stage: int = 0
    """Index of the latest request's distance in fork_resolution.LOOK_BACK; the length of LOOK_BACK if no
    further request will be sent."""


@dataclass(slots=True)
class ControlKnown:
    """The heads of the control feed that both sides have told each other, and the progress of requests for
    decisions (SPEC O12)."""

    told: ControlHead | None = None
    """The head of our control feed that we last told the peer; None if we have told none."""
    theirs: ControlHead | None = None
    """The head of the peer's control feed that the peer last told us; None if it has told none."""
    sent: int = 0
    """The position up to which decisions were sent to the peer at its request."""
    asked_at: float = float("-inf")
    """Time of the last request for decisions that the peer has not answered; -inf if there is none."""
    back: int = 0
    """Distance, in decisions, from the end of the shorter of the two sequences back to the start of the next
    request. The distance grows until the first difference of the sequences is found; 0 if no difference is
    being searched for."""
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
    """Whether the peer has ever told, in a Summary, a number of known updates that was above half of ours or
    above the number that it had told before."""
    retelling: bool = False
    """Whether the peer was asked to tell all its feeds again, and its answer is not complete yet (SPEC
    O19)."""
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
        """Whether the peer has told all its feeds, and has told them again if it was asked to. Its later
        claims are about new updates."""
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
        """Return the step up to which the peer claimed to have `feed` when the link came up or when the feed
        was requested on it, whichever is later."""
        return max(self.inbox.ahead.get(feed, 0), self.inbox.asked.get(feed, 0))

    def forget(self, feed: Feed) -> None:
        """Forget how much of `feed` either side has, as the feed may not be held any more (SPEC S8)."""
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
