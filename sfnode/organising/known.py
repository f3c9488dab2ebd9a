"""The knowledge of an organiser, of which every rule is a function (`rules`).

Data: the node as it is read (`view`), the organiser's settings, and what has come of decisions, updates,
measurements and join requests until now. The rules and `organiser` change it; nobody else does.
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
"""Members that would stand in, of whom it is remembered: fifteen are named at most."""


class Knowledge:
    """The knowledge of one organiser, from one start to the next."""

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
        """Whether nobody knows more of the control feed than this node."""
        self.peers: dict[str, int] = {}
        """Linked peers, with the number of decisions that each has told of."""
        self.feeds = HeldFeeds()
        self.search = Search(policy, view.run_state) if policy.search_rows and policy.seal_wait else None
        """The searches; None if there are none."""
        self.verdicts = Verdicts.of_policy(policy)
        self.evaluations = Evaluations(policy, self.search, now)
        self.making: dict[Product, Making] = {Bases: Making(now), Checkpoint: Making(now)}
        self.join_requests = PendingJoinRequests(view.control.authority.run_id, policy)
        self.offers: dict[bytes, tuple[bytes, float]] = {}
        """Keys with which members would stand in, and when each was heard, by origin; the oldest first."""
        self.wanted: list[Decision] = []
        """Decisions that the owner wants, until they have had their turn."""
        self.unanswered: list[Decision] = []
        """The same until they are signed or refused."""
        self.stopped: str | None = None
        """The reason for which nothing is signed any more."""
        self.open, self.opened_at = -1, now
        """The epoch that was open at the last look, and the time since when."""
        self.close_at, self.lacking = float("inf"), NEVER
        """The time at which a close is due, and how many updates it takes to fill the open epoch, as far as
        the last look told."""
        self.actions: list[Action] = []
        """Actions until they are handed over."""

    @property
    def run_state(self) -> RunState:
        """The state of the run by the decisions that are here."""
        return self.view.run_state

    @property
    def guard(self) -> Guard | None:
        """The guard; None if there is none."""
        return self.verdicts.guard

    def take(self, decision: Decision, *, stands_in: bool) -> None:
        """Take in the next decision; who `stands_in` admits whom the organiser did."""
        self.verdicts.take(decision)
        if isinstance(decision, StandIns) and stands_in:
            admission = dict(enumerate(Admission)).get(decision.admission, Admission.LINKS)
            self.policy = self.join_requests.policy = replace(self.policy, admission=admission)

    def evaluated(self, event: EvaluationEnded, now: float) -> None:
        """Take in the answer to what was asked of an epoch."""
        self.verdicts.worths += self.evaluations.ended(event, self.run_state, now)
        if self.guard:
            for base in (event.base, event.calibrated):
                self.guard.note(event.epoch, base, base=True)
            self.guard.note(event.epoch, event.result)

    def hear(self, offer: Offer, now: float) -> None:
        """Take in that a member would stand in."""
        self.offers.pop(offer.origin, None)
        self.offers[offer.origin] = offer.key, now
        if len(self.offers) > MAX_OFFERS:
            del self.offers[next(iter(self.offers))]

    def discards(self, epoch: int) -> bool:
        """Return whether an epoch is worth nothing, as the guard has gone back behind it."""
        return self.guard is not None and self.guard.discards(epoch)

    def trusts(self, number: int) -> bool:
        """Return whether the work of a feed's member counts."""
        return self.verdicts.trusts(number // INCARNATIONS)


def times(known: Knowledge, now: float) -> None:
    """Bring the times up to date since which the epoch is open, and feeds wait or miss something."""
    if known.open != known.run_state.open_epoch:
        known.open, known.opened_at = known.run_state.open_epoch, now
    known.feeds.refresh(known.run_state, now, asked=bool(known.peers))
