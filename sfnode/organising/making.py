"""The making of bases and checkpoints, which are published by decisions. Other decisions are signed in the
meantime. At most one set of bases and one checkpoint are being made at a time.

New bases are made at sealed weights once the present bases have served long enough. Once they are signed, the
open epoch is closed, and the next epoch uses them. Only nodes with the model can make bases.

A checkpoint describes the state of the run after an epoch that has settled (SETTLED). The node computes the
checkpoint from its log. It is not signed if a decision in the meantime has changed what counts up to that
epoch.
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
"""Seconds after which making bases is tried again if it failed. A lack of memory, for example, does not end
at once."""

SETTLED = 4
"""Number of seals that must follow an epoch's own seal before a checkpoint of the epoch is made. Later seals
mostly recount work of younger epochs."""

SUMMARISE_AGAIN = 60.0
"""Seconds after which computing a checkpoint is tried again if it failed."""

AGAIN: dict[Product, float] = {Bases: MAKE_AGAIN, Checkpoint: SUMMARISE_AGAIN}


@dataclass(slots=True)
class Making:
    """State of making bases or a checkpoint, until the product is signed."""

    rests_until: float
    """Time from which the next bases or checkpoint may be made."""
    epoch: int | None = None
    """Epoch from whose model the bases or the checkpoint are made; None while nothing is made."""
    made: bytes | Checkpoint | None = None
    """Digest of the finished bases, or the finished checkpoint; None until then."""
    altered: bool = False
    """Whether a decision signed in the meantime changes which work counts up to `epoch`."""

    @property
    def is_under_way(self) -> bool:
        """Whether the product is still being made. No epoch is closed while bases are being made, so members
        who have filled their quotas with the old bases wait for the new ones."""
        return self.epoch is not None and self.made is None

    def end(self, made: bytes | Checkpoint | None, again: float, now: float) -> None:
        """Take in the product `made`; None means that making it failed. The next attempt may then begin after
        `again` seconds. A checkpoint of another epoch than the requested one is dropped: decisions have
        disappeared since it was requested."""
        if isinstance(made, Checkpoint) and made.epoch != self.epoch:
            made = None
        if made is None and self.epoch is not None:
            self.epoch, self.rests_until = None, now + again
        self.made = made

    def taken(self) -> bytes | Checkpoint | None:
        """Return the finished product for signing, and allow the making of the next product. Return None if
        no product is finished."""
        made, self.made = self.made, None
        self.epoch = self.epoch if made is None else None
        return made

    def begin(self, epoch: int) -> None:
        """Record that a product is being made for this epoch."""
        self.epoch, self.altered = epoch, False

    def signing(self, decision: Decision) -> None:
        """Take note of a decision that will be signed: set `altered` if it changes which work counts up to
        `epoch`."""
        self.altered |= self.epoch is not None and _earliest_altered(decision) <= self.epoch


def _earliest_altered(decision: Decision) -> int:
    """Return the first sealed epoch in which a decision changes which work counts; MAX_EPOCHS if there is no
    such epoch."""
    match decision:
        case Void(first=epoch) | Amend(epoch=epoch):
            return epoch
        case Seal(recounted=recounted):
            return min((recount.epoch for recount in recounted), default=MAX_EPOCHS)
    return MAX_EPOCHS


def bases_due(known: Knowledge, now: float) -> Bases | None:
    """Return the decision that publishes newly made bases, if they are ready; else None. Also request new
    bases once the current bases have been in use long enough."""
    run_state, making = known.run_state, known.making[Bases]
    if isinstance(digest := making.taken(), bytes):
        decision = Bases(run_state.next_subspace(), digest)
        return decision if owner_decisions.refusal(run_state, decision) is None else None
    if not making.is_under_way and now >= making.rests_until and _are_worn(known):
        making.begin(run_state.sealed - 1)
        known.actions.append(Make(Bases, run_state.sealed - 1))
    return None


def cuts(known: Knowledge) -> bool:
    """Return whether the open epoch must be closed with the updates that it has because the next epoch has
    other bases."""
    run_state = known.run_state
    return known.policy.renew_updates > 0 and run_state.served_from() == run_state.open_epoch + 1


def _are_worn(known: Knowledge) -> bool:
    """Return whether the latest bases have served long enough in sealed epochs, new bases would still be
    used, and the rate is not about to change."""
    run_state, every = known.run_state, known.policy.renew_updates
    first, ends = run_state.served_from(), run_state.promised >= run_state.budget
    ends = ends or not run_state.may_begin(run_state.next_subspace())
    if not every or first is None or first >= run_state.sealed or ends:
        return False
    if known.search and known.search.cuts(run_state):
        return False
    return sum(map(run_state.closed_updates, range(first, run_state.sealed))) >= every


def checkpoint_due(known: Knowledge, now: float) -> Checkpoint | None:
    """Return the computed checkpoint, if it is ready and no decision has altered what it states; else None.
    Also request the next checkpoint once it is due."""
    making, spacing = known.making[Checkpoint], known.policy.checkpoint_epochs
    usable = known.run_state.checkpoints
    if isinstance(found := making.taken(), Checkpoint):
        return None if making.altered else found
    epoch, last = known.run_state.sealed - 1 - SETTLED, usable[-1].epoch if usable else -1
    if making.epoch is None and spacing and epoch - last >= spacing and now >= making.rests_until:
        making.begin(epoch)
        known.actions.append(Make(Checkpoint, epoch))
    return None
