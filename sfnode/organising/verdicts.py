"""Verdicts: whose work a seal leaves out, and why. The organiser and all readers of its decisions come to the
same verdicts.

A verdict on a feed's work in an epoch is a function of the control feed. Measurements (`evidence`), oversized
scalars (`feeds`) and returns (`guard`) are therefore signed in the control feed before verdicts follow from
them. Members whose work evidently does harm are revoked, and their work since the harm began is voided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Self

from sfnode.manifest.training import Training
from sfnode.organising import owner_decisions
from sfnode.organising.evaluation.evidence import NEWCOMER, OFTEN, MembersEvidence
from sfnode.organising.guard import Guard
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import IDLE_ROUNDS, RECOUNTS_PER_SEAL, Judgement
from sfnode.schema.node_state import Uncounted
from sfprotocol.decisions import INCARNATIONS, Decision, Oversized, Recount, Revoke, Void, Worth
from sfprotocol.run_state import NEVER, RunState

Brings = Callable[[int, int, RunState, range], bool]
"""Function of (feed number, epoch, run state, labels) that returns whether the close of the epoch lists
updates of the feed that are labelled with one of the epochs `labels`."""


class Verdicts:
    """Verdicts on the work of a run's members, and the decisions that follow from these verdicts. All
    verdicts follow from the decisions in the control feed."""

    def __init__(
        self,
        evidence: MembersEvidence,
        guard: Guard | None,
        *,
        judged: bool = True,
        revokes: bool = True,
    ) -> None:
        """`judged`: seals skip work because of the evidence. `revokes`: evidence of harm also leads to
        revocations; this needs `judged`."""
        self.evidence, self.guard = evidence, guard
        self._judged, self._revokes = judged, judged and revokes
        self._oversized: set[Recount] = set()
        """Oversized work. Only the seal before the run's end recounts it."""
        self._too_large = Counter[int]()
        """Number of epochs in which a member's scalars were too large, keyed by member number."""
        self._published = -1
        """Last epoch with a decision on oversized scalars."""
        self.worths: list[Worth] = []
        """Measurements that wait to be signed."""
        self._sanctions: list[Decision] = []
        """Decisions that follow from evident harm and wait to be signed."""
        self._sanctioned: set[int] = set()
        """Members against whom such decisions have already been made."""

    @classmethod
    def of_policy(cls, policy: OrganiserPolicy) -> Self:
        """Return an organiser's verdicts."""
        steps, watched = policy.steps, policy.guard and policy.seal_wait
        guard = Guard(policy.patience, steps.idle_rounds if steps else IDLE_ROUNDS) if watched else None
        evidence = MembersEvidence(kept=policy.kept, alike=policy.alike, summed=steps is not None)
        return cls(evidence, guard, judged=policy.origins, revokes=policy.revokes)

    @classmethod
    def of_run(cls, training: Training | None) -> Self:
        """Return the verdicts for a reader of a run's decisions. Without the manifest's training section only
        revocations and oversized work are certain."""
        return cls(MembersEvidence.of(training) if training else MembersEvidence(), Guard())

    # -- what decisions tell -----------------------------------------------------------------------

    def take(self, decision: Decision) -> None:
        """Take in the next decision of the control feed."""
        self.evidence.take(decision)
        if self.guard:
            self.guard.take(decision)
        if isinstance(decision, Oversized) and decision.epoch > self._published:
            self._published = decision.epoch
            self._oversized.update(Recount(feed, decision.epoch) for feed in decision.feeds)
            self._too_large.update({feed // INCARNATIONS for feed in decision.feeds})

    def forget(self) -> None:
        """Forget all decisions, which will be read anew."""
        self.evidence.forget()
        self.guard = self.guard and self.guard.anew()
        self._oversized, self._too_large, self._published = set(), Counter(), -1

    # -- what follows ------------------------------------------------------------------------------

    def on(
        self, feed: int, epoch: int, run_state: RunState, brings: Brings, judgement: Judgement
    ) -> Uncounted | None:
        """Return why the seal of an epoch leaves out a feed's work; None if the work counts."""
        known, member = Recount(feed, epoch), feed // INCARNATIONS
        if feed in judgement.skipped:
            return Uncounted.JUDGE
        if self._judged:
            if doubt := self.evidence.doubt(member):
                return doubt
            if known in self.evidence.outliers:
                return Uncounted.OUTLIER
            if known in self._oversized:
                return Uncounted.OVERSIZED
        if brings(feed, epoch, run_state, range(run_state.members[member].revoked, NEVER)):
            return Uncounted.REVOKED
        guard = self.guard
        if guard is None or guard.discards(epoch):
            return None
        if any(brings(feed, epoch, run_state, labels) for labels in guard.labels()):
            guard.skip(feed, epoch)
        return Uncounted.TAKEN_BACK if guard.is_stale(feed, epoch) else None

    def trusts(self, member: int) -> bool:
        """Return whether the work of a member counts."""
        return not self._judged or self.evidence.trusts(member)

    def oversized(self, epoch: int, feeds: Iterable[int]) -> Oversized | None:
        """Return the decision to sign before the seal of an epoch in which `feeds` have oversized scalars;
        None if no decision is needed."""
        found = tuple(sorted(feeds)) if self._judged and epoch > self._published else ()
        return Oversized(epoch, found) if found else None

    def recounted(
        self, run_state: RunState, judgement: Judgement, *, last: bool, rate: int
    ) -> tuple[Recount, ...]:
        """Return the skipped work that the next seal recounts.

        The seal recounts the work that the judge recounts, and the work of members with enough evidence from
        epochs with a rate of at most `rate`. `last`: the run is about to end, and less evidence is enough.
        Work stays skipped if it may have been made after its member was revoked, if it would evidently do
        harm, if the guard has taken it back, or if its member often makes oversized work.
        """
        found = [recount for recount in sorted(judgement.recounted) if run_state.is_skipped(recount)]
        known = self.evidence.members.items() if self._judged else ()
        trusted = {number for number, one in known if (one.recounted_at_last if last else one.recounted)}
        never = self.evidence.outliers | judgement.recounted | (set() if last else self._oversized)
        for number in sorted(trusted):
            if self._too_large[number] > OFTEN * (NEWCOMER + run_state.epochs_of(number)):
                continue  # too often to be an accident
            revoked = run_state.members[number].revoked if number < len(run_state.members) else 0
            found += [
                one
                for one in run_state.skipped(number)
                if one.epoch < revoked and run_state.rate(one.epoch) <= rate and one not in never
            ]
        guard = self.guard
        found = [recount for recount in found if not (guard and guard.is_stale(*recount))]
        return tuple(sorted(found[:RECOUNTS_PER_SEAL]))

    def sanction(self, run_state: RunState) -> Decision | None:
        """Return the next decision to sign: measurements first, then revocations of members who evidently do
        harm. Return None if nothing waits to be signed."""
        if self.worths:
            return self.worths.pop(0)
        harmful = self.evidence.harmful - self._sanctioned if self._revokes else ()
        for member in sorted(harmful):
            self._sanctioned.add(member)
            since, last = self.evidence.members[member].harm_since or 0, run_state.sealed - 1
            self._sanctions += [Revoke(member, since), *([Void(since, last, (member,))] * (since <= last))]
        while self._sanctions:
            sanction = self._sanctions.pop(0)
            if owner_decisions.refusal(run_state, sanction) is None:
                return sanction
        return None
