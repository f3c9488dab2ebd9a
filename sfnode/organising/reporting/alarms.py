"""Alarms of an organised run that somebody must see to, as numbered errors with the same words everywhere.

All nodes with the same control feed show the same alarms. The fix that they give depends on whether the node
has the organiser's key.
"""

from __future__ import annotations

from typing import NamedTuple

from sfnode.errors import Code, UserError
from sfnode.organising.evaluation.health import HealthVerdict
from sfnode.printable import command, part_of, span
from sfnode.schema.metrics import metric_of, result_in_words
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import EvidenceStatus
from sfnode.schema.status import AlarmStatus
from sfprotocol.control_feed import ControlFeed
from sfprotocol.run_state import RunState

NOTHING_TO_DO = "There is nothing to do at this node: the organiser sees the same."

PAUSE_IF_YOU_LIKE = f"{NOTHING_TO_DO} `sfnode pause` stops its part in it until you say `sfnode resume`."


GUARDED = (
    "There is nothing to do: if it stays so, the guard goes back to the best round by itself, and on at a "
    "lower rate."
)

NO_GAIN = 1 / 4
"""Share of the budget after which the model should be better than the base model. A run without a measurable
effect by then is hardly worth the rest of the budget."""


RESTARTED_TIME = 5.0
"""Seconds after its start from which a restarted organiser that may wait for ever raises an alarm. Until then
a neighbour may still link to it."""


Silence = tuple[float, float | None]
"""Seconds for which updates have waited without a decision, and seconds since the last seal (None if no seal
has come since this node's start)."""


class Restarted(NamedTuple):
    """Wait of a restarted organiser that does not sign yet."""

    seconds: float
    """Seconds since the organiser's start."""
    more: int
    """Number of decisions that a neighbour claims to have and this node does not have."""
    linked: bool
    """Whether there is a neighbour, or no neighbour is wanted for now."""
    signed_here: bool
    """Whether the last decisions were signed with this log. If so, the organiser continues even if no
    neighbour is found."""

    @property
    def what(self) -> str:
        """Reason for the wait, in words. The same reason always has the same words, because the log repeats
        the words only if they have changed."""
        if self.more:
            why = f"a neighbour says that it has {self.more} decisions more, which have to come first"
        elif self.linked or self.signed_here:
            why = "it asks others which of its decisions they have, for half a minute as a rule"
        else:
            why = (
                "this folder may lack decisions, as it is a copy or its key has signed elsewhere, and nobody "
                "is there to tell"
            )
        return f"the organiser here signs nothing yet: {why}"

    @property
    def lasts(self) -> bool:
        """Whether the organiser may wait for ever."""
        ends = not self.more and (self.linked or self.signed_here)
        return self.seconds >= RESTARTED_TIME and not ends


ALONE_FIX = (
    "If nobody else has decisions of this run, start this node again with `--organise --set "
    "organise.alone=yes`."
)


def alarms(
    verdict: HealthVerdict,
    feed: ControlFeed,
    run_state: RunState,
    silence: Silence | None,
    own: EvidenceStatus | None = None,
    *,
    here: bool,
    guarded: bool = False,
    restarted: Restarted | None = None,
) -> list[AlarmStatus]:
    """Return the alarms, the gravest first.

    `here`: this node has the organiser's key. `guarded`: the organiser on this node has a guard. `restarted`:
    the wait of this organiser, if it does not sign yet. `own`: the evidence about this node's own work.
    """
    found = []
    if feed.frozen:
        found.append(_frozen(here))
    if run_state.unsupported:
        found.append(_unsupported())
    if verdict.health is RunHealth.WORSE and verdict.latest:
        guarded = guarded and not run_state.complete  # after a run's end a guard can do nothing
        fix = GUARDED if guarded else _take_back(verdict, run_state) if here else PAUSE_IF_YOU_LIKE
        found.append(_worse(verdict, fix))
    if verdict.no_gain and run_state.counted >= NO_GAIN * run_state.budget:
        found.append(_no_better(verdict, run_state, here))
    if restarted and restarted.lasts and not feed.frozen:
        what = f"{span(restarted.seconds)} after its start {restarted.what}"
        found.append(UserError(Code.ORGANISER_SILENT, what, ALONE_FIX))
    elif silence and not feed.frozen:
        found.append(_silent(silence, here))
    waits = own and own.skipped and not own.counts_at_last
    if own and waits and own.harmful_since is None:  # a revoked member has its own message
        found.append(_skipped())
    return [shown(one) for one in found]


def shown(error: UserError) -> AlarmStatus:
    """Return an error as an alarm."""
    return AlarmStatus(code=f"SF{error.code:03d}", what=error.what, fix=error.fix)


def _worse(verdict: HealthVerdict, fix: str) -> UserError:
    assert verdict.latest is not None  # the caller has seen it
    others = " and ".join(map(result_in_words, verdict.worse_than))
    what = f"the run gets worse: {result_in_words(verdict.latest)}, after {others}"
    return UserError(Code.RUN_GETS_WORSE, what, fix)


def _take_back(verdict: HealthVerdict, run_state: RunState) -> str:
    """Return the fix of a worse run for an owner without a guard."""
    first, last = verdict.first_suspect, run_state.sealed - 1
    epochs = f"{first}-{last}" if first < last else f"{last}"
    return (
        f"First take back what made it worse: `{command('sfnode', 'organise', 'void', epochs)}`. If it gets "
        "worse again, the rate may be too large or the budget too long for this model: take that back, too, "
        "and `sfnode organise end`."
    )


def _no_better(verdict: HealthVerdict, run_state: RunState, here: bool) -> UserError:
    assert verdict.best is not None
    assert verdict.base is not None
    trained = metric_of(verdict.base.metric).trained
    best, base = (f"{trained.of(one.loss):.4f}" for one in (verdict.best, verdict.base))
    what = (
        f"no gain can be seen: {part_of(run_state.counted, run_state.budget)} updates count, and the best of "
        f"all rounds, {result_in_words(verdict.best)}, is within what chance makes of "
        f"{result_in_words(verdict.base)}; {trained.name} {best} beside {base}"
    )
    fix = (
        f"If its {trained.name} has hardly changed, or for the worse, another rate may help: `sfnode "
        "organise end`, and `sfnode init` another run. A small gain would be seen with more validation rows."
    )
    return UserError(Code.RUN_NO_BETTER, what, fix if here else PAUSE_IF_YOU_LIKE)


def _frozen(here: bool) -> UserError:
    what = (
        "the run is frozen: the organiser's key has signed two sequences of decisions, or half of those who "
        "stand in for it have voted twice. Training goes on within limits, and none of it counts before the "
        "deputies have named another key"
    )
    fix = (
        "Stop every other node with this key, and pass the run on: `sfnode organise hand-over`."
        if here
        else "There is nothing to do at this node: it goes on by itself once the deputies have handed over."
    )
    return UserError(Code.RUN_FROZEN, what, fix)


def _silent(silence: Silence, here: bool) -> UserError:
    waits, seal = silence
    last = (
        "nothing was counted since this node started"
        if seal is None
        else f"work was counted last {_minutes(seal)} ago"
    )
    what = (
        f"the organiser is silent: updates have waited for {_minutes(waits)} without a decision, "
        f"and {last}. Training goes on within limits, and counts when the organiser is back"
    )
    fix = (
        "`sfnode organise status` tells whether the organiser here signs; it lists only what peers hold, too."
        if here
        else "If you are its owner, start the node that decides with --organise. Otherwise tell them: there "
        "is nothing to do at this node, which may stay or come back later."
    )
    return UserError(Code.ORGANISER_SILENT, what, fix)


def _skipped() -> UserError:
    return UserError(
        Code.WORK_SKIPPED,
        "this node's work does not count for now: the organiser has measured it, and cannot tell that it "
        "helps",
        "Chance does that to honest nodes, so let it go on: it counts once later work helps. If it stays so, "
        "check its rows and labels (--data) and its --dtype.",
    )


def _unsupported() -> UserError:
    return UserError(
        Code.NEWER_PROTOCOL,
        "a decision of the organiser is of a later version of sfnode, so what counts is not known here",
        "Upgrade sfnode and start the node again; it keeps all that it has.",
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
