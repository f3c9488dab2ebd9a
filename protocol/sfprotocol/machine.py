"""The protocol machine: the one entry to the protocol (SPEC, "State machine").

Theory of operation. `handle(event, now)` decides synchronously and returns what to do; the runtime does it.
Time is an argument, randomness is injected, timers are data (`next_deadline`). A link goes through

    up -> greeted (their Hello is valid; we tell everything we have)
       -> synced  (their Summaries are complete: we know what they lack and may push)
       -> gone

and the node itself through

    asking (peers may know more of our own feed than we do: no computing) -> proven (may compute)

The frontier moves in exactly one place, `_admit`, and always together with an Admit action; that is the whole
exactness argument: whatever happens on the links, an update enters once, in order, verified, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sfprotocol import PROTOCOL_VERSION, admission, codec, flood, seeds, sync
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Counters,
    Drop,
    Event,
    LinkDown,
    LinkId,
    LinkUp,
    OwnUpdates,
    Received,
    Served,
    Transmit,
    Wake,
    Writable,
)
from sfprotocol.flood import Link
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.messages import Feed, Goodbye, Hello, Message, RunParameters, Segment, Summary, Want
from sfprotocol.own import OwnFeed
from sfprotocol.signing import Sign, extend, head_message
from sfprotocol.sync import Pulls

SYNC_INTERVAL = 1.0
"""Seconds between Summaries, each to the next link in turn: with 6 links every neighbour hears of us every
6 s and we of it, which costs a quiet node 50 bytes a second."""

LINK_TIMEOUT = 60.0
"""Seconds without a frame after which a link is dropped. Twelve links hear a Summary every 12 s."""

ASK_TIMEOUT = 20.0
"""Seconds that a node with a past waits for a witness of its own feed (SPEC I2): a dial, a Hello and a full
list of feeds over a slow line, twice."""

MAX_FEEDS = 65_536
"""Feeds of one run, and names that one link may teach us of feeds of which we have nothing: 40 MB for the
frontier, 20 MB (32 MB if all names are invented) for a link. Beyond that, sum regions (DESIGN section 8)."""


class Machine:
    """One node's protocol state for one run. Not thread-safe; never blocks; owns no resources."""

    def __init__(
        self,
        run: RunParameters,
        frontier: Frontier,
        *,
        own: Feed | None,
        sign: Sign,
        draw_incarnation: Callable[[], int],
        proven: bool,
        now: float,
    ) -> None:
        """`own` is None for a relay. `proven`: nobody can know more of `own` than `frontier` (SPEC I2)."""
        self.run = run
        self.frontier = frontier
        self.links: dict[LinkId, Link] = {}
        self.counters = Counters()
        self._sign = sign
        patience = ASK_TIMEOUT if own in frontier else 0.0  # an empty feed is not worth waiting for
        self._own = OwnFeed(own, draw_incarnation, proven=proven, ask_until=now + patience)
        self._next_tick = now + SYNC_INTERVAL
        self._turn = 0
        self._pulls = Pulls(frontier)

    # -- what the runtime asks ---------------------------------------------------------------------

    @property
    def own(self) -> Feed | None:
        """The feed that our updates belong to; None for a relay."""
        return self._own.feed

    @property
    def may_compute(self) -> bool:
        """Whether new updates of our own may be made now."""
        return self.own is not None and self._own.proven and not self.complete

    @property
    def complete(self) -> bool:
        """Whether the update budget of the run is used up (SPEC U6)."""
        return self.frontier.known >= self.run.update_budget

    @property
    def pulling(self) -> int:
        """Feeds that peers are known to have more of, and that we are asking for."""
        return len(self._pulls)

    def next_deadline(self) -> float:
        """When to send Wake at the latest."""
        return min(self._next_tick, self._own.deadline, self._pulls.deadline())

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event; return what to do, in order. Raises LocalProtocolError on misuse only."""
        match event:
            case Received(link=link_id, frame=frame):
                return self._on_frame(link_id, frame, now)
            case OwnUpdates():
                return self._on_own(event, now)
            case Writable(link=link_id):
                return self._on_writable(link_id)
            case Served(link=link_id):
                if link := self.links.get(link_id):
                    flood.served(link, event, self.frontier)
                return []
            case LinkUp(link=link_id, peer=peer):
                return self._on_up(link_id, peer, now)
            case LinkDown(link=link_id):
                return self._on_down(link_id, now)
            case Wake():
                return self._on_wake(now)

    # -- links -------------------------------------------------------------------------------------

    def _on_up(self, link_id: LinkId, peer: str, now: float) -> list[Action]:
        if link_id in self.links:
            raise LocalProtocolError(f"link {link_id} is up already")
        self.links[link_id] = Link(link_id, peer, heard=now)
        role = 0 if self.own else 1
        hello = Hello(PROTOCOL_VERSION, self.run.run_id, role, self.frontier.known)
        return [Transmit(link_id, hello)]

    def _on_down(self, link_id: LinkId, now: float) -> list[Action]:
        if self.links.pop(link_id, None) is None:
            return []
        return self._ask_others(self._pulls.release(link_id), now)

    def _drop(self, link: Link, fault: str, now: float) -> list[Action]:
        return [Drop(link.id, fault), *self._on_down(link.id, now)]

    def _on_writable(self, link_id: LinkId) -> list[Action]:
        link = self.links.get(link_id)
        if link is None:
            return []
        link.writable = True
        return flood.flush(link, self.frontier)

    def _flush_all(self) -> list[Action]:
        return [action for link in self.links.values() for action in flood.flush(link, self.frontier)]

    # -- frames ------------------------------------------------------------------------------------

    def _on_frame(self, link_id: LinkId, frame: bytes, now: float) -> list[Action]:
        link = self.links.get(link_id)
        if link is None:
            return []
        link.heard = now
        try:
            return self._on_message(link, codec.decode(frame, self.run.scalar_bytes), now)
        except RemoteProtocolError as error:
            return self._drop(link, str(error), now)

    def _on_message(self, link: Link, message: Message, now: float) -> list[Action]:
        match message:
            case Hello():
                return self._on_hello(link, message, now)
            case Goodbye():
                return self._drop(link, "", now)
            case _ if not link.greeted:
                raise RemoteProtocolError("L2", "the first message is not a Hello")
            case Segment():
                return self._on_segment(link, message, now)
            case Summary():
                return self._on_summary(link, message, now)
            case Want():
                return self._on_want(link, message)
            case _:
                raise RemoteProtocolError("L6", "a manifest message on a flood link")

    def _on_hello(self, link: Link, hello: Hello, now: float) -> list[Action]:
        if link.greeted:
            raise RemoteProtocolError("L2", "a second Hello")
        if hello.version != PROTOCOL_VERSION:
            return self._part(link, f"protocol {PROTOCOL_VERSION} here, {hello.version} there", now)
        if hello.run_id != self.run.run_id:
            return self._part(link, "another run", now)
        link.greeted, link.role, link.known = True, hello.role, hello.known
        return sync.tell_all(link, self.frontier, now)

    def _part(self, link: Link, reason: str, now: float) -> list[Action]:
        return [Transmit(link.id, Goodbye(reason)), *self._drop(link, "", now)]

    # -- anti-entropy ------------------------------------------------------------------------------

    def _on_summary(self, link: Link, summary: Summary, now: float) -> list[Action]:
        link.known = summary.known
        for feed, following in summary.entries:
            if following > self.run.update_budget:
                raise RemoteProtocolError("U6", "a feed longer than the run")
            if self._learn(link, feed):
                self._heard_of(link, feed, following)
        actions = self._check_own(link)
        actions += self._pulls.ask(link, (entry.feed for entry in summary.entries), now)
        self._compare(link, summary.digest, now)
        if not summary.more and not link.synced:
            link.synced = True
            self._hear_out(link)
        return actions + flood.flush(link, self.frontier)

    def _heard_of(self, link: Link, feed: Feed, following: int) -> None:
        """The peer has everything of `feed` before step `following`."""
        if following > link.has.get(feed, 0):
            link.has[feed] = following
        if following > self.frontier.next(feed):
            link.ahead[feed] = None

    def _compare(self, link: Link, digest: bytes, now: float) -> None:
        link.agreed = digest == self.frontier.digest()
        if link.agreed:
            link.mismatch_since = None
        elif link.mismatch_since is None:
            link.mismatch_since = now

    def _learn(self, link: Link, feed: Feed) -> bool:
        """Note a feed's full name, so that segments on `link` can use its key; False beyond MAX_FEEDS."""
        if feed not in self.frontier and feed not in link.named:
            if max(len(self.frontier), len(link.names)) >= MAX_FEEDS:
                return False
            link.names.setdefault(seeds.feed_key(self.run.run_id, *feed), []).append(feed)
        link.named.add(feed)
        return True

    def _on_want(self, link: Link, want: Want) -> list[Action]:
        """Whatever we believed of the peer, what it asks for it has not."""
        for feed, following in want.entries:
            if feed not in self.frontier:
                continue
            link.named.add(feed)
            link.has[feed] = link.sent[feed] = following
            if following < self.frontier.next(feed):
                link.dirty[feed] = 0
        return flood.flush(link, self.frontier)

    def _on_wake(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._own.deadline:
            actions += self._continue_anew()
        for link_id, feeds in self._pulls.expire(now).items():
            self.counters.pulls_expired += len(feeds)
            actions += self._ask_others(feeds, now, last=link_id)
        if now >= self._next_tick:
            self._next_tick = now + SYNC_INTERVAL
            actions += self._tick(now)
        return actions

    def _tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for link in list(self.links.values()):
            if now - link.heard > LINK_TIMEOUT:
                actions += self._drop(link, "L7: silent for too long", now)
            else:
                actions += self._ask_ahead(link, now)
        ready = [link for link in self.links.values() if link.greeted]
        if ready:
            self._turn += 1
            actions += self._tell(ready[self._turn % len(ready)], now)
        return actions

    def _tell(self, link: Link, now: float) -> list[Action]:
        if sync.wants_full_summary(link, self.frontier, now):
            return sync.tell_all(link, self.frontier, now)
        return sync.tell_changes(link, self.frontier)

    def _ask_ahead(self, link: Link, now: float) -> list[Action]:
        """Ask for what this peer has and we still lack; most of it has arrived by flooding meanwhile."""
        for feed in list(link.ahead):
            if link.has[feed] <= self.frontier.next(feed):
                del link.ahead[feed]
        return self._pulls.ask(link, link.ahead, now)

    def _ask_others(self, feeds: list[Feed], now: float, last: LinkId | None = None) -> list[Action]:
        """Ask any link for `feeds`; `last` (which did not deliver) only if nobody else has them."""
        order = sorted(self.links.values(), key=lambda link: link.id == last)
        return [action for link in order for action in self._pulls.ask(link, feeds, now)]

    # -- our own feed ------------------------------------------------------------------------------

    def _check_own(self, link: Link) -> list[Action]:
        """A peer that knows more of our feed than we do: this is not its continuation (SPEC I2)."""
        if self.own and link.has.get(self.own, 0) > self.frontier.next(self.own):
            return self._continue_anew()
        return []

    def _hear_out(self, link: Link) -> None:
        """The peer has just told everything it has: is it a witness of our feed?"""
        if self.own and not self._own.proven:
            ours, theirs = self.frontier.next(self.own), link.has.get(self.own, 0)
            self._own.hear(ours, theirs, informed=self.frontier.within(link.has, but=self.own))

    def _continue_anew(self) -> list[Action]:
        self.counters.incarnations += 1
        return [ContinueAs(self._own.renew())]

    def _on_own(self, event: OwnUpdates, now: float) -> list[Action]:
        if event.feed != self.own:
            return []  # computed for an incarnation that has meanwhile ended
        if not self._own.proven:
            raise LocalProtocolError("own updates before the own feed is proven")
        state = self.frontier.state(event.feed)
        if event.first != state.next:
            raise LocalProtocolError(f"own updates from step {event.first}; the feed is at {state.next}")
        segment = Segment(state.key, event.first, event.parts, b"")
        if fault := admission.fault(self.run, state, segment):
            raise LocalProtocolError(fault)
        chain = extend(state.chain, event.parts)
        signature = self._sign(head_message(self.run.run_id, event.feed, segment.stop, chain))
        signed = replace(segment, signature=signature)
        return [*self._admit(event.feed, signed, chain, 0, now), *self._flush_all()]

    # -- segments ----------------------------------------------------------------------------------

    def _on_segment(self, link: Link, segment: Segment, now: float) -> list[Action]:
        """Fresh, or else duplicate, gap or unverified. Feeds may share a key: only a signature decides."""
        self.counters.segments += 1
        key = segment.feed_key
        feeds = dict.fromkeys([*self.frontier.keyed(key), *link.names.get(key, ())])
        states = [self.frontier.state(feed) for feed in feeds]
        for state in states:
            if verified := admission.verify(self.run, state, segment):
                return self._on_fresh(link, state.feed, *verified, now)
        if len(states) != 1:
            self.counters.unnamed += 1  # no name or several; Summaries carry full names and repair this
            return []
        return self._on_stale(link, states[0], segment, now)

    def _on_stale(self, link: Link, state: FeedState, segment: Segment, now: float) -> list[Action]:
        """A segment of this feed that does not extend it."""
        if segment.first <= state.next < segment.stop:
            return self._on_unverified(link, state.feed, now)
        self._heard_of(link, state.feed, segment.stop)
        if segment.stop <= state.next:
            self.counters.duplicates += 1
            return []
        self.counters.gaps += 1
        return [*self._check_own(link), *self._pulls.ask(link, [state.feed], now)]

    def _on_fresh(self, link: Link, feed: Feed, segment: Segment, chain: bytes, now: float) -> list[Action]:
        self._heard_of(link, feed, segment.stop)
        anew = self._check_own(link)
        admitted = self._admit(feed, segment, chain, segment.hops + 1, now)
        return [*anew, *admitted, *self._flush_all()]

    def _on_unverified(self, link: Link, feed: Feed, now: float) -> list[Action]:
        """Garbage or a fork of the feed: this peer is not asked for it any time soon (SPEC A7).

        The link stays: an honest peer that holds the other branch of a fork must not be cut off.
        """
        self.counters.rejected += 1
        link.disputed[feed] = now + sync.DISPUTE_TIME
        if self._pulls.forget(feed, link.id):
            return self._ask_others([feed], now)
        return []

    def _admit(self, feed: Feed, segment: Segment, chain: bytes, hops: int, now: float) -> list[Action]:
        """The only place where the frontier moves; `hops` is for those to whom we pass the segment on."""
        if segment.first != self.frontier.next(feed):
            raise LocalProtocolError(
                f"admitting step {segment.first} of a feed at {self.frontier.next(feed)}"
            )
        self.frontier.advance(feed, segment.stop, chain, segment.parts[-1].epoch)
        self.counters.admitted += segment.count
        self._pulls.progressed(feed, self.links, now)
        flood.mark(self.links, feed, segment, hops)
        return [Admit(feed, segment, chain)]
