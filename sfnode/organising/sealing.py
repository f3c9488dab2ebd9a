"""The rule of seals: when the oldest closed epoch is sealed, and what its seal says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfnode.organising.evaluation.judging import Judgement
from sfprotocol.counting import named_digest
from sfprotocol.decisions import FACTOR_ONE, RATE_ONE, Oversized, Recount, Seal

if TYPE_CHECKING:
    from sfnode.organising.known import Knowledge


def due(known: Knowledge, now: float) -> Seal | Oversized | None:
    """Return the seal of the oldest closed epoch once all that it names is here and it is evaluated, or has
    waited long enough; before that what is too large in it."""
    counting, epoch, feeds = known.counting, known.counting.sealed, known.feeds
    chains = feeds.chains(counting, epoch) if epoch < counting.open_epoch else None
    if chains is None:
        return None
    if oversized := known.verdicts.oversized(epoch, feeds.oversized(epoch, counting)):
        return oversized
    if _is_evaluated_first(known, epoch, now):
        return None
    judgement, less = _judged(known, epoch)
    skipped = _skipped(known, epoch, judgement)
    known.evaluations.sealing(epoch, skipped, less=less)
    feeds.forget(chains, counting)
    digest = named_digest(known.view.control.authority.run_id, chains)
    recounted = _recounted(known, epoch, judgement)
    return Seal(epoch, skipped, recounted, digest, judgement.factor, judgement.rates)


def _judged(known: Knowledge, epoch: int) -> tuple[Judgement, bool]:
    """Return the word of the judge, the schedule, the search and the guard on an epoch, and whether it counts
    less than was evaluated."""
    counting, steps, search, guard = known.counting, known.policy.steps, known.search, known.guard
    judgement = known.judge(counting)
    if steps:
        skipped = _skipped(known, epoch, judgement)
        norms, lost = known.feeds.norms(epoch, counting, skipped), _lost(known, skipped)
        judgement = steps.judged(counting, judgement, norms, counting.closed_updates(epoch) - lost)
    if search:
        judgement = search.judged(counting, judgement)
    less = known.discards(epoch) or bool(steps and judgement.factor != FACTOR_ONE)
    if guard:
        judgement = guard.judged(counting, judgement, searched=bool(search and not steps))
    return judgement, less


def _recounted(known: Knowledge, epoch: int, judgement: Judgement) -> tuple[Recount, ...]:
    """Return the skipped work that the seal of an epoch counts: nothing where that would be in vain, as the
    epoch is worth nothing."""
    if is_for_waiting(known, epoch):
        return waiting(known)
    if known.policy.steps or not judgement.factor:
        return ()
    rate = known.counting.rate(epoch)
    return known.verdicts.recounted(known.counting, judgement, last=False, rate=rate)


def waiting(known: Knowledge) -> tuple[Recount, ...]:
    """Return the skipped work that is to count before the run ends: none of a first-order run, where it was
    made at larger rates and other weights, and a search along it would cost what it could bring."""
    if known.policy.steps:
        return ()
    return known.verdicts.recounted(known.counting, Judgement(), last=True, rate=RATE_ONE)


def is_for_waiting(known: Knowledge, epoch: int) -> bool:
    """Return whether the seal of an epoch is there to count what waits."""
    search = known.search
    return search is not None and not known.discards(epoch) and search.is_for_waiting(epoch, known.counting)


def _skipped(known: Knowledge, epoch: int, judgement: Judgement) -> tuple[int, ...]:
    """Return the feeds of which the seal of an epoch counts nothing: those with a verdict against them."""
    verdict, brings = known.verdicts.on, known.feeds.brings
    moved = known.counting.moved(epoch)
    return tuple(feed for feed in moved if verdict(feed, epoch, known.counting, brings, judgement))


def _is_evaluated_first(known: Knowledge, epoch: int, now: float) -> bool:
    """Return whether a seal waits for the evaluation of its epoch; ask for it if the time is there."""
    if known.discards(epoch):
        return False
    evaluations, counting = known.evaluations, known.counting
    skipped = _skipped(known, epoch, Judgement())
    last = known.guard is not None and counting.promised - _lost(known, skipped) >= counting.budget
    recounted = waiting(known) if is_for_waiting(known, epoch) else ()
    evaluations.plan(counting, now, last=last, waiting=bool(recounted))
    if evaluations.is_due(epoch):
        known.actions.append(evaluations.ask(skipped, recounted))
    return evaluations.is_awaited(epoch, now)


def _lost(known: Knowledge, skipped: tuple[int, ...]) -> int:
    """Return how many updates do not count if the next seal skips these feeds."""
    counting = known.counting
    return sum(known.feeds.moving(number, counting.sealed, counting) for number in skipped)
