"""Bases and checkpoints: what is made while decisions go on, one at a time, and signed once it is there.

New bases are made at sealed weights once those of now have served for long enough. They serve from the next
epoch on; the one that is open meanwhile ends with them. Whoever has the model makes them.

A checkpoint is worked out by whoever has the log, of an epoch that is settled. It is not signed if by a
decision meanwhile something else counts up to its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfnode.organising import owner_decisions
from sfnode.organising.events import Make, Product
from sfprotocol.decisions import Amend, Bases, Checkpoint, Decision, Seal, Void
from sfprotocol.run_state import MAX_EPOCHS

if TYPE_CHECKING:
    from sfnode.organising.known import Knowledge

MAKE_AGAIN = 600.0
"""Seconds until bases are tried again that could not be made: a lack of memory does not go away at once."""

SETTLED = 4
"""Seals after an epoch's own before a checkpoint speaks of it: what a seal recounts is mostly younger."""

SUMMARISE_AGAIN = 60.0
"""Seconds until a checkpoint is tried again that could not be worked out."""

AGAIN: dict[Product, float] = {Bases: MAKE_AGAIN, Checkpoint: SUMMARISE_AGAIN}


@dataclass(slots=True)
class Making:
    """The bases or the checkpoint that are made, or were and are to be signed."""

    rests_until: float
    """The time from which on the next may be made."""
    epoch: int | None = None
    """The epoch of which; None while nothing is made."""
    made: bytes | Checkpoint | None = None
    """The digest of the bases, or the checkpoint, once it is there."""
    altered: bool = False
    """Whether a decision was signed meanwhile by which something else counts up to that epoch."""

    @property
    def is_under_way(self) -> bool:
        """Whether it is still made. Nothing is closed while bases are, so that members wait for them once
        they have made what an epoch has room for, along directions that are used up."""
        return self.epoch is not None and self.made is None

    def end(self, made: bytes | Checkpoint | None, again: float, now: float) -> None:
        """Take what was made; None if that has failed: it is made `again` so many seconds later. A checkpoint
        may be of an epoch that is not asked for any more, where decisions are gone that were here."""
        if isinstance(made, Checkpoint) and made.epoch != self.epoch:
            made = None
        if made is None and self.epoch is not None:
            self.epoch, self.rests_until = None, now + again
        self.made = made

    def taken(self) -> bytes | Checkpoint | None:
        """Return what was made, which is to be signed; None if nothing is there. The next may be made."""
        made, self.made = self.made, None
        self.epoch = self.epoch if made is None else None
        return made

    def begin(self, epoch: int) -> None:
        """Take note that it is made, of an epoch."""
        self.epoch, self.altered = epoch, False

    def signing(self, decision: Decision) -> None:
        """Take note of a decision that is to be signed."""
        self.altered |= self.epoch is not None and _earliest_altered(decision) <= self.epoch


def _earliest_altered(decision: Decision) -> int:
    """Return the first epoch of which something else counts by a decision, as far as it was sealed before."""
    match decision:
        case Void(first=epoch) | Amend(epoch=epoch):
            return epoch
        case Seal(recounted=recounted):
            return min((recount.epoch for recount in recounted), default=MAX_EPOCHS)
    return MAX_EPOCHS


def bases_due(known: Knowledge, now: float) -> Bases | None:
    """Return the bases that were made; have new ones made once the latest have served for long enough."""
    run_state, making = known.run_state, known.making[Bases]
    if isinstance(digest := making.taken(), bytes):
        decision = Bases(run_state.next_subspace(), digest)
        return decision if owner_decisions.refusal(run_state, decision) is None else None
    if not making.is_under_way and now >= making.rests_until and _are_worn(known):
        making.begin(run_state.sealed - 1)
        known.actions.append(Make(Bases, run_state.sealed - 1))
    return None


def cuts(known: Knowledge) -> bool:
    """Return whether the open epoch is to be closed with whatever it has: the one after it has other
    bases."""
    run_state = known.run_state
    return known.policy.renew_updates > 0 and run_state.served_from() == run_state.open_epoch + 1


def _are_worn(known: Knowledge) -> bool:
    """Return whether what is sealed, at whose weights others would be made, has used the latest bases for
    long enough, others would yet be used, and the rate at which they were used stays."""
    run_state, every = known.run_state, known.policy.renew_updates
    first, ends = run_state.served_from(), run_state.promised >= run_state.budget
    ends = ends or not run_state.may_begin(run_state.next_subspace())
    if not every or first is None or first >= run_state.sealed or ends:
        return False
    if known.search and known.search.cuts(run_state):
        return False
    return sum(map(run_state.closed_updates, range(first, run_state.sealed))) >= every


def checkpoint_due(known: Knowledge, now: float) -> Checkpoint | None:
    """Return the checkpoint that was worked out; have the next one worked out once it is due."""
    making, spacing = known.making[Checkpoint], known.policy.checkpoint_epochs
    usable = known.run_state.checkpoints
    if isinstance(found := making.taken(), Checkpoint):
        return None if making.altered else found
    epoch, last = known.run_state.sealed - 1 - SETTLED, usable[-1].epoch if usable else -1
    if making.epoch is None and spacing and epoch - last >= spacing and now >= making.rests_until:
        making.begin(epoch)
        known.actions.append(Make(Checkpoint, epoch))
    return None
