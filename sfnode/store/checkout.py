"""Finds the updates that count according to a seal: a given seal, or the last one whose updates are all in
the log (SPEC O11). Exports, evaluations, verifications and comparisons use this module.

The model of the last seal follows from all decisions up to the next seal: updates revoked between the two
seals do not count. A node that lacks some updates of a seal cannot compute the seal's model, and uses an
earlier seal. The model of a given epoch's seal follows from the decisions up to that seal: later decisions do
not change it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes, run_state_of
from sfprotocol import decisions
from sfprotocol.decisions import Seal
from sfprotocol.messages import Entry, Feed, RunParameters
from sfprotocol.run_state import RunState
from sfprotocol.weighing import NOTHING, Counted, Rates


class Checkout(NamedTuple):
    """The state of a run according to one of its seals."""

    epoch: int | None
    """Epoch of the seal. The seal is a given one, or the last one whose updates are all stored. None if there
    is no such seal."""
    updates: int
    """Number of updates that count according to this seal."""
    counted: dict[Feed, Counted]
    sealed: int
    """Number of epochs that the stored decisions seal."""
    lacking: int
    """Number of updates that the closes of the sealed epochs list and that are not stored."""


def warning(epoch: int | None, sealed: int, lacking: int) -> UserError | None:
    """Return a warning for a user who asks for the model of the last of `sealed` epochs and gets that of
    `epoch`, because `lacking` updates are not in the log. Return None if no update is missing."""
    if epoch is not None and not lacking:
        return None
    if not sealed:
        what = "no round counts yet"
    elif epoch is None:
        what = f"the log lacks {lacking} updates of its {sealed} rounds, and has none of them as a whole"
    else:
        what = f"the log lacks {lacking} updates of rounds after {epoch}, which is taken here"
    fix = "Let the node run until it has caught up; --as-of-now takes what is here."
    return UserError(Code.UPDATES_LACKING, what, fix)


def last_seal(run: RunParameters, entries: Sequence[Entry], held: Callable[[Feed], int]) -> Checkout:
    """Return the updates that count according to the last seal whose updates are all stored. `held` returns
    the number of a feed's first steps that are stored."""
    latest = run_state = run_state_of(run, entries)
    while (epoch := _first_lacking(run_state, held)) is not None:
        entries = entries[: seal_of(run, entries, epoch)]
        run_state = run_state_of(run, entries)
    return _checkout(run_state, latest, held)


def last_of(run_state: RunState, held: Callable[[Feed], int]) -> Checkout | None:
    """Return the updates that count according to the last seal of `run_state`, without applying decisions
    again; None if some of these updates are not stored. `held` as for `last_seal`."""
    whole = _first_lacking(run_state, held) is None
    return _checkout(run_state, run_state, held) if whole else None


def at_seal(
    run: RunParameters, entries: Sequence[Entry], held: Callable[[Feed], int], epoch: int
) -> Checkout:
    """Return the updates that counted when `epoch` was sealed, according to the decisions up to its seal.
    `held` as for `last_seal`.

    Raises UserError BAD_OPTION if the epoch is not sealed, RUN_IS_OPEN in a run without seals,
    UPDATES_LACKING if some of the epoch's updates are not stored.
    """
    if run.organised is None:
        raise UserError(
            Code.RUN_IS_OPEN,
            "an open run has no decisions: nothing says which of its states is that of a round",
            "`sfnode log` shows its rounds; `sfnode export --out FOLDER` writes the model of all updates.",
        )
    latest = run_state_of(run, entries)
    if not 0 <= epoch < latest.sealed:
        has = f"the last one is {latest.sealed - 1}" if latest.sealed else "none does yet"
        raise UserError(
            Code.BAD_OPTION,
            f"round {epoch} of this run does not count yet: {has}",
            "`sfnode log` lists the rounds.",
        )
    found = _checkout(run_state_of(run, entries[: seal_of(run, entries, epoch) + 1]), latest, held)
    stops = (
        (feed, max((one.stop for one in counted.spans), default=0)) for feed, counted in found.counted.items()
    )
    lacking = sum(max(0, stop - held(feed)) for feed, stop in stops)
    if lacking:
        raise UserError(
            Code.UPDATES_LACKING,
            f"the log lacks {lacking} updates that count by round {epoch}",
            "Let the node run until it has caught up.",
        )
    return found


def _checkout(run_state: RunState, latest: RunState, held: Callable[[Feed], int]) -> Checkout:
    """Return the updates that count according to the last seal of `run_state`. `latest` is the run state
    after all stored decisions."""
    rates, last = Rates.of(run_state), run_state.sealed - 1
    stops = run_state.positions(last) if run_state.sealed else {}
    lacking = latest.positions(latest.sealed - 1) if latest.sealed else {}
    return Checkout(
        epoch=last if run_state.sealed else None,
        updates=run_state.counted,
        counted={run_state.feed(n): Counted(run_state.spans(n, stop), rates) for n, stop in stops.items()},
        sealed=latest.sealed,
        lacking=sum(max(0, stop - held(latest.feed(number))) for number, stop in lacking.items()),
    )


def _first_lacking(run_state: RunState, held: Callable[[Feed], int]) -> int | None:
    """Return the first sealed epoch whose close lists a step that is not stored; None if all listed steps are
    stored."""
    if not run_state.sealed:
        return None
    named = run_state.positions(run_state.sealed - 1).items()
    ours = ((number, stop, held(run_state.feed(number))) for number, stop in named)
    lacking = (_epoch_after(run_state, number, here) for number, stop, here in ours if here < stop)
    return min(lacking, default=None)


def _epoch_after(run_state: RunState, number: int, held: int) -> int:
    """Return the first epoch whose close lists steps of feed `number` beyond the first `held` steps."""
    return bisect_right(range(run_state.sealed), held, key=lambda epoch: run_state.named(number, epoch))


def seal_of(run: RunParameters, entries: Sequence[Entry], epoch: int) -> int:
    """Return the position, in the control feed, of the decision that seals this epoch."""
    run_state = RunState.of(run)
    for position, entry in enumerate(entries):
        recorded = decisions.read(entry.record)
        run_state.apply(recorded)
        if run_state.sealed > epoch and isinstance(recorded.decision, Seal):
            return position
    raise AssertionError("an epoch is sealed by a decision")


def advance(
    core: Core,
    update_log: UpdateLog,
    applied: Mapping[Feed, Counted],
    wanted: Mapping[Feed, Counted],
    subspace_of: Callable[[int], int],
) -> None:
    """Change `core`, which is the sum of the `applied` updates, into the sum of the `wanted` updates. Both
    are keyed by feed. Raises as `replay.changes`."""
    for batch in changes(update_log, applied, whole(applied, wanted), subspace_of):
        core.add(batch)


def whole(applied: Mapping[Feed, Counted], wanted: Mapping[Feed, Counted]) -> dict[Feed, Counted]:
    """Return a copy of `wanted` in which each feed that only `applied` contains has the value NOTHING: none
    of its updates count."""
    return {feed: wanted.get(feed, NOTHING) for feed in (*wanted, *applied)}
