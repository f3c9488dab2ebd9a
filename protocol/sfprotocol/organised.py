"""The part of the machine for organised runs: it applies decisions to feeds, and tells neighbours (SPEC, part
O).

Decisions come through `control_sync`. If a Close lists steps of a feed, the tag in the Close is compared with
the tag of our own history of the feed. If the tags differ, our history is dropped and the listed history is
requested. The decisions also determine which updates we may make.

Updates that a checkpoint counts need not be stored. The stored part of each feed then begins at the feed's
base, and no feed is set back to a step before its base. A node that begins with a checkpoint holds no update
until the bases are known (SPEC O14, O15).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from sfprotocol import anti_entropy, events, messages, validation
from sfprotocol.checkpoints import Base
from sfprotocol.control_sync import ControlSync, Kept
from sfprotocol.decisions import INCARNATIONS, Recount
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.join_requests import JoinRequests
from sfprotocol.link import Link
from sfprotocol.own_feed import OwnFeed
from sfprotocol.pulls import Pulls
from sfprotocol.run_state import NEVER, RunState, Span
from sfprotocol.weighing import Counted, Rates

TRACED_AT_ONCE = 64
"""Maximum number of feeds whose stored history is compared with the decisions in one round of the host, after
a start. Each comparison reads the log once."""


class Membership(Enum):
    """Whether our own origin may make updates according to the decisions: MEMBER if so, else a reason why it
    may not (SPEC O6)."""

    UNKNOWN = "a decision is unknown to this version"
    STRANGER = "not admitted"
    REVOKED = "revoked for the open epoch"
    AHEAD = "its last update has a label that no stored decision has opened"
    BEGINNING = "the steps at which stored feeds begin are not known yet"
    OUTDATED = "the checkpoint with which this node begins is not usable any more"
    ENOUGH = "the listed updates reach the budget unless seals skip some"
    MEMBER = "admitted"


class Organised:
    """The additional state of one machine in an organised run. It shares the machine's tables."""

    def __init__(
        self,
        frontier: Frontier,
        links: dict[events.LinkId, Link],
        pulls: Pulls,
        own: OwnFeed,
        counters: events.Counters,
        *,
        kept: Kept,
    ) -> None:
        """`kept` is the stored control feed."""
        self._frontier = frontier
        self._links = links
        self._pulls = pulls
        self._own = own
        self.control = ControlSync(frontier, links, counters, kept=kept)
        self._join_requests = JoinRequests(frontier.run.run_id, links, self.control.feed)
        self._rates: tuple[RunState, int, Rates] | None = None
        """The cached rates, with the state of the run and the number of decisions from which they follow;
        None before."""
        self._untraced = [state.feed for state in frontier]
        """Feeds that must still be compared with the decisions, after a start or after stored decisions were
        dropped."""
        self._doubtful = set(self._untraced)
        """Feeds that may hold updates which only former decisions allowed."""
        self._unsettled = not self.control.feed.settled
        """Whether the doubtful feeds must be compared once more when the decisions are settled."""
        self._decisions: tuple[RunState, int] | None = None
        """The state of the run and the number of decisions after which neighbours were last asked for early
        updates again."""
        self._went_on: messages.Feed | None = None
        """Our own feed, once our member was seen to use it in the open epoch; None before."""
        for feed in self._untraced:
            if (number := self.run_state.number(feed)) is not None:
                self._mark(number)

    # -- what counts -------------------------------------------------------------------------------

    @property
    def run_state(self) -> RunState:
        """The state of the run according to the decisions stored here."""
        return self.control.run_state

    @property
    def missing_updates(self) -> int:
        """Number of updates that Closes list and that are not stored here (SPEC O11)."""
        return sum(stop - held for _, held, stop in self._named() if held < stop)

    @property
    def unnamed(self) -> int:
        """Number of stored updates that are not listed by any Close."""
        return self._frontier.known - sum(min(held, stop) for _, held, stop in self._named())

    def _named(self) -> Iterator[tuple[messages.Feed, int, int]]:
        """Yield (feed, first missing step, first step that is not listed by any Close) for each feed with
        listed steps."""
        for number, stop in self.run_state.positions().items():
            feed = self.run_state.feed(number)
            yield feed, self._frontier.next(feed), stop

    @property
    def out_of_reach(self) -> int:
        """Number of listed updates that are missing here and that no neighbour stores any more, although some
        neighbours had them once (SPEC O15)."""
        return sum(
            stop - held
            for feed, held, stop in self._named()
            if held < stop
            and (holders := [link for link in self._links.values() if link.has.get(feed, 0) >= stop])
            and not any(self._pulls.gives(link, feed) for link in holders)
        )

    @property
    def outdated(self) -> bool:
        """Whether the checkpoint with which this node's feeds begin is not usable any more (SPEC O14)."""
        checkpoint = self._frontier.checkpoint
        return checkpoint is not None and checkpoint not in self.run_state.checkpoints

    def spans(self, feed: messages.Feed, held: int) -> tuple[Span, ...]:
        """Return the first `held` updates of `feed` as spans, with the factors that they have at this node
        now (SPEC O8)."""
        number = self.run_state.number(feed)
        return () if number is None else self.run_state.live(number, held)

    def named(
        self, epoch: int, skipped: Iterable[int] = (), recounted: Iterable[Recount] = ()
    ) -> dict[messages.Feed, Counted]:
        """Return how those stored steps count that are listed by the Close of `epoch` or an earlier Close,
        keyed by feed. Steps that no Seal has judged have factor 1. The result assumes that the Seal of
        `epoch` skips the feeds with the numbers `skipped`, and counts the `recounted` steps of earlier
        epochs."""
        held, run_state = self._frontier.next, self.run_state
        again: dict[int, set[int]] = {}
        for recount in recounted:
            again.setdefault(recount.feed, set()).add(recount.epoch)
        positions = run_state.positions(epoch) | {n: run_state.named(n, epoch - 1) for n in skipped}
        stops = ((number, run_state.feed(number), stop) for number, stop in positions.items())
        return {
            feed: Counted(run_state.spans(number, min(stop, held(feed)), again.get(number, ())), self.rates)
            for number, feed, stop in stops
        }

    @property
    def rates(self) -> Rates:
        """The present rates. The same object is returned until the next decision."""
        run_state = self.run_state
        if self._rates is None or self._rates[0] is not run_state or self._rates[1] != run_state.decisions:
            self._rates = run_state, run_state.decisions, Rates.of(run_state)
        return self._rates[2]

    def membership(self, own: messages.Feed) -> Membership:
        """Return whether our own feed may have more updates, or the reason why it may not. The quota is not
        considered."""
        member, epoch = self.run_state.member(own.origin), self.run_state.open_epoch
        if self.run_state.unsupported:
            return Membership.UNKNOWN
        if member is None:
            return Membership.STRANGER
        if epoch >= member.revoked:
            return Membership.REVOKED
        if self._frontier.state(own).epoch > epoch:
            return Membership.AHEAD  # the decision that opened its epoch is gone: labels would go back
        if self._frontier.waiting:
            return Membership.BEGINNING
        if self.outdated:
            return Membership.OUTDATED
        return Membership.ENOUGH if self.run_state.promised >= self.run_state.budget else Membership.MEMBER

    def room(self, own: messages.Feed | None) -> int:
        """Return how many more updates we may make with the label of the open epoch. Our quota bounds them
        (SPEC O6), and so does the room that all members share until the next Close (SPEC O20)."""
        number = self.run_state.number(own) if own else None
        if own is None or number is None or self.membership(own) is not Membership.MEMBER:
            return 0
        if not self.run_state.goes_on_with(number):  # a first update announces that we use this feed now
            return 0 if self._frontier.next(own) else min(1, self.quota(number // INCARNATIONS))
        made: dict[int, int] = {}
        for state in self._frontier:
            other = self.run_state.number(state.feed)
            if other is not None:
                made[other // INCARNATIONS] = made.get(other // INCARNATIONS, 0) + self.labelled(state.feed)
        return self.run_state.room_left(number // INCARNATIONS, made)

    def quota(self, member: int) -> int:
        """Return how many updates with the label of the open epoch a member may make."""
        return self.run_state.quotas.quota(member, self.run_state.open_epoch)

    def labelled(self, feed: messages.Feed) -> int:
        """Return how many stored updates of a feed have the label of the open epoch."""
        state = self._frontier.state(feed)
        return state.labelled if state.epoch == self.run_state.open_epoch else 0

    # -- events and messages -----------------------------------------------------------------------

    def handle(self, event: events.OrganisedEvent, now: float) -> list[events.Action]:
        """Handle an event. Raises LocalProtocolError for a decision at a node without the organiser's key,
        and RemoteProtocolError for a succession with too few votes."""
        match event:
            case events.OwnDecision(record=record):
                return self._decided(self.control.decide(record, now), now)
            case events.OwnHandOver(key=key):
                return self._decided(self.control.elections.hand_over(key, now), now)
            case events.OwnJoinRequest(join_request=join_request):
                return self._join_requests.join_request(join_request, self.run_state, now)
            case events.OwnSuccession(succession=succession):
                return self._decided(self.control.heard_authority(None, succession, now), now)
            case events.Traced():
                return self._on_traced(event, now)
            case events.CheckpointKept():
                return self._on_checkpoint(event, now)

    def on_message(self, link: Link, message: messages.Message, now: float) -> list[events.Action]:
        """Handle a message of an organised run. Raises RemoteProtocolError if the message breaks a rule."""
        match message:
            case messages.ControlHead():
                return self._decided(self.control.heard_head(link, message, now), now)
            case messages.ControlWant():
                return self.control.wanted(link, message, now)
            case messages.Control():
                return self._decided(self.control.heard(link, message, now), now)
            case messages.Succession() | messages.ControlFork() | messages.DoubleVote():
                return self._decided(self.control.heard_authority(link, message, now), now)
            case messages.JoinRequest() | messages.Offer():
                return self._join_requests.heard(link, message, self.run_state, now)
            case messages.Statement():
                return self._decided(self.control.elections.heard(link, message, now), now)
            case messages.Commitment() | messages.Finding():
                return []  # of versions before 0.3 (SPEC O18)
            case messages.Floor(epoch=epoch):
                if epoch <= link.floor:
                    raise RemoteProtocolError("O15", "a floor that does not rise")
                link.floor = epoch
                return self._pulls.out_of_reach(link, now)
        raise AssertionError(f"no handler for an allowed {type(message).__name__}")

    def introduce(self, link: Link) -> list[events.Action]:
        """Tell a new neighbour about our decisions; called before the neighbour is told about feeds."""
        return [*self.control.introduce(link), *self._join_requests.introduce(link), *self._tell_floor(link)]

    def retell(self, link: Link, now: float) -> list[events.Action]:
        """Tell a neighbour everything we have, at its request (SPEC O19).

        Raises RemoteProtocolError (SPEC L8) if the neighbour asks too often.
        """
        feeds = len(self._frontier)
        link.waste.charge(anti_entropy.CLAIM_BYTES * feeds, feeds, now)
        return anti_entropy.tell_all(link, self._frontier, now)

    def tell(self, link: Link, now: float) -> list[events.Action]:
        """Tell a neighbour how the control feed has changed; called for each neighbour in turn."""
        return self.control.tell(link, now)

    def deadline(self) -> float:
        """Return the time at which `wake` must be called; -infinity if it must be called at once."""
        later = min(self._join_requests.deadline(), self.control.elections.deadline())
        return float("-inf") if self._untraced else later

    def wake(self, now: float) -> list[events.Action]:
        """Do everything whose time has come: compare feeds with the decisions, review elections, send join
        requests again."""
        feeds, self._untraced = self._untraced[:TRACED_AT_ONCE], self._untraced[TRACED_AT_ONCE:]
        compared = [action for feed in feeds for action in self._check(feed, now)]
        elections = self.control.elections
        decided = self._decided(elections.review(now), now) if now >= elections.deadline() else []
        return [*self._join_requests.wake(self.run_state, now), *compared, *decided]

    def early(self, link: Link, feeds: list[messages.Feed], segment: messages.Segment, now: float) -> None:
        """Plan to request a segment again after the next decision, because our decisions have not opened its
        epoch yet (SPEC O6). End the pull from this peer without counting it as failed, as the peer has sent
        the segment."""
        if len(feeds) == 1 and self.run_state.member(feeds[0].origin):
            early, feed = link.inbox.early, feeds[0]
            early[feed] = max(segment.stop, early.get(feed, 0))
            self._pulls.set_claim(link, feed, segment.first)
            self._pulls.forget(feed, link, now)

    # -- checkpoints -------------------------------------------------------------------------------

    def _tell_floor(self, link: Link) -> list[events.Action]:
        floor = self._frontier.floor
        return [events.Transmit(link.id, messages.Floor(floor))] if floor else []

    def _on_checkpoint(self, event: events.CheckpointKept, now: float) -> list[events.Action]:
        """Begin at the bases of a checkpoint, or at step 0, if this node has waited for a checkpoint.
        Otherwise delete the updates before the bases."""
        frontier, checkpoint, bases = self._frontier, event.checkpoint, event.bases
        waited, frontier.waiting = frontier.waiting, False
        ahead = [base for base in bases if frontier.next(base.feed) < base.step]
        actions: list[events.Action] = []
        if checkpoint is not None:
            if checkpoint.epoch < frontier.floor - 1:
                raise LocalProtocolError("an earlier checkpoint than the one that this node begins with")
            if ahead and not waited:
                raise LocalProtocolError("a checkpoint of updates that are not stored")
            frontier.rebase(checkpoint, bases)
            actions.append(events.Rebase(checkpoint, bases))
        for link in self._links.values():
            serving = link.outbox.serving
            for feed in [feed for feed, first in serving.items() if first < frontier.base(feed).step]:
                del serving[feed]  # this Serve is not carried out any more
            if link.greeted:
                actions += self._tell_floor(link)
        return [*actions, *(self._begin(ahead, now) if waited else [])]

    def _begin(self, ahead: list[Base], now: float) -> list[events.Action]:
        """Tell neighbours what is stored here and ask for the rest. `ahead`: the bases at which feeds now
        begin."""
        actions: list[events.Action] = []
        for base in ahead:
            actions += [events.Recounted(base.feed, 0), *self._own.overtaken(base.feed)]
        for link in self._links.values():
            if link.greeted:
                actions += anti_entropy.tell_all(link, self._frontier, now)
            for feed, following in list(link.has.items()):
                self._pulls.heard_of(link, feed, following, now)
            actions += self._pulls.ask(link, link.has, now)
        return actions

    # -- consequences ------------------------------------------------------------------------------

    def _decided(self, actions: list[events.Action], now: float) -> list[events.Action]:
        """Update the feeds after decisions were added or dropped."""
        changed = sorted(self.control.changed)
        self.control.changed.clear()
        self._doubt()
        for number in changed:
            self._mark(number)
            feed = self.run_state.feed(number)
            if feed in self._frontier:
                held = self._frontier.next(feed)
                actions += [events.Recounted(feed, held), *self._compare(number, now)]
        self._ask_for_early(now)
        return [*actions, *self._retell(), *self._resume_feed()]

    def _ask_for_early(self, now: float) -> None:
        """Ask again for early updates if there are other decisions now."""
        decisions = self.run_state, self.run_state.decisions
        if self._decisions == decisions:
            return
        self._decisions = decisions
        for link in self._links.values():
            early, link.inbox.early = link.inbox.early, {}
            for feed, following in early.items():
                self._pulls.heard_of(link, feed, following, now)

    def _resume_feed(self) -> list[events.Action]:
        """Begin a new feed if Closes list our own feed, but our member now uses another one (SPEC I3).

        Do nothing if our member has already used our feed. In that case another machine has our key, and both
        machines would begin a new feed in every epoch until no incarnation is left.
        """
        own = self._own.feed
        number = self.run_state.number(own) if own else None
        if own is None or number is None or not self.run_state.named(number):
            return []
        if self.run_state.goes_on_with(number):
            self._went_on = own
        return [] if self._went_on == own else self._own.overtaken(own)

    def _doubt(self) -> None:
        """Plan to check all feeds once more after stored decisions were dropped, as soon as the decisions are
        settled again."""
        if self.control.dropped:
            self.control.dropped, self._unsettled = False, True
            self._doubtful = {state.feed for state in self._frontier}
        if self._unsettled and self.control.feed.settled:
            self._unsettled = False
            self._untraced = sorted({*self._untraced, *self._doubtful})

    def _mark(self, number: int) -> None:
        feed = self.run_state.feed(number)
        self._frontier.named(feed, self.run_state.named(number), self.run_state.ended(number))

    def _retell(self) -> list[events.Action]:
        """Ask neighbours that have named feeds of strangers to tell everything again (SPEC O19). A neighbour
        is asked once the run has further members, and the neighbour has no decisions that are missing
        here."""
        members, stop = len(self.run_state.members), self.control.feed.stop
        asked = [
            link
            for link in self._links.values()
            if link.names.strange_at < members and link.control.theirs and link.control.theirs.stop <= stop
        ]
        for link in asked:
            link.names.strange_at, link.retelling = NEVER, True
        return [events.Transmit(link.id, messages.Want(())) for link in asked]

    def _check(self, feed: messages.Feed, now: float) -> list[events.Action]:
        """Compare our history of a feed with the decisions, if its origin is a member."""
        number = self.run_state.number(feed)
        return [] if number is None else self._compare(number, now)

    def _compare(self, number: int, now: float) -> list[events.Action]:
        """Check whether our history of a feed is the listed one, and which updates of it count."""
        state = self._frontier.state(self.run_state.feed(number))
        if state.next > state.cut:
            return [events.Trace(state.feed, state.cut), *self._own.overtaken(state.feed)]
        if state.next > state.named and state.epoch >= self._revoked(state):
            return [events.Trace(state.feed, state.named), *self._own.overtaken(state.feed)]
        if self._is_undecided(state, number):
            return self._let_go(state, now)
        passed = self.run_state.named_stop(number, state.next)
        if passed is None:
            return (
                [events.Trace(state.feed, state.base)] if state.feed in self._doubtful and state.next else []
            )
        stop, salt, expected = passed
        if stop < state.next:
            return [events.Trace(state.feed, stop)]
        return [] if validation.tag(salt, state.chain) == expected else self._let_go(state, now)

    def _on_traced(self, event: events.Traced, now: float) -> list[events.Action]:
        state, number = self._frontier.state(event.feed), self.run_state.number(event.feed)
        if number is None or not state.base <= event.stop <= state.next:
            return []
        meant = all(
            validation.tag(salt, event.chain) == expected
            for _, salt, expected in self.run_state.named_stops(number, event.stop - 1, event.stop)
        )
        if not meant or self._is_undecided(state, number):
            return self._let_go(state, now)
        if state.next > state.cut:
            return self._go_back(state, event, state.cut)
        if event.stop >= state.named and state.epoch >= (revoked := self._revoked(state)):
            kept = sum(len(part.scalars) for part in event.ours.parts if part.epoch < revoked)
            return self._go_back(state, event, event.stop + kept)
        if event.stop == state.next:  # a cut has shortened the feed to this step
            self._frontier.advance(state.feed, event.stop, state.chain, event.epoch, event.labelled)
        return self._look_through(state, event, number) if event.feed in self._doubtful else []

    def _look_through(self, state: FeedState, event: events.Traced, number: int) -> list[events.Action]:
        """Drop updates that former decisions allowed and the present ones do not (SPEC O6).

        Go back to the last signature or the last listed step before them, because from there on updates can
        be served to neighbours. The neighbours drop the same updates. If one of them does not, its digest
        differs (SPEC A6).
        """
        feed, ours = state.feed, event.ours
        base = Base(feed, event.stop, event.chain, event.epoch, event.labelled)
        found = validation.refused(self.run_state, number, base, ours.parts, state.named)
        if event.stop < state.named or (found is None and ours.count and ours.stop < state.next):
            following = max(ours.stop, state.named)
            return [events.Trace(feed, following)] if event.stop < following <= state.next else []
        if not self.control.feed.settled:
            return []
        self._doubtful.discard(feed)
        if found is None or found.step >= state.next:
            return []
        before = state.next
        self._frontier.go_back(*base)
        self._pulls.finish(feed)
        for link in self._links.values():
            told = min(event.stop, link.has.get(feed, 0))
            link.forget(feed)
            if told:
                link.has[feed] = told
        return [events.Recounted(feed, before), *self._own.overtaken(feed)]

    def _is_undecided(self, state: FeedState, number: int) -> bool:
        """Return whether our part of a forked feed ends between two listed ends. Nobody can tell to which
        history such a part belongs, and the other listed steps may not follow from it."""
        between = state.forked < state.next < state.named
        return between and not any(self.run_state.named_stops(number, state.next - 1, state.next))

    def _revoked(self, state: FeedState) -> int:
        member = self.run_state.member(state.feed.origin)
        return member.revoked if member else NEVER

    def _go_back(self, state: FeedState, event: events.Traced, step: int) -> list[events.Action]:
        """Set the end of a feed back to `step`; later updates do not count. If the event is about another
        step, trace `step` first."""
        before = state.next
        if event.stop != step:
            return [events.Trace(state.feed, step)] if step < before else []
        self._frontier.go_back(state.feed, step, event.chain, event.epoch, event.labelled)
        self._frontier.stop(state.feed)
        self._pulls.finish(state.feed)
        return [events.Recounted(state.feed, before)]

    def _let_go(self, state: FeedState, now: float) -> list[events.Action]:
        """Drop our history of a feed back to its base, to fetch the listed history instead. Only a fork can
        have brought another history here."""
        feed, before = state.feed, state.next
        if before <= state.base:
            return []  # the base is of a checkpoint that is not valid any more
        for link in self._links.values():
            link.inquiries.pop(feed, None)
            link.outbox.dirty.pop(feed, None)
            link.outbox.serving.pop(feed, None)
        self._frontier.go_back(*self._frontier.base(feed))
        for link in self._links.values():
            self._pulls.heard_of(link, feed, link.has.get(feed, 0), now)
        return [events.Recounted(feed, before), *self._own.overtaken(feed)]
