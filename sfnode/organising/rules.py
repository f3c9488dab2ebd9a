"""The rules of an organiser, in their order. Each returns a decision to sign now, or None.

A rule is a function of the state (`known`). It may also request a measurement, new bases or a checkpoint from
the node (`Knowledge.actions`).

A close lists only updates that this node holds and that a peer is known to hold, too, so that they are not
lost if this node is. A peer that lies about this does no harm as long as this node holds the updates. Over
all feeds and labels of a member, a close lists no more updates than the member's quota, so that nobody fills
an epoch with late work. The feed that has waited longest comes first. Updates that are left out wait for the
next close.

A seal counts everything that its close lists, except work with a verdict against it (`verdicts`). Its factor
comes from the judge (`steps`) or from a line search (`searching`, which also sets the length of epochs). A
later seal recounts skipped work if the judge says so, or once there is enough evidence that its author is
useful. Before a line search the contribution of each feed is measured, and the measurement is signed. The
search then goes along the work that is not skipped. If skipped work waits near the end of the run, an empty
close comes before the close that reaches the budget. The seal of the empty close recounts the waiting work,
with a factor from a search along it; no rate follows from that search.

Listed updates that are missing here are fetched from peers like all other updates. They are given up
(`Amend`) if there have been peers for `OrganiserPolicy.amend_after` seconds, and none of the missing updates
has come. A peer that falsely claims to have them can only delay the Amend.
"""

from __future__ import annotations

from collections.abc import Callable

from sfnode.organising import making, owner_decisions
from sfnode.organising.evaluation.searching import GROWTH
from sfnode.organising.feeds import Nameable
from sfnode.organising.known import Knowledge, times
from sfnode.organising.steps import Judgement, may_be_idle
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    RATE_ONE,
    Bases,
    Close,
    Decision,
    Oversized,
    Recount,
    Seal,
)
from sfprotocol.quotas import UNPROVEN_PART
from sfprotocol.run_state import MAX_EPOCHS, named_digest

MOVES_PER_CLOSE = 7_500
"""Maximum number of feeds in one close. At 26 bytes each, they fit into MAX_DECISION."""

ALONE = 2
"""Factor on the minimum length of a head's rounds while the run's founder is the only member, so that others
find a run that is still going on."""

UNPROVEN_EPOCH = 10.0
"""Minimum length of an epoch, in seconds, while only members without credit have waiting work. Without this
minimum, somebody whose few updates are always skipped could fill the control feed for good in ten days, while
everybody else is away."""

ACTIVE_TIME = 30.0
"""Seconds after which the organiser no longer waits for a silent member if all others have filled their
quotas. A step of a large model on a small machine takes some ten seconds."""

MAX_UNSEALED = 16
"""Maximum number of closed epochs that wait for their seals. If seals cannot be made because listed updates
are missing, trainers then stop once they have filled their quotas, instead of continuing without end."""

SALT_BYTES = 8


def close_due(known: Knowledge, now: float) -> Close | None:
    """Return the close of the open epoch once it has enough updates, or an update has waited long enough;
    else None."""
    run_state, search, steps = known.run_state, known.search, known.policy.steps
    rest = run_state.budget - run_state.promised
    if not _may_close(known) or rest <= 0:
        return None  # the seals to come complete the run, unless they skip work
    target = search.target(run_state) if search else known.policy.longest
    # members wait after EPOCHS_AHEAD usual epochs of updates, and peers may not show the last of them yet
    target = min(target, rest, int(GROWTH * run_state.usual_updates(known.policy.target_updates)))
    chosen = _chosen(known, rest, now)
    total = sum(one.moving for one in chosen)
    kept = sum(one.moving for one in chosen if known.trusts(one.number))
    there, members = _there(known, chosen, target), {one.number // INCARNATIONS for one in chosen}
    idle = bool(steps and chosen and may_be_idle(run_state, members, steps.idle_rounds))
    short = idle and not total and sum(one.steps for one in chosen) >= target
    enough = there >= target or kept >= rest or _is_late(known, chosen, now) or short
    filled = (total or idle) and (enough or _is_used_up(known, chosen, now))
    cut = any(one.cuts(run_state) for one in (search, known.guard) if one)
    if not (filled or cut or making.cuts(known)):
        known.lacking = max(0, target - there)
        return None
    if now < (earliest := known.opened_at + _least_epoch(known)):
        known.close_at = earliest
        return None
    if not cut and total >= rest and _is_to_wait(known):
        chosen = []  # skipped work is recounted first, by a seal of its own
    salt = known.draw(SALT_BYTES)
    return Close(run_state.open_epoch, salt, tuple(one.move(salt) for one in sorted(chosen)))


def _may_close(known: Knowledge) -> bool:
    """Return whether the run goes on, and no more epochs than allowed wait for their seals."""
    run_state, search = known.run_state, known.search
    waits = known.policy.steps or (search and not search.settled)
    most = 1 if waits else MAX_UNSEALED  # work at a wrong rate, or in a wrong unit, is lost
    unsealed = run_state.open_epoch - run_state.sealed
    over = run_state.complete or run_state.open_epoch >= MAX_EPOCHS
    return not over and unsealed < most and not known.making[Bases].is_under_way


def _chosen(known: Knowledge, rest: int, now: float) -> list[Nameable]:
    """Return the parts of feeds that a close would list now."""
    shared, overdue = _strangers_part(known, rest, now), now - known.policy.longest_epoch
    alone, trusted = known.alone and not known.peers, known.verdicts.trusts
    bounds = MOVES_PER_CLOSE, rest, shared, overdue
    return list(known.feeds.nameable(known.run_state, *bounds, alone=alone, trusted=trusted))


def _is_late(known: Knowledge, chosen: list[Nameable], now: float) -> bool:
    """Return whether an update has waited as long as the longest epoch may last."""
    oldest = min((one.since for one in chosen if one.moving), default=now)
    return now - max(oldest, known.opened_at) >= known.policy.longest_epoch


def _least_epoch(known: Knowledge) -> float:
    """Return the minimum length of an epoch in seconds."""
    alone = len(known.run_state.members) < 2 and known.policy.patience
    return known.policy.least_epoch * (ALONE if alone else 1)


def _strangers_part(known: Knowledge, rest: int, now: float) -> int:
    """Return the maximum number of updates of strangers without credit in a close. Until some work has
    counted, it is the number of vouched members' waiting updates (no limit if vouched members make no
    updates). Without this bound the work of a quick stranger alone would be judged first, with no other work
    to compare it with."""
    run_state = known.run_state
    if run_state.begun:
        return max(1, run_state.room // UNPROVEN_PART)
    vouched, _ = known.feeds.waiting(run_state)
    strange = all(map(run_state.quotas.is_stranger, range(len(run_state.members))))
    return vouched if vouched or not (strange or now >= known.opened_at + ACTIVE_TIME) else rest


def _there(known: Knowledge, chosen: list[Nameable], target: int) -> int:
    """Return the number of updates that count towards an epoch of `target` updates.

    Waiting updates of a stranger with credit count, too, up to UNPROVEN_PART times its updates that a close
    would list, because its credit grows with closes. All updates of members without credit together count as
    at most a small part of the target, so that these members cannot close epochs (SPEC O20). Until some work
    has counted, the result is at most UNPROVEN_PART times the number of vouched members' updates.
    """
    run_state, found = known.run_state, {True: 0, False: 0}
    for one in chosen:
        member = one.number // INCARNATIONS
        proven, times = bool(run_state.credit(member)), 1
        if proven and run_state.quotas.is_stranger(member):
            times = UNPROVEN_PART
        found[proven] += min(max(one.moving, one.waiting), times * one.moving)
    if run_state.begun:
        return found[True] + min(found[False], max(1, target // UNPROVEN_PART))
    vouched, strange = known.feeds.waiting(run_state)
    return min(vouched + strange, UNPROVEN_PART * vouched) if vouched else found[False]


def _is_used_up(known: Knowledge, chosen: list[Nameable], now: float) -> bool:
    """Return whether all recently active members have filled their quotas. A member whose updates wait in a
    new feed is left out, as it can continue only after a close."""
    run_state, feeds = known.run_state, known.feeds
    proven = any(run_state.credit(one.number // INCARNATIONS) for one in chosen)
    if run_state.begun and not proven and now - known.opened_at < UNPROVEN_EPOCH:
        return False
    made, active = feeds.made(run_state), feeds.active(run_state, now - ACTIVE_TIME)
    others = active - feeds.renewing(run_state)
    return bool(active) and not any(run_state.room_left(member, made) for member in others)


def _is_to_wait(known: Knowledge) -> bool:
    """Return whether skipped work waits to be recounted, and the last close was not made to recount it."""
    last = known.run_state.open_epoch - 1
    begun = is_for_waiting(known, last)
    return known.search is not None and not begun and bool(waiting(known))


def seal_due(known: Knowledge, now: float) -> Seal | Oversized | None:
    """Return the next seal, of the oldest closed epoch that has none, once all updates of this epoch are held
    and its evaluation has ended or taken too long; else None. If the epoch has oversized work, return the
    decision on that work first."""
    run_state, epoch, feeds = known.run_state, known.run_state.sealed, known.feeds
    chains = feeds.chains(run_state, epoch) if epoch < run_state.open_epoch else None
    if chains is None:
        return None
    if oversized := known.verdicts.oversized(epoch, feeds.oversized(epoch, run_state)):
        return oversized
    if _is_evaluated_first(known, epoch, now):
        return None
    judgement, less = _judged(known, epoch)
    skipped = _skipped(known, epoch, judgement)
    known.evaluations.sealing(epoch, skipped, less=less)
    digest = named_digest(known.view.control.authority.run_id, chains)
    recounted = _recounted(known, epoch, judgement)
    return Seal(epoch, skipped, recounted, digest, judgement.factor, judgement.rates)


def _judged(known: Knowledge, epoch: int) -> tuple[Judgement, bool]:
    """Return the judgement on an epoch from the judge, the schedule, the search and the guard; and whether
    less counts than was evaluated."""
    run_state, steps, search, guard = known.run_state, known.policy.steps, known.search, known.guard
    judgement = known.judge(run_state)
    if steps:
        skipped = _skipped(known, epoch, judgement)
        norms, lost = known.feeds.norms(epoch, run_state, skipped), _lost(known, skipped)
        judgement = steps.judged(run_state, judgement, norms, run_state.closed_updates(epoch) - lost)
    if search:
        judgement = search.judged(run_state, judgement)
    less = known.discards(epoch) or bool(steps and judgement.factor != FACTOR_ONE)
    if guard:
        judgement = guard.judged(run_state, judgement, searched=bool(search and not steps))
    return judgement, less


def _recounted(known: Knowledge, epoch: int, judgement: Judgement) -> tuple[Recount, ...]:
    """Return the skipped work that the seal of an epoch recounts; empty if the epoch counts for nothing."""
    if is_for_waiting(known, epoch):
        return waiting(known)
    if known.policy.steps or not judgement.factor:
        return ()
    rate = known.run_state.rate(epoch)
    return known.verdicts.recounted(known.run_state, judgement, last=False, rate=rate)


def waiting(known: Knowledge) -> tuple[Recount, ...]:
    """Return the skipped work that counts just before the run ends. It is empty for a first-order run:
    skipped work was made at larger rates and other weights, and a search along it costs as much as the work
    may gain."""
    if known.policy.steps:
        return ()
    return known.verdicts.recounted(known.run_state, Judgement(), last=True, rate=RATE_ONE)


def is_for_waiting(known: Knowledge, epoch: int) -> bool:
    """Return whether an epoch was closed only so that its seal recounts skipped work."""
    search = known.search
    return search is not None and not known.discards(epoch) and search.is_for_waiting(epoch, known.run_state)


def _skipped(known: Knowledge, epoch: int, judgement: Judgement) -> tuple[int, ...]:
    """Return the numbers of the feeds with a verdict against them, which the seal of an epoch skips."""
    verdict, brings = known.verdicts.on, known.feeds.brings
    moved = known.run_state.moved(epoch)
    return tuple(feed for feed in moved if verdict(feed, epoch, known.run_state, brings, judgement))


def _is_evaluated_first(known: Knowledge, epoch: int, now: float) -> bool:
    """Return whether a seal must wait for the evaluation of its epoch. Also request that evaluation once it
    is time."""
    if known.discards(epoch):
        return False
    evaluations, run_state = known.evaluations, known.run_state
    skipped = _skipped(known, epoch, Judgement())
    last = known.guard is not None and run_state.promised - _lost(known, skipped) >= run_state.budget
    recounted = waiting(known) if is_for_waiting(known, epoch) else ()
    evaluations.plan(run_state, now, last=last, waiting=bool(recounted))
    if evaluations.is_due(epoch):
        known.actions.append(evaluations.ask(skipped, recounted))
    return evaluations.is_awaited(epoch, now)


def _lost(known: Knowledge, skipped: tuple[int, ...]) -> int:
    """Return the number of updates that do not count if the next seal skips these feeds."""
    run_state = known.run_state
    return sum(known.feeds.moving(number, run_state.sealed, run_state) for number in skipped)


Rule = Callable[[Knowledge, float], Decision | None]

RULES: tuple[Rule, ...] = (
    # an owner's decision that would change something
    owner_decisions.due,
    # an admission that needs no owner, at the rate that the policy allows (`admission`)
    lambda known, now: known.join_requests.next(known.run_state, now),
    # a result of a sealed epoch, or of the base model (`evaluating`)
    lambda known, _: known.evaluations.result(known.run_state),
    # a return, or the end of the run, that follows from these results (`guard`)
    lambda known, _: known.guard.due(known.run_state) if known.guard else None,
    # a measured worth, and revocations that follow (`verdicts`)
    lambda known, _: known.verdicts.sanction(known.run_state),
    # no decision: updates the waiting times on which the rules below depend
    times,
    # a seal of the oldest closed epoch, once it is evaluated or has waited long enough
    seal_due,
    # new bases, once the present ones have served long enough
    making.bases_due,
    # a close, once enough updates may be listed, or an update has waited long enough
    close_due,
    # an amendment of a feed whose listed steps nobody has (`feeds`)
    lambda known, now: known.feeds.lost(known.view, known.policy.amend_after, now),
    # a checkpoint of an epoch that is settled
    making.checkpoint_due,
)


def due(known: Knowledge, now: float) -> Decision | None:
    """Return the first decision that is due; None if none is."""
    return next((decision for rule in RULES if (decision := rule(known, now)) is not None), None)
