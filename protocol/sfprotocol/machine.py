"""The protocol machine: the one entry to the protocol (SPEC, "State machine").

Theory of operation. `handle(event, now)` decides synchronously and returns what to do; the runtime does it.
Time is an argument, randomness is injected, timers are data (`next_deadline`). A link goes through

    up -> greeted (their Hello is valid; we tell everything we have)
       -> synced  (their Summaries are complete: we know what they lack and may push)
       -> gone

and the node itself through

    asking (peers may know more of our own feed than we do: no computing) -> proven (may compute)

The frontier moves forward in exactly one place, `_admit`, and always together with an Admit action; that is
the whole exactness argument: whatever happens on the links, an update enters once, in order, verified, or not
at all. It moves back in one place, `Disputes.cut`, together with a Cut action, when an origin is
proven to have signed two histories of one feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from sfprotocol import PROTOCOL_VERSION, admission, codec, flood, inquiry, sync
from sfprotocol.admission import Verified
from sfprotocol.budget import FORGERY_COST, FRAME_COST, Bucket
from sfprotocol.cards import Cards
from sfprotocol.disputes import Disputes
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Counters,
    Drop,
    Event,
    Examine,
    Examined,
    KeepCard,
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
from sfprotocol.flood import Link, Tree
from sfprotocol.frontier import UNCUT, FeedState, Frontier
from sfprotocol.messages import (
    Card,
    Feed,
    Goodbye,
    Have,
    Hello,
    Message,
    Proof,
    Prune,
    RunParameters,
    Segment,
    Summary,
    Want,
)
from sfprotocol.names import NAMELESS, Names
from sfprotocol.own import OwnFeed
from sfprotocol.signing import Sign, Verify, extend, head_message, verifies
from sfprotocol.sync import SYNC_INTERVAL, Pulls

LINK_TIMEOUT = 60.0
"""Seconds without a frame after which a link is dropped. Twelve links hear a Summary every 12 s."""

ASK_TIMEOUT = 20.0
"""Seconds that a node with a past waits for a witness of its own feed (SPEC I2): a dial, a Hello and a full
list of feeds over a slow line, twice."""

MAX_LET_DOWN = 8
"""Pulls that may come to nothing on a link that brings nothing else either, before it is dropped."""


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
        cards: Iterable[Card] = (),
        names: Names = NAMELESS,
        verify: Verify = verifies,
    ) -> None:
        """`own` is None for a relay. `proven`: nobody can know more of `own` than `frontier` (SPEC I2).
        `cards` are those kept so far; `names` is what our own feed is to be called."""
        self.run = run
        self.frontier = frontier
        self.links: dict[LinkId, Link] = {}
        self.counters = Counters()
        self.cards = Cards(run.run_id, cards, names)
        self._sign = sign
        self._verify = verify
        patience = ASK_TIMEOUT if own in frontier else 0.0  # an empty feed is not worth waiting for
        self._own = OwnFeed(own, draw_incarnation, proven=proven, ask_until=now + patience)
        self._next_tick = now + SYNC_INTERVAL
        self._turn = 0
        self._pulls = Pulls(frontier, self.links)
        self._tree = Tree()
        self._disputes = Disputes(
            frontier, self.links, self._pulls, self.counters, verify=verify, after_cut=self._after_cut
        )
        if own is not None and frontier.is_cut(own):
            raise LocalProtocolError("the own feed is cut: it takes a new incarnation")

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
    def lacking(self) -> int:
        """Updates that peers claim to have and that have not come yet, of every feed by the lowest claim."""
        return self._pulls.lacking()

    def lacks_more_than(self, updates: int) -> bool:
        """Whether `lacking` is above that; found out without counting thousands of feeds to the end."""
        return self._pulls.lacking(updates) > updates

    def next_deadline(self) -> float:
        """When to send Wake at the latest."""
        announcing = min((link.have_at for link in self.links.values()), default=float("inf"))
        return min(self._next_tick, self._own.deadline, self._pulls.deadline(), announcing)

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
                return self._on_served(link_id, event, now)
            case Examined(link=link_id):
                return self._on_examined(link_id, event, now)
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
        self.links[link_id] = Link(link_id, peer, heard=now, budget=Bucket(float("inf"), now))
        role = 0 if self.own else 1
        hello = Hello(PROTOCOL_VERSION, self.run.run_id, role, self.frontier.known)
        return [Transmit(link_id, hello)]

    def _on_down(self, link_id: LinkId, now: float) -> list[Action]:
        link = self.links.pop(link_id, None)
        if link is None:
            return []
        self._pulls.release(link, now)
        return self._pulls.wake(now)

    def _drop(self, link: Link, fault: str, now: float) -> list[Action]:
        return [Drop(link.id, fault), *self._on_down(link.id, now)]

    def _on_writable(self, link_id: LinkId) -> list[Action]:
        link = self.links.get(link_id)
        if link is None:
            return []
        link.writable = True
        return flood.flush(link, self.frontier)

    def _on_served(self, link_id: LinkId, event: Served, now: float) -> list[Action]:
        link = self.links.get(link_id)
        if link is None:
            return []
        flood.served(link, event, self.frontier, now)
        return self.cards.tell(link, event.feed)

    def _on_examined(self, link_id: LinkId, event: Examined, now: float) -> list[Action]:
        try:
            return self._disputes.examined(event, now)
        except RemoteProtocolError as error:
            return self._drop(self.links[link_id], str(error), now)

    def _flush_all(self) -> list[Action]:
        return [action for link in self.links.values() for action in flood.flush(link, self.frontier)]

    # -- frames ------------------------------------------------------------------------------------

    def _on_frame(self, link_id: LinkId, frame: bytes, now: float) -> list[Action]:
        link = self.links.get(link_id)
        if link is None:
            return []
        link.heard = now
        before = self.counters.news
        try:
            actions = self._on_message(link, codec.decode(frame, self.run.scalar_bytes), now)
            if self.counters.news == before:
                link.charge(len(frame) + FRAME_COST, self.frontier, now)
        except RemoteProtocolError as error:
            return self._drop(link, str(error), now)
        return actions

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
            case Have():
                return self._on_have(link, message, now)
            case Want():
                return self._on_want(link, message, now)
            case Prune():
                return self._on_prune(link, message)
            case Proof():
                return self._disputes.proven(link, message, now)
            case Card():
                return self._on_card(link, message, now)
            case _:
                raise RemoteProtocolError("L6", "a question or its answer on a flood link")

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
        link.informed = link.informed or summary.known > link.known or 2 * summary.known > self.frontier.known
        link.known = summary.known
        actions: list[Action] = []
        for claim in summary.entries:
            if claim.next > self.run.update_budget:
                raise RemoteProtocolError("U6", "a feed longer than the run")
            if link.learn(claim.feed, self.frontier):
                self._pulls.heard_of(link, claim.feed, claim.next, now)
                actions += self._disputes.check_tag(link, claim, now)
        actions += self._check_own(link)
        if not link.synced:  # what was there before us; what is new now is most likely on its way
            actions += self._pulls.ask(link, (claim.feed for claim in summary.entries), now)
        self._compare(link, summary.digest, now)
        if not summary.more and not link.synced:
            link.synced = True
            self._hear_out(link)
        return actions + flood.flush(link, self.frontier)

    def _on_have(self, link: Link, have: Have, now: float) -> list[Action]:
        for entry in have.entries:
            if entry.next > self.run.update_budget:
                raise RemoteProtocolError("U6", "a feed longer than the run")
            feeds = link.feeds_of(entry.feed_key, self.frontier)
            if len(feeds) == 1:
                self._pulls.heard_of(link, feeds[0], entry.next, now)
        return []

    def _compare(self, link: Link, digest: bytes, now: float) -> None:
        link.agreed = digest == self.frontier.digest()
        if link.agreed:
            link.mismatch_since, link.patience = None, 1.0
        elif link.mismatch_since is None:
            link.mismatch_since = now

    def _on_want(self, link: Link, want: Want, now: float) -> list[Action]:
        """Whatever we believed of the peer, what it asks for it has not."""
        actions: list[Action] = []
        for feed, following in want.entries:
            if feed not in self.frontier:
                continue
            repeated = max(0, link.sent.get(feed, 0) - following)
            link.charge(2 * repeated, self.frontier, now)
            actions += self._disputes.show(link, feed, now)
            link.named.add(feed)
            link.lazy.discard(feed)
            link.has[feed] = link.sent[feed] = following
            if following < self.frontier.next(feed):
                link.dirty[feed] = 0
        return actions + flood.flush(link, self.frontier)

    def _on_prune(self, link: Link, prune: Prune) -> list[Action]:
        for key in prune.feed_keys:
            link.lazy.update(self.frontier.keyed(key))
        return []

    def _on_wake(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._own.deadline:
            actions += self._continue_anew()
        actions += self._pulls.wake(now)
        for link in self.links.values():
            if now >= link.have_at:
                actions += flood.announce(link, self.frontier)
        if now >= self._next_tick:
            self._next_tick = now + SYNC_INTERVAL
            actions += self._tick(now)
        return actions

    def _tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for link in list(self.links.values()):
            if now - link.heard > LINK_TIMEOUT:
                actions += self._drop(link, "L7: silent for too long", now)
            elif link.let_down >= MAX_LET_DOWN:
                actions += self._drop(link, "A9: promises and does not deliver", now)
            else:
                self._expect_ahead(link, now)
                actions += self._disputes.show_again(link, now)
        ready = [link for link in self.links.values() if link.greeted]
        if ready:
            self._turn += 1
            actions += self._tell(ready[self._turn % len(ready)], now)
        return actions + self._introduce_us()

    def _tell(self, link: Link, now: float) -> list[Action]:
        if not sync.wants_full_summary(link, self.frontier, now):
            return sync.tell_changes(link, self.frontier)
        link.patience = min(2 * link.patience, sync.MOST_PATIENCE)
        return sync.tell_all(link, self.frontier, now)

    def _expect_ahead(self, link: Link, now: float) -> None:
        """Ask for what this peer has and we still lack; most of it has arrived by flooding meanwhile.

        Of the first so many only: the rest has its turn when they are done, and if they never are, the peer
        has promised too much (A9).
        """
        for feed in list(islice(link.ahead, sync.MAX_PULLS_PER_LINK)):
            if self.frontier.lacks(feed, link.has[feed]):
                self._pulls.expect(feed, now + sync.GRAFT_DELAY)
            else:
                del link.ahead[feed]

    # -- our own feed ------------------------------------------------------------------------------

    def _check_own(self, link: Link) -> list[Action]:
        """While we ask: a peer that knows more of our feed than we do, so this is not its end (SPEC I2)."""
        if self.own and not self._own.proven and link.has.get(self.own, 0) > self.frontier.next(self.own):
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
        signed = Verified(replace(segment, signature=signature), chain, segment.count, chain)
        return [*self._admit(event.feed, signed, None, 0, now), *self._flush_all()]

    def _after_cut(self, feed: Feed) -> list[Action]:
        return self._continue_anew() if feed == self.own else []

    # -- cards -------------------------------------------------------------------------------------

    def _on_card(self, link: Link, card: Card, now: float) -> list[Action]:
        """What is no news, or counts from an update that we lack, costs its sender as any such frame."""
        if not self.cards.is_due(self.frontier.state(card.feed), card.step):
            return []
        if not self.cards.is_signed(card):
            link.charge(FORGERY_COST, self.frontier, now)
            return []
        link.cards[card.feed] = card.step
        self.counters.cards += 1
        return self._keep_card(card)

    def _introduce_us(self) -> list[Action]:
        if not self.may_compute or self.own is None:
            return []
        card = self.cards.sign_own(self.frontier.state(self.own), self._sign)
        return self._keep_card(card) if card else []

    def _keep_card(self, card: Card) -> list[Action]:
        self.cards.keep(card)
        told = [self.cards.tell(link, card.feed) for link in self.links.values()]
        return [KeepCard(card), *(action for actions in told for action in actions)]

    # -- segments ----------------------------------------------------------------------------------

    def _on_segment(self, link: Link, segment: Segment, now: float) -> list[Action]:
        """Fresh, or else duplicate, gap or unverified. Feeds may share a key: only a signature decides."""
        self.counters.segments += 1
        states = [self.frontier.state(feed) for feed in link.feeds_of(segment.feed_key, self.frontier)]
        for state in states:
            if verified := admission.verify(self.run, state, segment, self._verify):
                return self._on_fresh(link, state, verified, now)
        if len(states) != 1:
            self.counters.unnamed += 1  # no name or several; Summaries carry full names and repair this
            return self._on_ambiguous(link, states, segment, now)
        return self._on_stale(link, states[0], segment, now)

    def _on_ambiguous(
        self, link: Link, states: list[FeedState], segment: Segment, now: float
    ) -> list[Action]:
        """Several feeds have this key, and the segment continues none of them: is one of them forked?"""
        actions: list[Action] = []
        for state in states:
            if segment.first < state.next and inquiry.under_way(link, state, now):
                link.charge(FORGERY_COST, self.frontier, now)
                actions.append(Examine(link.id, state.feed, segment))
            elif admission.due(state, segment) and state.next and state.cut == UNCUT:
                actions += inquiry.begin(link, state, now, whole=True)
        return actions

    def _on_stale(self, link: Link, state: FeedState, segment: Segment, now: float) -> list[Action]:
        """A segment of this feed that does not extend it."""
        feed = state.feed
        if segment.first < state.next and inquiry.under_way(link, state, now):
            return [Examine(link.id, feed, segment)]
        if admission.due(state, segment):
            return self._disputes.unverified(link, state, segment, now)
        self._pulls.heard_of(link, feed, segment.stop, now)
        if segment.stop > state.cut:
            return self._disputes.show(link, feed, now)
        if segment.stop <= state.next:
            self.counters.duplicates += 1
            return self._on_duplicate(link, state, segment, now)
        self.counters.gaps += 1
        return self._pulls.ask(link, [feed], now)

    def _on_duplicate(self, link: Link, state: FeedState, segment: Segment, now: float) -> list[Action]:
        if not segment.hops:  # from its origin, or asked for
            return []
        actions = self._tree.prune(self.links, link, state, now)
        self.counters.pruned += len(actions)
        return actions

    def _on_fresh(self, link: Link, state: FeedState, fresh: Verified, now: float) -> list[Action]:
        feed = state.feed
        link.heard_of(feed, fresh.segment.stop)
        self._tree.brought(link, feed, now)
        link.brought_at, link.let_down = now, 0
        link.useful += fresh.counted
        hops = fresh.segment.hops + 1
        if not self._tree.may_push(feed, now):
            hops = flood.TTL
        admitted = self._admit(feed, fresh, link, hops, now)
        anew = self._continue_anew() if feed == self.own else []
        return [*admitted, *anew, *self._flush_all()]

    def _admit(
        self, feed: Feed, verified: Verified, link: Link | None, hops: int, now: float
    ) -> list[Action]:
        """The only place where the frontier moves on; `hops` is for those to whom we pass the segment on."""
        segment, chain, counted, counted_chain = verified
        if segment.first != self.frontier.next(feed):
            raise LocalProtocolError(
                f"admitting step {segment.first} of a feed at {self.frontier.next(feed)}"
            )
        self.frontier.advance(feed, segment.first + counted, counted_chain, segment.parts[-1].epoch)
        self.counters.admitted += counted
        self._pulls.progressed(feed, link, now)
        flood.mark(self.links, self.frontier.state(feed), segment, hops, now)
        return [Admit(feed, segment, chain, counted)]
