"""The organiser: when to close, seal, admit and finish, and what a seal says.

Sans-IO, and the same in the daemon and in the simulator: `handle(event, now)` returns what to do,
`next_deadline()` says when to send the next Round, even if none was carried out. Time is an argument (seconds
of any monotonic clock), randomness is injected. It is told of every round that was carried out, with the
feeds of which something else is held or counts, and reads the rest from the node (`view`), which it never
changes: a decision comes back as the control feed grows. A round in which nothing has happened costs nothing;
what peers have shown is looked at when the organiser looks, and only for feeds of which they have not shown
everything.

Theory of operation.

    state        signs   left when
    STANDING_BY  no      more than half of the stand-ins have elected this key and answer it; only where there
                         are stand-ins, who tell what there is: then nobody is RESTARTED
    RESTARTED    no      enough peers have told that they have no more of the control feed, or `alone`, from
                         the start or since it was told so (NobodyElse)
    ORGANISING   yes     decisions that were here are gone (to RESTARTED); stand-ins do not answer, or have
                         elected another (to STANDING_BY); the key may sign no more (to STOPPED)
    STOPPED      no      never

There is at most one decision under way. The next one is made from the state that has come of it, so that none
is ever void where it stands, and no position of the control feed is signed twice. While nothing is under way
an organiser looks, every LOOK_INTERVAL, for the first of these that is due:

    a decision of the owner's      that would change something (`owner_decisions`)
    an admission                   that needs no owner, at the rate that the policy allows (`admission`)
    the result of an evaluation    of an epoch that is sealed, or of the base model (`evaluating`)
    a return, or the end           that the guard (`guard`) has made out from these results
    a worth                        that was measured, and what follows from it for a member (`sanctions`)
    a seal                         of the oldest closed epoch, once it is evaluated or has waited long enough
    bases                          once those of now have served for long enough (`renewing`)
    a close                        once enough updates may be named, or one has waited long enough
    an amendment                   of a feed of which named steps are not to be had from anybody (`feeds`)
    a checkpoint                   of an epoch that nothing is expected to change any more (`checkpoints`)

What has to be measured, made or worked out for these is asked for, in the same order; others carry it out.

A close names only what is here and what a peer has shown to hold, too, so that it cannot get lost with this
node. A peer that lies about it makes nothing worse than a run with one peer less: what is named is here. Of a
member a close names no more than its quota, over all its feeds and whatever the labels: nobody fills an epoch
with what is late. What is left comes next time, the feed first that has waited longest.

A seal counts all that its close has named, with the factor that the judge (`judging`) or a line search
(`searching`, which also says how long epochs are) has found, but for what it skips: work for labels of which
its member was revoked since, of members that are not trusted, and what the judge says. What was skipped is
recounted by a later seal if the judge says so, or once enough evidence speaks for the member (`sanctions`):
what each feed has brought is measured first and signed, and the search goes along what is left. Before the
close that reaches the budget one that names nothing is made, if anything waits: its seal recounts that, with
a factor of its own by a search along it, and no rate follows.

What is named and lost here is fetched from peers like everything else. It is given up (`amend`) when it has
been missing for long (`OrganiserPolicy.amend_after`) while there were peers, and nothing of it has come.
Peers who say that they have it delay that, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from sfnode.organising import owner_decisions
from sfnode.organising.admission import PendingPetitions
from sfnode.organising.checkpoints import CheckpointSchedule
from sfnode.organising.evaluation.evaluating import Evaluations
from sfnode.organising.evaluation.evidence import MembersEvidence
from sfnode.organising.evaluation.judging import Judge, Judgement
from sfnode.organising.evaluation.searching import GROWTH, Search
from sfnode.organising.events import (
    Action,
    AnswerOwner,
    BasesMade,
    EvaluationEnded,
    Event,
    MakeBases,
    NobodyElse,
    OwnerDecision,
    Round,
    Sign,
    StopSigning,
    Summarise,
    Summarised,
)
from sfnode.organising.feeds import HeldFeeds, Nameable
from sfnode.organising.guard import Guard
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.renewing import Renewal
from sfnode.organising.sanctions import Sanctions
from sfnode.organising.steps import IDLE_ROUNDS, may_be_idle
from sfnode.organising.view import View
from sfprotocol.counting import MAX_EPOCHS, NEVER, Counting, named_digest
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    RATE_ONE,
    Close,
    Decision,
    Oversized,
    Recount,
    Seal,
    StandIns,
    read,
)
from sfprotocol.events import Petitioned
from sfprotocol.messages import Feed, Offer, Petition
from sfprotocol.quotas import UNPROVEN_PART

LOOK_INTERVAL, LOOK_INTERVAL_PER_FEED = 1.0, 0.0005
"""Seconds between two looks, which take 10 us for each feed: 2 % of a core at most, and 8.5 s between looks
at 15,000 feeds, while an epoch lasts minutes."""

LEAST_INTERVAL = 0.1
"""Seconds after which it looks already once as many updates have come as an epoch lacked, so that what others
made at the same time is named with them. A linear head fills an epoch in less than a second, and everybody
would wait for the next look."""

SETTLE_TIME = 30.0
"""Seconds in which the control feed has not grown before a restarted organiser believes its witnesses: other
peers may come that have more."""

FIRST_TIME = 5.0
"""The same for an organiser that has no decision at all: most often the run is new. Whoever has lost its
folder and kept its key hears of its decisions when the first link begins."""

PROOF_TIME = 600.0
"""Seconds after which a peer that says that it has more, while nothing comes, is not believed any more: the
largest decision takes 15 s over a line of 100 kbit/s."""

SIGN_AGAIN = 10.0
"""Seconds after which a Sign that has brought no decision is repeated: a commit takes far less."""

MOVES_PER_CLOSE = 7_500
"""Feeds that one close moves: with 26 bytes each they fit MAX_DECISION."""

MAX_OFFERS = 256
"""Members that would stand in, of whom it is remembered: fifteen are named at most."""

ALONE = 2
"""Times as long that the rounds of a head last at least while nobody but the one who began the run is a
member: others are to find a run that goes on."""

UNPROVEN_EPOCH = 10.0
"""The same where nobody has credit whose work waits: who makes its few updates and is skipped, while
everybody else is away, would fill the control feed in ten days, for good."""

ACTIVE_TIME = 30.0
"""Seconds after which a member of whom nothing has come is not waited for, where all others have made what
they may: a step of a large model on a small machine takes some ten."""

MAX_UNSEALED = 16
"""Closed epochs that may wait for their seals. If seals cannot be made, because named updates are missing
here, trainers come to the end of their quotas instead of going on without end."""

SALT_BYTES = 8


PASSED_ON = "the deputies have passed the run on to another key"
FORKED = "the key of the present term has signed two sequences, or half of the stand-ins have voted twice"
LIED = "this node's key has voted twice in one election"
UNSUPPORTED = "the control feed has a decision that this version does not know"
"""Reasons for which an organiser signs nothing any more."""


class OrganiserState(Enum):
    """State of an organiser; the table above says what each may do."""

    STANDING_BY = "standing by"
    RESTARTED = "restarted"
    ORGANISING = "organising"
    STOPPED = "stopped"


class Organiser:
    """The decisions of one run's organiser."""

    def __init__(
        self,
        view: View,
        policy: OrganiserPolicy,
        judge: Judge,
        *,
        key: bytes,
        draw: Callable[[int], bytes],
        alone: bool = False,
        stands_in: bool = False,
        now: float,
    ) -> None:
        """`key` is the public half of the organiser's key, or with `stands_in` of one of a member that would
        organise in its place; `draw` returns random bytes. `alone`: the owner
        says that nobody knows more of the control feed than this node; while it has no peers it names what it
        alone holds."""
        self.state = OrganiserState.RESTARTED
        self.stopped: str | None = None
        """The reason for which nothing is signed any more."""
        self.policy = policy
        self._view, self._key, self._stands_in = view, key, stands_in
        self._judge = judge
        self.search = Search(policy, view.counting) if policy.search_rows and policy.seal_wait else None
        """The searches; None if there are none."""
        self.guard = self._new_guard() if policy.guard and policy.seal_wait else None
        """The guard; None if there is none."""
        self._draw = draw
        self._alone = alone
        self._read, self._chain = 0, b""
        """Decisions that were read, and the chain hash after them."""
        self._reason: str | None = None
        """The reason for which our key signs nothing, when they were read."""
        self._grown_at = now
        self._wake_at, self._look_at = now, float("inf")
        """The time of the next look, and an earlier one at which a close is due."""
        self._look_from, self._lacking = now, NEVER
        """The earliest time of the next look for updates that have come, and how many it takes to fill the
        open epoch, as far as is known."""
        self._open, self._opened_at = -1, now
        """The epoch that was open when we last looked, and the time since when."""
        self._signing: Sign | None = None
        self._feeds = HeldFeeds()
        self._unseen = view.feeds()
        """Feeds that have not been looked at yet."""
        self._known = MembersEvidence(kept=policy.kept, alike=policy.alike, summed=policy.steps is not None)
        self._sanctions = Sanctions(self._known, judged=policy.origins, revoked=policy.revokes)
        self._peers: dict[str, int] = {}
        """Linked peers, with the number of decisions that each has told of."""
        self._petitions = PendingPetitions(view.control.authority.run_id, policy)
        self.offers: dict[bytes, tuple[bytes, float]] = {}
        """Keys with which members would stand in, and when each was heard, by origin; the oldest first."""
        self._unanswered: list[Decision] = []
        """Decisions that the owner wants, until they are signed or refused."""
        self._queue: list[Decision] = []
        """Those of them that have not had their turn."""
        self._evaluations = Evaluations(policy, self.search, now)
        self._renewal = Renewal(policy.renew_updates, self.search, now)
        self._checkpoints = CheckpointSchedule(policy.checkpoint_epochs, now)
        self._actions: list[Action] = []
        self._read_decisions(now)

    # -- what others ask ---------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return the time at which a Round is due at the latest, even if none was carried out."""
        return float("inf") if self.state is OrganiserState.STOPPED and not self._queue else self._wake_at

    def petitions(self, now: float) -> list[Petition]:
        """Return the petitions that wait for the owner, or for their turn."""
        return self._petitions.waiting(self._counting, now)

    @property
    def behind(self) -> int:
        """Number of named updates that were not here when we last looked: no seal is made without them."""
        return sum(held.named - held.stop for held in self._feeds.missing().values())

    @property
    def _counting(self) -> Counting:
        return self._view.counting

    # -- events ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event, a Round only once it was carried out; return what to do, in order. It looks last
        of all: by then it knows of all that has happened in the same round."""
        self._read_decisions(now)
        match event:
            case Round(moved=moved):
                self._on_moved(moved, now)
            case NobodyElse():
                self._alone, self._wake_at = True, now
            case Petitioned(petition=Petition() as petition, via=via):
                self._petitions.hear(petition, via, self._counting, now)
            case Petitioned(petition=Offer(origin=origin, key=key)):
                self.offers.pop(origin, None)
                self.offers[origin] = key, now
                if len(self.offers) > MAX_OFFERS:
                    del self.offers[next(iter(self.offers))]
            case EvaluationEnded():
                self._on_evaluated(event, now)
            case Summarised(checkpoint=checkpoint):
                self._checkpoints.summarised(checkpoint, now)
            case BasesMade(digest=digest):
                self._renewal.made(digest, now)
                self._look_soon(now)
            case OwnerDecision(decision=decision):
                self._on_owner(decision, now)
        if now >= self.next_deadline():
            self._look(now)
        actions, self._actions = self._actions, []
        return actions

    def _new_guard(self) -> Guard:
        steps = self.policy.steps
        return Guard(self.policy.patience, steps.idle_rounds if steps else IDLE_ROUNDS)

    def _read_decisions(self, now: float) -> None:
        """Take in the decisions that are new; all of them if some that were here are gone."""
        feed, reason = self._view.control, self._why_silent()
        if (feed.stop, feed.chain, reason) == (self._read, self._chain, self._reason):
            return
        before, follows = self._read, feed.stop >= self._read and feed.chains[self._read] == self._chain
        if before and not follows:
            self._sanctions.forget()
            self.guard = self._new_guard() if self.guard else None
        news = feed.entries[before if follows else 0 :]
        self._read, self._chain, self._reason = feed.stop, feed.chain, reason
        for entry in news:
            self._on_decision(read(entry.record).decision)
        self._known.follow(feed.entries)
        if feed.stop != before:
            self._grown_at = now
        if self.stopped:
            return
        if reason:
            self.state, self.stopped, self._signing = OrganiserState.STOPPED, reason, None
            self._actions.append(StopSigning(reason))
        elif feed.stop < before:  # a succession to the same key keeps less than was here
            self.state, self._signing, self._alone = OrganiserState.RESTARTED, None, False
            self._checkpoints.forget()
        elif self._signing and feed.stop > self._signing.position:
            self._signing, self._wake_at = None, now

    def _why_silent(self) -> str | None:
        """Return the reason for which our key signs nothing; None while it does."""
        feed = self._view.control
        if feed.key != self._key and not (self._stands_in or self._key in feed.stand_ins):
            return PASSED_ON
        if feed.frozen:
            return FORKED
        if self._key in feed.liars:
            return LIED
        return UNSUPPORTED if self._counting.unsupported else None

    def _on_decision(self, decision: Decision) -> None:
        if decision in self._unanswered:
            self._unanswered.remove(decision)
            self._actions.append(AnswerOwner(decision, None))
        self._sanctions.take(decision)
        if self.guard:
            self.guard.take(decision)
        if isinstance(decision, StandIns) and self._stands_in:
            admission = dict(enumerate(Admission)).get(decision.admission, Admission.LINKS)
            self.policy = self._petitions.policy = replace(self.policy, admission=admission)

    def _on_moved(self, moved: tuple[Feed, ...], now: float) -> None:
        changed, self._unseen = dict.fromkeys([*self._unseen, *moved]), []
        if come := self._feeds.follow(self._view, changed, now):
            self._lacking -= come
            if self._lacking <= 0:
                self._look_soon(max(now + LEAST_INTERVAL, self._look_from))

    def _on_owner(self, decision: Decision, now: float) -> None:
        self._unanswered.append(decision)
        self._queue.append(decision)
        self._look_soon(now)

    def _on_evaluated(self, event: EvaluationEnded, now: float) -> None:
        if not self._evaluations.is_under_way(event.epoch):
            return
        self._sanctions.measured(self._evaluations.ended(event, self._counting, now))
        if self.guard:
            for base in (event.base, event.calibrated):
                self.guard.note(event.epoch, base, base=True)
            self.guard.note(event.epoch, event.result)
        self._look_soon(now)

    def _look_soon(self, at: float) -> None:
        """Look at a time already, unless a decision is under way: then there is a look once it has come."""
        if self._signing is None:
            self._wake_at = min(self._wake_at, at)

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Sign what is due first; look again later if nothing is."""
        self._peers = self._view.peers()
        self._feeds.hear(self._view)
        self._lacking = NEVER
        if self.state is OrganiserState.STOPPED:
            self._owners()
        else:
            self.state = self._standing(now)
        if self._signing and self.state is OrganiserState.ORGANISING:
            self._sign(self._signing, now)  # the same: a position is signed once
            return
        self._signing = None
        decision = self._due(now) if self.state is OrganiserState.ORGANISING else None
        rest = LOOK_INTERVAL_PER_FEED * len(self._feeds)
        self._look_from = now + rest
        if decision is None:
            self._wake_at, self._look_at = min(now + LOOK_INTERVAL + rest, self._look_at), float("inf")
            return
        self._sign(Sign(self._counting.decisions, decision), now)

    def _standing(self, now: float) -> OrganiserState:
        """Return the state of an organiser whose key may sign, now or later."""
        if self._view.stand_ins or self._view.control.key != self._key:
            leads = self._view.leads(now)
            return OrganiserState.ORGANISING if leads else OrganiserState.STANDING_BY
        signs = self.state is OrganiserState.ORGANISING or self._has_head(now)
        return OrganiserState.ORGANISING if signs else OrganiserState.RESTARTED

    def _sign(self, sign: Sign, now: float) -> None:
        self._checkpoints.signing(sign.decision)
        self._signing, self._wake_at = sign, now + SIGN_AGAIN
        self._actions.append(sign)

    def _has_head(self, now: float) -> bool:
        """Return whether nobody is likely to have more of the control feed."""
        if self._alone:
            return True
        ours = self._counting.decisions
        witnesses = sum(theirs <= ours for theirs in self._peers.values())
        doubted = witnesses < len(self._peers)
        patience = PROOF_TIME if doubted else SETTLE_TIME if ours else FIRST_TIME
        return witnesses >= self.policy.witnesses and now - self._grown_at >= patience

    def _due(self, now: float) -> Decision | None:
        admit = self._petitions.next
        return (
            self._owners()
            or admit(self._counting, now)
            or self._evaluations.result(self._counting)
            or (self.guard and self.guard.due(self._counting))
            or self._sanctions.due(self._counting)
            or self._about_feeds(now)
        )

    def _about_feeds(self, now: float) -> Decision | None:
        self._refresh(now)
        return (
            self._seal(now)
            or self._once_made(self._renewal.due(self._counting, now))
            or self._close(now)
            or self._feeds.lost(self._view, self.policy.amend_after, now)
            or self._once_made(self._checkpoints.due(self._counting, now))
        )

    def _once_made(self, due: Decision | MakeBases | Summarise | None) -> Decision | None:
        """Return what is to be signed; nothing yet if it has to be made first, which is asked for."""
        if isinstance(due, MakeBases | Summarise):
            self._actions.append(due)
            return None
        return due

    def _refresh(self, now: float) -> None:
        """Bring the times up to date since which the epoch is open, and feeds wait or miss something."""
        if self._open != self._counting.open_epoch:
            self._open, self._opened_at = self._counting.open_epoch, now
        self._feeds.refresh(self._counting, now, asked=bool(self._peers))

    def _owners(self) -> Decision | None:
        while self._queue:
            decision = self._queue.pop(0)
            reason = self.stopped or owner_decisions.refusal(self._counting, decision)
            if reason is None:
                return decision
            self._unanswered.remove(decision)
            self._actions.append(AnswerOwner(decision, reason))
        return None

    # -- seals -------------------------------------------------------------------------------------

    def _seal(self, now: float) -> Seal | Oversized | None:
        counting, epoch = self._counting, self._counting.sealed
        chains = self._feeds.chains(counting, epoch) if epoch < counting.open_epoch else None
        if chains is None:
            return None
        if oversized := self._sanctions.oversized(epoch, self._feeds.oversized(epoch, counting)):
            return oversized
        if self._is_evaluated_first(epoch, now):
            return None
        judgement, steps = self._judge(counting), self.policy.steps
        if steps:
            skipped = self._skipped(epoch, judgement)
            norms, lost = self._feeds.norms(epoch, counting, skipped), self._lost(skipped)
            judgement = steps.judged(counting, judgement, norms, counting.closed_updates(epoch) - lost)
        if self.search:
            judgement = self.search.judged(counting, judgement)
        discarded = self.guard is not None and self.guard.discards(epoch)
        less = discarded or bool(steps and judgement.factor != FACTOR_ONE)
        if self.guard:
            judgement = self.guard.judged(counting, judgement, searched=bool(self.search and not steps))
        skipped = self._skipped(epoch, judgement)
        self._evaluations.sealing(epoch, skipped, less=less)
        self._feeds.forget(chains, counting)
        digest, recounted = (
            named_digest(self._view.control.authority.run_id, chains),
            self._recounted(epoch, judgement),
        )
        return Seal(epoch, skipped, recounted, digest, judgement.factor, judgement.rates)

    def _recounted(self, epoch: int, judgement: Judgement) -> tuple[Recount, ...]:
        """Return the skipped work that the seal of an epoch counts: nothing where that would be in vain, as
        the epoch is worth nothing."""
        if self._is_for_waiting(epoch):
            return self._waiting()
        if self.policy.steps or not judgement.factor:
            return ()
        rate = self._counting.rate(epoch)
        return self._sanctions.recounted(self._counting, judgement, self.guard, last=False, rate=rate)

    def _waiting(self) -> tuple[Recount, ...]:
        """Return the skipped work that is to count before the run ends: none of a first-order run, where it
        was made at larger rates and other weights, and a search along it would cost what it could bring."""
        if self.policy.steps:
            return ()
        return self._sanctions.recounted(self._counting, Judgement(), self.guard, last=True, rate=RATE_ONE)

    def _is_for_waiting(self, epoch: int) -> bool:
        """Return whether the seal of an epoch is there to count what waits."""
        discarded = self.guard is not None and self.guard.discards(epoch)
        return self.search is not None and not discarded and self.search.is_for_waiting(epoch, self._counting)

    def _skipped(self, epoch: int, judgement: Judgement) -> tuple[int, ...]:
        """Return the feeds of which the seal of an epoch counts nothing."""
        return tuple(n for n in self._counting.moved(epoch) if self._is_skipped(n, epoch, judgement))

    def _is_skipped(self, number: int, epoch: int, judgement: Judgement) -> bool:
        if number in judgement.skipped or not self._sanctions.trusted(number // INCARNATIONS):
            return True
        revoked, members = self._feeds.revoked(number, epoch, self._counting), self._sanctions
        evident = members.outlier(number, epoch) or members.is_oversized(number, epoch)
        return revoked or evident or self._is_stale(number, epoch)

    def _is_stale(self, number: int, epoch: int) -> bool:
        """Return whether what a close has named of a feed brings what the guard has taken back."""
        guard, counting = self.guard, self._counting
        if guard is None or guard.discards(epoch):
            return False
        if any(self._feeds.brings(number, epoch, counting, labels) for labels in guard.labels()):
            guard.skip(number, epoch)
        return guard.is_stale(number, epoch)

    def _is_evaluated_first(self, epoch: int, now: float) -> bool:
        """Return whether a seal waits for the evaluation of its epoch; ask for it if the time is there."""
        if self.guard and self.guard.discards(epoch):
            return False
        evaluations, counting = self._evaluations, self._counting
        skipped = self._skipped(epoch, Judgement())
        last = self.guard is not None and self._promised(skipped) >= counting.budget
        waiting = self._waiting() if self._is_for_waiting(epoch) else ()
        evaluations.plan(counting, now, last=last, waiting=bool(waiting))
        if evaluations.is_due(epoch):
            self._actions.append(evaluations.ask(skipped, waiting))
        return evaluations.is_awaited(epoch, now)

    def _promised(self, skipped: tuple[int, ...]) -> int:
        """Return how many updates are going to count if the next seal skips these feeds."""
        return self._counting.promised - self._lost(skipped)

    def _lost(self, skipped: tuple[int, ...]) -> int:
        """Return how many updates do not count if the next seal skips these feeds."""
        counting = self._counting
        return sum(self._feeds.moving(number, counting.sealed, counting) for number in skipped)

    # -- closes ------------------------------------------------------------------------------------

    def _close(self, now: float) -> Close | None:
        counting = self._counting
        unsealed, search = counting.open_epoch - counting.sealed, self.search
        waits = self.policy.steps or (search and not search.settled)
        most = 1 if waits else MAX_UNSEALED  # what comes at a wrong rate, or in a wrong unit, is lost
        if counting.complete or unsealed >= most or counting.open_epoch >= MAX_EPOCHS or self._renewal.making:
            return None
        rest = counting.budget - counting.promised
        if rest <= 0:
            return None  # the run is complete with the seals to come, unless they skip something
        alone = self._alone and not self._peers
        target = search.target(counting) if search else self.policy.longest
        # members wait once they have made EPOCHS_AHEAD times what is usual, which a second node may not show
        # yet
        target = min(target, rest, int(GROWTH * counting.usual_updates(self.policy.target_updates)))
        shared, overdue = self._strangers_part(rest, now), now - self.policy.longest_epoch
        bounds, trusted = (MOVES_PER_CLOSE, rest, shared, overdue), self._sanctions.trusted
        chosen = list(self._feeds.nameable(counting, *bounds, alone=alone, trusted=trusted))
        oldest = min((one.since for one in chosen if one.moving), default=now)
        late = now - max(oldest, self._opened_at) >= self.policy.longest_epoch
        cut = any(one.cuts(counting) for one in (search, self.guard) if one)
        total = sum(one.moving for one in chosen)
        kept = sum(one.moving for one in chosen if trusted(one.number // INCARNATIONS))
        there = self._closing(chosen, target)
        members, steps = {one.number // INCARNATIONS for one in chosen}, self.policy.steps
        idle = bool(steps and chosen and may_be_idle(counting, members, steps.idle_rounds))
        short = idle and not total and sum(one.steps for one in chosen) >= target
        enough = there >= target or kept >= rest or late or short
        filled = (total or idle) and (enough or self._is_used_up(chosen, now))
        if not (filled or cut or self._renewal.cuts(counting)):
            self._lacking = max(0, target - there)
            return None
        if now < (earliest := self._opened_at + self._least_epoch()):
            self._look_at = earliest
            return None
        if not cut and total >= rest and self._is_to_wait():
            chosen = []  # by a seal of its own, what waits counts before the run ends
        salt = self._draw(SALT_BYTES)
        moves = (one.move(salt) for one in sorted(chosen))
        return Close(counting.open_epoch, salt, tuple(moves))

    def _least_epoch(self) -> float:
        """Return for how many seconds an epoch is open at least."""
        alone = len(self._counting.members) < 2 and self.policy.patience
        return self.policy.least_epoch * (ALONE if alone else 1)

    def _strangers_part(self, rest: int, now: float) -> int:
        """Return how many updates of strangers without credit a close names. While nothing counts it is as
        many as of members who were vouched for, or any number where those make nothing: else one who is quick
        would be all that is judged first, with nobody to tell its work from noise."""
        counting = self._counting
        if counting.begun:
            return max(1, counting.room // UNPROVEN_PART)
        vouched, _ = self._feeds.waiting(counting)
        strange = all(map(counting.quotas.is_stranger, range(len(counting.members))))
        return vouched if vouched or not (strange or now >= self._opened_at + ACTIVE_TIME) else rest

    def _closing(self, chosen: list[Nameable], target: int) -> int:
        """Return how much of an epoch of `target` updates is there. What of strangers has to wait, as their
        credit grows with closes, shows that it is full, too: up to some times as much as is named. Of those
        without credit a small part of it counts at most, so that they do not close epochs (SPEC O20); while
        nothing counts, some times as much as of members who were vouched for."""
        counting, found = self._counting, {True: 0, False: 0}
        for one in chosen:
            member = one.number // INCARNATIONS
            proven, times = bool(counting.credit(member)), 1
            if proven and counting.quotas.is_stranger(member):
                times = UNPROVEN_PART
            found[proven] += min(max(one.moving, one.waiting), times * one.moving)
        if counting.begun:
            return found[True] + min(found[False], max(1, target // UNPROVEN_PART))
        vouched, strange = self._feeds.waiting(counting)
        return min(vouched + strange, UNPROVEN_PART * vouched) if vouched else found[False]

    def _is_used_up(self, chosen: list[Nameable], now: float) -> bool:
        """Return whether all members of whom something has come of late have made what they may; who goes on
        with a new feed waits for a close."""
        proven = any(self._counting.credit(one.number // INCARNATIONS) for one in chosen)
        if self._counting.begun and not proven and now - self._opened_at < UNPROVEN_EPOCH:
            return False
        made, counting = self._feeds.made(self._counting), self._counting
        active = self._feeds.active(counting, now - ACTIVE_TIME)
        waiting = active - self._feeds.renewing(counting)
        return bool(active) and not any(counting.room_left(member, made) for member in waiting)

    def _is_to_wait(self) -> bool:
        """Return whether skipped work is to count before what a close would name now, and no epoch was closed
        for it."""
        return (
            self.search is not None
            and not self._is_for_waiting(self._counting.open_epoch - 1)
            and bool(self._waiting())
        )
