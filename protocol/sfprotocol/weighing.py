"""Weights of updates, as values that another thread may keep and compare (SPEC O8).

`RunState` changes with every decision; whoever adds updates up holds on to what it has added, and with which
weights, so that it can take exactly that out again. Pure values and functions; nothing here knows updates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from sfprotocol.decisions import FACTOR_ONE, INCARNATIONS, RateFrom, Worth
from sfprotocol.fields import Values
from sfprotocol.messages import Feed
from sfprotocol.run_state import NEVER, RunState, Span, multiplier

_EPOCH = attrgetter("epoch")


class Rates(NamedTuple):
    """The rates of an organised run as decided at one moment."""

    open_epoch: int
    """The last epoch of which there are updates."""
    table: tuple[RateFrom, ...]

    @classmethod
    def of(cls, run_state: RunState) -> Rates:
        """Return the rates as they are now."""
        return cls(run_state.open_epoch, run_state.rates())

    def of_label(self, label: int) -> RateFrom:
        """Return the rate of updates with this label, with their unit and limit."""
        return self.table[bisect_right(self.table, label, key=_EPOCH) - 1]

    def hold_in(self, later: Rates) -> bool:
        """Return whether all updates that there are have the same rates in `later`.

        A seal sets rates of epochs to come only, so that this fails only once decisions were dropped.
        """
        if self.table is later.table:
            return True
        known = bisect_right(self.table, self.open_epoch, key=_EPOCH)
        following = later.table[known].epoch if known < len(later.table) else NEVER
        return self.table[:known] == later.table[:known] and following > self.open_epoch


class Counted(NamedTuple):
    """Steps of one feed that count, and how much."""

    spans: tuple[Span, ...]
    """Factors of its first steps."""
    rates: Rates | None = None
    """None in an open run, in which whatever counts counts once."""

    def weight(self, label: int, factor: int, values: Values = 1) -> int:
        """Return what the scalars of an update with these `values` are multiplied with: in units of 2^-32 in
        an organised run. In a zeroth-order run it is the same whatever they are."""
        if self.rates is None:
            return 1 if factor else 0
        rate = self.rates.of_label(label)
        moves = isinstance(values, int) or rate.moves(values)
        return multiplier(rate.rate, factor, rate.unit) if moves else 0


NOTHING = Counted(())
"""Value for a feed that is not there."""


def once(steps: int) -> Counted:
    """Return that the first `steps` steps of a feed count once."""
    return Counted((Span(steps, FACTOR_ONE),) if steps else ())


def named(run_state: RunState, epoch: int) -> dict[Feed, Counted]:
    """Return how what closes up to that of `epoch` have named counts now, by feed."""
    rates, stops = Rates.of(run_state), run_state.positions(epoch)
    return {run_state.feed(feed): Counted(run_state.spans(feed, stop), rates) for feed, stop in stops.items()}


def made(run_state: RunState, epoch: int) -> dict[Feed, Counted]:
    """Return all that closes up to that of `epoch` have named, by feed, as if every seal counted it."""
    rates, stops = Rates.of(run_state), run_state.positions(epoch) if epoch >= 0 else {}
    return {run_state.feed(feed): Counted((Span(stop, FACTOR_ONE),), rates) for feed, stop in stops.items()}


def live(run_state: RunState, held: Mapping[Feed, int]) -> dict[Feed, Counted]:
    """Return how the first updates of members' feeds, as many as `held` says, count now for whoever makes
    updates (SPEC O8)."""
    rates, numbers = Rates.of(run_state), {feed: run_state.number(feed) for feed in held}
    return {
        feed: Counted(run_state.live(number, held[feed]), rates)
        for feed, number in numbers.items()
        if number is not None
    }


class Difference(NamedTuple):
    """Consecutive steps of a feed that count differently."""

    first: int
    stop: int
    before: int
    """Their factor in the one."""
    now: int
    """Their factor in the other."""


def counts_alike(before: Mapping[Feed, Counted], now: Mapping[Feed, Counted]) -> bool:
    """Return whether every update of these feeds has the same weight in both."""
    feeds = before.keys() | now.keys()
    return not any(list(differences(before.get(f, NOTHING), now.get(f, NOTHING))) for f in feeds)


def differences(before: Counted, now: Counted) -> Iterator[Difference]:
    """Yield the steps whose weight may differ, in order."""
    same_rates = before.rates is None or now.rates is None or before.rates.hold_in(now.rates)
    one = other = first = 0
    while one < len(before.spans) or other < len(now.spans):
        old = before.spans[one] if one < len(before.spans) else Span(NEVER, 0)
        new = now.spans[other] if other < len(now.spans) else Span(NEVER, 0)
        stop = min(old.stop, new.stop)
        if old.factor != new.factor or (old.factor and not same_rates):
            yield Difference(first, stop, old.factor, new.factor)
        one, other, first = one + (old.stop == stop), other + (new.stop == stop), stop


WORTH_ONE = 10**9
"""A nat: worths are counted in units of 10^-9."""


class Sum(NamedTuple):
    """Worth of a member."""

    worth: int = 0
    """Nats of validation loss that its work has taken off, in units of 10^-9."""
    updates: int = 0
    """Updates that count and of which the worth was measured."""


def worths(run_state: RunState, said: Iterable[Worth]) -> dict[int, Sum]:
    """Return the worth of each member of whom something that counts was measured; `run_state` is the state
    after all decisions, `said` those of them that tell of worths, in order (SPEC O16).

    A sum of integers: whoever has the same decisions comes to the same sums. How figures are measured is the
    organiser's business."""
    seen: set[tuple[int, int]] = set()
    sums: dict[int, Sum] = {}
    for worth in said:
        for part in worth.parts:
            place = part.feed, worth.epoch
            factor = run_state.factor(*place)
            if not factor or place in seen:
                continue
            seen.add(place)
            member = part.feed // INCARNATIONS
            known = sums.get(member, Sum())
            more, updates = part.worth * factor // FACTOR_ONE, run_state.counts(*place)
            sums[member] = Sum(known.worth + more, known.updates + updates)
    return sums
