"""The rule of closes: when the open epoch is closed, and what its close names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfnode.organising import making, sealing
from sfnode.organising.evaluation.searching import GROWTH
from sfnode.organising.feeds import Nameable
from sfnode.organising.steps import may_be_idle
from sfprotocol.counting import MAX_EPOCHS
from sfprotocol.decisions import INCARNATIONS, Bases, Close
from sfprotocol.quotas import UNPROVEN_PART

if TYPE_CHECKING:
    from sfnode.organising.known import Knowledge

MOVES_PER_CLOSE = 7_500
"""Feeds that one close moves: with 26 bytes each they fit MAX_DECISION."""

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


def due(known: Knowledge, now: float) -> Close | None:
    """Return the close of the open epoch once enough may be named, or one has waited long enough."""
    counting, search, steps = known.counting, known.search, known.policy.steps
    rest = counting.budget - counting.promised
    if not _may_close(known) or rest <= 0:
        return None  # without a rest the run is complete with the seals to come, unless they skip something
    target = search.target(counting) if search else known.policy.longest
    # members wait once they have made EPOCHS_AHEAD times what is usual, which a second node may not show yet
    target = min(target, rest, int(GROWTH * counting.usual_updates(known.policy.target_updates)))
    chosen = _chosen(known, rest, now)
    total = sum(one.moving for one in chosen)
    kept = sum(one.moving for one in chosen if known.trusts(one.number))
    there, members = _there(known, chosen, target), {one.number // INCARNATIONS for one in chosen}
    idle = bool(steps and chosen and may_be_idle(counting, members, steps.idle_rounds))
    short = idle and not total and sum(one.steps for one in chosen) >= target
    enough = there >= target or kept >= rest or _is_late(known, chosen, now) or short
    filled = (total or idle) and (enough or _is_used_up(known, chosen, now))
    cut = any(one.cuts(counting) for one in (search, known.guard) if one)
    if not (filled or cut or making.cuts(known)):
        known.lacking = max(0, target - there)
        return None
    if now < (earliest := known.opened_at + _least_epoch(known)):
        known.close_at = earliest
        return None
    if not cut and total >= rest and _is_to_wait(known):
        chosen = []  # by a seal of its own, what waits counts before the run ends
    salt = known.draw(SALT_BYTES)
    return Close(counting.open_epoch, salt, tuple(one.move(salt) for one in sorted(chosen)))


def _may_close(known: Knowledge) -> bool:
    """Return whether the run goes on, and as few epochs wait for their seals as may."""
    counting, search = known.counting, known.search
    waits = known.policy.steps or (search and not search.settled)
    most = 1 if waits else MAX_UNSEALED  # what comes at a wrong rate, or in a wrong unit, is lost
    unsealed = counting.open_epoch - counting.sealed
    over = counting.complete or counting.open_epoch >= MAX_EPOCHS
    return not over and unsealed < most and not known.making[Bases].is_under_way


def _chosen(known: Knowledge, rest: int, now: float) -> list[Nameable]:
    """Return what a close would name now."""
    shared, overdue = _strangers_part(known, rest, now), now - known.policy.longest_epoch
    alone, trusted = known.alone and not known.peers, known.verdicts.trusts
    bounds = MOVES_PER_CLOSE, rest, shared, overdue
    return list(known.feeds.nameable(known.counting, *bounds, alone=alone, trusted=trusted))


def _is_late(known: Knowledge, chosen: list[Nameable], now: float) -> bool:
    """Return whether something has waited for as long as an epoch lasts at most."""
    oldest = min((one.since for one in chosen if one.moving), default=now)
    return now - max(oldest, known.opened_at) >= known.policy.longest_epoch


def _least_epoch(known: Knowledge) -> float:
    """Return for how many seconds an epoch is open at least."""
    alone = len(known.counting.members) < 2 and known.policy.patience
    return known.policy.least_epoch * (ALONE if alone else 1)


def _strangers_part(known: Knowledge, rest: int, now: float) -> int:
    """Return how many updates of strangers without credit a close names. While nothing counts it is as many
    as of members who were vouched for, or any number where those make nothing: else one who is quick would be
    all that is judged first, with nobody to tell its work from noise."""
    counting = known.counting
    if counting.begun:
        return max(1, counting.room // UNPROVEN_PART)
    vouched, _ = known.feeds.waiting(counting)
    strange = all(map(counting.quotas.is_stranger, range(len(counting.members))))
    return vouched if vouched or not (strange or now >= known.opened_at + ACTIVE_TIME) else rest


def _there(known: Knowledge, chosen: list[Nameable], target: int) -> int:
    """Return how much of an epoch of `target` updates is there. What of strangers has to wait, as their
    credit grows with closes, shows that it is full, too: up to some times as much as is named. Of those
    without credit a small part of it counts at most, so that they do not close epochs (SPEC O20); while
    nothing counts, some times as much as of members who were vouched for."""
    counting, found = known.counting, {True: 0, False: 0}
    for one in chosen:
        member = one.number // INCARNATIONS
        proven, times = bool(counting.credit(member)), 1
        if proven and counting.quotas.is_stranger(member):
            times = UNPROVEN_PART
        found[proven] += min(max(one.moving, one.waiting), times * one.moving)
    if counting.begun:
        return found[True] + min(found[False], max(1, target // UNPROVEN_PART))
    vouched, strange = known.feeds.waiting(counting)
    return min(vouched + strange, UNPROVEN_PART * vouched) if vouched else found[False]


def _is_used_up(known: Knowledge, chosen: list[Nameable], now: float) -> bool:
    """Return whether all members of whom something has come of late have made what they may; who goes on with
    a new feed waits for a close."""
    counting, feeds = known.counting, known.feeds
    proven = any(counting.credit(one.number // INCARNATIONS) for one in chosen)
    if counting.begun and not proven and now - known.opened_at < UNPROVEN_EPOCH:
        return False
    made, active = feeds.made(counting), feeds.active(counting, now - ACTIVE_TIME)
    others = active - feeds.renewing(counting)
    return bool(active) and not any(counting.room_left(member, made) for member in others)


def _is_to_wait(known: Knowledge) -> bool:
    """Return whether skipped work is to count before what a close would name now, and no epoch was closed for
    it."""
    last = known.counting.open_epoch - 1
    begun = sealing.is_for_waiting(known, last)
    return known.search is not None and not begun and bool(sealing.waiting(known))
