"""Finds the last seal that a log has as a whole (SPEC O11), and what counts by it: what is exported,
evaluated and verified.

A seal's model is that of the decisions up to the next seal: what the organiser has taken back meanwhile does
not count. Who lacks some of what a seal counts knows nothing of its model, and speaks of an earlier seal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfnode.errors import Code, UserError
from sfnode.store.replay import counting_of
from sfprotocol import decisions
from sfprotocol.counting import Counting
from sfprotocol.decisions import Seal
from sfprotocol.messages import Entry, Feed, RunParameters
from sfprotocol.weighing import Counted, Rates


class Checkout(NamedTuple):
    """The state of a run by one of its seals."""

    epoch: int | None
    """Epoch of the last seal of which everything is here; None if there is none."""
    updates: int
    """Updates that count by it."""
    counted: dict[Feed, Counted]
    sealed: int
    """Epochs that are sealed, by the decisions that are here."""
    lacking: int
    """Updates that these seals are about and that are not here."""


def warning(epoch: int | None, sealed: int, lacking: int) -> UserError | None:
    """Return what to tell whoever asks for the last of `sealed` epochs and is given that of `epoch`; None if
    it is the same one."""
    if epoch is not None and not lacking:
        return None
    if not sealed:
        what = "no epoch is sealed yet, so nothing counts"
    elif epoch is None:
        what = f"the log lacks {lacking} updates of its {sealed} seals, and has none of them as a whole"
    else:
        what = f"the log lacks {lacking} updates of seals after that of epoch {epoch}, which is taken here"
    fix = "Let the node run until it has caught up; --as-of-now takes what is here."
    return UserError(Code.UPDATES_LACKING, what, fix)


def last_seal(run: RunParameters, entries: Sequence[Entry], held: Callable[[Feed], int]) -> Checkout:
    """Return what counts by the last seal of which everything is held: `held(feed)` steps of a feed are."""
    latest = counting = counting_of(run, entries)
    while (epoch := _first_lacking(counting, held)) is not None:
        entries = entries[: _seal_of(run, entries, epoch)]
        counting = counting_of(run, entries)
    rates, last = Rates.of(counting), counting.sealed - 1
    stops = counting.positions(last) if counting.sealed else {}
    lacking = latest.positions(latest.sealed - 1) if latest.sealed else {}
    return Checkout(
        epoch=last if counting.sealed else None,
        updates=counting.counted,
        counted={counting.feed(n): Counted(counting.runs(n, stop), rates) for n, stop in stops.items()},
        sealed=latest.sealed,
        lacking=sum(max(0, stop - held(latest.feed(number))) for number, stop in lacking.items()),
    )


def _first_lacking(counting: Counting, held: Callable[[Feed], int]) -> int | None:
    """Return the first sealed epoch up to which something named is not held; None if there is none."""
    if not counting.sealed:
        return None
    named = counting.positions(counting.sealed - 1).items()
    ours = ((number, stop, held(counting.feed(number))) for number, stop in named)
    lacking = (_epoch_after(counting, number, here) for number, stop, here in ours if here < stop)
    return min(lacking, default=None)


def _epoch_after(counting: Counting, number: int, held: int) -> int:
    """Return the first epoch whose close names more than the first `held` steps of a feed."""
    return bisect_right(range(counting.sealed), held, key=lambda epoch: counting.named(number, epoch))


def _seal_of(run: RunParameters, entries: Sequence[Entry], epoch: int) -> int:
    """Return the position of the decision that seals this epoch."""
    counting = Counting.of(run)
    for position, entry in enumerate(entries):
        recorded = decisions.read(entry.record)
        counting.apply(recorded)
        if counting.sealed > epoch and isinstance(recorded.decision, Seal):
            return position
    raise AssertionError("an epoch is sealed by a decision")
