"""The organiser: whether it may sign, with one decision under way at a time.

Sans-IO, and the same in the daemon and in the simulator: `handle(event, now)` returns the actions to carry
out, and `next_deadline()` the latest time for the next `Round` event. Time is an argument (seconds of any
monotonic clock), and randomness is injected. After each batch of events that the node has processed, it sends
the organiser a `Round` with the feeds whose held or counted updates have changed. The organiser reads
everything else from the node (`view`), which it never changes. A decision that it has signed comes back to it
when the control feed grows. A `Round` without changes costs nothing. The regular look for due decisions also
checks which updates peers hold, but only for feeds that no peer is known to hold completely.

Theory of operation.

    state        signs   left when
    STANDING_BY  no      more than half of the stand-ins have elected this key and answer it. Takes the place
                         of RESTARTED in runs with stand-ins, who know the last decisions
    RESTARTED    no      enough peers have told that they have no more of the control feed; or the organiser
                         is `alone`, from the start or since NobodyElse
    ORGANISING   yes     decisions have disappeared here (to RESTARTED); stand-ins do not answer, or have
                         elected another (to STANDING_BY); the key may no longer sign (to STOPPED)
    STOPPED      no      never

At most one decision is under way, and the next one is made from the state after it. So every decision is
valid at its position, and no position of the control feed is signed twice. While no decision is under way,
the organiser looks, every LOOK_INTERVAL, which of its rules is due first (`rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from sfnode.organising import making, owner_decisions, rules
from sfnode.organising.events import (
    Action,
    AnswerOwner,
    EvaluationEnded,
    Event,
    MakingEnded,
    NobodyElse,
    OwnerDecision,
    Round,
    Sign,
    StopSigning,
)
from sfnode.organising.known import Knowledge
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import Judge
from sfnode.organising.view import View
from sfprotocol.decisions import Bases, Checkpoint, Decision, read
from sfprotocol.events import JoinRequested
from sfprotocol.messages import Feed, JoinRequest, Offer
from sfprotocol.run_state import NEVER

LOOK_INTERVAL, LOOK_INTERVAL_PER_FEED = 1.0, 0.0005
"""Seconds between two looks for a decision that is due: a fixed part, and a part for each feed. A look takes
10 us for each feed, so looks take 2 % of a core at most. With 15,000 feeds there is a look every 8.5 s, while
an epoch lasts minutes."""

LEAST_INTERVAL = 0.1
"""Minimum seconds from the arrival of the update that fills an epoch to the close of that epoch. Updates that
others have made at the same time are then listed, too. A run of a linear head fills an epoch in less than a
second, so waiting for the next regular look would hold up all nodes."""

SETTLE_TIME = 30.0
"""Minimum seconds without a new decision before a restarted organiser believes its peers that they have no
more decisions. A peer with more decisions may still connect."""

FIRST_TIME = 5.0
"""Minimum seconds before a restarted organiser without any decision believes its peers that there are none.
In most cases the run is new. An organiser that has lost its folder hears of its decisions over the first
link."""

PROOF_TIME = 600.0
"""Seconds for which a peer that claims to have more decisions is believed although no decision arrives. The
largest decision takes 15 s over a line of 100 kbit/s."""

SIGN_AGAIN = 10.0
"""Seconds after which the action Sign is repeated if its decision has not appeared in the control feed. It
usually appears far sooner."""

PASSED_ON = "the deputies have passed the run on to another key"
FORKED = "the key of the present term has signed two sequences, or half of the stand-ins have voted twice"
LIED = "this node's key has voted twice in one election"
UNSUPPORTED = "the control feed has a decision that this version does not know"
"""Reasons why an organiser no longer signs."""


class OrganiserState(Enum):
    """State of an organiser. The docstring of the module says when each state is left."""

    STANDING_BY = "standing by"
    RESTARTED = "restarted"
    ORGANISING = "organising"
    STOPPED = "stopped"


class Organiser:
    """Organiser of one run: decides what is signed, and when."""

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
        """`key` is the public half of the key that signs decisions. `stands_in`: this key belongs to a member
        who stands in for the organiser. `draw` returns random bytes. `alone`: the owner says that no other
        node has more decisions. While such an organiser has no peers, its closes also list updates that no
        other node holds."""
        self.state = OrganiserState.RESTARTED
        self.known = Knowledge(view, policy, judge, draw, alone=alone, now=now)
        self._key, self._stands_in = key, stands_in
        self._read: tuple[int, bytes, str | None] = 0, b"", None
        """Number of decisions that were read, the chain hash after them, and the reason why our key may not
        sign."""
        self._grown_at = now
        self._wake_at = self._look_from = now
        """Time of the next look, and earliest time of a look because updates have arrived."""
        self._signing: Sign | None = None
        self._unseen = view.feeds()
        """Feeds that were not examined yet."""
        self._read_decisions(now)

    def next_deadline(self) -> float:
        """Return the latest time for the next Round, which must be sent even if nothing has happened;
        infinity if no Round is needed."""
        ended = self.state is OrganiserState.STOPPED and not self.known.wanted
        return float("inf") if ended else self._wake_at

    # -- events ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event, and return the actions that the node must carry out, in order.

        If a look for due decisions is due at `now`, it is made after the event has been taken in.
        """
        known = self.known
        self._read_decisions(now)
        match event:
            case Round(moved=moved):
                self._on_moved(moved, now)
            case NobodyElse():
                known.alone, self._wake_at = True, now
            case JoinRequested(join_request=JoinRequest() as join_request, via=via):
                known.join_requests.hear(join_request, via, known.run_state, now)
            case JoinRequested(join_request=Offer() as offer):
                known.hear(offer, now)
            case EvaluationEnded() if known.evaluations.is_under_way(event.epoch):
                known.evaluated(event, now)
                self._look_soon(now)
            case MakingEnded(what=what, made=made):
                known.making[what].end(made, making.AGAIN[what], now)
                if what is Bases:
                    self._look_soon(now)
            case OwnerDecision(decision=decision):
                known.wanted.append(decision)
                known.unanswered.append(decision)
                self._look_soon(now)
        if now >= self.next_deadline():
            self._look(now)
        actions, known.actions = known.actions, []
        return actions

    def _read_decisions(self, now: float) -> None:
        """Take in the new decisions; all decisions anew if earlier ones have disappeared."""
        feed, reason, known = self.known.view.control, self._why_silent(), self.known
        before, chain, _ = self._read
        if (feed.stop, feed.chain, reason) == self._read:
            return
        self._read = feed.stop, feed.chain, reason
        follows = feed.stop >= before and feed.chains[before] == chain
        if before and not follows:
            known.verdicts.forget()
        for entry in feed.entries[before if follows else 0 :]:
            self._on_decision(read(entry.record).decision)
        if feed.stop != before:
            self._grown_at = now
        if known.stopped:
            return
        if reason:
            self.state, known.stopped, self._signing = OrganiserState.STOPPED, reason, None
            known.actions.append(StopSigning(reason))
        elif feed.stop < before:  # a succession to the same key keeps fewer decisions
            self.state, self._signing, known.alone = OrganiserState.RESTARTED, None, False
            gone = known.making[Checkpoint]
            gone.epoch = gone.made = None
        elif self._signing and feed.stop > self._signing.position:
            self._signing, self._wake_at = None, now

    def _why_silent(self) -> str | None:
        """Return the reason why our key may not sign; None while it may sign."""
        feed = self.known.view.control
        if feed.key != self._key and not (self._stands_in or self._key in feed.stand_ins):
            return PASSED_ON
        if feed.frozen:
            return FORKED
        if self._key in feed.liars:
            return LIED
        return UNSUPPORTED if self.known.run_state.unsupported else None

    def _on_decision(self, decision: Decision) -> None:
        known = self.known
        if decision in known.unanswered:
            known.unanswered.remove(decision)
            known.actions.append(AnswerOwner(decision, None))
        known.take(decision, stands_in=self._stands_in)

    def _on_moved(self, moved: tuple[Feed, ...], now: float) -> None:
        known, changed, self._unseen = self.known, dict.fromkeys([*self._unseen, *moved]), []
        if come := known.feeds.follow(known.view, changed, now):
            known.lacking -= come
            if known.lacking <= 0:
                self._look_soon(max(now + LEAST_INTERVAL, self._look_from))

    def _look_soon(self, at: float) -> None:
        """Schedule a look at the time `at` or earlier. While a decision is under way, its arrival starts the
        next look instead."""
        if self._signing is None:
            self._wake_at = min(self._wake_at, at)

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Sign the first decision that is due, and schedule the next look."""
        known = self.known
        known.peers = self.known.view.peers()
        known.feeds.hear(known.view)
        known.lacking, known.close_at = NEVER, float("inf")
        if self.state is OrganiserState.STOPPED:
            owner_decisions.due(known, now)
        else:
            self.state = self._standing(now)
        signs = self.state is OrganiserState.ORGANISING
        if self._signing and signs:
            self._sign(self._signing, now)  # the same decision, as a position is signed once
            return
        self._signing = None
        decision = rules.due(known, now) if signs else None
        rest = LOOK_INTERVAL_PER_FEED * len(known.feeds)
        self._look_from = now + rest
        if decision is None:
            self._wake_at = min(now + LOOK_INTERVAL + rest, known.close_at)
        else:
            self._sign(Sign(known.run_state.decisions, decision), now)

    def _standing(self, now: float) -> OrganiserState:
        """Return the state of an organiser that is not stopped."""
        if self.known.view.control.stand_ins or self.known.view.control.key != self._key:
            leads = self.known.view.leads(now)
            return OrganiserState.ORGANISING if leads else OrganiserState.STANDING_BY
        signs = self.state is OrganiserState.ORGANISING or self._has_head(now)
        return OrganiserState.ORGANISING if signs else OrganiserState.RESTARTED

    def _sign(self, sign: Sign, now: float) -> None:
        self.known.making[Checkpoint].signing(sign.decision)
        self._signing, self._wake_at = sign, now + SIGN_AGAIN
        self.known.actions.append(sign)

    def _has_head(self, now: float) -> bool:
        """Return whether it is likely that no other node has more of the control feed."""
        known = self.known
        if known.alone:
            return True
        ours = known.run_state.decisions
        witnesses = sum(theirs <= ours for theirs in known.peers.values())
        doubted = witnesses < len(known.peers)
        patience = PROOF_TIME if doubted else SETTLE_TIME if ours else FIRST_TIME
        return witnesses >= known.policy.witnesses and now - self._grown_at >= patience
