"""Feeds as the organiser's node holds them, and peers too: what of them may be named, sealed or given up.

Data of the organiser, which alone decides; what was named of a feed is read from a `RunState`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sfnode.organising.evaluation.evidence import GAIN_BY_COST, Weighted, references, weighted_median
from sfnode.organising.view import Boundary, View
from sfprotocol import validation
from sfprotocol.decisions import INCARNATIONS, Amend, Move
from sfprotocol.messages import Feed
from sfprotocol.quotas import UNLIMITED
from sfprotocol.run_state import NEVER, RunState

CLAIMED = 4
"""Times as long that a feed is waited for of which a peer says that it has what is missing: it may be slow.
What never comes is not there, or the peer lies."""

OVERSIZED = 1 + GAIN_BY_COST
"""Times the usual size of a scalar, as a root mean square, up to which work counts at once. What is w times
as large gains as w and costs as w squared: beyond this even useful work does harm. It waits for the seal
before the end, which has a factor of its own."""

FEW = 3
"""Scalars of the usual size that are added to those of a member before they are called oversized: one of few
may be large by chance."""


@dataclass(slots=True)
class HeldFeed:
    """A feed as this node holds it, and peers too."""

    since: float
    """Time since which something waits to be named."""
    missing_since: float
    """Time at which more of what is named was here than ever before, or all of it, or nobody to ask."""
    boundaries: list[Boundary] = field(default_factory=list)
    shown: int = 0
    """The first step that no peer has shown to hold."""
    forked: int = NEVER
    named: int = 0
    """The first step that was not named when we last looked."""
    most: int = 0
    """The most that was here while something was missing."""
    grown: float = 0.0
    """Time at which it last grew."""

    @property
    def stop(self) -> int:
        """The first step that is not here."""
        return self.boundaries[-1].stop if self.boundaries else 0

    @property
    def next_boundary(self) -> int:
        """The first boundary of what waits; where nothing does, the last of all."""
        return next((one.stop for one in self.boundaries if one.stop > self.named), self.stop)

    def boundary(self, stop: int) -> Boundary | None:
        """Return the boundary at a step, if there is one."""
        return next((one for one in reversed(self.boundaries) if one.stop == stop), None)

    def enough(self, updates: int) -> int:
        """Return the first boundary up to which so many wait that move anything; NEVER if fewer do."""
        moving, before = 0, self.named
        for one in self.boundaries:
            if one.stop > self.named:
                moving, before = moving + one.stop - before - one.zeros, one.stop
            if moving >= updates:
                return one.stop
        return NEVER

    @property
    def waiting(self) -> int:
        """Updates that move anything and wait to be named."""
        return max(0, self.stop - self.named - self.zeros(self.stop))

    def zeros(self, stop: int) -> int:
        """Return how many of the steps that wait, up to `stop`, have the scalar 0."""
        return sum(one.zeros for one in self.boundaries if self.named < one.stop <= stop)

    def labelled(self, epoch: int) -> int:
        """Return how many updates at its end have the label of an epoch, or a later one."""
        stops = [0, *(one.stop for one in self.boundaries)]
        return sum(b - a for a, b, one in zip(stops, stops[1:], self.boundaries) if one.label >= epoch)  # noqa: B905

    def last_nameable(self, limit: int, revoked: int) -> Boundary | None:
        """Return the last boundary up to a step before which no label is revoked."""
        last = None
        for one in self.boundaries:
            if one.stop > limit or (one.stop > self.named and one.label >= revoked):
                break
            last = one if one.stop > self.named else None
        return last


class Nameable(NamedTuple):
    """The part of a feed that a close may name."""

    number: int
    steps: int
    since: float
    """Time since which it waits."""
    boundary: Boundary
    """The boundary at which the close may stop."""
    zeros: int
    """Steps of it whose scalar is 0."""
    waiting: int
    """Steps that may count and wait in the feed, those beyond the part included."""

    @property
    def moving(self) -> int:
        """Steps of it that may count."""
        return self.steps - self.zeros

    def move(self, salt: bytes) -> Move:
        """Return the move that names it in a close with this salt."""
        return Move(self.number, self.steps, validation.tag(salt, self.boundary.chain), self.zeros)


class HeldFeeds:
    """All feeds that are held, named or shown."""

    def __init__(self) -> None:
        self._feeds: dict[Feed, HeldFeed] = {}
        self._served: dict[int, float] = {}
        """Time at which something of a member was last named."""
        self._unshown: dict[Feed, None] = {}
        """Feeds of which more is held than peers have shown."""
        self._sealed = 0
        """Seals by which boundaries were forgotten last."""

    def __len__(self) -> int:
        return len(self._feeds)

    def of(self, feed: Feed, now: float) -> HeldFeed:
        """Return what is known of a feed."""
        return self._feeds.setdefault(feed, HeldFeed(now, now))

    # -- what is seen ------------------------------------------------------------------------------

    def follow(self, view: View, moved: Iterable[Feed], now: float) -> int:
        """Look at feeds of which something else is held, counts or is proven; return how many updates have
        come."""
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
        """Forget the boundaries before the last one that seals have judged, whoever signs the seals."""
        if run_state.sealed == self._sealed:
            return
        self._sealed = run_state.sealed
        for number, stop in run_state.positions(run_state.sealed - 1).items():
            held = self._feeds.get(run_state.feed(number))
            boundaries = held.boundaries if held else []
            judged = bisect_left(boundaries, stop, key=lambda one: one.stop)
            del boundaries[: min(judged, len(boundaries) - 1)]  # the last one says how much is held

    @staticmethod
    def _continues(feed: Feed, held: HeldFeed, view: View) -> bool:
        """Return whether what is held of a feed continues what was, with all boundaries."""
        last, now = held.boundaries[-1:], view.state(feed).next
        if not last or view.chain(feed, min(held.stop, now)) != last[0].chain:
            return False
        number = view.run_state.number(feed)
        judged = 0 if number is None else _judged(number, view.run_state)
        named_stops = () if number is None else view.run_state.named_stops(number, judged, held.stop)
        return all(held.boundary(named_stop.stop) for named_stop in named_stops)

    def hear(self, view: View) -> None:
        """Take note of how much of what is held peers have shown to hold, too."""
        for feed, stop in view.shown(self._unshown).items():
            held = self._feeds[feed]
            held.shown = max(held.shown, stop)
            if stop >= held.stop:
                del self._unshown[feed]

    def refresh(self, run_state: RunState, now: float, *, asked: bool) -> None:
        """Bring the times up to date since which feeds wait or miss something; `asked`: there are peers."""
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
        """Return the feeds of which named steps were not here when we last looked."""
        return {feed: held for feed, held in self._feeds.items() if held.stop < held.named}

    def waiting(self, run_state: RunState) -> tuple[int, int]:
        """Return how many updates that move anything wait to be named of members who were vouched for, and of
        strangers."""
        found = {False: 0, True: 0}
        for feed, held in self._feeds.items():
            if (number := run_state.number(feed)) is not None and run_state.ended(number) == NEVER:
                found[run_state.quotas.is_stranger(number // INCARNATIONS)] += held.waiting
        return found[False], found[True]

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
        """Yield what `most` moves of a close may name, what waits longest first, until it is `rest` updates;
        only what peers have shown unless `alone`. Nothing is named that is not here. Work of members who are
        not `trusted` is beside the `rest`: seals skip it, and a run would end in ever smaller epochs.

        Of a member it is no more than its quota with the open label and twice its credit, over all its feeds
        and whatever their labels; of all strangers without credit together, no more than `shared`, which
        those who wait share alike, in turns: whoever has much waiting, in however many feeds, leaves room for
        others to earn credit. What a stranger signed as a whole when its quota was larger, and is more than
        `shared`, is only named after all else; if its author is `trusted`, once it has waited since before
        `overdue`. Of others seals skip it, and they count again once what comes after it was measured.
        """
        left: dict[int, int] = {}
        waiting = {
            feed: (self._is_unproven(number, run_state), number, held)
            for feed, held in self._feeds.items()
            if held.stop > held.named
            and (number := run_state.number(feed)) is not None
            and run_state.ended(number) == NEVER
        }
        sharing = {number // INCARNATIONS for unproven, number, _ in waiting.values() if unproven}
        part, each = shared, max(1, shared // max(1, len(sharing)))

        def turn(feed: Feed) -> tuple[bool, float, Feed]:
            unproven, number, held = waiting[feed]
            member = number // INCARNATIONS
            served = self._served.get(member, held.since) if unproven else held.since
            credit = run_state.credit(member) if run_state.quotas.is_stranger(member) else UNLIMITED
            quota = run_state.quotas.quota(member, run_state.open_epoch)
            quota = each if unproven else min(quota, 2 * credit)  # at a run's start quotas are larger
            left.setdefault(member, quota)
            return held.next_boundary - held.named > max(part, credit), max(held.since, served), feed

        for is_large, _, feed in sorted(map(turn, waiting)):
            unproven, number, held = waiting[feed]
            if rest <= 0 or not most:
                return
            member = number // INCARNATIONS
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
        """Return whether a feed is of a stranger without credit."""
        member = number // INCARNATIONS
        return run_state.quotas.is_stranger(member) and not run_state.credit(member)

    def made(self, run_state: RunState) -> dict[int, int]:
        """Return how many updates with the label of the open epoch are here, by member."""
        found = Counter[int]()
        for feed, held in self._feeds.items():
            if (number := run_state.number(feed)) is not None and held.boundaries:
                found[number // INCARNATIONS] += held.labelled(run_state.open_epoch)
        return +found

    def active(self, run_state: RunState, since: float) -> set[int]:
        """Return the members of whom something has come since a time."""
        feeds = (feed for feed, held in self._feeds.items() if held.grown >= since and held.boundaries)
        return {number // INCARNATIONS for feed in feeds if (number := run_state.number(feed)) is not None}

    def renewing(self, run_state: RunState) -> set[int]:
        """Return the members of whom a feed waits to be named with which they do not go on yet."""
        waiting = (run_state.number(feed) for feed, held in self._feeds.items() if held.stop > held.named)
        return {n // INCARNATIONS for n in waiting if n is not None and not run_state.goes_on_with(n)}

    def chains(self, run_state: RunState, epoch: int) -> list[tuple[int, int, bytes]] | None:
        """Return (feed, stop, chain hash there) of what closes up to this one have named; None if it is not
        all here."""
        found = []
        for number, stop in run_state.positions(epoch).items():
            held = self._feeds.get(run_state.feed(number))
            boundary = held.boundary(stop) if held else None
            if boundary is None:
                return None
            found.append((number, stop, boundary.chain))
        return found

    def oversized(self, epoch: int, run_state: RunState) -> set[int]:
        """Return the numbers of the feeds of members of whom the close of `epoch` has named scalars that are
        too large to count at once; none where there are too few members to say what is usual."""
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
        """Return how many updates of a feed that move anything the close of `epoch` has named, and the sum of
        the squares of their scalars."""
        named = self._named(number, epoch, run_state)
        steps = run_state.named(number, epoch) - run_state.named(number, epoch - 1)
        return steps - sum(one.zeros for one in named), sum(one.squares for one in named)

    def norms(self, epoch: int, run_state: RunState, skipped: Collection[int]) -> dict[int, float]:
        """Return the usual norm of an update of each member of whom the close of `epoch` has named some, root
        mean square, in units of 2^-16 of scalar_delta; without feeds that are `skipped`."""
        found: dict[int, list[Boundary]] = {}
        updates = Counter[int]()
        for number in run_state.moved(epoch):
            if number not in skipped:
                found.setdefault(number // INCARNATIONS, []).extend(self._named(number, epoch, run_state))
                updates[number // INCARNATIONS] += run_state.named(number, epoch) - run_state.named(
                    number, epoch - 1
                )
        return {
            member: math.sqrt(sum(one.squares * one.unit**2 for one in named) / updates[member])
            for member, named in found.items()
        }

    def moving(self, number: int, epoch: int, run_state: RunState) -> int:
        """Return how many updates of a feed that move anything the close of `epoch` has named."""
        return self._size(number, epoch, run_state)[0]

    def _named(self, number: int, epoch: int, run_state: RunState) -> list[Boundary]:
        """Return the boundaries in what the close of `epoch` has named of a feed."""
        held = self._feeds.get(run_state.feed(number))
        first, stop = run_state.named(number, epoch - 1), run_state.named(number, epoch)
        return [one for one in (held.boundaries if held else []) if first < one.stop <= stop]

    def brings(self, number: int, epoch: int, run_state: RunState, labels: range) -> bool:
        """Return whether the close of `epoch` has named updates with one of these labels."""
        return any(one.label in labels for one in self._named(number, epoch, run_state))

    def lost(self, view: View, after: float | None, now: float) -> Amend | None:
        """Return the end of a feed of which named steps have been missing for `after` seconds, at the last
        close that is all here; longer if a peer says that it has them. None ends none."""
        run_state = view.run_state
        for feed, held in self.missing().items():
            if after is None:
                break
            patience = after * CLAIMED if view.claimed(feed) else after
            number = run_state.number(feed)
            if number is None or now - held.missing_since < patience:
                continue
            named_stop = run_state.named_stop(number, held.stop)
            whole = named_stop.stop if named_stop else 0
            return Amend(
                number, next(e for e in range(run_state.open_epoch) if run_state.named(number, e) > whole)
            )
        return None


def _judged(number: int, run_state: RunState) -> int:
    """Return the step up to which seals have judged a feed, but for the last one."""
    return run_state.named(number, run_state.sealed - 2)


def _boundaries(feed: Feed, view: View) -> list[Boundary]:
    """Return the boundaries of all that is held of a feed and may still be named, or sealed."""
    number = view.run_state.number(feed)
    first = min(view.state(feed).next, 0 if number is None else _judged(number, view.run_state))
    return [*([view.boundary(feed, first)] if first else []), *view.boundaries(feed, first)]
