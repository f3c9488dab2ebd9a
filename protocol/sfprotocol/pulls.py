"""The table of outstanding pulls: what peers have and we lack, and who is asked for it (SPEC A4, A5, A9).

The same range is not asked of two peers without need, a peer that does not deliver is passed over, and none
is asked for steps that by its own word it does not keep (SPEC O15). There is one pull per feed at most.
Whatever changes what peers claim or what we have of a feed is reported here, so that the number of updates
that we lack is kept up to date and never counted anew.
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
"""Seconds between hearing that a peer has more and asking for it: what is pushed to us arrives about as late
as the announcement was sent early, give or take the latency of a link."""

HEDGE_DELAY = 0.4
"""Seconds after which a small pull without an answer is put to as many peers again: with 12 links, of which
one tells the truth, it is found within 1.6 s. Most round trips take less, and what is sent twice is small."""

SMALL_PULL = 64
"""Updates; asking twice for so few costs 200 bytes. A larger pull waits for a peer that is delivering."""

SMALL_PULL_BYTES = 4096
"""Bytes of a small pull in a first-order run, where it has one update at least."""

BUSY_TIME = 2.0
"""Seconds that a small pull waits for a peer that is delivering more than SMALL_PULL feeds: a late joiner
asks for hundreds at once, and a slow line must not carry all of them twice."""

WANT_TIMEOUT = 10.0
"""Seconds without progress after which a pull is put to all peers anew. A whole burst (FL7) crosses a
100 kbit/s line in that time."""

MAX_PULLS_PER_LINK = 1024
"""Outstanding pulls on one link: bounds what a peer with invented feeds can make us remember."""

MAX_PULLS = 16_384
"""Pulls outstanding or planned: a dozen links' worth. More is only claimed by peers that invent feeds."""


@dataclass(slots=True)
class Pull:
    """One feed of which somebody has more than we have."""

    deadline: float = 0.0
    """Time at which to put it to (further) peers."""
    asked: dict[LinkId, float] = field(default_factory=dict)
    """The links that were asked for it, with the time at which they were asked or last brought some of it."""
    wait: float = HEDGE_DELAY
    """Seconds until the next peers are asked; doubles when all were asked."""
    gap: int = 0
    """Updates that we lack by the lowest claim above what we have; 0 if there is none."""


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
        """Updates that are asked for or will be, of every feed by the lowest claim: the sum of all gaps."""
        self._agenda: list[tuple[float, Feed]] = []
        """A heap of deadlines; those that have moved or are done are skipped."""

    def __len__(self) -> int:
        return len(self._pulls)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._pulls)

    def deadline(self) -> float:
        """Return the time at which `wake` has something to do; infinity if there is nothing."""
        while self._agenda:
            due, feed = self._agenda[0]
            pull = self._pulls.get(feed)
            if pull and pull.deadline == due:
                return due
            heappop(self._agenda)
        return float("inf")

    # -- what peers have ---------------------------------------------------------------------------

    def heard_of(self, link: Link, feed: Feed, following: int, now: float) -> None:
        """Note that the peer has `feed` up to step `following`: ask for it unless it comes by itself."""
        self.has(link, feed, following)
        if self._frontier.lacks(feed, following):
            before = link.inbox.ahead.get(feed, 0)
            link.inbox.ahead[feed] = before if link.heard_out else max(before, following)
            self.expect(feed, now + GRAFT_DELAY)

    def brought(self, link: Link, feed: Feed, following: int, fresh: int, now: float) -> None:
        """Note that the peer has `feed` up to step `following` and was the first to bring `fresh` updates."""
        self.has(link, feed, following)
        link.inbox.brought_at, link.inbox.let_down = now, 0
        link.inbox.withheld.discard(feed)
        link.inbox.useful += fresh

    def lacks(self, link: Link, feed: Feed, following: int) -> None:
        """Note that the peer has nothing of `feed` for us from step `following` on, whatever it had: by its
        own word, or as we may not hold it."""
        self._set_claim(link, feed, following)

    def has(self, link: Link, feed: Feed, following: int) -> None:
        """Note that the peer has `feed` up to step `following`."""
        if following > link.has.get(feed, 0):
            self._set_claim(link, feed, following)

    def _set_claim(self, link: Link, feed: Feed, following: int) -> None:
        before, link.has[feed] = link.has.get(feed, 0), following
        pull = self._pulls.get(feed)
        if pull is None or following == before:
            return
        lowest = self._frontier.next(feed) + pull.gap
        if pull.gap and before != lowest <= following:
            return  # the lowest claim is another peer's, and remains the lowest
        self._recount(feed, pull)

    def _claimed(self, feed: Feed, claim: int) -> bool:
        return any(link.has.get(feed) == claim for link in self._links.values())

    def _recount(self, feed: Feed, pull: Pull) -> None:
        """Find the gap of a feed anew from the claims of all links."""
        ours = self._frontier.next(feed)
        claims = [claim for link in self._links.values() if (claim := link.has.get(feed, 0)) > ours]
        lowest = min(claims, default=0)
        gap = lowest - ours if self._frontier.lacks(feed, lowest) else 0
        self.lacking += gap - pull.gap
        pull.gap = gap

    # -- whom to ask, and when ---------------------------------------------------------------------

    def expect(self, feed: Feed, due: float) -> None:
        """Ask for `feed`, of which somebody has more, at `due` if it has not come by then.

        Beyond MAX_PULLS nothing is noted: `expect_ahead` comes back to what a peer is ahead in.
        """
        if feed not in self._pulls and len(self._pulls) < MAX_PULLS:
            self._put(feed, self._open(feed), due)

    def expect_ahead(self, link: Link, now: float) -> None:
        """Plan to ask for what this peer has and we still lack; most of it has come by flooding meanwhile.

        Only the first MAX_PULLS_PER_LINK feeds: the rest has its turn when they are done, and if they never
        are, the peer has promised too much (A9).
        """
        ahead = link.inbox.ahead
        within_reach = (feed for feed in ahead if self.gives(link, feed))
        for feed in list(islice(within_reach, MAX_PULLS_PER_LINK)):
            if self._frontier.lacks(feed, link.has[feed]):
                self.expect(feed, now + GRAFT_DELAY)
            else:
                del ahead[feed]

    def ask(self, link: Link, feeds: Iterable[Feed], now: float) -> list[Action]:
        """Pull from `link` at once whatever of `feeds` it has, we lack, and nobody was asked for."""
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
        """Put the pulls that are due to the next peers."""
        chosen: dict[LinkId, list[Feed]] = {}
        while self.deadline() <= now:
            _, feed = heappop(self._agenda)
            for link in self._next_peers(feed, self._pulls[feed], now):
                self._note(link, feed, now)
                chosen.setdefault(link.id, []).append(feed)
        return [a for link_id, feeds in chosen.items() for a in self._want(self._links[link_id], feeds)]

    # -- what becomes of a pull --------------------------------------------------------------------

    def progressed(self, feed: Feed, link: Link | None, now: float) -> None:
        """Note that `feed` has advanced thanks to `link` (None: to us): its pull is done, or goes on."""
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
        """End the pull of `feed`: nothing of it is wanted any more, for the time being."""
        if pull := self._pulls.pop(feed, None):
            self.lacking -= pull.gap
            for link_id in pull.asked:
                if link := self._links.get(link_id):
                    link.inbox.asked.pop(feed, None)

    def release(self, link: Link, now: float) -> None:
        """Put what `link`, which is gone, was asked for to others, at once; its claims no longer count."""
        for feed in list(link.inbox.asked):
            self.forget(feed, link, now)
        for feed in self._pulls.keys() & link.has.keys():
            claim, pull = link.has[feed], self._pulls[feed]
            if claim == self._frontier.next(feed) + pull.gap and not self._claimed(feed, claim):
                self._recount(feed, pull)

    def out_of_reach(self, link: Link, now: float) -> list[Action]:
        """Ask others for what `link` was asked for and does not keep any more."""
        for feed in [feed for feed in link.inbox.asked if not self.gives(link, feed)]:
            self.forget(feed, link, now)
        return self.wake(now)

    def forget(self, feed: Feed, link: Link, now: float) -> None:
        """Ask `link` no longer for `feed`; if it was asked, ask others at once."""
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
        """Return whether the peer has what we lack and may be asked for it.

        News of an origin beyond its rate may not (SPEC FL11); `expect_ahead` comes back to them.
        """
        inquiry = link.inquiries.get(feed)
        if (inquiry and inquiry.until > now) or not self._frontier.lacks(feed, link.has.get(feed, 0)):
            return False
        if not self.gives(link, feed):
            return False
        expected = self._frontier.lacks(feed, link.expected(feed))
        return expected or self._origins.may_bring(feed.origin, now)

    def gives(self, link: Link, feed: Feed) -> bool:
        """Return whether the peer keeps the next step of `feed` that we lack, if it has it (SPEC O15)."""
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
        link.inbox.pruned.pop(feed, None)  # a peer that is asked pushes again (SPEC A4)

    def _want(self, link: Link, feeds: list[Feed]) -> list[Action]:
        if not feeds:
            return []
        return [Transmit(link.id, Want(tuple(Position(f, self._frontier.next(f)) for f in sorted(feeds))))]

    def _next_peers(self, feed: Feed, pull: Pull, now: float) -> list[Link]:
        """Return the peers to ask now: one at first, then as many again; those that failed us come last."""
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
        """Return whether a peer that was asked is delivering, and the rest is too much to ask for twice."""
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
        """Wait, as all were asked or have enough to do, and after WANT_TIMEOUT ask all again."""
        pull.wait = min(2 * pull.wait, WANT_TIMEOUT)
        for link_id in [link_id for link_id, since in pull.asked.items() if since + WANT_TIMEOUT <= now]:
            del pull.asked[link_id]
            if link := self._links.get(link_id):
                link.inbox.asked.pop(feed, None)
                link.inbox.let_down += 1
                link.inbox.withheld.add(feed)
        again = min(pull.asked.values(), default=now - WANT_TIMEOUT + HEDGE_DELAY) + WANT_TIMEOUT
        self._put(feed, pull, min(now + pull.wait, again))
