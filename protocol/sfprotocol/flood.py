"""Flooding: what each link still has to be sent, and in which order (SPEC FL1-FL7).

A link's outbox holds *dirty feeds*, never messages: when the link can take more, whatever its peer lacks of a
dirty feed is read from the log at that moment. A slow link therefore needs no more memory than a fast one,
loses nothing, and gets its backlog in few large segments instead of many small ones.

Flooding carries what is new. What a peer lacked when the link came up it pulls (sync), from one neighbour and
not from all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.events import Action, LinkId, Serve, Served, Transmit
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, Position, Segment, Summary

TTL = 16
"""Hops that a segment is forwarded eagerly. With 6 links a million nodes lie within 8 hops; beyond 16 the
topology is a chain and anti-entropy takes over. Never a bound on acceptance."""

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
    disputed: dict[Feed, float] = field(default_factory=dict)
    """Feeds of which this peer sent something that did not verify, and until when not to ask it for them."""

    def position(self, feed: Feed) -> int:
        """The first step of `feed` that the peer has not, or need not be sent unless it asks."""
        return max(self.has.get(feed, 0), self.sent.get(feed, 0))


def mark(links: dict[LinkId, Link], feed: Feed, segment: Segment, hops: int) -> None:
    """`feed` has advanced by `segment`: note it for every link, and for eager forwarding where allowed.

    `hops` is the hop count that the forwarded segment will carry (0 for our own updates). Links without a
    Hello are left out, as they are told everything at their Hello; so is the link that brought the segment,
    as its peer has it.
    """
    for link in links.values():
        if not link.greeted or link.has.get(feed, 0) >= segment.stop:
            continue
        link.changed[feed] = None
        if hops < TTL:
            link.sent.setdefault(feed, segment.first)
            link.dirty[feed] = min(hops, link.dirty.get(feed, hops))


def flush(link: Link, frontier: Frontier) -> list[Action]:
    """Serve as many dirty feeds as the link takes now; before that, teach it the names it lacks."""
    if not (link.writable and link.synced):
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


def served(link: Link, event: Served, frontier: Frontier) -> None:
    """Note how far a Serve went; the rest of the feed, if any, waits for its next turn."""
    first = link.serving.pop(event.feed, 0)
    if first <= link.position(event.feed):  # else a Want has meanwhile gone back behind what was served
        link.sent[event.feed] = max(event.stop, link.sent.get(event.feed, 0))
    if link.position(event.feed) < frontier.next(event.feed):
        link.dirty.setdefault(event.feed, event.hops)


def introduce(link: Link, feeds: list[Feed], frontier: Frontier) -> list[Action]:
    """A Summary that claims nothing and teaches the names of `feeds` (SPEC A3)."""
    if not feeds:
        return []
    entries = tuple(Position(feed, 0) for feed in sorted(feeds))
    return [Transmit(link.id, Summary(False, frontier.known, frontier.digest(), entries))]
