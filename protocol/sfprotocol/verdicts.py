"""Verdicts on the listed steps of one feed: whether they count, and their factor (SPEC O8).

The verdicts are a table in parallel arrays, with a row of 23 bytes for each close that lists steps of the
feed. This module knows one feed and no decisions; `run_state` decides which changes are valid.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from sfprotocol.decisions import FACTOR_ONE, TAG_BYTES

OPEN, SKIPPED, COUNTED, VOID = range(4)
"""Verdicts on the steps that a close lists of a feed. OPEN: no seal has judged them yet. SKIPPED: they do not
count, but a later seal may count them. COUNTED: they count. VOID: they never count again."""


@dataclass(slots=True)
class NamedSteps:
    """The listed steps of one feed that no Amend has removed. The arrays have one row for each close that
    lists such steps; the index of a row is called its place."""

    epochs: array[int] = field(default_factory=lambda: array("I"))
    """Epochs of the closes, ascending."""
    stops: array[int] = field(default_factory=lambda: array("I"))
    moving: array[int] = field(default_factory=lambda: array("I"))
    """Number of the close's steps whose scalar is not 0. Steps with the scalar 0 do not count."""
    factors: array[int] = field(default_factory=lambda: array("H"))
    verdicts: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _tags: bytearray = field(default_factory=bytearray)

    @property
    def stop(self) -> int:
        """The first step that no close lists."""
        return self.stops[-1] if self.stops else 0

    def stop_at(self, epoch: int) -> int:
        """Return the first step that is not listed by the close of `epoch` or an earlier one."""
        return self._first(bisect_right(self.epochs, epoch))

    def place(self, epoch: int) -> int | None:
        """Return the index of the row for the close of `epoch`; None if this close lists no step of the
        feed."""
        place = bisect_left(self.epochs, epoch)
        return place if place < len(self.epochs) and self.epochs[place] == epoch else None

    def tag(self, place: int) -> bytes:
        """Return the tag of the feed's history up to the last step that row `place` lists."""
        return bytes(self._tags[place * TAG_BYTES : (place + 1) * TAG_BYTES])

    def verdict(self, epoch: int) -> int:
        """Return the verdict on the steps that the close of `epoch` lists; VOID if there are none."""
        place = self.place(epoch)
        return VOID if place is None else self.verdicts[place]

    def factor(self, epoch: int) -> int:
        """Return the factor, in units of 2^-12, of the steps that the close of `epoch` lists; 0 if they do
        not count."""
        place = self.place(epoch)
        return 0 if place is None or self.verdicts[place] != COUNTED else self.factors[place]

    def counts(self, epoch: int) -> int:
        """Return the number of steps that the close of `epoch` lists and that count."""
        place = self.place(epoch)
        return 0 if place is None or not self.factor(epoch) else self.moving[place]

    def judged(self, first: int, sealed: int) -> Iterator[tuple[int, tuple[int, int] | None]]:
        """Yield a pair for each epoch from `first` up to (not including) `sealed` with listed steps. It is
        (epoch, (number of steps, number of steps other than zeros)) if the steps count, and (epoch, None) if
        they are skipped. Epochs whose steps are void or have factor 0 are left out."""
        epochs, verdicts = self.epochs, self.verdicts
        for place in range(bisect_left(epochs, first), bisect_left(epochs, sealed)):
            if verdicts[place] == SKIPPED:
                yield epochs[place], None
            elif verdicts[place] == COUNTED and self.factors[place]:
                yield epochs[place], (self.stops[place] - self._first(place), self.moving[place])

    def append(self, epoch: int, stop: int, tag: bytes, zeros: int) -> None:
        """Add the steps up to `stop`, which a close lists. `zeros` of them have the scalar 0."""
        self.moving.append(stop - self.stop - zeros)
        self.epochs.append(epoch)
        self.stops.append(stop)
        self._tags += tag
        self.factors.append(FACTOR_ONE)
        self.verdicts.append(OPEN)

    def judge(self, place: int, verdict: int, factor: int) -> int:
        """Set the verdict and the factor of row `place`; return the change in the number of counted
        updates."""
        counted = self.verdicts[place] == COUNTED and self.factors[place] > 0
        counts = verdict == COUNTED and factor > 0
        self.verdicts[place], self.factors[place] = verdict, factor
        return (counts - counted) * self.moving[place]

    def void(self, first: int, last: int) -> int | None:
        """Void the steps of rows `first` up to (not including) `last`. Return the change in the number of
        counted updates; None if no verdict changes."""
        judged = None
        for verdict in (COUNTED, SKIPPED):
            while (place := self.verdicts.find(verdict, first, last)) >= 0:
                judged = (judged or 0) + self.judge(place, VOID, 0)
        return judged

    def end(self, place: int) -> None:
        """Delete the rows from `place` on, and end the feed, so that no later close can list steps of it."""
        del self.epochs[place:], self.stops[place:], self.factors[place:], self.verdicts[place:]
        del self.moving[place:]
        del self._tags[place * TAG_BYTES :]
        self.ended = True

    def _first(self, place: int) -> int:
        return self.stops[place - 1] if place else 0
