"""Spans of steps that somebody wants to read, and what the stored segments say of them: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import BrokenRowError
from sfprotocol.checkpoints import Base
from sfprotocol.messages import Feed, Segment
from sfprotocol.segments import drop_updates, first_updates


class Span(Protocol):
    """Steps `first .. stop - 1` of a feed."""

    @property
    def feed(self) -> Feed: ...
    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...


def covering(span: Span, segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield those of consecutive `segments` that hold steps of `span`.

    Raises BrokenRowError when steps are missing.
    """
    following = span.first
    for segment in segments:
        if following >= span.stop:
            return
        if not segment.first <= following < segment.stop:
            break
        yield segment
        following = segment.stop
    if following < span.stop:
        raise BrokenRowError(f"step {following} of a feed is missing")


def label_before(backwards: Iterable[Segment], step: int, base: Base) -> tuple[int, int]:
    """Return the epoch of the update before `step` and how many updates there belong to it.

    The segments are consecutive, the last first, back to the base; they are read only as far as needed.
    """
    epoch: int | None = None
    labelled = 0
    for segment in backwards:
        known = drop_updates(segment.parts, max(0, base.step - segment.first))
        for part in first_updates(known, step - max(segment.first, base.step))[::-1]:
            if epoch not in (None, part.epoch):
                return epoch, labelled
            epoch, labelled = part.epoch, labelled + len(part.scalars)
    if epoch in (None, base.epoch):
        return base.epoch, labelled + base.labelled
    return epoch, labelled


def let_go(feed: Feed, step: int) -> UserError:
    """Return the error of reading a step of a feed that begins later here, at a checkpoint."""
    return UserError(
        Code.CHECKPOINT_UNUSABLE,
        f"step {step} of the feed of {feed.origin.hex()[:16]} is needed, which this folder has let go: a "
        "state before its checkpoint was asked for, or the organiser has changed what counts of what that "
        "stands for",
        "Start it again with --from-checkpoint once the organiser has signed a newer one, or join with "
        "an empty --data-dir.",
    )
