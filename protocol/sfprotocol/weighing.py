"""Weights of updates (the multipliers of their scalars), as values that another thread may keep and compare
(SPEC O8).

`RunState` changes with every decision. The code that sums updates therefore keeps the weights that it has
used, so that it can later subtract exactly what it has added. Pure values and functions; no updates are
stored here.
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
    """The rates of an organised run after some number of decisions."""

    open_epoch: int
    """The epoch that is open after these decisions; no update made so far has a later label."""
    table: tuple[RateFrom, ...]

    @classmethod
    def of(cls, run_state: RunState) -> Rates:
        """Return the rates as they are now."""
        return cls(run_state.open_epoch, run_state.rates())

    def of_label(self, label: int) -> RateFrom:
        """Return the rate of updates with this label, with their unit and limit."""
        return self.table[bisect_right(self.table, label, key=_EPOCH) - 1]

    def hold_in(self, later: Rates) -> bool:
        """Return whether all updates made so far have the same rates in `later`.

        Seals only set rates of epochs that are not open yet. So the result is False only if decisions were
        dropped in between.
        """
        if self.table is later.table:
            return True
        known = bisect_right(self.table, self.open_epoch, key=_EPOCH)
        following = later.table[known].epoch if known < len(later.table) else NEVER
        return self.table[:known] == later.table[:known] and following > self.open_epoch


class Counted(NamedTuple):
    """The first steps of one feed, with the factors and rates with which they count."""

    spans: tuple[Span, ...]
    """Factors of the feed's first steps."""
    rates: Rates | None = None
    """None in an open run, where every update has the weight 1."""

    def weight(self, label: int, factor: int, values: Values = 1) -> int:
        """Return the multiplier of an update's scalars. In an organised run it is in units of 2^-32; in an
        open run it is 1, or 0 if the factor is 0. The multiplier depends on the update's `values` in
        first-order runs only."""
        if self.rates is None:
            return 1 if factor else 0
        rate = self.rates.of_label(label)
        moves = isinstance(values, int) or rate.moves(values)
        return multiplier(rate.rate, factor, rate.unit) if moves else 0


NOTHING = Counted(())
"""The Counted of a feed without updates that count."""


def once(steps: int) -> Counted:
    """Return the Counted of a feed of an open run whose first `steps` steps are stored: each counts once."""
    return Counted((Span(steps, FACTOR_ONE),) if steps else ())


def named(run_state: RunState, epoch: int) -> dict[Feed, Counted]:
    """Return how the steps listed by the Close of `epoch` and earlier Closes count now, keyed by feed."""
    rates, stops = Rates.of(run_state), run_state.positions(epoch)
    return {run_state.feed(feed): Counted(run_state.spans(feed, stop), rates) for feed, stop in stops.items()}


def made(run_state: RunState, epoch: int) -> dict[Feed, Counted]:
    """Return the Counted of each feed as if every step listed by the Close of `epoch` or an earlier Close
    counted with factor 1."""
    rates, stops = Rates.of(run_state), run_state.positions(epoch) if epoch >= 0 else {}
    return {run_state.feed(feed): Counted((Span(stop, FACTOR_ONE),), rates) for feed, stop in stops.items()}


def live(run_state: RunState, held: Mapping[Feed, int]) -> dict[Feed, Counted]:
    """Return how the first `held[feed]` updates of each feed of a member count now at a node that makes
    updates, keyed by feed (SPEC O8)."""
    rates, numbers = Rates.of(run_state), {feed: run_state.number(feed) for feed in held}
    return {
        feed: Counted(run_state.live(number, held[feed]), rates)
        for feed, number in numbers.items()
        if number is not None
    }


class Difference(NamedTuple):
    """Consecutive steps of a feed whose weights differ between two states."""

    first: int
    stop: int
    before: int
    """Factor of the steps in the first state."""
    now: int
    """Factor of the steps in the second state."""


def counts_alike(before: Mapping[Feed, Counted], now: Mapping[Feed, Counted]) -> bool:
    """Return whether no update of these feeds changes its weight from the state `before` to the state
    `now`."""
    feeds = before.keys() | now.keys()
    return not any(list(differences(before.get(f, NOTHING), now.get(f, NOTHING))) for f in feeds)


def differences(before: Counted, now: Counted) -> Iterator[Difference]:
    """Yield the steps of a feed whose weight may differ between the states `before` and `now`, in order."""
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
"""A worth of one nat, in the unit of worths, which is 10^-9 nats."""


class Sum(NamedTuple):
    """Sum of the worths of one member's updates."""

    worth: int = 0
    """Decrease of the validation loss by the member's updates, in units of 10^-9 nats."""
    updates: int = 0
    """Number of the member's updates that count and whose worth was measured."""


def worths(run_state: RunState, said: Iterable[Worth]) -> dict[int, Sum]:
    """Return the Sum of each member with measured updates that count, keyed by member number (SPEC O16).
    `run_state` is the state after all decisions; `said` are the Worth decisions, in order.

    The result is a sum of integers, so that equal decisions give equal sums. How worths are measured is up to
    the organiser.
    """
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
