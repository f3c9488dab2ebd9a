"""Anti-entropy: Summaries that tell what changed, Wants that pull what is missing (SPEC A1-A7).

Flooding is fast and may lose anything; this is what makes delivery certain. It keeps the table of
outstanding pulls, so that the same range is not asked of two peers at once and a peer that does not deliver
is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sfprotocol.codec import MAX_ENTRIES
from sfprotocol.events import Action, LinkId, Transmit
from sfprotocol.flood import Link
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, Position, Summary, Want

WANT_TIMEOUT = 10.0
"""Seconds without progress after which a pull is given to another peer. A full segment of 32 KiB crosses a
100 kbit/s line in 3 s, a whole burst in 10."""

DISPUTE_TIME = 60.0
"""Seconds that a peer is not asked for a feed of which it sent something that did not verify. A fork then
costs a segment a minute and link; not for ever, so that one fault on an only link does not part two nodes."""

MAX_PULLS_PER_LINK = 1024
"""Outstanding pulls on one link: bounds what a peer with invented feeds can make us remember."""

FULL_SUMMARY_BASE = 2.0
FULL_SUMMARY_PER_FEED = 0.02
"""Seconds between full Summaries on a link whose digest differs: keeps their cost below 3 kB/s a link,
however many feeds there are."""


@dataclass(slots=True)
class Pull:
    """One feed asked of one link."""

    link: LinkId
    deadline: float


def pages(frontier: Frontier, entries: list[Position]) -> list[Summary]:
    """`entries` (in the order of feeds) as Summaries; the last has `more` unset. One empty page if none."""
    cuts = range(0, max(len(entries), 1), MAX_ENTRIES)
    return [
        Summary(
            more=cut + MAX_ENTRIES < len(entries),
            known=frontier.known,
            digest=frontier.digest(),
            entries=tuple(entries[cut : cut + MAX_ENTRIES]),
        )
        for cut in cuts
    ]


def tell_all(link: Link, frontier: Frontier, now: float) -> list[Action]:
    """Everything we have, named and counted (SPEC A1)."""
    link.full_at = now
    return _tell(link, frontier, frontier.positions())


def tell_changes(link: Link, frontier: Frontier) -> list[Action]:
    """What advanced since the last Summary on this link and has neither come from the peer nor gone to it
    (SPEC A2)."""
    feeds = sorted(f for f in link.changed if link.position(f) < frontier.next(f))
    return _tell(link, frontier, [Position(f, frontier.next(f)) for f in feeds])


def _tell(link: Link, frontier: Frontier, entries: list[Position]) -> list[Action]:
    link.changed.clear()
    link.named.update(entry.feed for entry in entries)
    return [Transmit(link.id, page) for page in pages(frontier, entries)]


def wants_full_summary(link: Link, frontier: Frontier, now: float) -> bool:
    """Whether the digests have differed for so long that a Summary must have been lost (SPEC A6)."""
    if link.mismatch_since is None:
        return False
    interval = FULL_SUMMARY_BASE + FULL_SUMMARY_PER_FEED * len(frontier)
    return now - max(link.mismatch_since, link.full_at) >= interval


class Pulls:
    """The outstanding pulls: at most one a feed."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._pulls: dict[Feed, Pull] = {}

    def __len__(self) -> int:
        return len(self._pulls)

    def deadline(self) -> float:
        """When the next pull expires; infinity if there is none."""
        return min((pull.deadline for pull in self._pulls.values()), default=float("inf"))

    def ask(self, link: Link, feeds: Iterable[Feed], now: float) -> list[Action]:
        """Pull from `link` whatever of `feeds` it has, we lack, and nobody is being asked for."""
        askable = sorted(feed for feed in set(feeds) if self._askable(link, feed, now))
        if not askable:
            return []
        room = MAX_PULLS_PER_LINK - sum(1 for pull in self._pulls.values() if pull.link == link.id)
        wanted = askable[: max(room, 0)]
        if not wanted:
            return []
        for feed in wanted:
            self._pulls[feed] = Pull(link.id, now + WANT_TIMEOUT)
        return [Transmit(link.id, Want(tuple(Position(f, self._frontier.next(f)) for f in wanted)))]

    def _askable(self, link: Link, feed: Feed, now: float) -> bool:
        return (
            feed not in self._pulls
            and link.disputed.get(feed, now) <= now
            and link.has.get(feed, 0) > self._frontier.next(feed)
        )

    def progressed(self, feed: Feed, links: dict[LinkId, Link], now: float) -> None:
        """`feed` advanced: finish its pull, or give the peer more time for the rest."""
        pull = self._pulls.get(feed)
        if pull is None:
            return
        link = links.get(pull.link)
        if link is None or link.has.get(feed, 0) <= self._frontier.next(feed):
            del self._pulls[feed]
        else:
            pull.deadline = now + WANT_TIMEOUT

    def forget(self, feed: Feed, link: LinkId) -> bool:
        """Give up the pull of `feed` if this link was asked; whether it was."""
        pull = self._pulls.get(feed)
        if pull is None or pull.link != link:
            return False
        del self._pulls[feed]
        return True

    def release(self, link: LinkId) -> list[Feed]:
        """The link is gone: return the feeds that must be asked of others."""
        feeds = [feed for feed, pull in self._pulls.items() if pull.link == link]
        for feed in feeds:
            del self._pulls[feed]
        return feeds

    def expire(self, now: float) -> dict[LinkId, list[Feed]]:
        """Remove and return, by link, the pulls that made no progress in time."""
        late: dict[LinkId, list[Feed]] = {}
        for feed, pull in list(self._pulls.items()):
            if pull.deadline <= now:
                late.setdefault(pull.link, []).append(feed)
                del self._pulls[feed]
        return late
