"""Sanctions in the eyes of an organiser: whose work its seals count, and what follows for whom.

The evidence speaks (`origins`): it is a function of the control feed, in which what was measured is signed
first. Whose work evidently does harm is revoked, and what it has brought since is void.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sfnode.organising import owner_decisions
from sfnode.organising.evaluation.evidence import NEWCOMER, OFTEN, MembersEvidence
from sfnode.organising.evaluation.judging import RECOUNTS_PER_SEAL, Judgement
from sfnode.organising.guard import Guard
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS, Decision, Oversized, Recount, Revoke, Void, Worth


class Sanctions:
    """The members of a run, as its organiser sees them."""

    def __init__(self, evidence: MembersEvidence, *, judged: bool, revoked: bool) -> None:
        """`evidence` is kept up to date by whoever reads the decisions. `judged`: seals follow it; `revoked`:
        so do revocations."""
        self._evidence = evidence
        self._judged = judged
        self._revoked = judged and revoked
        self._oversized: set[Recount] = set()
        """Work that waits for the seal before the end, as decisions tell."""
        self._too_large = Counter[int]()
        """Epochs in which scalars of a member were too large."""
        self._published = -1
        """The last epoch of which it was told whose scalars are too large."""
        self._worths: list[Worth] = []
        """Figures that are to be signed."""
        self._sanctions: list[Decision] = []
        """Decisions that follow from evident harm, until they are signed."""
        self._sanctioned: set[int] = set()
        """Sanctions about whom that was decided."""

    def measured(self, worths: Iterable[Worth]) -> None:
        """Have it signed what was measured."""
        self._worths += worths

    def trusted(self, member: int) -> bool:
        """Return whether the work of a member counts."""
        return not self._judged or self._evidence.trusts(member)

    def outlier(self, number: int, epoch: int) -> bool:
        """Return whether what the close of an epoch has named of a feed evidently is no measurement."""
        return self._judged and Recount(number, epoch) in self._evidence.outliers

    def take(self, decision: Decision) -> None:
        """Take in the next decision of the control feed."""
        if isinstance(decision, Oversized) and decision.epoch > self._published:
            self._published = decision.epoch
            self._oversized.update(Recount(feed, decision.epoch) for feed in decision.feeds)
            self._too_large.update({feed // INCARNATIONS for feed in decision.feeds})

    def forget(self) -> None:
        """Forget what decisions have told: they are read anew."""
        self._oversized, self._too_large, self._published = set(), Counter(), -1

    def oversized(self, epoch: int, feeds: Iterable[int]) -> Oversized | None:
        """Return what is to be signed before the seal of an epoch in which scalars of these feeds are too
        large to count at once."""
        found = tuple(sorted(feeds)) if self._judged and epoch > self._published else ()
        return Oversized(epoch, found) if found else None

    def is_oversized(self, number: int, epoch: int) -> bool:
        """Return whether scalars that the close of an epoch has named of a feed are too large to count by its
        seal."""
        return self._judged and Recount(number, epoch) in self._oversized

    def _often_too_large(self, member: int, counting: Counting) -> bool:
        """Return whether it is no accident that scalars of a member are too large."""
        return self._too_large[member] > OFTEN * (NEWCOMER + counting.epochs_of(member))

    def due(self, counting: Counting) -> Decision | None:
        """Return what is to be signed: what was measured, and then what follows for whom it shows to do
        harm."""
        if self._worths:
            return self._worths.pop(0)
        if self._revoked:
            for member in sorted(self._evidence.harmful - self._sanctioned):
                self._sanctioned.add(member)
                since, last = self._evidence.members[member].harm_since or 0, counting.sealed - 1
                self._sanctions.append(Revoke(member, since))
                if since <= last:
                    self._sanctions.append(Void(since, last, (member,)))
        while self._sanctions:
            sanction = self._sanctions.pop(0)
            if owner_decisions.refusal(counting, sanction) is None:
                return sanction
        return None

    def recounted(
        self, counting: Counting, judgement: Judgement, guard: Guard | None, *, last: bool, rate: int
    ) -> tuple[Recount, ...]:
        """Return what seals have skipped and the next one is to count: what the judge says, and work of
        members for whom there is enough evidence, of epochs with this `rate` at most; `last`: the run is
        about to end. It stays skipped where they may have been revoked when they made it, where it would
        evidently do harm, where the guard has taken back what it brings, and where its author makes work that
        is too large again and again."""
        found = [recount for recount in sorted(judgement.recounted) if counting.is_skipped(recount)]
        evidence = self._evidence
        known = evidence.members.items() if self._judged else ()
        trusted = {number for number, one in known if (one.recounted_at_last if last else one.recounted)}
        trusted = {number for number in trusted if not self._often_too_large(number, counting)}
        never = evidence.outliers | judgement.recounted
        never |= set() if last else self._oversized
        for number in sorted(trusted):
            revoked = counting.members[number].revoked if number < len(counting.members) else 0
            again = [recount for recount in counting.skipped(number) if recount.epoch < revoked]
            again = [recount for recount in again if counting.rate(recount.epoch) <= rate]
            found += [recount for recount in again if recount not in never]
        if guard:
            found = [recount for recount in found if not guard.is_stale(*recount)]
        return tuple(sorted(found[:RECOUNTS_PER_SEAL]))
