"""Verdicts on the steps of one feed that closes have named: which count, and with which factor (SPEC O8).

A table with a place for each close that has named something, kept in arrays: 23 bytes a place. It knows one
feed and no decisions; who may change what, and when, is `run_state`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from sfprotocol.decisions import FACTOR_ONE, TAG_BYTES

OPEN, SKIPPED, COUNTED, VOID = range(4)
"""Verdicts on what a close has named of a feed: none yet; not counted, and may be; counted; never."""


@dataclass(slots=True)
class NamedSteps:
    """Steps that closes have named of one feed and no Amend has taken back; a place for each close."""

    epochs: array[int] = field(default_factory=lambda: array("I"))
    """Ascending."""
    stops: array[int] = field(default_factory=lambda: array("I"))
    moving: array[int] = field(default_factory=lambda: array("I"))
    """Numbers of the steps whose scalar is not 0: the others count for nothing."""
    factors: array[int] = field(default_factory=lambda: array("H"))
    verdicts: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _tags: bytearray = field(default_factory=bytearray)

    @property
    def stop(self) -> int:
        """The first step that no close has named."""
        return self.stops[-1] if self.stops else 0

    def stop_at(self, epoch: int) -> int:
        """Return the first step that no close up to that of `epoch` has named."""
        return self._first(bisect_right(self.epochs, epoch))

    def place(self, epoch: int) -> int | None:
        """Return the place of the close of this epoch; None if it named nothing here."""
        place = bisect_left(self.epochs, epoch)
        return place if place < len(self.epochs) and self.epochs[place] == epoch else None

    def tag(self, place: int) -> bytes:
        """Return the tag of the record at the end of what was named there."""
        return bytes(self._tags[place * TAG_BYTES : (place + 1) * TAG_BYTES])

    def verdict(self, epoch: int) -> int:
        """Return the verdict on what the close of `epoch` has named; VOID if that is nothing."""
        place = self.place(epoch)
        return VOID if place is None else self.verdicts[place]

    def factor(self, epoch: int) -> int:
        """Return the factor with which that counts; 0 if it does not."""
        place = self.place(epoch)
        return 0 if place is None or self.verdicts[place] != COUNTED else self.factors[place]

    def counts(self, epoch: int) -> int:
        """Return how many of these steps count."""
        place = self.place(epoch)
        return 0 if place is None or not self.factor(epoch) else self.moving[place]

    def judged(self, first: int, sealed: int) -> Iterator[tuple[int, tuple[int, int] | None]]:
        """Yield (epoch, (steps, those that move)) of the closes of the epochs from `first` on and before
        `sealed` that seals have counted, None in the place of steps that are skipped. What is void, or has
        factor 0, says nothing."""
        epochs, verdicts = self.epochs, self.verdicts
        for place in range(bisect_left(epochs, first), bisect_left(epochs, sealed)):
            if verdicts[place] == SKIPPED:
                yield epochs[place], None
            elif verdicts[place] == COUNTED and self.factors[place]:
                yield epochs[place], (self.stops[place] - self._first(place), self.moving[place])

    def append(self, epoch: int, stop: int, tag: bytes, zeros: int) -> None:
        """Take in what a close has named: the steps up to `stop`, of which so many have the scalar 0."""
        self.moving.append(stop - self.stop - zeros)
        self.epochs.append(epoch)
        self.stops.append(stop)
        self._tags += tag
        self.factors.append(FACTOR_ONE)
        self.verdicts.append(OPEN)

    def judge(self, place: int, verdict: int, factor: int) -> int:
        """Set what becomes of the steps at a place; return by how many the counted updates change."""
        counted = self.verdicts[place] == COUNTED and self.factors[place] > 0
        counts = verdict == COUNTED and factor > 0
        self.verdicts[place], self.factors[place] = verdict, factor
        return (counts - counted) * self.moving[place]

    def void(self, first: int, last: int) -> int | None:
        """Void the places from `first` on and before `last`; None if they were void, else as `judge`."""
        judged = None
        for verdict in (COUNTED, SKIPPED):
            while (place := self.verdicts.find(verdict, first, last)) >= 0:
                judged = (judged or 0) + self.judge(place, VOID, 0)
        return judged

    def end(self, place: int) -> None:
        """Forget the places from this one on; nothing is named here any more."""
        del self.epochs[place:], self.stops[place:], self.factors[place:], self.verdicts[place:]
        del self.moving[place:]
        del self._tags[place * TAG_BYTES :]
        self.ended = True

    def _first(self, place: int) -> int:
        return self.stops[place - 1] if place else 0
