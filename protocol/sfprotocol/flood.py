"""Flooding: what each link still has to be sent, and in which order (SPEC FL1-FL10).

A link's outbox holds *dirty feeds*, never messages: when the link can take more, whatever its peer lacks of a
dirty feed is read from the log at that moment. A slow link therefore needs no more memory than a fast one,
loses nothing, and gets its backlog in few large segments instead of many small ones.

New updates spread along a tree for each feed, made of the links that were first to bring it (Plumtree, by
Leitao, Pereira and Rodrigues, 2007): a link that brings what is known already is asked to announce instead of
to push. An announcement that nothing has followed shows where the tree is broken, and mends it.

Flooding carries what is new. What a peer lacked when the link came up it pulls (sync), from one neighbour and
not from all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sfprotocol.budget import WASTE_BURST, WASTE_BURST_PER_FEED, WASTE_RATE, WASTE_RATE_PER_FEED, Bucket
from sfprotocol.codec import MAX_ENTRIES, MAX_SEGMENT_UPDATES
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Action, LinkId, Serve, Served, Transmit
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.inquiry import Inquiry
from sfprotocol.messages import Ahead, Claim, Feed, Have, Prune, Segment, Summary

TTL = 16
"""Hops that a segment is pushed. With 6 links a million nodes lie within 8 hops; beyond 16 the topology is a
chain, and announcements do the rest. Never a bound on acceptance."""

HAVE_DELAY = 0.2
"""Seconds for which announcements on a link are collected: several updates of a fast feed cost one entry, and
a tree that works has usually delivered everywhere by the time it is announced."""

PRUNE_AGAIN = 10.0
"""Seconds after which a link that still pushes is asked again not to: the first Prune was lost."""

PRUNE_CROSSING = 2.0
"""Seconds within which a link may bring something that it had pushed before it was asked not to."""

PUSH_RATE, PUSH_BURST = 20.0, 64.0
"""Segments of one feed that are pushed on, a second and at once. A trainer signs at most 10 a second; what an
origin makes in excess of this is announced, and pulled in larger pieces."""

NO_TAG = bytes(4)
"""The tag of an entry that claims nothing."""

MAX_FEEDS = 65_536
"""Feeds of one run, and names that one link may teach us of feeds of which we have nothing: 40 MB for the
frontier, 20 MB (32 MB if all names are invented) for a link. Beyond that, sum regions (DESIGN section 8)."""

MAX_BURST = 64
"""Segments handed to a link before it must report Writable: keeps one link from starving the others."""

MAX_BURST_UPDATES = 65_536
"""Updates handed to a link before it must report Writable. 128 KiB cross a line of 100 kbit/s in 10 s, the
time after which the peer gives up on a pull: more in a queue would be asked for, and sent, twice."""


@dataclass(slots=True)
class Link:
    """Everything the machine knows about one link and the peer behind it."""

    id: LinkId
    peer: str
    heard: float
    """When the last frame arrived."""
    greeted: bool = False
    """A valid Hello has arrived, and we have told everything we have."""
    synced: bool = False
    """The peer has told everything it has; only then do we know what it lacks."""
    writable: bool = True
    role: int = 0
    known: int = 0
    """Updates the peer knew, by its last word."""
    informed: bool = False
    """By its own word the peer knows more than half as many updates as we, or more than before."""
    agreed: bool = False
    """The peer's last Summary carried our digest of that moment."""
    mismatch_since: float | None = None
    full_at: float = 0.0
    """When we last told this peer everything."""
    has: dict[Feed, int] = field(default_factory=dict)
    """What the peer has by its own word: it told us, or it sent it to us."""
    sent: dict[Feed, int] = field(default_factory=dict)
    """How far we have served this link, or may leave it to the peer to pull."""
    dirty: dict[Feed, int] = field(default_factory=dict)
    """Feeds to serve, in order, with the hop count of the segment."""
    serving: dict[Feed, int] = field(default_factory=dict)
    """The first step of every Serve that has not been reported Served."""
    changed: dict[Feed, None] = field(default_factory=dict)
    """Feeds that advanced since our last Summary on this link."""
    ahead: dict[Feed, None] = field(default_factory=dict)
    """Feeds of which the peer has (had) more than we."""
    named: set[Feed] = field(default_factory=set)
    """Feeds whose full name the peer knows."""
    names: dict[int, list[Feed]] = field(default_factory=dict)
    """By key, the feeds that this peer taught us when we had nothing of them yet. Kept with the link, so that
    invented names cost the link that brought them and go with it."""
    lazy: set[Feed] = field(default_factory=set)
    """Feeds that the peer has asked us not to push."""
    pruned: dict[Feed, float] = field(default_factory=dict)
    """Feeds that we have asked the peer not to push, and when."""
    have_at: float = float("inf")
    """When to announce what has changed and is not pushed."""
    asked: dict[Feed, None] = field(default_factory=dict)
    """Pulls outstanding on this link."""
    brought_at: float = float("-inf")
    """When the peer last brought something that we lacked."""
    useful: int = 0
    """Updates that this link was the first to bring."""
    broken: int = 0
    """Pulls in a row in which the peer did not give what it said it has."""
    let_down: int = 0
    """Pulls that came to nothing for WANT_TIMEOUT, since the peer last brought something."""
    inquiries: dict[Feed, Inquiry] = field(default_factory=dict)
    """Feeds of which this peer sent something that does not continue ours."""
    shown: dict[Feed, tuple[int, float]] = field(default_factory=dict)
    """Feeds of which this peer was sent a proof: the cut that it proved, and when."""
    reshow: dict[Feed, None] = field(default_factory=dict)
    """Feeds of which the peer was sent a proof and there is a lower one, to be sent at the next tick."""
    cards: dict[Feed, int] = field(default_factory=dict)
    """The step of the newest card of a feed that the peer has told us or we have told it."""
    patience: float = 1.0
    """How much longer than at first to wait before everything is told again."""
    budget: Bucket = field(default_factory=lambda: Bucket(float("inf"), 0.0))
    """What this link may still waste of our time."""

    @property
    def blank(self) -> bool:
        """Whether the peer has shown nothing: no update by its own word, nor that it takes in ours."""
        return not self.has and not self.agreed and not self.informed

    def heard_of(self, feed: Feed, following: int) -> None:
        """By its own word the peer has everything of `feed` before step `following`."""
        if following > self.has.get(feed, 0):
            self.has[feed] = following

    def learn(self, feed: Feed, frontier: Frontier) -> bool:
        """Note a feed's full name, so that segments on this link can use its key; False beyond MAX_FEEDS."""
        if feed not in frontier and feed not in self.named:
            if max(len(frontier), len(self.names)) >= MAX_FEEDS:
                return False
            self.names.setdefault(frontier.state(feed).key, []).append(feed)
        self.named.add(feed)
        return True

    def feeds_of(self, key: int, frontier: Frontier) -> list[Feed]:
        """The feeds that a key on this link may mean."""
        return list(dict.fromkeys([*frontier.keyed(key), *self.names.get(key, ())]))

    def charge(self, cost: float, frontier: Frontier, now: float) -> None:
        """Count what this peer has wasted of our time; RemoteProtocolError when it is too much (SPEC L8)."""
        feeds = len(frontier)
        rate = WASTE_RATE + WASTE_RATE_PER_FEED * feeds
        burst = WASTE_BURST + WASTE_BURST_PER_FEED * feeds
        if not self.budget.take(cost, now, rate=rate, burst=burst):
            raise RemoteProtocolError("L8", "more than its share of frames without news")

    def position(self, feed: Feed) -> int:
        """The first step of `feed` that the peer has not, or need not be sent unless it asks."""
        return max(self.has.get(feed, 0), self.sent.get(feed, 0))


def mark(links: dict[LinkId, Link], state: FeedState, segment: Segment, hops: int, now: float) -> None:
    """A feed has advanced by `segment`, to `state`: note it for every link, to be pushed or announced.

    `hops` is the hop count that the forwarded segment will carry: 0 for our own updates, which go to all
    links; beyond the TTL nothing is pushed. Links without a Hello are left out, as they are told everything
    at their Hello; so is the link that brought the segment, as its peer has it.
    """
    feed = state.feed
    for link in links.values():
        if not link.greeted or link.has.get(feed, 0) >= state.next:
            continue
        link.changed[feed] = None
        if not hops or (hops < TTL and feed not in link.lazy):
            link.sent.setdefault(feed, segment.first)
            link.dirty[feed] = min(hops, link.dirty.get(feed, hops))
        else:
            link.have_at = min(link.have_at, now + HAVE_DELAY)


def announce(link: Link, frontier: Frontier) -> list[Action]:
    """Tell what has changed and is not being pushed (SPEC FL9), in the order of keys."""
    link.have_at = float("inf")
    feeds = [feed for feed in link.changed if link.position(feed) < frontier.next(feed)]
    feeds = [feed for feed in feeds if feed not in link.dirty and feed not in link.serving]
    link.changed.clear()
    unnamed = [feed for feed in feeds if feed not in link.named]
    link.named.update(unnamed)
    # Feeds that share a key cannot be told apart here; full Summaries tell of both.
    unique = {state.key: state.next for state in map(frontier.state, feeds)}
    entries = [Ahead(key, unique[key]) for key in sorted(unique)]
    cuts = range(0, len(entries), MAX_ENTRIES)
    haves = [Transmit(link.id, Have(tuple(entries[cut : cut + MAX_ENTRIES]))) for cut in cuts]
    return [*introduce(link, unnamed, frontier), *haves]


class Tree:
    """Which links bring which feeds: the part of every feed's tree that this node sees."""

    def __init__(self) -> None:
        self._first: dict[Feed, LinkId] = {}
        """Who was the first to bring the newest updates of a feed."""
        self._pushes: dict[Feed, Bucket] = {}

    def brought(self, link: Link, feed: Feed, now: float) -> None:
        """`link` was the first to bring something of `feed`."""
        self._first[feed] = link.id
        if now - link.pruned.get(feed, now) > PRUNE_CROSSING:
            del link.pruned[feed]  # it pushes all the same, and well

    def prune(self, links: dict[LinkId, Link], link: Link, state: FeedState, now: float) -> list[Action]:
        """`link` has pushed what we had: ask it to announce `state.feed` instead (SPEC FL8).

        Only if another link is left that has just brought the feed and was not asked the same: crossing
        messages must not cut off a feed altogether.
        """
        feed = state.feed
        first = links.get(self._first.get(feed, -1))
        if first is None or first is link or feed in first.pruned:
            return []
        if now - link.pruned.get(feed, float("-inf")) < PRUNE_AGAIN:
            return []
        link.pruned[feed] = now
        return [Transmit(link.id, Prune((state.key,)))]

    def may_push(self, feed: Feed, now: float) -> bool:
        """Whether a segment of somebody's `feed` may be pushed on now, or is one too many (SPEC FL10)."""
        bucket = self._pushes.setdefault(feed, Bucket(PUSH_BURST, now))
        return bucket.take(1.0, now, rate=PUSH_RATE, burst=PUSH_BURST)


def flush(link: Link, frontier: Frontier) -> list[Action]:
    """Serve as many dirty feeds as the link takes now; before that, teach it the names it lacks."""
    if not (link.dirty and link.writable and link.synced):
        return []
    serves: list[Action] = []
    unnamed: list[Feed] = []
    room = MAX_BURST_UPDATES
    while link.dirty and len(serves) < MAX_BURST and room > 0:
        feed, hops = next(iter(link.dirty.items()))
        del link.dirty[feed]
        first = link.position(feed)
        if first >= frontier.next(feed):
            continue
        if feed not in link.named:
            link.named.add(feed)
            unnamed.append(feed)
        room -= min(frontier.next(feed) - first, MAX_SEGMENT_UPDATES)
        link.serving[feed] = first
        serves.append(Serve(link.id, feed, first, hops))
    link.writable = not serves
    return [*introduce(link, unnamed, frontier), *serves]


def served(link: Link, event: Served, frontier: Frontier, now: float) -> None:
    """Note how far a Serve went; the rest of the feed, if any, waits for its next turn."""
    first = link.serving.pop(event.feed, 0)
    if first <= link.position(event.feed):  # else a Want has meanwhile gone back behind what was served
        link.sent[event.feed] = max(event.stop, link.sent.get(event.feed, 0))
    if link.position(event.feed) >= frontier.next(event.feed):
        return
    if event.hops and event.feed in link.lazy:
        link.have_at = min(link.have_at, now + HAVE_DELAY)
    else:
        link.dirty.setdefault(event.feed, event.hops)


def introduce(link: Link, feeds: list[Feed], frontier: Frontier) -> list[Action]:
    """Summaries that claim nothing and teach the names of `feeds` (SPEC A3)."""
    entries = tuple(Claim(feed, 0, NO_TAG) for feed in sorted(feeds))
    cuts = range(0, len(entries), MAX_ENTRIES)
    pages = [entries[cut : cut + MAX_ENTRIES] for cut in cuts]
    return [Transmit(link.id, Summary(False, frontier.known, frontier.digest(), page)) for page in pages]
