"""The organiser: when to close, seal, admit and finish, and what a seal says.

Sans-IO: `handle(event, now)` returns what to do, `next_deadline()` says when to send the next Wake. Time is
an argument (seconds of any monotonic clock), randomness is injected. What counts is read from a `Counting`
and never changed here: a decision comes back as the control feed grows.

Theory of operation.

    state        signs   left when
    RESTARTED    no      enough peers have told that they have no more of the control feed, or `alone`
    ORGANISING   yes     decisions that were here are gone (to RESTARTED); the key's tenure ends (to STOPPED)
    STOPPED      no      never

There is at most one decision under way. The next one is made from the state that has come of it, so that none
is ever void where it stands, and no position of the control feed is signed twice. While nothing is under way
an organiser looks, every LOOK_INTERVAL, for the first of these that is due:

    a wish of the owner's          that would change something
    an admission                   that needs no owner, at the rate that the policy allows
    the result of an evaluation    of an epoch that is sealed, or of the base model
    a seal                         of the oldest closed epoch, once it is evaluated or has waited long enough
    a close                        once enough updates may be named, or one has waited long enough
    an amendment                   of a feed of which named steps cannot be had, if the policy has one

A close names only what a peer has shown to hold, too, so that it cannot get lost with this node. Of a member
it names no more than its quota, over all its feeds and whatever the labels: nobody fills an epoch with what
is late. What is left comes next time, the feed first that has waited longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from sfnode.organising import health, wishes
from sfnode.organising.admission import Petitions
from sfnode.organising.events import (
    Action,
    ControlChanged,
    Evaluate,
    EvaluationEnded,
    Event,
    ForkProven,
    HeldChanged,
    Mark,
    OwnerWish,
    PeerControl,
    PeerGone,
    PeerShows,
    PetitionHeard,
    Refuse,
    Sign,
    Stop,
    Tenure,
)
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.rates import Schedule
from sfprotocol import holding
from sfprotocol.counting import MAX_EPOCHS, NEVER, Counting, Member, named_digest
from sfprotocol.decisions import FACTOR_ONE, Amend, Close, Decision, Evaluated, Move, RateFrom, Seal
from sfprotocol.frontier import MAX_FEEDS
from sfprotocol.messages import Feed, Petition

LOOK_INTERVAL, LOOK_INTERVAL_PER_FEED = 1.0, 0.0005
"""Seconds between two looks, which take 10 us for each feed: 2 % of a core at most, and 8.5 s between looks
at 15,000 feeds, while an epoch lasts minutes."""

SETTLE_TIME = 30.0
"""Seconds in which the control feed has not grown before a restarted organiser believes its witnesses: other
peers may come that have more."""

PROOF_TIME = 600.0
"""Seconds after which a peer that says that it has more, while nothing comes, is not believed any more: the
largest decision takes 15 s over a line of 100 kbit/s."""

SIGN_AGAIN = 10.0
"""Seconds after which a Sign that has brought no decision is repeated: a commit takes far less."""

MOVES_PER_CLOSE = 9_000
"""Feeds that one close moves: with 21 bytes each they fit MAX_DECISION."""

MAX_UNSEALED = 16
"""Closed epochs that may wait for their seals. If seals cannot be made, because named updates are missing
here, trainers come to the end of their quotas instead of going on without end."""

YOUNG = 1 / 10
"""Share of the update budget up to which a run is young."""

SALT_BYTES = 8


UNSUPPORTED = "the control feed has a decision that this version does not know"


class State(Enum):
    """State of an organiser; the table above says what each may do."""

    RESTARTED = "restarted"
    ORGANISING = "organising"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Held:
    """A feed as this node holds it, and peers too."""

    since: float
    """Time since which something waits to be named."""
    whole_at: float
    """Time at which we last held all that is named of it, or had nobody to ask."""
    marks: list[Mark] = field(default_factory=list)
    shown: int = 0
    """The first step that no peer has shown to hold."""
    forked: int = NEVER
    named: int = 0
    """The first step that was not named when we last looked."""

    @property
    def stop(self) -> int:
        return self.marks[-1].stop if self.marks else 0

    def mark(self, stop: int) -> Mark | None:
        return next((mark for mark in reversed(self.marks) if mark.stop == stop), None)


@dataclass(slots=True)
class _Asked:
    """The latest evaluation that was asked for."""

    epoch: int
    at: float
    running: bool = True
    result: Evaluated | None = None
    """The result, until it is signed once the epoch is sealed."""
    altered: bool = False
    """Whether the seal has skipped something that was evaluated."""


class Organiser:
    """The decisions of one run's organiser."""

    def __init__(
        self,
        run_id: bytes,
        counting: Counting,
        policy: OrganiserPolicy,
        schedule: Schedule,
        *,
        draw: Callable[[int], bytes],
        alone: bool = False,
        now: float,
    ) -> None:
        """`draw` returns random bytes. `alone`: the owner says that nobody knows more of the control feed
        than this node; while it has no peers it names what it alone holds."""
        self.state = State.RESTARTED
        self.stopped: str | None = None
        """The reason for which nothing is signed any more."""
        self.policy = policy
        self._run_id = run_id
        self._counting = counting
        self._schedule = schedule
        self._draw = draw
        self._alone = alone
        self._decisions = counting.decisions
        """Decisions when the control feed last changed."""
        self._grown_at = now
        self._wake_at = now
        self._open, self._opened_at = -1, now
        """The epoch that was open when we last looked, and the time since when."""
        self._signing: Sign | None = None
        self._feeds: dict[Feed, _Held] = {}
        self._peers: dict[str, int] = {}
        """Linked peers, with the number of decisions that each has told of."""
        self._petitions = Petitions(run_id, policy)
        self._wishes: list[Decision] = []
        self._base: Evaluated | None = None
        """The base model's result, until it is signed."""
        self._asked = _Asked(-1, now, running=False)
        self._evaluate_from = now
        self._actions: list[Action] = []

    # -- what others ask ---------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return the time at which Wake is due at the latest."""
        return float("inf") if self.state is State.STOPPED else self._wake_at

    def petitions(self, now: float) -> list[Petition]:
        """Return the petitions that wait for the owner, or for their turn."""
        return self._petitions.waiting(self._counting, now)

    @property
    def behind(self) -> int:
        """Number of named updates that are not here: without them no seal can be made."""
        counting = self._counting
        named = counting.positions().items()
        held = self._feeds
        stops = ((stop, held.get(counting.feed(number))) for number, stop in named)
        return sum(max(0, stop - (feed.stop if feed else 0)) for stop, feed in stops)

    # -- events ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event; return what to do, in order."""
        match event:
            case ControlChanged():
                self._on_control_changed(event, now)
            case HeldChanged(feed=feed, first=first, marks=marks):
                held = self._feed(feed, now)
                held.marks = [mark for mark in held.marks if mark.stop <= first] + list(marks)
            case ForkProven(feed=feed, at=at):
                held = self._feed(feed, now)
                held.forked = min(held.forked, at)
            case PeerShows():
                self._on_peer_shows(event, now)
            case PeerControl(peer=peer, decisions=decisions):
                self._peers[peer] = decisions
            case PeerGone(peer=peer):
                self._peers.pop(peer, None)
            case PetitionHeard(petition=petition, via=via):
                self._petitions.hear(petition, via, self._counting, now)
            case EvaluationEnded():
                self._on_evaluation_ended(event, now)
            case OwnerWish(decision=decision):
                self._wishes.append(decision)
                if self._signing is None:
                    self._wake_at = now
        if now >= self._wake_at:
            self._look(now)
        actions, self._actions = self._actions, []
        return actions

    def _on_control_changed(self, event: ControlChanged, now: float) -> None:
        counting = self._counting = event.counting
        before, self._decisions = self._decisions, counting.decisions
        unsupported = UNSUPPORTED if counting.unsupported else None
        reason = unsupported if event.tenure is Tenure.HELD else event.tenure.value
        if self.stopped:
            return
        if reason:
            self.state, self.stopped, self._signing = State.STOPPED, reason, None
            self._actions.append(Stop(reason))
        elif self._decisions < before:  # a succession to the same key keeps less than was here
            self.state, self._signing, self._alone = State.RESTARTED, None, False
        elif self._signing and self._decisions > self._signing.position:
            self._signing, self._wake_at = None, now
        if self._decisions != before:
            self._grown_at = now

    def _on_peer_shows(self, event: PeerShows, now: float) -> None:
        for feed, stop in event.positions:
            known = feed in self._feeds or self._counting.number(feed) is not None
            if known or len(self._feeds) < MAX_FEEDS:
                held = self._feed(feed, now)
                held.shown = max(held.shown, stop)

    def _on_evaluation_ended(self, event: EvaluationEnded, now: float) -> None:
        if event.epoch != self._asked.epoch or not self._asked.running:
            return
        self._asked.running = False
        young = self._counting.counted < YOUNG * self._counting.budget
        share = self.policy.young_share if young else self.policy.share
        taken = now - self._asked.at
        self._evaluate_from = now + (taken / share - taken if share else float("inf"))
        if event.base:
            self._base = health.published(event.epoch, event.base, base=True)
        if event.result:
            self._asked.result = health.published(event.epoch, event.result)

    def _feed(self, feed: Feed, now: float) -> _Held:
        return self._feeds.setdefault(feed, _Held(since=now, whole_at=now))

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Sign what is due first; look again later if nothing is."""
        if self._signing:
            self._sign(self._signing, now)  # the same: a position is signed once
            return
        if self.state is State.RESTARTED and self._has_head(now):
            self.state = State.ORGANISING
        if self.state is State.STOPPED:
            self._wish()
        decision = self._due(now) if self.state is State.ORGANISING else None
        if decision is None:
            self._wake_at = now + LOOK_INTERVAL + LOOK_INTERVAL_PER_FEED * len(self._feeds)
            return
        self._sign(Sign(self._counting.decisions, decision), now)

    def _sign(self, sign: Sign, now: float) -> None:
        self._signing, self._wake_at = sign, now + SIGN_AGAIN
        self._actions.append(sign)

    def _has_head(self, now: float) -> bool:
        """Return whether nobody is likely to have more of the control feed."""
        if self._alone:
            return True
        ours = self._counting.decisions
        witnesses = sum(theirs <= ours for theirs in self._peers.values())
        doubted = witnesses < len(self._peers)
        patience = PROOF_TIME if doubted else SETTLE_TIME
        return witnesses >= self.policy.witnesses and now - self._grown_at >= patience

    def _due(self, now: float) -> Decision | None:
        admit = self._petitions.next
        return self._wish() or admit(self._counting, now) or self._result() or self._about_feeds(now)

    def _about_feeds(self, now: float) -> Decision | None:
        self._refresh(now)
        return self._seal(now) or self._close(now) or self._amend(now)

    def _refresh(self, now: float) -> None:
        """Bring the times up to date since which the epoch is open, and feeds wait or miss something."""
        if self._open != self._counting.open_epoch:
            self._open, self._opened_at = self._counting.open_epoch, now
        for feed, held in self._feeds.items():
            number = self._counting.number(feed)
            named = 0 if number is None else self._counting.named(number)
            if named != held.named or held.stop <= named:
                held.named, held.since = named, now
            if held.stop >= named or not self._peers:
                held.whole_at = now

    def _wish(self) -> Decision | None:
        while self._wishes:
            wish = self._wishes.pop(0)
            reason = self.stopped or wishes.refusal(self._counting, wish)
            if reason is None:
                return wish
            self._actions.append(Refuse(wish, reason))
        return None

    def _result(self) -> Decision | None:
        asked, base = self._asked, self._base
        if base:
            self._base = None
            return base
        if asked.result is None or asked.epoch >= self._counting.sealed:
            return None
        result, asked.result = asked.result, None
        return None if asked.altered else result

    # -- seals -------------------------------------------------------------------------------------

    def _seal(self, now: float) -> Seal | None:
        counting, epoch = self._counting, self._counting.sealed
        chains = self._chains(epoch) if epoch < counting.open_epoch else None
        if chains is None or self._is_evaluated_first(epoch, now):
            return None
        skipped = tuple(number for number in counting.moved(epoch) if self._is_revoked(number, epoch))
        self._asked.altered = self._asked.altered or (bool(skipped) and self._asked.epoch == epoch)
        for number, stop, _ in chains:
            held = self._feeds[counting.feed(number)]
            held.marks = [mark for mark in held.marks if mark.stop >= stop]
        coming = counting.open_epoch + 1
        rate = self._schedule.rate(counting.counted, counting.budget)
        rates = (RateFrom(coming, rate),) if rate != counting.rate(coming) else ()
        return Seal(epoch, skipped, (), named_digest(self._run_id, chains), FACTOR_ONE, rates)

    def _chains(self, epoch: int) -> list[tuple[int, int, bytes]] | None:
        """Return (feed, stop, chain hash there) of what closes up to this one have named; None if it is not
        all here."""
        found = []
        for number, stop in self._counting.positions(epoch).items():
            held = self._feeds.get(self._counting.feed(number))
            mark = held.mark(stop) if held else None
            if mark:
                found.append((number, stop, mark.chain))
            elif stop:
                return None
        return found

    def _is_revoked(self, number: int, epoch: int) -> bool:
        """Return whether the close of `epoch` has named updates for the labels of which their member was
        revoked since."""
        feed = self._counting.feed(number)
        member, held = self._counting.member(feed.origin), self._feeds.get(feed)
        first, stop = self._counting.named(number, epoch - 1), self._counting.named(number, epoch)
        assert member is not None
        marks = held.marks if held else []  # none of a feed that was ended before its first step
        return any(first < mark.stop <= stop and mark.label >= member.revoked for mark in marks)

    def _is_evaluated_first(self, epoch: int, now: float) -> bool:
        """Return whether a seal waits for the evaluation of its epoch; ask for it if the time is there."""
        asked = self._asked
        affordable = not asked.running and now >= self._evaluate_from and self.policy.seal_wait > 0
        if asked.epoch < epoch and affordable:
            asked = self._asked = _Asked(epoch, now)
            self._actions.append(Evaluate(epoch))
        return asked.epoch == epoch and asked.running and now - asked.at < self.policy.seal_wait

    # -- closes ------------------------------------------------------------------------------------

    def _close(self, now: float) -> Close | None:
        counting = self._counting
        unsealed = counting.open_epoch - counting.sealed
        if counting.complete or unsealed >= MAX_UNSEALED or counting.open_epoch >= MAX_EPOCHS:
            return None
        chosen = list(self._nameable())
        total = sum(mark.stop - held.named for _, held, mark in chosen)
        oldest = min((held.since for _, held, _ in chosen), default=now)
        late = now - max(oldest, self._opened_at) >= self.policy.longest_epoch
        if not chosen or (total < self.policy.target_updates and not late):
            return None
        salt = self._draw(SALT_BYTES)
        moves = (
            Move(number, mark.stop - held.named, holding.tag(salt, mark.chain))
            for number, held, mark in sorted(chosen, key=lambda entry: entry[0])
        )
        return Close(counting.open_epoch, salt, tuple(moves))

    def _nameable(self) -> Iterator[tuple[int, _Held, Mark]]:
        """Yield what may be named now, as (number, feed, mark to stop at); what waits longest comes first."""
        left: dict[bytes, int] = {}
        moves = 0
        waiting = (item for item in self._feeds.items() if item[1].stop > item[1].named)
        for feed, held in sorted(waiting, key=lambda item: (item[1].since, item[0])):
            number, member = self._counting.number(feed), self._counting.member(feed.origin)
            if number is None or member is None or moves == MOVES_PER_CLOSE:
                continue
            mark = self._last_nameable(number, held, member, left.setdefault(feed.origin, member.quota))
            if mark:
                left[feed.origin] -= mark.stop - held.named
                moves += 1
                yield number, held, mark

    def _last_nameable(self, number: int, held: _Held, member: Member, quota: int) -> Mark | None:
        if self._counting.ended(number) != NEVER:
            return None
        nobody_to_ask = self._alone and not self._peers
        limit = min(held.forked, held.named + quota, NEVER if nobody_to_ask else held.shown)
        last = None
        for mark in held.marks:
            if mark.stop > limit or (mark.stop > held.named and mark.label >= member.revoked):
                break
            last = mark if mark.stop > held.named else None
        return last

    # -- amendments --------------------------------------------------------------------------------

    def _amend(self, now: float) -> Amend | None:
        """End a feed of which named steps have been missing for long, at the last close that is all here."""
        if self.policy.amend_after is None:
            return None
        for number, named in self._counting.positions().items():
            held = self._feed(self._counting.feed(number), now)
            if held.stop < named and now - held.whole_at >= self.policy.amend_after:
                stops = (stop for stop, _, _ in self._counting.landmarks(number) if held.mark(stop))
                whole, epochs = max(stops, default=0), range(self._counting.open_epoch)
                return Amend(number, next(e for e in epochs if self._counting.named(number, e) > whole))
        return None
