"""Validation of segments, by content and then by signature (SPEC U3-U6, S4, S5, O6, E4).

The result depends only on the run, the stored updates of the feed, and the segment. It never depends on the
link, the time or other feeds, so that all nodes judge alike. Cheap checks come first.

In an organised run it also depends on the decisions so far, which determine how many updates of a feed may be
held, and of which history. The order of arrival does not matter: a segment that is refused now may be held
after later decisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from sfprotocol.checkpoints import Base
from sfprotocol.decisions import INCARNATIONS, TAG_BYTES
from sfprotocol.fields import Values, cells_of
from sfprotocol.frontier import FeedState
from sfprotocol.messages import EpochScalars, RunParameters, Segment
from sfprotocol.run_state import RunState
from sfprotocol.segments import drop_updates, first_updates, without_front
from sfprotocol.signing import Verify, extend


def early(run_state: RunState, states: Sequence[FeedState], segment: Segment) -> bool:
    """Return whether decisions for this segment are missing here, so that it must be requested again later.
    That is the case if the segment has a label of an epoch that is not open yet (unless Closes list its first
    step), or if its origin is no member. `states` are the feeds with the segment's key."""
    strangers = all(run_state.member(state.feed.origin) is None for state in states)
    unopened = segment.parts[-1].epoch > run_state.open_epoch
    named = any(segment.first < state.named for state in states)
    return (unopened and not named) or (bool(states) and strangers)


def label_fault(run_state: RunState, state: FeedState, segment: Segment) -> str | None:
    """Return the rule that `segment` breaks as the continuation of `state`, or None. Hashes nothing.

    If the segment is not `early`, a broken rule means that no honest node has made the segment.
    """
    number = run_state.number(state.feed)
    if number is None:
        return "O6: the feed of an origin that is not admitted"
    found = _refused(run_state, number, state, segment)
    return found.reason if found and segment.first >= state.named else None


def _refused(run_state: RunState, number: int, state: FeedState, segment: Segment) -> Refused | None:
    end = Base(state.feed, state.next, state.chain, state.epoch, state.labelled)
    return refused(run_state, number, end, segment.parts, state.named)


class Refused(NamedTuple):
    """An update that may not be held."""

    step: int
    reason: str


def refused(
    run_state: RunState, number: int, base: Base, parts: Iterable[EpochScalars], named: int
) -> Refused | None:
    """Return the first update in `parts`, which follow `base`, that may not be held because of its label;
    None if all may be held. Updates before step `named` may always be held, because Closes list them. `base`
    describes the end of the feed before `parts`."""
    member, incarnation = divmod(number, INCARNATIONS)
    step, labelled, epoch, quotas = base.step, base.labelled, base.epoch, run_state.quotas
    for part in parts:
        labelled = labelled if part.epoch == epoch else 0
        epoch, count = part.epoch, len(part.scalars)
        allowed, reason = count, ""
        if epoch > run_state.open_epoch:
            allowed, reason = 0, "O6: a label of an epoch that is not open"
        else:
            first = count if quotas.incarnation(member, epoch) == incarnation else max(0, 1 - step)
            left = max(0, quotas.quota(member, epoch) - labelled)
            if count > first:
                allowed, reason = first, "O6: a feed with which its member does not go on"
            if count > left:
                allowed, reason = min(allowed, left), "O6: more updates of one epoch than the quota"
        if allowed < count and step + count > named:
            return Refused(max(named, step + allowed), reason)
        step, labelled = step + count, labelled + count
    return None


def countable(run_state: RunState | None, state: FeedState, segment: Segment) -> int:
    """Return how many updates of `segment`, which continues `state`, may count, from its first update on. The
    next update after these may not be held, or has a label for which its origin is revoked. Listed updates
    may always count."""
    number = run_state.number(state.feed) if run_state else None
    if run_state is None or number is None:
        return segment.count
    found = _refused(run_state, number, state, segment)
    allowed = found.step - segment.first if found else segment.count
    revoked = run_state.members[number // INCARNATIONS].revoked
    before = sum(len(part.scalars) for part in segment.parts if part.epoch < revoked)
    return min(allowed, max(before, state.named - segment.first))


def labelled_after(state: FeedState, parts: Iterable[EpochScalars]) -> int:
    """Return how many consecutive updates at the end of a feed have its last label, after `parts` are added
    to the feed with this `state`."""
    labelled, epoch = state.labelled, state.epoch
    for part in parts:
        labelled = (labelled if part.epoch == epoch else 0) + len(part.scalars)
        epoch = part.epoch
    return labelled


def tag(salt: bytes, chain: bytes) -> bytes:
    """Return the tag of a history that ends with this chain hash, in the Close with this salt (SPEC O7)."""
    return hashlib.blake2b(salt + chain, digest_size=32).digest()[:TAG_BYTES]


def follows(run_state: RunState, state: FeedState, segment: Segment, most: int) -> bool:
    """Return whether `segment`, which continues `state`, belongs to the history that Closes list. A segment
    has at most `most` updates.

    A listed end is the last step of a feed in some Close; the Close's tag identifies the history up to there.
    So for a forked feed, the segment must reach a listed end, and must not end between two listed ends,
    unless the segment has more than half of `most` updates.
    """
    number = run_state.number(state.feed)
    if number is None or state.next >= state.named:
        return True
    chain, at, checked = state.chain, state.next, False
    parts = segment.parts
    for stop, salt, expected in run_state.named_stops(number, state.next, segment.stop):
        chain = extend(chain, first_updates(parts, stop - at))
        parts, at, checked = drop_updates(parts, stop - at), stop, True
        if tag(salt, chain) != expected:
            return False
    # A peer joins segments to at most `most` updates, and there may be more between two listed ends.
    decided = at == segment.stop or segment.stop >= state.named or 2 * segment.count > most
    return not state.is_forked or (checked and decided)


class Verified(NamedTuple):
    """The new updates of a segment, whose signature is valid."""

    segment: Segment
    """All updates of the segment from the first new one on, because the signature can be verified only with
    all of them."""
    chain: bytes
    """The chain head after the segment."""
    counted: int
    """Number of the segment's first updates that count. Updates after a cut do not count, and neither do
    those with a label for which the origin is revoked."""
    counted_chain: bytes
    """The chain head after the updates that count."""


def fault(
    run: RunParameters, state: FeedState, segment: Segment, run_state: RunState | None = None
) -> str | None:
    """Return the rule that `segment` breaks as the continuation of `state`, or None. Hashes nothing.

    `run_state` is the state of an organised run, None in an open one.
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
    if run_state is not None:
        return label_fault(run_state, state, segment)
    if segment.stop > run.longest_feed:
        return "U6: a feed longer than the run allows"
    if epochs[-1] > run.last_epoch:
        return "U5: an epoch that passes the budget"
    return None


def _fault_of_values(run: RunParameters, told: tuple[Values, ...]) -> str | None:
    """Return the rule that these values break, or None. Messages always have the right form, but updates read
    from files may not."""
    cells = {cells_of(values) for values in told} if run.cells else set(map(type, told))
    if cells != {run.cells or int}:
        return "U11: an update of another form"
    for scalars in cast(tuple[tuple[int, ...], ...], told if run.cells else (told,)):
        if max(scalars) > run.scalar_limit or min(scalars) < -run.scalar_limit:
            return "U3: a scalar beyond the limit"
    return None


def due(state: FeedState, segment: Segment) -> bool:
    """Return whether `segment` contains the next step of the feed, and the feed is open (SPEC FL4)."""
    return segment.first <= state.next < segment.stop and state.open


def verify(
    run: RunParameters, state: FeedState, segment: Segment, signed: Verify, run_state: RunState | None = None
) -> Verified | None:
    """Return the part of `segment` that is new to `state`.

    Return None if the segment is not due, breaks a rule, has no valid signature for this history, or
    continues another history than the one that a fork proof or the listed steps have settled.
    """
    if not due(state, segment):
        return None
    fresh = without_front(segment, state.next)
    if fault(run, state, fresh, run_state):
        return None
    if run_state and not follows(run_state, state, fresh, run.form.segment_updates):
        return None
    counted = min(state.cut - state.next, countable(run_state, state, fresh))
    counted_chain = extend(state.chain, first_updates(fresh.parts, counted))
    if state.next + counted == state.fork_cut and counted_chain != (state.cut_chain or counted_chain):
        return None
    head = extend(counted_chain, drop_updates(fresh.parts, counted))
    if not signed(run.run_id, state.feed, fresh.stop, head, segment.signature):
        return None
    return Verified(fresh, head, counted, counted_chain)
