"""Which updates may enter the frontier: the rules on their content, then the signature (SPEC U3-U6, S4, S5).

Whether a segment is admitted depends only on the run, on what is already admitted of its feed, and on the
segment: never on the link, the time, or other feeds. So all nodes judge alike. Cheap checks come first.
"""

from __future__ import annotations

from itertools import pairwise

from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.frontier import FeedState, drop_updates
from sfprotocol.messages import RunParameters, Segment
from sfprotocol.signing import extend, verifies


def fault(run: RunParameters, state: FeedState, segment: Segment) -> str:
    """The rule that `segment` breaks as the continuation of `state`, or nothing; before any hashing."""
    epochs = [part.epoch for part in segment.parts]
    if not all(part.scalars for part in segment.parts) or not 0 < segment.count <= MAX_SEGMENT_UPDATES:
        return "S4: a segment without updates, or with too many"
    if any(a >= b for a, b in pairwise(epochs)):
        return "S4: parts that are not in ascending order of epoch"
    if segment.stop > run.update_budget:
        return "U6: a feed longer than the run"
    if epochs[0] < state.epoch or epochs[-1] > run.last_epoch:
        return "U5: an epoch that goes back or passes the budget"
    limit = run.scalar_limit
    if any(max(part.scalars) > limit or min(part.scalars) < -limit for part in segment.parts):
        return "U3: a scalar beyond the limit"
    return ""


def verify(run: RunParameters, state: FeedState, segment: Segment) -> tuple[Segment, bytes] | None:
    """The part of `segment` that is new to `state`, with the chain head after it (32 bytes).

    None when nothing of it comes next in the feed, or when it breaks a rule, or when the signature is not the
    origin's over this history.
    """
    if not segment.first <= state.next < segment.stop:
        return None
    parts = drop_updates(segment.parts, state.next - segment.first)
    fresh = Segment(segment.feed_key, state.next, parts, segment.signature, segment.hops)
    if fault(run, state, fresh):
        return None
    chain = extend(state.chain, parts)
    return (fresh, chain) if verifies(run.run_id, state.feed, fresh.stop, chain, segment.signature) else None
