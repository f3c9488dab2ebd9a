"""Flooding: which feeds to send on each link, and in which order (SPEC FL1-FL10).

A link's outbox holds *dirty feeds*, never messages. When the link can take more, the updates that its peer
lacks are read from the log. A slow link therefore needs no more memory than a fast one, loses nothing, and
gets its backlog in few large segments instead of many small ones.

New updates spread along a tree for each feed, made of the links that were first to bring it (Plumtree, by
Leitao, Pereira and Rodrigues, 2007). Links of the tree are eager: segments are pushed on them. If a link
brings updates that are known already, its peer is asked to make it lazy, that is, to announce updates instead
of pushing them. An announcement that no segment follows shows where the tree is broken, and the pull that
answers it repairs the tree.

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
"""Maximum number of hops that a segment is pushed. Segments are accepted after any number of hops. With 6
links for each node, a million nodes lie within 8 hops. Only in a topology like a chain are nodes further away
than 16 hops; announcements reach them."""

HAVE_DELAY = 0.2
"""Seconds for which announcements on a link are collected. Several updates of a fast feed then need only one
entry. Most updates need no entry, as a working tree delivers them within this time."""

PRUNE_AGAIN = 10.0
"""Seconds after which a Prune is repeated if the link still pushes, as the first Prune was probably lost."""

PRUNE_CROSSING = 2.0
"""Seconds after a Prune during which pushed segments do not mean that the peer ignores the Prune: it may have
sent them before the Prune arrived."""

PUSH_RATE, PUSH_BURST = 20.0, 64.0
"""Maximum number of pushed segments of one feed, per second and at once. A trainer signs at most 10 a second.
Further segments are announced instead, and pulled in larger pieces."""

NO_TAG = bytes(4)
"""Tag in an entry of a Summary that claims no updates and only teaches a feed's name."""

MAX_BURST = 64
"""Maximum number of segments handed to a link before it reports Writable, so that no link starves the
others."""

MAX_BURST_BYTES = 131_072
"""Maximum size of the updates handed to a link before it reports Writable, in bytes. They take 10 s on a line
of 100 kbit/s, which is the time after which the peer gives up a pull. More updates would be requested and
sent twice."""


def mark(links: dict[LinkId, Link], state: FeedState, segment: Segment, hops: int, now: float) -> None:
    """Plan to push or announce `segment` on every link; `state` is its feed's state after it.

    `hops` is the hop count of the forwarded segment. It is 0 for our own updates, which are pushed on all
    links; at the TTL, the segment is only announced. Links without a Hello are left out, as they are told of
    all feeds after their Hello. Links whose peer has the segment are left out, too.
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
    """Return Haves for changed feeds that are not being pushed (SPEC FL9), in the order of keys."""
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
    """Serve `feed` from step `following` on at the peer's request, and push it to the peer again (SPEC A4).

    The peer lacks these updates, even if it was believed to have them.
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
    """This node's part of every feed's tree: the links that bring each feed."""

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

        Do so only if another link has just brought the feed and was not asked the same. Otherwise messages
        that cross on their way could cut off the feed altogether.
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
        """Return whether one more segment of `feed`, which is another node's, may be pushed now (SPEC
        FL10)."""
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
    """Note the end of a Serve. The rest of the feed, if any, waits for its next turn."""
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
