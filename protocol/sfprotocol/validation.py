"""Validation: what may enter the frontier, by content and then by signature (SPEC U3-U6, S4, S5, E4).

Whether a segment is admitted depends only on the run, on what is already known of its feed, and on the
segment: never on the link, the time, or other feeds. So all nodes judge alike. Cheap checks come first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, cast

from sfprotocol import holding
from sfprotocol.counting import Counting
from sfprotocol.frontier import FeedState
from sfprotocol.messages import RunParameters, Segment
from sfprotocol.segments import drop_updates, first_updates, without_front
from sfprotocol.signing import Verify, extend
from sfprotocol.values import Values, cells_of


class Verified(NamedTuple):
    """The part of a segment that is new, with its origin's signature checked."""

    segment: Segment
    """Updates from the first new one to the end, as the signature needs them."""
    chain: bytes
    """The chain head after it."""
    counted: int
    """Number of its updates that count: all but those behind a cut."""
    counted_chain: bytes
    """The chain head after the updates that count."""


def fault(
    run: RunParameters, state: FeedState, segment: Segment, counting: Counting | None = None
) -> str | None:
    """Return the rule that `segment` breaks as the continuation of `state`, or None. Hashes nothing.

    `counting` is the state of an organised run, None in an open one.
    """
    epochs = [part.epoch for part in segment.parts]
    if not all(part.scalars for part in segment.parts) or not 0 < segment.count <= run.form.segment_updates:
        return "S4: a segment without updates, or with too many"
    if any(a >= b for a, b in pairwise(epochs)):
        return "S4: parts that are not in ascending order of epoch"
    if epochs[0] < state.epoch:
        return "U5: an epoch that goes back"
    if broken := next(filter(None, (_fault_of_values(run, part.scalars) for part in segment.parts)), None):
        return broken
    if counting is not None:
        return holding.fault(counting, state, segment)
    if segment.stop > run.longest_feed:
        return "U6: a feed longer than the run allows"
    if epochs[-1] > run.last_epoch:
        return "U5: an epoch that passes the budget"
    return None


def _fault_of_values(run: RunParameters, told: tuple[Values, ...]) -> str | None:
    """Return the rule that what these updates say breaks. No message has another form, but a file may."""
    cells = {cells_of(values) for values in told} if run.cells else set(map(type, told))
    if cells != {run.cells or int}:
        return "U11: an update of another form"
    for scalars in cast(tuple[tuple[int, ...], ...], told if run.cells else (told,)):
        if max(scalars) > run.scalar_limit or min(scalars) < -run.scalar_limit:
            return "U3: a scalar beyond the limit"
    return None


def due(state: FeedState, segment: Segment) -> bool:
    """Return whether some of `segment` comes next in the feed, and may count (SPEC FL4)."""
    return segment.first <= state.next < segment.stop and state.open


def verify(
    run: RunParameters,
    state: FeedState,
    segment: Segment,
    signed: Verify,
    counting: Counting | None = None,
) -> Verified | None:
    """Return the part of `segment` that is new to `state`.

    None when nothing of it is due, or when it breaks a rule, or when the signature is not the origin's over
    this history, or when this history is not the one that a cut has left.
    """
    if not due(state, segment):
        return None
    fresh = without_front(segment, state.next)
    if fault(run, state, fresh, counting):
        return None
    if counting and not holding.follows(counting, state, fresh, run.form.segment_updates):
        return None
    counted = min(state.cut - state.next, holding.countable(counting, state, fresh))
    counted_chain = extend(state.chain, first_updates(fresh.parts, counted))
    if state.next + counted == state.fork_cut and counted_chain != (state.cut_chain or counted_chain):
        return None
    head = extend(counted_chain, drop_updates(fresh.parts, counted))
    if not signed(run.run_id, state.feed, fresh.stop, head, segment.signature):
        return None
    return Verified(fresh, head, counted, counted_chain)
