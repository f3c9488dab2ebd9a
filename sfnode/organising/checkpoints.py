"""Checkpoints of an organiser: when one is due, and whether it still holds once it was worked out.

One is worked out at a time, by whoever has the log, while decisions go on. It is not signed if by one of them
something else counts up to its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfnode.organising.events import Summarise
from sfprotocol.counting import MAX_EPOCHS, Counting
from sfprotocol.decisions import Amend, Checkpoint, Decision, Seal, Void

SETTLED = 4
"""Seals after an epoch's own before a checkpoint speaks of it: what a seal recounts is mostly younger."""

SUMMARISE_AGAIN = 60.0
"""Seconds until a checkpoint is tried again that could not be worked out."""


@dataclass(slots=True)
class _Summary:
    """The checkpoint that is worked out, or was and is to be signed."""

    epoch: int
    checkpoint: Checkpoint | None = None
    altered: bool = False
    """Whether a decision was signed meanwhile by which something else counts up to that epoch."""


class CheckpointSchedule:
    """The checkpoints of one organiser, from one start to the next."""

    def __init__(self, spacing: int | None, now: float) -> None:
        """`spacing`: seals between two of them; None if none are signed."""
        self._spacing = spacing
        self._summary: _Summary | None = None
        self._from = now
        """The time from which on the next one may be worked out."""

    def due(self, counting: Counting, now: float) -> Checkpoint | Summarise | None:
        """Return the checkpoint that was worked out, or have the next one worked out once it is due."""
        summary, spacing = self._summary, self._spacing
        if summary is not None and summary.checkpoint is not None:
            self._summary = None
            return None if summary.altered else summary.checkpoint
        usable = counting.checkpoints
        epoch, last = counting.sealed - 1 - SETTLED, usable[-1].epoch if usable else -1
        if summary is None and spacing and epoch - last >= spacing and now >= self._from:
            self._summary = _Summary(epoch)
            return Summarise(epoch)
        return None

    def summarised(self, checkpoint: Checkpoint | None, now: float) -> None:
        """Take what was worked out; None if that has failed."""
        if self._summary is None:
            return
        if checkpoint is None or checkpoint.epoch != self._summary.epoch:
            self._summary, self._from = None, now + SUMMARISE_AGAIN
        else:
            self._summary.checkpoint = checkpoint

    def signing(self, decision: Decision) -> None:
        """Take note of a decision that is to be signed."""
        if self._summary and _earliest_altered(decision) <= self._summary.epoch:
            self._summary.altered = True

    def forget(self) -> None:
        """Forget what is worked out: decisions that were here are gone."""
        self._summary = None


def _earliest_altered(decision: Decision) -> int:
    """Return the first epoch of which something else counts by a decision, as far as it was sealed before."""
    match decision:
        case Void(first=epoch) | Amend(epoch=epoch):
            return epoch
        case Seal(recounted=recounted):
            return min((recount.epoch for recount in recounted), default=MAX_EPOCHS)
    return MAX_EPOCHS
