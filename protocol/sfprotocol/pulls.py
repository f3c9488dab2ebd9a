"""The table of outstanding pulls: missing updates, and the peers that are asked for them (SPEC A4, A5, A9).

Two peers are asked for the same updates only if the first one does not deliver. No peer is asked for steps
that it says it does not keep (SPEC O15). There is at most one pull per feed. A peer's *claim* is the step up
to which, as far as we know, the peer has a feed. The machine reports every change of a claim or of our own
feeds to this module, so that the number of missing updates is always up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from sfprotocol.events import Action, LinkId, Transmit
from sfprotocol.frontier import Frontier
from sfprotocol.link import Link
from sfprotocol.messages import Feed, Position, Want
from sfprotocol.rate_limit import OriginBuckets

GRAFT_DELAY = 0.1
"""Delay, in seconds, from an announcement of updates to the request for them. Usually another link pushes the
same updates within that time, so that no request is needed."""

HEDGE_DELAY = 0.4
"""Seconds without an answer after which a small pull also goes to further peers, which doubles the number of
peers asked. With 12 peers, the last one is asked after 1.6 s at the latest. Most round trips take less than
HEDGE_DELAY, so that few updates are sent twice."""

SMALL_PULL = 64
"""Maximum number of updates of a small pull. If two peers answer a small pull, some 200 bytes are wasted. A
larger pull goes to no second peer while the first one is delivering."""

SMALL_PULL_BYTES = 4096
"""Maximum size of a small pull in a first-order run, in bytes. A single update counts as a small pull,
whatever its size."""

BUSY_TIME = 2.0
"""Seconds for which a small pull goes to no second peer if the first peer is delivering updates and was asked
for more than SMALL_PULL feeds. A late joiner asks for hundreds of feeds at once, and a slow line must not
carry all these feeds twice."""

WANT_TIMEOUT = 10.0
"""Seconds without progress after which a pull from a peer has failed, and the peer may be asked again. A
whole burst (FL7) crosses a line of 100 kbit/s in that time."""

MAX_PULLS_PER_LINK = 1024
"""Maximum number of outstanding pulls on one link. Bounds the memory that a peer can use up by claiming feeds
that do not exist."""

MAX_PULLS = 16_384
"""Maximum number of outstanding or planned pulls on all links together. A dozen links with MAX_PULLS_PER_LINK
pulls each stay below this number. Only peers that claim feeds that do not exist can cause more pulls."""


@dataclass(slots=True)
class Pull:
    """The state of the requests for one feed in which some peer is ahead of us."""

    deadline: float = 0.0
    """Time at which to ask the first or further peers."""
    asked: dict[LinkId, float] = field(default_factory=dict)
    """The links that were asked, with the time of the request or of the latest progress."""
    wait: float = HEDGE_DELAY
    """Seconds from a request until further peers are asked. The time doubles whenever all peers were asked
    without success."""
    gap: int = 0
    """Number of missing updates up to the lowest claim of a peer that is ahead of us; 0 if no peer is
    ahead."""


class Pulls:
    """All pulls of one machine."""

    def __init__(self, frontier: Frontier, links: dict[LinkId, Link], origins: OriginBuckets) -> None:
        self._frontier = frontier
        self._origins = origins
        self._links = links
        form = frontier.run.form
        self._small = max(1, SMALL_PULL_BYTES // form.width) if form.cells else SMALL_PULL
        self._pulls: dict[Feed, Pull] = {}
        self.lacking = 0
        """Number of missing updates that are or will be requested: the sum of all gaps."""
        self._agenda: list[tuple[float, Feed]] = []
        """A heap of pairs (deadline, feed). Pairs with a former deadline of a pull are skipped."""

    def __len__(self) -> int:
        return len(self._pulls)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._pulls)

    def deadline(self) -> float:
        """Return the time at which `wake` must be called; infinity if no pull has a deadline."""
        while self._agenda:
            due, feed = self._agenda[0]
            pull = self._pulls.get(feed)
            if pull and pull.deadline == due:
                return due
            heappop(self._agenda)
        return float("inf")

    # -- what peers have ---------------------------------------------------------------------------

    def heard_of(self, link: Link, feed: Feed, following: int, now: float) -> None:
        """Note that the peer has `feed` up to step `following`. If some of these updates are missing here,
        plan to request them after GRAFT_DELAY, unless they arrive earlier."""
        self.has(link, feed, following)
        if self._frontier.lacks(feed, following):
            before = link.inbox.ahead.get(feed, 0)
            link.inbox.ahead[feed] = before if link.heard_out else max(before, following)
            self.expect(feed, now + GRAFT_DELAY)

    def brought(self, link: Link, feed: Feed, following: int, fresh: int, now: float) -> None:
        """Note that the peer has `feed` up to step `following`. `fresh` of these updates came from this peer
        first."""
        self.has(link, feed, following)
        link.inbox.brought_at, link.inbox.let_down = now, 0
        link.inbox.withheld.discard(feed)
        link.inbox.useful += fresh

    def has(self, link: Link, feed: Feed, following: int) -> None:
        """Note that the peer has `feed` up to step `following`."""
        if following > link.has.get(feed, 0):
            self.set_claim(link, feed, following)

    def set_claim(self, link: Link, feed: Feed, following: int) -> None:
        """Set the peer's claim: from now on, only updates of `feed` before step `following` are requested
        from the peer. Later updates are either missing there, or not allowed yet by the decisions stored
        here."""
        before, link.has[feed] = link.has.get(feed, 0), following
        pull = self._pulls.get(feed)
        if pull is None or following == before:
            return
        lowest = self._frontier.next(feed) + pull.gap
        if pull.gap and before != lowest <= following:
            return  # another peer's claim is still the lowest
        self._recount(feed, pull)

    def _recount(self, feed: Feed, pull: Pull) -> None:
        """Compute the gap of a feed again from the claims of all links."""
        ours = self._frontier.next(feed)
        claims = [claim for link in self._links.values() if (claim := link.has.get(feed, 0)) > ours]
        lowest = min(claims, default=0)
        gap = lowest - ours if self._frontier.lacks(feed, lowest) else 0
        self.lacking += gap - pull.gap
        pull.gap = gap

    # -- whom to ask, and when ---------------------------------------------------------------------

    def expect(self, feed: Feed, due: float) -> None:
        """Plan to request `feed` at time `due`, unless its missing updates arrive earlier.

        If there are MAX_PULLS pulls already, do nothing; `expect_ahead` plans for the feed later.
        """
        if feed not in self._pulls and len(self._pulls) < MAX_PULLS:
            self._put(feed, self._open(feed), due)

    def expect_ahead(self, link: Link, now: float) -> None:
        """Plan to request the feeds in which this peer is still ahead of us. For most feeds, flooding has
        meanwhile brought the missing updates.

        Each call looks at MAX_PULLS_PER_LINK of these feeds at most. A feed in which we have caught up is
        removed from them, so that later calls reach the others. A peer that never delivers what it claims is
        dropped (SPEC A9).
        """
        ahead = link.inbox.ahead
        within_reach = (feed for feed in ahead if self.gives(link, feed))
        for feed in list(islice(within_reach, MAX_PULLS_PER_LINK)):
            if self._frontier.lacks(feed, link.has[feed]):
                self.expect(feed, now + GRAFT_DELAY)
            else:
                del ahead[feed]

    def ask(self, link: Link, feeds: Iterable[Feed], now: float) -> list[Action]:
        """Request from the peer, at once, each of `feeds` in which it is ahead of us. Leave out feeds that
        were already requested from another peer."""
        wanted = []
        for feed in sorted(set(feeds)):
            pull = self._pulls.get(feed)
            if (pull and pull.asked) or not self._askable(link, feed, now):
                continue
            if not self._has_room(link):
                break
            if pull is None:
                self._open(feed)
            self._note(link, feed, now)
            wanted.append(feed)
        return self._want(link, wanted)

    def wake(self, now: float) -> list[Action]:
        """Ask the next peers for the feed of every pull whose deadline has passed."""
        chosen: dict[LinkId, list[Feed]] = {}
        while self.deadline() <= now:
            _, feed = heappop(self._agenda)
            for link in self._next_peers(feed, self._pulls[feed], now):
                self._note(link, feed, now)
                chosen.setdefault(link.id, []).append(feed)
        return [a for link_id, feeds in chosen.items() for a in self._want(self._links[link_id], feeds)]

    # -- what becomes of a pull --------------------------------------------------------------------

    def progressed(self, feed: Feed, link: Link | None, now: float) -> None:
        """Note that new updates of `feed` were admitted, which `link` has brought (None: this node has made
        them). The feed's pull ends if no peer can be asked for further updates."""
        pull = self._pulls.get(feed)
        if pull is None:
            return
        self._recount(feed, pull)
        if link and link.id in pull.asked:
            pull.asked[link.id] = now
            link.inbox.broken = 0
        if not any(self._askable(other, feed, now) for other in self._links.values()):
            self.finish(feed)
        elif pull.asked:
            pull.wait = HEDGE_DELAY
            self._put(feed, pull, now + pull.wait)

    def finish(self, feed: Feed) -> None:
        """End the pull of `feed`, because no further update of the feed is to be requested now."""
        if pull := self._pulls.pop(feed, None):
            self.lacking -= pull.gap
            for link_id in pull.asked:
                if link := self._links.get(link_id):
                    link.inbox.asked.pop(feed, None)

    def release(self, link: Link, now: float) -> None:
        """Request from other peers, at once, the feeds that were requested on `link`. The link has ended, and
        the claims of its peer no longer count."""
        for feed in list(link.inbox.asked):
            self.forget(feed, link, now)
        for feed in self._pulls.keys() & link.has.keys():
            claim, pull = link.has[feed], self._pulls[feed]
            lowest = claim == self._frontier.next(feed) + pull.gap
            if lowest and all(other.has.get(feed) != claim for other in self._links.values()):
                self._recount(feed, pull)

    def out_of_reach(self, link: Link, now: float) -> list[Action]:
        """Request from other peers those feeds that were requested on `link`, but whose first missing step
        the link's peer does not keep any more."""
        for feed in [feed for feed in link.inbox.asked if not self.gives(link, feed)]:
            self.forget(feed, link, now)
        return self.wake(now)

    def forget(self, feed: Feed, link: Link, now: float) -> None:
        """Cancel the request for `feed` on `link`. If there was one, request the feed from other peers at
        once."""
        if feed in link.inbox.asked:
            del link.inbox.asked[feed]
            pull = self._pulls[feed]
            del pull.asked[link.id]
            self._put(feed, pull, now)

    def _open(self, feed: Feed) -> Pull:
        pull = self._pulls[feed] = Pull()
        self._recount(feed, pull)
        return pull

    def _askable(self, link: Link, feed: Feed, now: float) -> bool:
        """Return whether the peer is ahead of us in `feed` and may be asked for it.

        News of an origin that exceeds its rate may not be requested yet (SPEC FL11). `expect_ahead` plans to
        ask for such news later.
        """
        inquiry = link.inquiries.get(feed)
        if (inquiry and inquiry.until > now) or not self._frontier.lacks(feed, link.has.get(feed, 0)):
            return False
        if not self.gives(link, feed):
            return False
        expected = self._frontier.lacks(feed, link.expected(feed))
        return expected or self._origins.may_bring(feed.origin, now)

    def gives(self, link: Link, feed: Feed) -> bool:
        """Return whether the peer keeps our first missing step of `feed`, according to its Floor (SPEC O15).
        The result may be True even if the peer has fewer steps than we have."""
        return not link.floor or self._frontier.next(feed) >= self._frontier.kept_from(feed, link.floor)

    def _put(self, feed: Feed, pull: Pull, deadline: float) -> None:
        pull.deadline = deadline
        heappush(self._agenda, (deadline, feed))

    def _note(self, link: Link, feed: Feed, now: float) -> None:
        """Note that `link` is being asked for `feed`."""
        pull = self._pulls[feed]
        pull.asked[link.id] = now
        self._put(feed, pull, now + pull.wait)
        link.inbox.asked[feed] = link.has[feed]
        link.inbox.pruned.pop(feed, None)  # a peer that was asked pushes again (SPEC A4)

    def _want(self, link: Link, feeds: list[Feed]) -> list[Action]:
        if not feeds:
            return []
        return [Transmit(link.id, Want(tuple(Position(f, self._frontier.next(f)) for f in sorted(feeds))))]

    def _next_peers(self, feed: Feed, pull: Pull, now: float) -> list[Link]:
        """Return the links to ask now: one at first, later as many more as were asked before. Peers that left
        pulls unanswered come last. Empty if nobody can be asked now."""
        claimants = [link for link in self._links.values() if self._askable(link, feed, now)]
        if not claimants:
            self.finish(feed)
            return []
        if self._is_coming(pull, now):
            self._put(feed, pull, now + HEDGE_DELAY)
            return []
        for link_id in pull.asked:
            if link := self._links.get(link_id):
                link.inbox.broken += 1
        fresh = [link for link in claimants if link.id not in pull.asked and self._has_room(link)]
        if not fresh:
            self._start_over(pull, feed, now)
            return []
        fresh.sort(key=lambda link: link.inbox.broken)
        return fresh[: max(1, len(pull.asked))]

    def _has_room(self, link: Link) -> bool:
        return len(link.inbox.asked) < MAX_PULLS_PER_LINK

    def _is_coming(self, pull: Pull, now: float) -> bool:
        """Return whether to wait for a peer that was asked and is delivering: the rest is too large to be
        requested twice, or the peer is busy with many feeds."""
        large = pull.gap > self._small
        for link_id, since in pull.asked.items():
            link = self._links.get(link_id)
            if link is None or now - link.inbox.brought_at > 2 * HEDGE_DELAY:
                continue
            busy = len(link.inbox.asked) > SMALL_PULL
            if now - since < (WANT_TIMEOUT if large else BUSY_TIME if busy else 0.0):
                return True
        return False

    def _start_over(self, pull: Pull, feed: Feed, now: float) -> None:
        """Wait, as all peers were asked or have no room, and plan to ask again after WANT_TIMEOUT."""
        pull.wait = min(2 * pull.wait, WANT_TIMEOUT)
        for link_id in [link_id for link_id, since in pull.asked.items() if since + WANT_TIMEOUT <= now]:
            del pull.asked[link_id]
            if link := self._links.get(link_id):
                link.inbox.asked.pop(feed, None)
                link.inbox.let_down += 1
                link.inbox.withheld.add(feed)
        again = min(pull.asked.values(), default=now - WANT_TIMEOUT + HEDGE_DELAY) + WANT_TIMEOUT
        self._put(feed, pull, min(now + pull.wait, again))
