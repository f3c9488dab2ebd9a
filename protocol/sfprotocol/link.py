"""One link: how far its two sides have introduced themselves, and what is known of the peer (SPEC L2-L4).

Theory of operation. Both sides of a link do the same, each in its own direction. The state of a link is what
the peer has told so far:

    UP       the stream is open and our Hello is sent; the peer's Hello is awaited
    GREETED  a valid Hello has arrived, and we have told the peer everything we have (SPEC A1). It may now
             send whatever belongs on a link, and feeds that advance are noted in its outbox. Nothing is
             served yet, as we do not know what the peer has.
    SYNCED   the peer has told everything it has (a Summary without `more`); from now on it is served

A link that ends is deleted with everything it knew (SPEC L4), so there is no state for that. TRANSITIONS is
the whole table, and `Link.enter` the only function that changes the state; to go where the table does not
lead is our own error (LocalProtocolError). ALLOWED lists the messages that a peer may send in each state;
`check_allowed` turns any other into the peer's error (RemoteProtocolError).

What a link remembers lies in parts, one for each concern: names of feeds, outbox, inbox, agreement of
digests, intake, waste. The parts are plain data; plumtree, anti_entropy, pulls,
fork_resolution and cards act on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import LinkId
from sfprotocol.frontier import MAX_FEEDS, Frontier
from sfprotocol.messages import (
    Commitment,
    ControlHead,
    Feed,
    Finding,
    Flooded,
    Goodbye,
    Hello,
    Message,
    OfDecisions,
)
from sfprotocol.rate_limit import Bucket, Intake, Waste
from sfprotocol.run_state import NEVER


class LinkState(Enum):
    """The progress of a peer's introduction."""

    UP = "up"
    GREETED = "greeted"
    SYNCED = "synced"


TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.UP: frozenset({LinkState.GREETED}),
    LinkState.GREETED: frozenset({LinkState.SYNCED}),
    LinkState.SYNCED: frozenset(),
}
"""The states that may follow each state."""

_AFTER_HELLO = frozenset(get_args(Flooded | OfDecisions)) - {Hello} | {Commitment, Finding, Goodbye}

ALLOWED: dict[LinkState, frozenset[type]] = {
    LinkState.UP: frozenset({Hello, Goodbye}),
    LinkState.GREETED: _AFTER_HELLO,
    LinkState.SYNCED: _AFTER_HELLO,
}
"""The messages that a peer may send in each state."""


@dataclass(slots=True)
class FeedNames:
    """The feeds that one side can name to the other by their keys (SPEC A3)."""

    known: set[Feed] = field(default_factory=set)
    """Feeds whose full name the peer knows."""
    taught: dict[int, list[Feed]] = field(default_factory=dict)
    """Feeds, by key, that this peer taught us when we had nothing of them yet. Kept with the link, so that
    invented names cost the link that brought them and go with it."""
    strange_at: int = NEVER
    """The number of members when the peer last named a feed of a stranger, of which nothing is kept; NEVER if
    it has not since it was asked to tell everything again (SPEC O19)."""

    def learn(self, feed: Feed, frontier: Frontier) -> bool:
        """Note that the peer has named `feed` in full; return False beyond MAX_FEEDS, and for a feed that is
        not to be held (SPEC S7, S8, O19)."""
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
        """Note that we have something of `feed` now: its name costs this link nothing more."""
        if feed in self.taught.get(key, ()):
            self.taught[key].remove(feed)
            if not self.taught[key]:
                del self.taught[key]

    def matching(self, key: int, frontier: Frontier) -> list[Feed]:
        """Return the feeds that this key may mean on this link; several where keys collide (SPEC S5)."""
        return list(dict.fromkeys([*frontier.keyed(key), *self.taught.get(key, ())]))


@dataclass(slots=True)
class Outbox:
    """Feeds that the peer still has to be sent or told of (SPEC FL1); never messages."""

    writable: bool = True
    """Whether everything handed to the link has been written (SPEC FL7)."""
    sent: dict[Feed, int] = field(default_factory=dict)
    """The step up to which we have served this link, or may leave it to the peer to pull."""
    dirty: dict[Feed, int] = field(default_factory=dict)
    """Feeds to serve, in order, with the hop count of the segment."""
    serving: dict[Feed, int] = field(default_factory=dict)
    """The first step of every Serve that has not been reported Served."""
    changed: dict[Feed, None] = field(default_factory=dict)
    """Feeds that advanced since they were last announced on this link."""
    lazy: set[Feed] = field(default_factory=set)
    """Feeds that the peer has asked us not to push: the link is lazy for them (SPEC FL8)."""
    announce_at: float = float("inf")
    """Time at which to announce what has changed and is not pushed (SPEC FL9)."""


@dataclass(slots=True)
class Inbox:
    """Feeds that the peer promises, was asked for, or brings."""

    ahead: dict[Feed, int] = field(default_factory=dict)
    """Feeds of which the peer has (or had) more than we have, with the step up to which it had them when the
    link came up; 0 if it got ahead later."""
    asked: dict[Feed, int] = field(default_factory=dict)
    """Pulls outstanding on this link, with the step up to which the peer claimed to have the feed."""
    early: dict[Feed, int] = field(default_factory=dict)
    """Feeds of which the peer has more than decisions here allow us to hold, with the step up to which."""
    pruned: dict[Feed, float] = field(default_factory=dict)
    """Feeds that we have asked the peer not to push, with the time at which we did."""
    useful: int = 0
    """Updates that this link was the first to bring."""
    brought_at: float = float("-inf")
    """Time at which the peer last brought something that we lacked."""
    broken: int = 0
    """Number of pulls in a row in which the peer did not give what it says it has."""
    let_down: int = 0
    """Number of pulls that came to nothing within WANT_TIMEOUT, since the peer last brought something."""
    withheld: set[Feed] = field(default_factory=set)
    """Feeds of which such a pull was the last that the peer was heard of."""


@dataclass(slots=True)
class Agreement:
    """The comparison of both sides' digests (SPEC A6)."""

    agreed: bool = False
    """Whether the peer's last Summary carried our digest of that moment."""
    differs_since: float | None = None
    """Time at which a Summary first carried another digest than ours; None while the digests agree."""
    told_at: float = 0.0
    """Time at which we last told this peer everything."""
    patience: float = 1.0
    """Factor by which the interval until everything is told again has grown."""


@dataclass(slots=True)
class Inquiry:
    """One feed for whose history a peer is asked (SPEC A7)."""

    until: float
    """Time from which the peer may be asked for the feed again, and for another history of it."""
    stage: int = 0
    """Index into fork_resolution.LOOK_BACK; beyond it when there is nothing more to ask for."""


@dataclass(slots=True)
class ControlKnown:
    """The two sides' knowledge of each other's control feed, in an organised run (SPEC O12)."""

    told: ControlHead | None = None
    """Our head as the peer was last told it."""
    theirs: ControlHead | None = None
    """The peer's head as it last told it."""
    sent: int = 0
    """The position up to which it was sent decisions that it asked for."""
    asked_at: float = float("-inf")
    """Time at which it was last asked for decisions and has not answered."""
    back: int = 0
    """Decisions by which we go back to look for where the two sequences part."""
    join_requests: Bucket = field(default_factory=lambda: Bucket(float("inf"), 0.0))
    """Join requests that this link may bring."""


@dataclass(slots=True)
class Link:
    """Everything that the machine knows about one link and the peer behind it."""

    id: LinkId
    peer: str
    heard: float
    """Time at which the last frame arrived."""
    state: LinkState = LinkState.UP
    role: int = 0
    """The role in the peer's Hello: 0 trainer, 1 relay (SPEC L2)."""
    known: int = 0
    """Number of updates that the peer knew, by its last Hello or Summary."""
    floor: int = 0
    """The first epoch of which the peer keeps what closes have named (SPEC O15)."""
    informed: bool = False
    """Whether the peer said that it knows more than half as many updates as we, or more than before."""
    retelling: bool = False
    """Whether the peer was asked to tell everything again and has not done so yet (SPEC O19)."""
    has: dict[Feed, int] = field(default_factory=dict)
    """The step up to which the peer has each feed by its own word: it told us, or it sent it to us."""
    cards: dict[Feed, int] = field(default_factory=dict)
    """The step of the newest card of each feed that either side has sent on this link (SPEC K4)."""
    inquiries: dict[Feed, Inquiry] = field(default_factory=dict)
    """Feeds of which this peer sent something that does not continue ours."""
    names: FeedNames = field(default_factory=FeedNames)
    outbox: Outbox = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    agreement: Agreement = field(default_factory=Agreement)
    shown: dict[Feed, tuple[int, float]] = field(default_factory=dict)
    """The cut that the last fork proof of a feed proved that the peer was sent, and the time (SPEC E3)."""
    to_show: dict[Feed, None] = field(default_factory=dict)
    """Feeds of which a proof with a lower cut is to be sent at the next tick."""
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
        """Whether the peer has told everything that it has."""
        return self.state is LinkState.SYNCED

    @property
    def heard_out(self) -> bool:
        """Whether the peer has told everything that it had before, so that what it tells now is new."""
        return self.synced and not self.retelling

    @property
    def agreed(self) -> bool:
        """Whether the peer had the same updates as we when it last told its digest."""
        return self.agreement.agreed

    @property
    def useful(self) -> int:
        """Number of updates that this link was the first to bring."""
        return self.inbox.useful

    @property
    def blank(self) -> bool:
        """Whether the peer has shown nothing: no update by its own word, nor that it takes in ours."""
        return not self.has and not self.agreed and not self.informed

    def expected(self, feed: Feed) -> int:
        """Return the step up to which the peer had `feed` when the link came up, or was asked for it."""
        return max(self.inbox.ahead.get(feed, 0), self.inbox.asked.get(feed, 0))

    def forget(self, feed: Feed) -> None:
        """Forget what either side has of `feed`, which is not to be held any more (SPEC S8)."""
        box, inbox = self.outbox, self.inbox
        tables: tuple[dict[Feed, Any], ...] = (
            self.has, self.cards, self.inquiries, box.sent, box.dirty, box.serving, box.changed, inbox.ahead,
            inbox.early, inbox.pruned, self.shown, self.to_show,
        )  # fmt: skip
        for table in tables:
            table.pop(feed, None)
        box.lazy.discard(feed)

    def position(self, feed: Feed) -> int:
        """Return the first step of `feed` that the peer lacks, or need not be sent unless it asks."""
        return max(self.has.get(feed, 0), self.outbox.sent.get(feed, 0))


def check_allowed(link: Link, message: Message) -> None:
    """Raise RemoteProtocolError for a message that has no place on a link in this state (SPEC L2, L6)."""
    if type(message) in ALLOWED[link.state]:
        return
    if not link.greeted:
        raise RemoteProtocolError("L2", "the first message is not a Hello")
    if isinstance(message, Hello):
        raise RemoteProtocolError("L2", "a second Hello")
    raise RemoteProtocolError("L6", "a question or its answer on a flood link")
