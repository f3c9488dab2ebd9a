"""The protocol machine: the one entry to the protocol (SPEC, "State machine").

Theory of operation. `handle(event, now)` decides synchronously and returns what to do; the host does it. Time
is an argument, randomness is injected, timers are data (`next_deadline`). The states of a link are in
link.py, those of our own feed in own_feed.py. All other state is in tables: the frontier, the pulls, the
trees of feeds, the cards.

The machine decodes frames, refuses messages that are not allowed in the present state of the link, and passes
all other messages to these modules:

    Hello, Summary   anti_entropy, pulls, own_feed      Segment   validation, plumtree, pulls
    Have, Want       pulls, plumtree                    Proof     fork_resolution
    Prune            plumtree                           Card      cards

The frontier moves forward in exactly one place, `_admit`, and always together with an Admit action. Exactness
follows from that alone: whatever happens on the links, an update is admitted once, in order and verified, or
not at all. In an open run the frontier moves back in two places. `ForkResolution.cut` returns a Cut when an
origin is proven to have signed two histories of one feed. `_make_room` returns an Evict when the run has the
maximum number of feeds and a feed with a smaller proof-of-work hash has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sfprotocol import anti_entropy, events, fork_resolution, messages, plumtree, validation, wire_codec
from sfprotocol.anti_entropy import SYNC_INTERVAL
from sfprotocol.cards import Cards
from sfprotocol.control_sync import NOTHING_KEPT, Kept
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.fork_resolution import ForkResolution
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.link import Link, LinkState, check_allowed
from sfprotocol.organised import Organised
from sfprotocol.own_feed import OwnFeed
from sfprotocol.plumtree import Tree
from sfprotocol.pulls import Pulls
from sfprotocol.rate_limit import FRAME_COST, RESERVE_BURST, Bucket, Intake, OriginBuckets
from sfprotocol.run_state import NEVER, Span
from sfprotocol.segments import first_updates
from sfprotocol.signing import Sign, Verify, verifies
from sfprotocol.validation import Verified
from sfprotocol.weighing import Counted, once

LINK_TIMEOUT = 60.0
"""Seconds without a frame after which a link is dropped. A peer with 12 links sends a Summary on each link
every 12 s, and so is never silent for that long."""

ASK_TIMEOUT = 20.0
"""Maximum time, in seconds, for which a node whose feed has updates waits for a witness: a peer that shows
the same feed (SPEC I2). The time is twice that of a dial, a Hello and a full list of feeds over a slow
line."""

MAX_LET_DOWN = 8
"""Number of failed pulls from a peer after which its link is dropped, if the peer brings no new updates in
between (SPEC A9)."""


class Machine:
    """One node's protocol state for one run. Not thread-safe; never blocks; owns no resources."""

    def __init__(
        self,
        run: messages.RunParameters,
        frontier: Frontier,
        *,
        own: messages.Feed | None,
        sign: Sign,
        draw_incarnation: Callable[[], int],
        proven: bool,
        now: float,
        cards: Iterable[messages.Card] = (),
        names: Names = NAMELESS,
        verify: Verify = verifies,
        control: Kept = NOTHING_KEPT,
    ) -> None:
        """`own` is None for a relay. `control` is the stored part of an organised run's control feed.
        `proven`: whether it is certain that nobody has more updates of `own` than `frontier` has (SPEC I2).
        `cards` are the stored cards. `names` are the name and team for our own feed."""
        self.run = run
        self.frontier = frontier
        self.links: dict[events.LinkId, Link] = {}
        self.counters = events.Counters()
        self.sign = sign
        """Signs with the key of our own feed."""
        self.cards = Cards(frontier, self.links, self.counters, kept=cards, own=names, sign=sign)
        patience = ASK_TIMEOUT if own in frontier else 0.0  # an empty feed is not worth waiting for
        self._own = OwnFeed(
            own, frontier, sign=sign, draw=draw_incarnation, proven=proven, ask_until=now + patience
        )
        self._verify = verify
        self._next_tick = now + SYNC_INTERVAL
        self._turn = 0
        self._origins = OriginBuckets()
        self.reserve = Bucket(RESERVE_BURST, now)
        """Token bucket for the bytes that links may bring beyond their own rates; shared by all links (SPEC
        L9)."""
        self._pulls = Pulls(frontier, self.links, self._origins)
        self._tree = Tree()
        self._forks = ForkResolution(
            frontier, self.links, self._pulls, self._own, self._origins, self.counters, verify
        )
        self.organised = (
            Organised(frontier, self.links, self._pulls, self._own, self.counters, kept=control)
            if run.organised
            else None
        )
        """The organiser's decisions and their consequences; None in an open run."""

    # -- state -------------------------------------------------------------------------------------

    @property
    def own(self) -> messages.Feed | None:
        """The feed that our updates belong to; None for a relay."""
        return self._own.feed

    @property
    def may_compute(self) -> bool:
        """Whether this node may make updates now."""
        if self.own is None or not self._own.proven or self.frontier.excludes(self.own):
            return False
        return not self.complete and self.room > 0

    @property
    def complete(self) -> bool:
        """Whether the run is complete: nobody makes updates any more (SPEC U6, O11)."""
        if self.organised:
            return self.organised.run_state.complete
        return self.frontier.known >= self.run.update_budget

    @property
    def epoch(self) -> int:
        """The epoch of a new update (SPEC U5, O6)."""
        if self.organised:
            return self.organised.run_state.open_epoch
        return self.run.epoch_of(self.frontier.known)

    @property
    def room(self) -> int:
        """Number of updates that this node may still add to its feed in the open epoch (SPEC U6, O6). Updates
        that it has begun but not finished are not subtracted."""
        if self.organised:
            return self.organised.room(self.own)
        left = self.run.longest_feed - (self.frontier.next(self.own) if self.own else 0)
        return max(0, min(left, self.run.update_budget - self.frontier.known))

    @property
    def pace(self) -> float:
        """Maximum number of updates that this node makes in a second; infinity in an open run (SPEC O20)."""
        return self.organised.run_state.pace if self.organised else float("inf")

    def spans(self, feed: messages.Feed) -> tuple[Span, ...]:
        """Return the factors of the stored updates of `feed` (SPEC O8)."""
        return self.counted(feed).spans

    def counted(self, feed: messages.Feed, most: int = NEVER) -> Counted:
        """Return which of the first `most` updates of `feed` are stored and count, with their factors."""
        held = min(self.frontier.next(feed), most)
        if self.organised:
            return Counted(self.organised.spans(feed, held), self.organised.rates)
        return once(held)

    @property
    def lacking(self) -> int:
        """Number of missing updates that peers claim to have. In each feed, only updates that every peer
        ahead of us claims to have are included."""
        return self._pulls.lacking

    def next_deadline(self) -> float:
        """Return the time at which the machine must get a Wake at the latest."""
        announcing = min((link.outbox.announce_at for link in self.links.values()), default=float("inf"))
        own = min(self._own.deadline, self.organised.deadline() if self.organised else float("inf"))
        return min(self._next_tick, own, self._pulls.deadline(), announcing)

    def rests_until(self, link_id: events.LinkId) -> float:
        """Return the time before which no frame of this link may be handled, because the link has exceeded
        its rate and rests (SPEC L9); -infinity for an unknown link."""
        link = self.links.get(link_id)
        return link.intake.rests_until if link else float("-inf")

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
        """Handle one event; return the actions, in order. Raises LocalProtocolError only if the event is not
        possible in the present state."""
        if isinstance(event, events.OrganisedEvent):
            if self.organised is None:
                raise LocalProtocolError(f"{type(event).__name__} in an open run")
            return self.organised.handle(event, now)
        match event:
            case events.LinkUp(link=link_id, peer=peer):
                return self._on_up(link_id, peer, now)
            case events.OwnUpdates():
                return self._on_own(event, now)
            case events.Wake():
                return self._on_wake(now)
            case events.Examined():
                return self._on_examined(event, now)
        link = self.links.get(event.link)
        if link is None:
            return []  # the link was dropped meanwhile
        match event:
            case events.Received(frame=frame):
                return self._on_frame(link, frame, now)
            case events.Writable():
                link.outbox.writable = True
                return plumtree.flush(link, self.frontier)
            case events.Served():
                plumtree.served(link, event, self.frontier, now)
                return self.cards.tell(link, event.feed)
            case events.LinkDown():
                return self._on_down(link, now)

    # -- links -------------------------------------------------------------------------------------

    def _on_up(self, link_id: events.LinkId, peer: str, now: float) -> list[events.Action]:
        if link_id in self.links:
            raise LocalProtocolError(f"link {link_id} is up already")
        self.links[link_id] = Link(link_id, peer, heard=now, intake=Intake(Bucket(0.0, now)))
        role = 0 if self.own else 1
        return [
            events.Transmit(
                link_id, messages.Hello(self.run.version, self.run.run_id, role, self.frontier.known)
            )
        ]

    def _on_down(self, link: Link, now: float) -> list[events.Action]:
        del self.links[link.id]
        self._pulls.release(link, now)
        return self._pulls.wake(now)

    def _drop(self, link: Link, fault: str, now: float) -> list[events.Action]:
        """Drop a link. `fault` is the broken rule with its reason; it is empty for an ordinary parting."""
        return [events.Drop(link.id, fault), *self._on_down(link, now)]

    def _part(self, link: Link, reason: str, now: float) -> list[events.Action]:
        return [events.Transmit(link.id, messages.Goodbye(reason)), *self._drop(link, "", now)]

    def _on_examined(self, event: events.Examined, now: float) -> list[events.Action]:
        try:
            return self._forks.examined(event, now)
        except RemoteProtocolError as error:
            return self._drop(self.links[event.link], str(error), now)

    def _flush_all(self) -> list[events.Action]:
        return [action for link in self.links.values() for action in plumtree.flush(link, self.frontier)]

    # -- frames ------------------------------------------------------------------------------------

    def _on_frame(self, link: Link, frame: bytes, now: float) -> list[events.Action]:
        link.heard = now
        before = self.counters.news
        try:
            message = wire_codec.decode(frame, *self.run.form)
            check_allowed(link, message)
            if isinstance(message, (messages.Segment, messages.Proof, messages.Card)):  # signed
                link.intake.charge(len(frame), self.reserve, now)
            actions = self._on_message(link, message, now)
            if self.counters.news == before and link.id in self.links:  # a Goodbye has ended its link
                link.waste.charge(len(frame) + FRAME_COST, len(self.frontier), now)
        except RemoteProtocolError as error:
            return self._drop(link, str(error), now)
        return actions

    def _on_message(self, link: Link, message: messages.Message, now: float) -> list[events.Action]:
        match message:
            case messages.Segment():
                return self._on_segment(link, message, now)
            case messages.Summary():
                return self._on_summary(link, message, now)
            case messages.Have():
                return self._on_have(link, message, now)
            case messages.Want():
                return self._on_want(link, message, now)
            case messages.Prune():
                plumtree.pruned(link, message, self.frontier)
                return []
            case messages.Proof():
                return [*self._forks.proven(link, message, now), *self._make_room()]
            case messages.Card():
                return self.cards.heard(link, message, now)
            case messages.Hello():
                return self._on_hello(link, message, now)
            case messages.Goodbye():
                return self._drop(link, "", now)
            case _:
                if self.organised is None:
                    raise RemoteProtocolError("O12", "a decision in an open run")
                return self.organised.on_message(link, message, now)

    def _on_hello(self, link: Link, hello: messages.Hello, now: float) -> list[events.Action]:
        if hello.version != self.run.version:
            return self._part(link, f"protocol {self.run.version} here, {hello.version} there", now)
        if hello.run_id != self.run.run_id:
            return self._part(link, "another run", now)
        link.enter(LinkState.GREETED)
        link.role, link.known = hello.role, hello.known
        decided = self.organised.introduce(link) if self.organised else []
        return [*decided, *anti_entropy.tell_all(link, self.frontier, now)]

    # -- anti-entropy ------------------------------------------------------------------------------

    def _on_summary(self, link: Link, summary: messages.Summary, now: float) -> list[events.Action]:
        anti_entropy.note_known(link, summary.known, self.frontier)
        actions: list[events.Action] = []
        for claim in summary.entries:
            self._check_length(claim.next)
            if link.names.learn(claim.feed, self.frontier):
                self._pulls.heard_of(link, claim.feed, claim.next, now)
                actions += self._forks.check_tag(link, claim, now)
        self._own.check(link.has)
        if not link.heard_out:  # later claims are of new updates, which flooding most likely brings
            if self.own and not self._own.proven:  # before everything else, which may take long (SPEC I2)
                actions += self._pulls.ask(link, [self.own], now)
            actions += self._pulls.ask(link, (claim.feed for claim in summary.entries), now)
        anti_entropy.compare(link, summary.digest, self.frontier, now)
        if self.own and link.agreement.agreed:  # nothing else shows how much of our feed the peer holds
            self._pulls.has(link, self.own, self.frontier.next(self.own))
        if not summary.more:
            link.retelling = False
            if not link.synced:
                link.enter(LinkState.SYNCED)
                self._own.hear_out(link.has)
        return actions + plumtree.flush(link, self.frontier)

    def _on_have(self, link: Link, have: messages.Have, now: float) -> list[events.Action]:
        for entry in have.entries:
            self._check_length(entry.next)
            feeds = link.names.matching(entry.feed_key, self.frontier)
            if len(feeds) == 1:
                self._pulls.heard_of(link, feeds[0], entry.next, now)
        return []

    def _on_want(self, link: Link, want: messages.Want, now: float) -> list[events.Action]:
        if self.organised and not want.entries:
            return self.organised.retell(link, now)
        actions: list[events.Action] = []
        for feed, following in want.entries:
            if feed not in self.frontier or following < self.frontier.base(feed).step:
                continue  # these updates are not stored, or not any more (SPEC O15)
            repeated = max(0, link.outbox.sent.get(feed, 0) - following)
            link.waste.charge(self.run.form.width * repeated, len(self.frontier), now)
            actions += self._forks.show(link, feed, now)
            self._pulls.set_claim(link, feed, following)
            plumtree.wanted(link, feed, following, self.frontier)
        return actions + plumtree.flush(link, self.frontier)

    def _check_length(self, following: int) -> None:
        if self.organised is None and following > self.run.longest_feed:
            raise RemoteProtocolError("U6", "a feed longer than the run allows")

    def _on_wake(self, now: float) -> list[events.Action]:
        actions: list[events.Action] = []
        if now >= self._own.deadline:
            actions += self._own.give_up()
        actions += self.organised.wake(now) if self.organised else []
        actions += self._pulls.wake(now)
        for link in self.links.values():
            if now >= link.outbox.announce_at:
                actions += plumtree.announce(link, self.frontier)
        if now >= self._next_tick:
            self._forgive_silence(now - self._next_tick, now)
            self._next_tick = now + SYNC_INTERVAL
            actions += self._tick(now)
        return actions

    def _forgive_silence(self, missed: float, now: float) -> None:
        """Exclude `missed` seconds from the neighbours' silence: this node itself did not run (SPEC L7)."""
        for link in self.links.values():
            link.heard = min(now, link.heard + missed)
        if self.organised:
            self.organised.control.elections.forgive(missed)

    def _tick(self, now: float) -> list[events.Action]:
        actions = self._own.look_for_room()
        for link in list(self.links.values()):
            if now - link.heard > LINK_TIMEOUT:
                actions += self._drop(link, "", now)
            elif link.inbox.let_down >= MAX_LET_DOWN:
                actions += self._drop(link, "A9: promises and does not deliver", now)
            else:
                self._pulls.expect_ahead(link, now)
                actions += self._forks.show_again(link, now)
        ready = [link for link in self.links.values() if link.greeted]
        if ready:
            self._turn += 1
            link = ready[self._turn % len(ready)]
            actions += self.organised.tell(link, now) if self.organised else []
            actions += anti_entropy.tell(link, self.frontier, now)
        if self.may_compute and self.own:
            actions += self.cards.sign_own(self.own)
        return actions

    # -- segments ----------------------------------------------------------------------------------

    def _on_own(self, event: events.OwnUpdates, now: float) -> list[events.Action]:
        if event.feed != self.own:
            return []  # computed for an earlier incarnation
        if self._own.overruled(event):
            return self._own.renew()
        return [*self._admit(event.feed, self._own.signed(event), None, 0, now), *self._flush_all()]

    def _on_segment(self, link: Link, segment: messages.Segment, now: float) -> list[events.Action]:
        """Admit the new part of a segment. A segment without a valid new part is handled as unverified, a
        duplicate or a gap (SPEC FL4).

        Several feeds may share a key. Only the signature shows which one the segment belongs to.
        """
        feeds = link.names.matching(segment.feed_key, self.frontier)
        states = [self.frontier.state(feed) for feed in feeds]
        run_state = self.frontier.run_state
        if self.organised and validation.early(self.organised.run_state, states, segment):
            self.organised.early(link, feeds, segment, now)
            return []
        for state in states:
            if self._is_too_soon(link, state, segment, now):  # no fault: it is requested later (SPEC FL11)
                self.counters.put_off += 1
                self._pulls.heard_of(link, state.feed, segment.stop, now)
                return self._tree.make_lazy(link, state, now)
            if verified := validation.verify(self.run, state, segment, self._verify, run_state):
                return self._on_fresh(link, state, verified, now)
        if len(states) != 1:  # no feed has this key, or several; Summaries carry full names
            return self._forks.ambiguous(link, states, segment, now)
        return self._on_stale(link, states[0], segment, now)

    def _is_too_soon(self, link: Link, state: FeedState, segment: messages.Segment, now: float) -> bool:
        """Return whether the segment is unrequested news of an origin that exceeds its rate. Also true for
        every segment while the node does not know yet at which steps its feeds begin (SPEC O15)."""
        if self.frontier.waiting:
            return True
        if not validation.due(state, segment) or state.next < link.expected(state.feed):
            return False
        return not self._origins.may_bring(state.feed.origin, now)

    def _on_fresh(self, link: Link, state: FeedState, fresh: Verified, now: float) -> list[events.Action]:
        feed = state.feed
        if not fresh.counted:  # made after its origin was revoked
            self.frontier.stop(feed)
            self._pulls.finish(feed)
            return []
        if fresh.segment.stop > link.inbox.ahead.get(feed, 0):  # else the peer had it before the link
            self._origins.brought(feed.origin, fresh.segment.count, self.run.form.width, now)
        self._pulls.brought(link, feed, fresh.segment.stop, fresh.counted, now)
        self._tree.brought(link, feed, now)
        hops = fresh.segment.hops + 1
        if not self._tree.may_push(feed, now):
            hops = plumtree.TTL
        admitted = self._admit(feed, fresh, link, hops, now)
        return [*admitted, *self._own.overtaken(feed), *self._flush_all()]

    def _on_stale(
        self, link: Link, state: FeedState, segment: messages.Segment, now: float
    ) -> list[events.Action]:
        """Handle a segment that does not extend its feed."""
        feed = state.feed
        if segment.first < state.next and fork_resolution.under_way(link, state, now):
            return [events.Examine(link.id, feed, segment)]
        if validation.due(state, segment):
            return self._forks.unverified(link, state, segment, now)
        self._pulls.heard_of(link, feed, segment.stop, now)
        if segment.stop > state.cut:
            return self._forks.show(link, feed, now)
        if segment.stop <= state.next:
            # A segment without hops was requested, or is sent by its origin.
            return self._tree.prune(self.links, link, state, now) if segment.hops else []
        return self._pulls.ask(link, [feed], now)

    def _admit(
        self, feed: messages.Feed, verified: Verified, link: Link | None, hops: int, now: float
    ) -> list[events.Action]:
        """Advance the frontier. `hops` is the hop count of the forwarded segment."""
        segment, chain, counted, counted_chain = verified
        if segment.first != self.frontier.next(feed):
            raise LocalProtocolError(
                f"admitting step {segment.first} of a feed at {self.frontier.next(feed)}"
            )
        parts = first_updates(segment.parts, counted)
        labelled = validation.labelled_after(self.frontier.state(feed), parts)
        epoch = parts[-1].epoch if parts else self.frontier.state(feed).epoch
        self.frontier.advance(feed, segment.first + counted, counted_chain, epoch, labelled)
        self.counters.admitted += counted
        self._pulls.progressed(feed, link, now)
        state = self.frontier.state(feed)
        for other in self.links.values() if not segment.first else ():
            other.names.held(feed, state.key)
        plumtree.mark(self.links, state, segment, hops, now)
        return [events.Admit(feed, segment, chain, counted), *self._make_room()]

    def _make_room(self) -> list[events.Action]:
        """Drop the feed with the largest proof-of-work hash if there are too many feeds (SPEC S8)."""
        if (evicted := self.frontier.evict()) is None:
            return []
        feed, stop = evicted
        self._pulls.finish(feed)
        self._tree.forget(feed)
        self.cards.forget(feed)
        for link in self.links.values():
            link.forget(feed)
        return [events.Evict(feed, stop), *self._own.taken_back(feed)]
