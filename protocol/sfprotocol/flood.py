"""Flooding: what each link still has to be sent, and in which order (SPEC F1-F7).

A link's outbox holds *dirty feeds*, never messages: when the link can take more, whatever its peer lacks of a
dirty feed is read from the log at that moment. A slow link therefore needs no more memory than a fast one,
loses nothing, and gets its backlog in few large segments instead of many small ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sfprotocol.events import Action, LinkId, Serve, Transmit
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, Position, Summary

TTL = 16
"""Hops that a segment is forwarded eagerly. With 6 links a million nodes lie within 8 hops; beyond 16 the
topology is a chain and anti-entropy takes over. Never a bound on acceptance."""

MAX_BURST = 64
"""Segments handed to a link before it must report Writable: keeps one link from starving the others."""


@dataclass(slots=True)
class Link:
    """Everything the machine knows about one link and the peer behind it."""

    id: LinkId
    peer: str
    heard: float
    """When the last frame arrived."""
    greeted: bool = False
    """A valid Hello has arrived."""
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
    """What the peer certainly has: it told us, or it sent it to us."""
    sent: dict[Feed, int] = field(default_factory=dict)
    """How far we have served this link."""
    dirty: dict[Feed, int] = field(default_factory=dict)
    """Feeds to serve, in order, with the hop count of the segment."""
    changed: dict[Feed, None] = field(default_factory=dict)
    """Feeds that advanced since our last Summary on this link."""
    ahead: dict[Feed, None] = field(default_factory=dict)
    """Feeds of which the peer has (had) more than we."""
    named: set[Feed] = field(default_factory=set)
    """Feeds whose full name the peer knows."""
    disputed: set[Feed] = field(default_factory=set)
    """Feeds of which this peer sent a segment that did not verify; not asked for again on this link."""

    def position(self, feed: Feed) -> int:
        """The first step of `feed` that the peer has not, as far as we know."""
        return max(self.has.get(feed, 0), self.sent.get(feed, 0))


def mark(links: dict[LinkId, Link], feed: Feed, stop: int, hops: int, source: LinkId | None) -> None:
    """`feed` has advanced to `stop`: note it for every link, and for eager forwarding where that is allowed.

    `hops` is the hop count that the forwarded segment will carry (0 for our own updates).
    """
    for link in links.values():
        if link.id == source or link.has.get(feed, 0) >= stop:
            continue
        link.changed[feed] = None
        if hops < TTL:
            link.dirty[feed] = min(hops, link.dirty.get(feed, hops))


def flush(link: Link, frontier: Frontier) -> list[Action]:
    """Serve as many dirty feeds as the link takes now; before that, teach it the names it lacks."""
    if not (link.writable and link.synced):
        return []
    serves: list[Action] = []
    unnamed: list[Feed] = []
    while link.dirty and len(serves) < MAX_BURST:
        feed, hops = next(iter(link.dirty.items()))
        del link.dirty[feed]
        first = link.position(feed)
        if first >= frontier.next(feed):
            continue
        if feed not in link.named:
            link.named.add(feed)
            unnamed.append(feed)
        serves.append(Serve(link.id, feed, first, hops))
    link.writable = not serves
    return [*introduce(link, unnamed, frontier), *serves]


def introduce(link: Link, feeds: list[Feed], frontier: Frontier) -> list[Action]:
    """A Summary that claims nothing and teaches the names of `feeds` (SPEC A3)."""
    if not feeds:
        return []
    entries = tuple(Position(feed, 0) for feed in sorted(feeds))
    return [Transmit(link.id, Summary(False, frontier.known, frontier.digest(), entries))]
