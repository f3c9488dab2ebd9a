"""Anti-entropy: Summaries that tell what is there, Wants that pull what is missing (SPEC A1-A9).

Flooding is fast and may lose anything; this is what makes delivery certain. It keeps the table of
outstanding pulls, so that the same range is not asked of two peers without need, and a peer that does not
deliver is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from sfprotocol.codec import MAX_ENTRIES
from sfprotocol.events import Action, LinkId, Transmit
from sfprotocol.flood import Link, announce
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Claim, Feed, Position, Summary, Want

SYNC_INTERVAL = 1.0
"""Seconds between Summaries, each to the next link in turn: with 6 links every neighbour hears of us every
6 s and we of it, which costs a quiet node 50 bytes a second."""

GRAFT_DELAY = 0.1
"""Seconds between hearing that a peer has more and asking for it: what is pushed to us arrives about as late
as the announcement was sent early, give or take the latency of a link."""

HEDGE_DELAY = 0.4
"""Seconds after which a small pull without an answer is put to as many peers again: with 12 links, of which
one tells the truth, it is found within 1.6 s. Most round trips take less, and what is sent twice is small."""

SMALL_PULL = 64
"""Updates; asking twice for so few costs 200 bytes. A larger pull waits for a peer that is delivering."""

BUSY_TIME = 2.0
"""Seconds that a small pull waits for a peer that is delivering more than SMALL_PULL feeds: who is late asks
for hundreds at once, and a slow line must not carry all of them twice."""

WANT_TIMEOUT = 10.0
"""Seconds without progress after which a pull is put to all peers anew. A whole burst (FL7) crosses a
100 kbit/s line in that time."""

MAX_PULLS_PER_LINK = 1024
"""Outstanding pulls on one link: bounds what a peer with invented feeds can make us remember."""

MAX_PULLS = 16_384
"""Pulls outstanding or planned: a dozen links' worth. More is only claimed by peers that invent feeds."""

FULL_SUMMARY_BASE = 2.0
FULL_SUMMARY_PER_FEED = 0.02
"""Seconds between full Summaries on a link whose digest differs: keeps their cost below 3 kB/s a link,
however many feeds there are."""

MOST_PATIENCE = 16.0
"""How many times that long to wait at most, as long as telling everything has repaired nothing: while updates
flow two digests are seldom of the same moment."""


def pages(frontier: Frontier, entries: list[Claim]) -> list[Summary]:
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
    link.changed.clear()
    link.named.update(state.feed for state in frontier)
    return [Transmit(link.id, page) for page in pages(frontier, frontier.claims())]


def tell_changes(link: Link, frontier: Frontier) -> list[Action]:
    """What has changed, and the digest that goes with it (SPEC A2)."""
    return [*announce(link, frontier), *(Transmit(link.id, page) for page in pages(frontier, []))]


def wants_full_summary(link: Link, frontier: Frontier, now: float) -> bool:
    """Whether the digests have differed for so long that a Summary must have been lost (SPEC A6)."""
    if link.mismatch_since is None:
        return False
    interval = (FULL_SUMMARY_BASE + FULL_SUMMARY_PER_FEED * len(frontier)) * link.patience
    return now - max(link.mismatch_since, link.full_at) >= interval


@dataclass(slots=True)
class Pull:
    """One feed of which somebody has more than we."""

    deadline: float = 0.0
    """When to put it to (further) peers."""
    asked: dict[LinkId, float] = field(default_factory=dict)
    """Who was asked for it, and when."""
    wait: float = HEDGE_DELAY
    """Seconds until the next peers are asked; doubles when all were asked."""


class Pulls:
    """The table of outstanding pulls, one a feed at most."""

    def __init__(self, frontier: Frontier, links: dict[LinkId, Link]) -> None:
        self._frontier = frontier
        self._links = links
        self._pulls: dict[Feed, Pull] = {}
        self._agenda: list[tuple[float, Feed]] = []
        """Deadlines; those that have moved or are done are skipped."""

    def __len__(self) -> int:
        return len(self._pulls)

    def lacking(self, enough: float = inf) -> int:
        """Updates that are asked for or will be, of every feed by the lowest claim; counted until there are
        more than `enough`."""
        total = 0
        for feed in self._pulls:
            total += self._gap(feed)
            if total > enough:
                break
        return total

    def _gap(self, feed: Feed) -> int:
        ours = self._frontier.next(feed)
        claims = (link.has.get(feed, 0) for link in self._links.values())
        return min((claim - ours for claim in claims if self._frontier.lacks(feed, claim)), default=0)

    def deadline(self) -> float:
        """When `wake` has something to do; infinity if there is nothing."""
        while self._agenda:
            due, feed = self._agenda[0]
            pull = self._pulls.get(feed)
            if pull and pull.deadline == due:
                return due
            heappop(self._agenda)
        return float("inf")

    def heard_of(self, link: Link, feed: Feed, following: int, now: float) -> None:
        """The peer has everything of `feed` before step `following`: ask for it unless it comes by itself."""
        link.heard_of(feed, following)
        if self._frontier.lacks(feed, following):
            link.ahead[feed] = None
            self.expect(feed, now + GRAFT_DELAY)

    def expect(self, feed: Feed, due: float) -> None:
        """Somebody has more of `feed`: ask for it at `due` if it has not come by then.

        Beyond MAX_PULLS nothing is noted: the machine comes back to what a peer is ahead in.
        """
        if feed not in self._pulls and len(self._pulls) < MAX_PULLS:
            self._put(feed, Pull(), due)

    def ask(self, link: Link, feeds: Iterable[Feed], now: float) -> list[Action]:
        """Pull from `link` at once whatever of `feeds` it has, we lack, and nobody was asked for."""
        wanted = []
        for feed in sorted(set(feeds)):
            pull = self._pulls.get(feed)
            if (pull and pull.asked) or not self._askable(link, feed, now):
                continue
            if len(link.asked) >= MAX_PULLS_PER_LINK:
                break
            self._pulls.setdefault(feed, Pull())
            self._note(link, feed, now)
            wanted.append(feed)
        return self._want(link, wanted)

    def wake(self, now: float) -> list[Action]:
        """Put the pulls that are due to the next peers."""
        chosen: dict[LinkId, list[Feed]] = {}
        while self.deadline() <= now:
            _, feed = heappop(self._agenda)
            for link in self._next_peers(feed, self._pulls[feed], now):
                self._note(link, feed, now)
                chosen.setdefault(link.id, []).append(feed)
        return [a for link_id, feeds in chosen.items() for a in self._want(self._links[link_id], feeds)]

    def progressed(self, feed: Feed, link: Link | None, now: float) -> None:
        """`feed` advanced by what `link` brought (None: by us): finish its pull, or wait for the rest."""
        pull = self._pulls.get(feed)
        if pull is None:
            return
        if link and link.id in pull.asked:
            pull.asked[link.id] = now
            link.broken = 0
        if not any(self._askable(other, feed, now) for other in self._links.values()):
            self.finish(feed)
        elif pull.asked:
            pull.wait = HEDGE_DELAY
            self._put(feed, pull, now + pull.wait)

    def finish(self, feed: Feed) -> None:
        """Nothing of `feed` is wanted any more, for the time being."""
        if pull := self._pulls.pop(feed, None):
            for link_id in pull.asked:
                if link := self._links.get(link_id):
                    link.asked.pop(feed, None)

    def release(self, link: Link, now: float) -> None:
        """The link is gone, or is not to be asked any more for what it was asked: ask others, at once."""
        for feed in list(link.asked):
            self.forget(feed, link, now)

    def forget(self, feed: Feed, link: Link, now: float) -> None:
        """`link` is not to be asked for `feed`; if it was, ask others at once."""
        if feed in link.asked:
            del link.asked[feed]
            pull = self._pulls[feed]
            del pull.asked[link.id]
            self._put(feed, pull, now)

    def _askable(self, link: Link, feed: Feed, now: float) -> bool:
        inquiry = link.inquiries.get(feed)
        return (inquiry is None or inquiry.until <= now) and self._frontier.lacks(feed, link.has.get(feed, 0))

    def _put(self, feed: Feed, pull: Pull, deadline: float) -> None:
        self._pulls[feed], pull.deadline = pull, deadline
        heappush(self._agenda, (deadline, feed))

    def _note(self, link: Link, feed: Feed, now: float) -> None:
        """`link` is being asked for `feed`."""
        pull = self._pulls[feed]
        pull.asked[link.id] = now
        self._put(feed, pull, now + pull.wait)
        link.asked[feed] = None
        link.pruned.pop(feed, None)  # who is asked pushes again (SPEC A4)

    def _want(self, link: Link, feeds: list[Feed]) -> list[Action]:
        if not feeds:
            return []
        return [Transmit(link.id, Want(tuple(Position(f, self._frontier.next(f)) for f in sorted(feeds))))]

    def _next_peers(self, feed: Feed, pull: Pull, now: float) -> list[Link]:
        """Whom to ask now: one peer at first, then twice as many each time; who has failed us, last."""
        claimants = [link for link in self._links.values() if self._askable(link, feed, now)]
        if not claimants:
            self.finish(feed)
            return []
        if self._is_coming(feed, pull, now):
            self._put(feed, pull, now + HEDGE_DELAY)
            return []
        for link_id in pull.asked:
            if link := self._links.get(link_id):
                link.broken += 1
        fresh = [link for link in claimants if link.id not in pull.asked and self._has_room(link)]
        if not fresh:
            self._start_over(pull, feed, now)
            return []
        fresh.sort(key=lambda link: link.broken)
        return fresh[: max(1, len(pull.asked))]

    def _has_room(self, link: Link) -> bool:
        return len(link.asked) < MAX_PULLS_PER_LINK

    def _is_coming(self, feed: Feed, pull: Pull, now: float) -> bool:
        """Whether a peer that was asked is delivering, and the rest is too much to ask for twice."""
        large = self._gap(feed) > SMALL_PULL
        for link_id, since in pull.asked.items():
            link = self._links.get(link_id)
            if link is None or now - link.brought_at > 2 * HEDGE_DELAY:
                continue
            if now - since < (WANT_TIMEOUT if large else BUSY_TIME if len(link.asked) > SMALL_PULL else 0.0):
                return True
        return False

    def _start_over(self, pull: Pull, feed: Feed, now: float) -> None:
        """All were asked, or have enough to do: wait, and after WANT_TIMEOUT ask all again."""
        pull.wait = min(2 * pull.wait, WANT_TIMEOUT)
        for link_id in [link_id for link_id, since in pull.asked.items() if since + WANT_TIMEOUT <= now]:
            del pull.asked[link_id]
            if link := self._links.get(link_id):
                link.asked.pop(feed, None)
                link.let_down += 1
        again = min(pull.asked.values(), default=now - WANT_TIMEOUT + HEDGE_DELAY) + WANT_TIMEOUT
        self._put(feed, pull, min(now + pull.wait, again))
