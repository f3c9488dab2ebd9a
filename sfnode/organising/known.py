"""The state of an organiser, which every rule reads (`rules`).

It consists of the node's state (`view`), the organiser's settings, and the effects of all decisions, updates,
measurements and join requests so far. Only the rules and `organiser` change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sfnode.organising.admission import PendingJoinRequests
from sfnode.organising.evaluation.evaluating import Evaluations
from sfnode.organising.evaluation.searching import Search
from sfnode.organising.events import Action, EvaluationEnded, Product
from sfnode.organising.feeds import HeldFeeds
from sfnode.organising.guard import Guard
from sfnode.organising.making import Making
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.steps import Judge
from sfnode.organising.verdicts import Verdicts
from sfnode.organising.view import View
from sfprotocol.decisions import INCARNATIONS, Bases, Checkpoint, Decision, StandIns
from sfprotocol.messages import Offer
from sfprotocol.run_state import NEVER, RunState

MAX_OFFERS = 256
"""Maximum number of members whose offers to stand in are kept. A run has fifteen stand-ins at most."""


class Knowledge:
    """State of one organiser, from its start to the next restart."""

    def __init__(
        self,
        view: View,
        policy: OrganiserPolicy,
        judge: Judge,
        draw: Callable[[int], bytes],
        *,
        alone: bool,
        now: float,
    ) -> None:
        self.view, self.policy, self.judge, self.draw = view, policy, judge, draw
        self.alone = alone
        """Whether the organiser assumes that no other node has more decisions."""
        self.peers: dict[str, int] = {}
        """Number of decisions that each linked peer claims to have, keyed by peer."""
        self.feeds = HeldFeeds()
        self.search = Search(policy, view.run_state) if policy.search_rows and policy.seal_wait else None
        """The line searches; None if the organiser makes no searches."""
        self.verdicts = Verdicts.of_policy(policy)
        self.evaluations = Evaluations(policy, self.search, now)
        self.making: dict[Product, Making] = {Bases: Making(now), Checkpoint: Making(now)}
        self.join_requests = PendingJoinRequests(view.control.authority.run_id, policy)
        self.offers: dict[bytes, tuple[bytes, float]] = {}
        """Offers of members to stand in, as (public key, time of the offer), keyed by origin; oldest
        first."""
        self.wanted: list[Decision] = []
        """Decisions that the owner wants and that no rule has examined yet."""
        self.unanswered: list[Decision] = []
        """Decisions that the owner wants and that are neither signed nor refused yet."""
        self.stopped: str | None = None
        """Reason why nothing is signed any more; None while the organiser may sign."""
        self.open, self.opened_at = -1, now
        """Open epoch at the last look, and the time at which it was opened."""
        self.close_at, self.lacking = float("inf"), NEVER
        """Time at which a close is due (infinite if none is), and number of updates that are still needed to
        fill the open epoch, both as of the last look."""
        self.actions: list[Action] = []
        """Actions that `Organiser.handle` has not returned yet."""

    @property
    def run_state(self) -> RunState:
        """State of the run according to the decisions that this node has."""
        return self.view.run_state

    @property
    def guard(self) -> Guard | None:
        """The guard; None if the organiser has no guard."""
        return self.verdicts.guard

    def take(self, decision: Decision, *, stands_in: bool) -> None:
        """Take in the next decision. `stands_in`: this node belongs to a stand-in, who adopts the admission
        policy that a StandIns decision states."""
        self.verdicts.take(decision)
        if isinstance(decision, StandIns) and stands_in:
            admission = dict(enumerate(Admission)).get(decision.admission, Admission.LINKS)
            self.policy = self.join_requests.policy = replace(self.policy, admission=admission)

    def evaluated(self, event: EvaluationEnded, now: float) -> None:
        """Take in the answer to an evaluation that was requested."""
        self.verdicts.worths += self.evaluations.ended(event, self.run_state, now)
        if self.guard:
            for base in (event.base, event.calibrated):
                self.guard.note(event.epoch, base, base=True)
            self.guard.note(event.epoch, event.result)

    def hear(self, offer: Offer, now: float) -> None:
        """Keep a member's offer to stand in."""
        self.offers.pop(offer.origin, None)
        self.offers[offer.origin] = offer.key, now
        if len(self.offers) > MAX_OFFERS:
            del self.offers[next(iter(self.offers))]

    def discards(self, epoch: int) -> bool:
        """Return whether an epoch counts for nothing because the guard has gone back to an earlier epoch."""
        return self.guard is not None and self.guard.discards(epoch)

    def trusts(self, number: int) -> bool:
        """Return whether the work of the member of feed `number` counts."""
        return self.verdicts.trusts(number // INCARNATIONS)


def times(known: Knowledge, now: float) -> None:
    """Update the time at which the open epoch began, and for each feed the times from which updates have been
    waiting or missing."""
    if known.open != known.run_state.open_epoch:
        known.open, known.opened_at = known.run_state.open_epoch, now
    known.feeds.refresh(known.run_state, now, asked=bool(known.peers))
