"""Flooding: which feeds to send on each link, and in which order (SPEC FL1-FL10).

A link's outbox holds *dirty feeds*, never messages. When the link can take more messages, the updates that
its peer lacks are read from the log. So a slow link needs no more memory than a fast link, loses nothing, and
gets the waiting updates in few large segments instead of many small ones.

New updates of a feed spread along a tree of links: those that were first to bring the feed (Plumtree, by
Leitao, Pereira and Rodrigues, 2007). Links of the tree are eager: segments are pushed on them. If a link
brings updates that are known already, its peer is asked to make the link lazy: to announce updates on it
instead of pushing them. If updates are announced, but no eager link brings them, the tree is broken. They are
then pulled from the peer that has announced them, which makes its link eager again.

Flooding carries new updates. A peer pulls older ones (pulls.py) from one neighbour and not from all of them.
"""

from __future__ import annotations

from sfprotocol.events import Action, LinkId, Serve, Served, Transmit
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.link import Link
from sfprotocol.messages import Ahead, Claim, Feed, Have, Prune, Segment, Summary
from sfprotocol.rate_limit import Bucket
from sfprotocol.wire_codec import MAX_ENTRIES

TTL = 16
"""Maximum number of hops for which a segment is pushed. Segments are accepted after any number of hops. With
6 links for each node, a million nodes lie within 8 hops. Only a topology like a chain has nodes more than 16
hops away. Announcements reach these nodes."""

HAVE_DELAY = 0.2
"""Seconds for which announcements on a link are collected. Several updates of a fast feed then need only one
entry in a Have. Most updates need no entry, because the tree delivers them within this time."""

PRUNE_AGAIN = 10.0
"""Seconds after which a Prune is repeated if the link still pushes, as the first Prune was probably lost."""

PRUNE_CROSSING = 2.0
"""Seconds after a Prune during which pushed segments do not mean that the peer ignores the Prune: it may have
sent them before the Prune arrived."""

PUSH_RATE, PUSH_BURST = 20.0, 64.0
"""Maximum number of pushed segments of one feed: on average per second, and in a burst. Further segments are
announced, and pulled as fewer, larger segments. An honest trainer stays below the maximum, as it signs at
most 10 segments a second."""

NO_TAG = bytes(4)
"""Tag in an entry of a Summary that claims no updates and only teaches a feed's name."""

MAX_BURST = 64
"""Maximum number of segments handed to a link before it reports Writable, so that no link starves the
others."""

MAX_BURST_BYTES = 131_072
"""Maximum size of the updates handed to a link before it reports Writable, in bytes. They take 10 s on a line
of 100 kbit/s. This is the time after which the peer gives up a pull. If more updates were handed to such a
line, the peer would request them again, and they would be sent twice."""


def mark(links: dict[LinkId, Link], state: FeedState, segment: Segment, hops: int, now: float) -> None:
    """Plan to push or announce `segment` on every link; `state` is its feed's state after it.

    `hops` is the hop count of the forwarded segment. With 0 hops, it has our own updates and is pushed on all
    links. With TTL hops, it is only announced. Two kinds of links are left out: those on which no Hello has
    arrived yet, as all feeds are told after the Hello, and those whose peer has the segment.
    """
    feed = state.feed
    for link in links.values():
        if not link.greeted or link.has.get(feed, 0) >= state.next:
            continue
        outbox = link.outbox
        outbox.changed[feed] = None
        if not hops or (hops < TTL and feed not in outbox.lazy):
            outbox.sent.setdefault(feed, segment.first)
            outbox.dirty[feed] = min(hops, outbox.dirty.get(feed, hops))
        else:
            outbox.announce_at = min(outbox.announce_at, now + HAVE_DELAY)


def announce(link: Link, frontier: Frontier) -> list[Action]:
    """Return the Haves that announce changed feeds which are not being pushed (SPEC FL9), in the order of
    feed keys."""
    outbox = link.outbox
    outbox.announce_at = float("inf")
    feeds = [feed for feed in outbox.changed if link.position(feed) < frontier.next(feed)]
    feeds = [feed for feed in feeds if feed not in outbox.dirty and feed not in outbox.serving]
    outbox.changed.clear()
    unnamed = [feed for feed in feeds if feed not in link.names.known]
    # Feeds that share a key cannot be told apart here; full Summaries tell of both.
    unique = {state.key: state.next for state in map(frontier.state, feeds)}
    entries = [Ahead(key, unique[key]) for key in sorted(unique)]
    cuts = range(0, len(entries), MAX_ENTRIES)
    haves = [Transmit(link.id, Have(tuple(entries[cut : cut + MAX_ENTRIES]))) for cut in cuts]
    return [*introduce(link, unnamed, frontier), *haves]


def wanted(link: Link, feed: Feed, following: int, frontier: Frontier) -> None:
    """Send the peer `feed` from step `following` on, as requested, and push later updates of the feed to the
    peer again (SPEC A4).

    The request shows that the peer lacks these updates, even if it has claimed to have them.
    """
    link.names.known.add(feed)
    link.outbox.lazy.discard(feed)
    link.outbox.sent[feed] = following
    if following < frontier.next(feed):
        link.outbox.dirty[feed] = 0


def pruned(link: Link, prune: Prune, frontier: Frontier) -> None:
    """Announce these feeds on the link from now on instead of pushing them (SPEC FL8)."""
    for key in prune.feed_keys:
        link.outbox.lazy.update(frontier.keyed(key))


class Tree:
    """This node's knowledge of every feed's tree: the link that was the first to bring the feed's newest
    updates."""

    def __init__(self) -> None:
        self._first: dict[Feed, LinkId] = {}
        """The link that was the first to bring the newest updates, keyed by feed."""
        self._pushes: dict[Feed, Bucket] = {}

    def brought(self, link: Link, feed: Feed, now: float) -> None:
        """Note that `link` was the first to bring new updates of `feed`."""
        self._first[feed] = link.id
        if now - link.inbox.pruned.get(feed, now) > PRUNE_CROSSING:
            del link.inbox.pruned[feed]  # it still pushes, and is useful

    def prune(self, links: dict[LinkId, Link], link: Link, state: FeedState, now: float) -> list[Action]:
        """Ask `link`, which has pushed a duplicate, to announce `state.feed` instead (SPEC FL8).

        Do so only if another link was the first to bring these updates, and was not asked to announce the
        feed, too. Otherwise no link might push the feed any more.
        """
        feed = state.feed
        first = links.get(self._first.get(feed, -1))
        if first is None or first is link or feed in first.inbox.pruned:
            return []
        return self.make_lazy(link, state, now)

    def make_lazy(self, link: Link, state: FeedState, now: float) -> list[Action]:
        """Ask `link` to announce `state.feed` from now on, unless it was asked a moment ago."""
        if now - link.inbox.pruned.get(state.feed, float("-inf")) < PRUNE_AGAIN:
            return []
        link.inbox.pruned[state.feed] = now
        return [Transmit(link.id, Prune((state.key,)))]

    def forget(self, feed: Feed) -> None:
        """Forget which link has brought `feed`."""
        self._first.pop(feed, None)
        self._pushes.pop(feed, None)

    def may_push(self, feed: Feed, now: float) -> bool:
        """Return whether another segment of `feed`, a feed of another node, may be pushed now (SPEC FL10)."""
        bucket = self._pushes.setdefault(feed, Bucket(PUSH_BURST, now))
        return bucket.take(1.0, now, rate=PUSH_RATE, burst=PUSH_BURST)


def flush(link: Link, frontier: Frontier) -> list[Action]:
    """Teach the peer missing feed names, then serve as many dirty feeds as the link takes now."""
    outbox = link.outbox
    if not (outbox.dirty and outbox.writable and link.synced):
        return []
    serves: list[Action] = []
    unnamed: list[Feed] = []
    room, form = MAX_BURST_BYTES, frontier.run.form
    while outbox.dirty and len(serves) < MAX_BURST and room > 0:
        feed, hops = next(iter(outbox.dirty.items()))
        del outbox.dirty[feed]
        first = link.position(feed)
        if not frontier.state(feed).base <= first < frontier.next(feed):
            continue  # not stored here: the peer must ask others (SPEC O15)
        if feed not in link.names.known:
            unnamed.append(feed)
        room -= min(frontier.next(feed) - first, form.segment_updates) * form.width
        outbox.serving[feed] = first
        serves.append(Serve(link.id, feed, first, hops))
    outbox.writable = not serves
    return [*introduce(link, unnamed, frontier), *serves]


def served(link: Link, event: Served, frontier: Frontier, now: float) -> None:
    """Note the end of a Serve. If the peer lacks later updates of the feed, plan to push or announce them."""
    outbox, feed = link.outbox, event.feed
    first = outbox.serving.pop(feed, 0)
    if first <= link.position(feed):  # else a Want has meanwhile gone back to an earlier step
        outbox.sent[feed] = max(event.stop, outbox.sent.get(feed, 0))
    if link.position(feed) >= frontier.next(feed):
        return
    if event.hops and feed in outbox.lazy:
        outbox.announce_at = min(outbox.announce_at, now + HAVE_DELAY)
    else:
        outbox.dirty.setdefault(feed, event.hops)


def introduce(link: Link, feeds: list[Feed], frontier: Frontier) -> list[Action]:
    """Return Summaries that claim nothing and teach the peer the names of `feeds` (SPEC A3)."""
    link.names.known.update(feeds)
    entries = tuple(Claim(feed, 0, NO_TAG) for feed in sorted(feeds))
    cuts = range(0, len(entries), MAX_ENTRIES)
    pages = [entries[cut : cut + MAX_ENTRIES] for cut in cuts]
    return [Transmit(link.id, Summary(False, frontier.known, frontier.digest(), page)) for page in pages]
