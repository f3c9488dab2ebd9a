"""Verdicts on the listed steps of one feed: whether they count, and their factor (SPEC O8).

The verdicts are stored in parallel arrays, which have together 23 bytes for each Close that lists steps of
the feed. This module knows one feed and no decisions; `run_state` decides which changes are valid.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from sfprotocol.decisions import FACTOR_ONE, TAG_BYTES

OPEN, SKIPPED, COUNTED, VOID = range(4)
"""Verdicts on the steps of one feed in one Close. OPEN: no Seal has judged these steps yet. SKIPPED: they do
not count, but a later Seal may count them. COUNTED: they count. VOID: they never count again."""


@dataclass(slots=True)
class NamedSteps:
    """The listed steps of one feed that no Amend has removed. Every array has one item for each Close that
    lists such steps; the index of this item is called the Close's place."""

    epochs: array[int] = field(default_factory=lambda: array("I"))
    """Epochs of the Closes, ascending."""
    stops: array[int] = field(default_factory=lambda: array("I"))
    moving: array[int] = field(default_factory=lambda: array("I"))
    """Number of listed steps in each Close, without those that do not change the weights
    (`decisions.Move.zeros`)."""
    factors: array[int] = field(default_factory=lambda: array("H"))
    verdicts: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _tags: bytearray = field(default_factory=bytearray)

    @property
    def stop(self) -> int:
        """The first step that is not listed by any Close."""
        return self.stops[-1] if self.stops else 0

    def stop_at(self, epoch: int) -> int:
        """Return the first step that is not listed by the Close of `epoch` or an earlier Close."""
        return self._first(bisect_right(self.epochs, epoch))

    def place(self, epoch: int) -> int | None:
        """Return the array index for the Close of `epoch`; None if this Close lists no step of the feed."""
        place = bisect_left(self.epochs, epoch)
        return place if place < len(self.epochs) and self.epochs[place] == epoch else None

    def tag(self, place: int) -> bytes:
        """Return the tag of the feed's history up to the last listed step of the Close with this `place`."""
        return bytes(self._tags[place * TAG_BYTES : (place + 1) * TAG_BYTES])

    def verdict(self, epoch: int) -> int:
        """Return the verdict on the steps that the Close of `epoch` lists; VOID if there are none."""
        place = self.place(epoch)
        return VOID if place is None else self.verdicts[place]

    def factor(self, epoch: int) -> int:
        """Return the factor, in units of 2^-12, of the steps that the Close of `epoch` lists; 0 if they do
        not count."""
        place = self.place(epoch)
        return 0 if place is None or self.verdicts[place] != COUNTED else self.factors[place]

    def counts(self, epoch: int) -> int:
        """Return the number of steps that the Close of `epoch` lists and that count."""
        place = self.place(epoch)
        return 0 if place is None or not self.factor(epoch) else self.moving[place]

    def judged(self, first: int, sealed: int) -> Iterator[tuple[int, tuple[int, int] | None]]:
        """Yield the results of the epochs from `first` up to (not including) `sealed`, in order. If the
        listed steps of an epoch count, yield (epoch, (number of steps, number of those that change the
        weights)). If they are skipped, yield (epoch, None). Leave out epochs without listed steps, and those
        whose steps are void or have factor 0."""
        epochs, verdicts = self.epochs, self.verdicts
        for place in range(bisect_left(epochs, first), bisect_left(epochs, sealed)):
            if verdicts[place] == SKIPPED:
                yield epochs[place], None
            elif verdicts[place] == COUNTED and self.factors[place]:
                yield epochs[place], (self.stops[place] - self._first(place), self.moving[place])

    def append(self, epoch: int, stop: int, tag: bytes, zeros: int) -> None:
        """Add the steps up to `stop`, which the Close of `epoch` lists. `zeros` is the number of those that
        do not change the weights."""
        self.moving.append(stop - self.stop - zeros)
        self.epochs.append(epoch)
        self.stops.append(stop)
        self._tags += tag
        self.factors.append(FACTOR_ONE)
        self.verdicts.append(OPEN)

    def judge(self, place: int, verdict: int, factor: int) -> int:
        """Set the verdict and the factor of the steps at index `place`; return the change in the number of
        counted updates."""
        counted = self.verdicts[place] == COUNTED and self.factors[place] > 0
        counts = verdict == COUNTED and factor > 0
        self.verdicts[place], self.factors[place] = verdict, factor
        return (counts - counted) * self.moving[place]

    def void(self, first: int, last: int) -> int | None:
        """Make void the steps at the indices from `first` up to (not including) `last`. Return the change in
        the number of counted updates; None if no verdict changes."""
        judged = None
        for verdict in (COUNTED, SKIPPED):
            while (place := self.verdicts.find(verdict, first, last)) >= 0:
                judged = (judged or 0) + self.judge(place, VOID, 0)
        return judged

    def end(self, place: int) -> None:
        """Delete the items from index `place` on, and end the feed: later Closes cannot list steps of it."""
        del self.epochs[place:], self.stops[place:], self.factors[place:], self.verdicts[place:]
        del self.moving[place:]
        del self._tags[place * TAG_BYTES :]
        self.ended = True

    def _first(self, place: int) -> int:
        return self.stops[place - 1] if place else 0
