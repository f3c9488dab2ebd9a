"""State of the feeds on the organiser's node and its peers, from which follows what may be listed, sealed or
given up.

This module keeps data; the organiser decides. Updates that closes have listed (according to the `RunState`)
are called `named` in the code, as in the named digest (SPEC O10).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sfnode.organising.evaluation.evidence import GAIN_BY_COST, Weighted, references, weighted_median
from sfnode.organising.view import Boundary, View
from sfprotocol import validation
from sfprotocol.decisions import INCARNATIONS, Amend, Move
from sfprotocol.messages import Feed
from sfprotocol.quotas import UNLIMITED
from sfprotocol.run_state import NEVER, RunState

CLAIMED = 4
"""Factor on the time for which the organiser waits for missing updates if a peer claims to have them. Such a
peer may be slow. If the updates never come, it has lied."""

OVERSIZED = 1 + GAIN_BY_COST
"""Maximum root mean square of a member's scalars, as a multiple of the usual value, at which its work counts
at once. Work with scalars of w times the usual size gains w times as much along the gradient, and its noise
costs w^2 times as much. Above this maximum even useful work does harm. Such work waits for the seal before
the run's end, which has a factor of its own."""

FEW = 3
"""Number of scalars of the usual size that are added to a member's scalars before their size is judged. Few
scalars may be large by chance."""

_STOP = attrgetter("stop")


@dataclass(slots=True)
class HeldFeed:
    """State of a feed on this node and on its peers."""

    since: float
    """Time from which updates have been waiting for a close to list them."""
    missing_since: float
    """Time from which listed updates count as missing: the latest time at which none was missing, a missing
    one arrived, or there was no peer to ask."""
    boundaries: list[Boundary] = field(default_factory=list)
    shown: int = 0
    """First step that no peer is known to hold."""
    forked: int = NEVER
    named: int = 0
    """First step that no close had listed at the last `refresh`."""
    most: int = 0
    """Largest number of steps held since listed steps went missing; 0 while no listed step is missing."""
    grown: float = 0.0
    """Time at which the feed last grew."""

    @property
    def stop(self) -> int:
        """First step that is not held."""
        return self.boundaries[-1].stop if self.boundaries else 0

    @property
    def next_boundary(self) -> int:
        """Step of the first boundary among the waiting updates; `stop` if no updates wait."""
        place = bisect_right(self.boundaries, self.named, key=_STOP)
        return self.boundaries[place].stop if place < len(self.boundaries) else self.stop

    def boundary(self, stop: int) -> Boundary | None:
        """Return the boundary at a step; None if there is none."""
        place = bisect_left(self.boundaries, stop, key=_STOP)
        found = self.boundaries[place] if place < len(self.boundaries) else None
        return found if found and found.stop == stop else None

    def between(self, first: int, stop: int) -> list[Boundary]:
        """Return the boundaries after step `first`, up to step `stop`."""
        place = bisect_right(self.boundaries, first, key=_STOP)
        return self.boundaries[place : bisect_right(self.boundaries, stop, place, key=_STOP)]

    def enough(self, updates: int) -> int:
        """Return the step of the first boundary up to which at least `updates` waiting updates change the
        weights; NEVER if there are fewer such updates."""
        moving, before = 0, self.named
        for one in self.between(self.named, NEVER):
            moving, before = moving + one.stop - before - one.zeros, one.stop
            if moving >= updates:
                return one.stop
        return NEVER

    @property
    def waiting(self) -> int:
        """Number of waiting updates that change the weights."""
        return max(0, self.stop - self.named - self.zeros(self.stop))

    def zeros(self, stop: int) -> int:
        """Return the number of waiting steps up to step `stop` that do not change the weights."""
        return sum(one.zeros for one in self.between(self.named, stop))

    def labelled(self, epoch: int) -> int:
        """Return the number of updates that are labelled with this epoch or a later one."""
        stops = [0, *(one.stop for one in self.boundaries)]
        return sum(b - a for a, b, one in zip(stops, stops[1:], self.boundaries) if one.label >= epoch)  # noqa: B905

    def last_nameable(self, limit: int, revoked: int) -> Boundary | None:
        """Return the last boundary at which a close may stop, at step `limit` at most; None if there is none.
        A close must stop before the first waiting update with a label from epoch `revoked` on."""
        last = None
        for one in self.between(self.named, limit):
            if one.label >= revoked:
                break
            last = one
        return last


class Nameable(NamedTuple):
    """The part of a feed that a close may list."""

    number: int
    steps: int
    since: float
    """Time from which the part has been waiting."""
    boundary: Boundary
    """Boundary at which the close would stop."""
    zeros: int
    """Number of steps in the part that do not change the weights."""
    waiting: int
    """Number of waiting updates in the whole feed that change the weights."""

    @property
    def moving(self) -> int:
        """Number of steps in the part that change the weights. Only these can count."""
        return self.steps - self.zeros

    def move(self, salt: bytes) -> Move:
        """Return the entry that lists this part in a close with this salt."""
        return Move(self.number, self.steps, validation.tag(salt, self.boundary.chain), self.zeros)


class HeldFeeds:
    """All feeds with updates that this node holds or that closes list."""

    def __init__(self) -> None:
        self._feeds: dict[Feed, HeldFeed] = {}
        self._served: dict[int, float] = {}
        """Time at which a close last listed updates of a member, keyed by the member's number."""
        self._unshown: dict[Feed, None] = {}
        """Feeds with held updates that no peer is known to hold."""
        self._sealed = 0
        """Number of seals when old boundaries were last dropped."""

    def __len__(self) -> int:
        return len(self._feeds)

    def of(self, feed: Feed, now: float) -> HeldFeed:
        """Return the state of a feed. An unknown feed gets a new state."""
        return self._feeds.setdefault(feed, HeldFeed(now, now))

    # -- what is seen ------------------------------------------------------------------------------

    def follow(self, view: View, moved: Iterable[Feed], now: float) -> int:
        """Update the feeds whose held updates, counted updates or fork proofs have changed. Return the number
        of new updates."""
        self._forget_sealed(view.run_state)
        return sum(self._look_at(feed, view, now) for feed in moved)

    def _look_at(self, feed: Feed, view: View, now: float) -> int:
        held, state = self.of(feed, now), view.state(feed)
        held.forked, first = min(held.forked, state.forked), held.stop
        if not self._continues(feed, held, view):
            held.boundaries, held.shown, held.grown, first = _boundaries(feed, view), 0, now, 0
        elif first < state.next:
            held.boundaries += view.boundaries(feed, first)
            held.grown = now
        if state.next > held.shown:
            self._unshown[feed] = None
        return max(0, held.stop - first)

    def _forget_sealed(self, run_state: RunState) -> None:
        """Drop the boundaries below the last step that seals have judged, whoever signed the seals."""
        if run_state.sealed == self._sealed:
            return
        self._sealed = run_state.sealed
        for number, stop in run_state.positions(run_state.sealed - 1).items():
            held = self._feeds.get(run_state.feed(number))
            boundaries = held.boundaries if held else []
            judged = bisect_left(boundaries, stop, key=_STOP)
            del boundaries[: min(judged, len(boundaries) - 1)]  # the last one tells how much is held

    @staticmethod
    def _continues(feed: Feed, held: HeldFeed, view: View) -> bool:
        """Return whether the held updates continue the updates held before, and there is a boundary at every
        step at which a close has stopped."""
        last, now = held.boundaries[-1:], view.state(feed).next
        if not last or view.chain(feed, min(held.stop, now)) != last[0].chain:
            return False
        number = view.run_state.number(feed)
        judged = 0 if number is None else _judged(number, view.run_state)
        named_stops = () if number is None else view.run_state.named_stops(number, judged, held.stop)
        return all(held.boundary(named_stop.stop) for named_stop in named_stops)

    def hear(self, view: View) -> None:
        """Record which of the held updates peers are known to hold."""
        for feed, stop in view.shown(self._unshown).items():
            held = self._feeds[feed]
            held.shown = max(held.shown, stop)
            if stop >= held.stop:
                del self._unshown[feed]

    def refresh(self, run_state: RunState, now: float, *, asked: bool) -> None:
        """Update for each feed the times from which updates have been waiting or missing. `asked`: there are
        peers to ask for missing updates."""
        positions = {run_state.feed(number): stop for number, stop in run_state.positions().items()}
        for feed in positions:
            self.of(feed, now)
        for feed, held in self._feeds.items():
            named = positions.get(feed, 0)
            if named > held.named and (number := run_state.number(feed)) is not None:
                self._served[number // INCARNATIONS] = now
            if named != held.named or held.stop <= named:
                held.named, held.since = named, now
            if held.stop >= named:
                held.missing_since, held.most = now, 0
            elif held.stop > held.most or not asked:
                held.missing_since, held.most = now, max(held.stop, held.most)

    # -- what follows ------------------------------------------------------------------------------

    def missing(self) -> dict[Feed, HeldFeed]:
        """Return the feeds with listed steps that were missing at the last `refresh`."""
        return {feed: held for feed, held in self._feeds.items() if held.stop < held.named}

    def waiting(self, run_state: RunState) -> tuple[int, int]:
        """Return how many waiting updates change the weights: the number for vouched members, and the number
        for strangers."""
        found = {False: 0, True: 0}
        for number, held in self._of_members(run_state):
            if run_state.ended(number) == NEVER:
                found[run_state.quotas.is_stranger(number // INCARNATIONS)] += held.waiting
        return found[False], found[True]

    def _of_members(self, run_state: RunState) -> Iterator[tuple[int, HeldFeed]]:
        """Yield the number and the state of each feed of a member."""
        for feed, held in self._feeds.items():
            if (number := run_state.number(feed)) is not None:
                yield number, held

    def nameable(
        self,
        run_state: RunState,
        most: int,
        rest: int,
        shared: int,
        overdue: float,
        *,
        alone: bool,
        trusted: Callable[[int], bool],
    ) -> Iterator[Nameable]:
        """Yield up to `most` parts of feeds that a close may list, with at most `rest` updates in all. The
        part that has waited longest comes first.

        Only held updates are listed. Unless `alone`, a peer must be known to hold them, too. Work of members
        who are not `trusted` does not count towards `rest`, because seals skip it. If it did, a run would end
        in ever smaller epochs.

        Over all feeds and labels of a member, at most its quota for the open epoch is listed, and for a
        stranger at most twice its credit. Of all strangers without credit together at most `shared` updates
        are listed, in equal parts and in turns, so that a stranger with many waiting updates or feeds cannot
        keep others from earning credit.

        A stranger's segment may be larger than `shared`, if it was signed when the stranger's quota was
        larger. Such a segment comes last. If its author is `trusted`, it is listed only if it has waited
        since before the time `overdue`. If its author is not trusted, it need not wait: seals skip it, later
        work of the author can then be measured, and that work may count again.
        """
        left: dict[int, int] = {}
        waiting = {
            number: (self._is_unproven(number, run_state), held)
            for number, held in self._of_members(run_state)
            if held.stop > held.named and run_state.ended(number) == NEVER
        }
        sharing = {number // INCARNATIONS for number, (unproven, _) in waiting.items() if unproven}
        part, each = shared, max(1, shared // max(1, len(sharing)))

        def turn(number: int) -> tuple[bool, float, Feed, int]:
            (unproven, held), member = waiting[number], number // INCARNATIONS
            served = self._served.get(member, held.since) if unproven else held.since
            credit = run_state.credit(member) if run_state.quotas.is_stranger(member) else UNLIMITED
            quota = run_state.quotas.quota(member, run_state.open_epoch)
            quota = each if unproven else min(quota, 2 * credit)  # quotas are larger at a run's start
            left.setdefault(member, quota)
            is_large = held.next_boundary - held.named > max(part, credit)
            return is_large, max(held.since, served), run_state.feed(number), number

        for is_large, _, _, number in sorted(map(turn, waiting)):
            if rest <= 0 or not most:
                return
            (unproven, held), member = waiting[number], number // INCARNATIONS
            quota = min(left[member], shared) if unproven else left[member]
            limit = held.named + max(0, quota)
            whole = quota > 0 and not (is_large and held.since > overdue and trusted(member))
            limit = max(limit, held.next_boundary) if whole else limit
            limit = min(limit, held.enough(rest), held.forked, NEVER if alone else held.shown)
            if one := held.last_nameable(limit, run_state.members[member].revoked):
                steps, zeros = one.stop - held.named, held.zeros(one.stop)
                shared -= steps if unproven else 0
                left[member] = quota - steps
                rest -= (steps - zeros) * trusted(member)
                most -= 1
                yield Nameable(number, steps, held.since, one, zeros, held.waiting)

    def _is_unproven(self, number: int, run_state: RunState) -> bool:
        """Return whether a feed belongs to a stranger without credit."""
        member = number // INCARNATIONS
        return run_state.quotas.is_stranger(member) and not run_state.credit(member)

    def made(self, run_state: RunState) -> dict[int, int]:
        """Return how many held updates of each member are labelled with the open epoch or a later epoch,
        keyed by member number. Members without such updates are left out."""
        found = Counter[int]()
        for number, held in self._of_members(run_state):
            found[number // INCARNATIONS] += held.labelled(run_state.open_epoch)
        return +found

    def active(self, run_state: RunState, since: float) -> set[int]:
        """Return the members from whom updates have arrived since the time `since`."""
        held_feeds = self._of_members(run_state)
        return {n // INCARNATIONS for n, held in held_feeds if held.grown >= since and held.boundaries}

    def renewing(self, run_state: RunState) -> set[int]:
        """Return the members with waiting updates in a feed that is not yet their current feed."""
        waiting = (number for number, held in self._of_members(run_state) if held.stop > held.named)
        return {number // INCARNATIONS for number in waiting if not run_state.goes_on_with(number)}

    def chains(self, run_state: RunState, epoch: int) -> list[tuple[int, int, bytes]] | None:
        """Return (feed number, stop, chain hash at the stop) for each feed that the closes up to `epoch`
        list; None if some of the listed updates are missing."""
        found = []
        for number, stop in run_state.positions(epoch).items():
            held = self._feeds.get(run_state.feed(number))
            boundary = held.boundary(stop) if held else None
            if boundary is None:
                return None
            found.append((number, stop, boundary.chain))
        return found

    def oversized(self, epoch: int, run_state: RunState) -> set[int]:
        """Return the numbers of the feeds of members whose scalars in the close of `epoch` are so large that
        their work must not count at once. The set is empty if there are too few members to show which size is
        usual."""
        moved = run_state.moved(epoch)
        updates, squares = Counter[int](), Counter[int]()
        for number in moved:
            of_feed = self._size(number, epoch, run_state)
            updates[number // INCARNATIONS] += of_feed[0]
            squares[number // INCARNATIONS] += of_feed[1]
        stranger = run_state.quotas.is_stranger
        telling, told_of = references(+updates, lambda member: not stranger(member))
        means = [Weighted(squares[member] / updates[member], updates[member]) for member in telling]
        usual = weighted_median(means) if means else 0.0
        if not usual:
            return set()
        times = {n: math.sqrt((FEW + squares[n] / usual) / (FEW + updates[n])) for n in told_of}
        return {number for number in moved if times.get(number // INCARNATIONS, 0.0) > OVERSIZED}

    def _size(self, number: int, epoch: int, run_state: RunState) -> tuple[int, int]:
        """Return the number of a feed's updates in the close of `epoch` that change the weights, and the sum
        of squared scalars over all its updates there."""
        steps, named = self._named(number, epoch, run_state)
        return steps - sum(one.zeros for one in named), sum(one.squares for one in named)

    def norms(self, epoch: int, run_state: RunState, skipped: Collection[int]) -> dict[int, float]:
        """Return the root mean square norm of each member's updates in the close of `epoch`, without
        `skipped` feeds, keyed by member number. Norms are in units of 2^-16 of scalar_delta."""
        found: dict[int, list[Boundary]] = {}
        updates = Counter[int]()
        for number in run_state.moved(epoch):
            if number not in skipped:
                steps, named = self._named(number, epoch, run_state)
                found.setdefault(number // INCARNATIONS, []).extend(named)
                updates[number // INCARNATIONS] += steps
        return {
            member: math.sqrt(sum(one.squares * one.unit**2 for one in named) / updates[member])
            for member, named in found.items()
        }

    def moving(self, number: int, epoch: int, run_state: RunState) -> int:
        """Return the number of a feed's updates in the close of `epoch` that change the weights."""
        return self._size(number, epoch, run_state)[0]

    def _named(self, number: int, epoch: int, run_state: RunState) -> tuple[int, list[Boundary]]:
        """Return the number of a feed's updates in the close of `epoch`, and the boundaries within them."""
        held = self._feeds.get(run_state.feed(number))
        first, stop = run_state.named(number, epoch - 1), run_state.named(number, epoch)
        return stop - first, held.between(first, stop) if held else []

    def brings(self, number: int, epoch: int, run_state: RunState, labels: range) -> bool:
        """Return whether the close of `epoch` lists updates of a feed that are labelled with one of the
        epochs `labels`."""
        return bool(labels) and any(one.label in labels for one in self._named(number, epoch, run_state)[1])

    def lost(self, view: View, after: float | None, now: float) -> Amend | None:
        """Return the amendment that ends a feed whose listed steps have been missing for `after` seconds
        (CLAIMED times as long if a peer claims to have them). The feed ends at the last close up to which all
        its listed updates are held. Return None if no feed has to end, or if `after` is None."""
        run_state = view.run_state
        if after is None:
            return None
        for feed, held in self.missing().items():
            patience = after * CLAIMED if view.claimed(feed) else after
            number = run_state.number(feed)
            if number is None or now - held.missing_since < patience:
                continue
            named_stop = run_state.named_stop(number, held.stop)
            whole = named_stop.stop if named_stop else 0
            later = (epoch for epoch in range(run_state.open_epoch) if run_state.named(number, epoch) > whole)
            return Amend(number, next(later))
        return None


def _judged(number: int, run_state: RunState) -> int:
    """Return the step up to which seals had judged a feed before the last seal."""
    return run_state.named(number, run_state.sealed - 2)


def _boundaries(feed: Feed, view: View) -> list[Boundary]:
    """Return the boundaries of all held updates of a feed that may still be listed or sealed."""
    number = view.run_state.number(feed)
    first = min(view.state(feed).next, 0 if number is None else _judged(number, view.run_state))
    return [*([view.boundary(feed, first)] if first else []), *view.boundaries(feed, first)]
