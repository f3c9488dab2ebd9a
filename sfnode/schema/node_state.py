"""The states of a node and of its run, each in one word. The words are the same in the control API, `--json`,
metrics, dashboard and `top`.

This module imports only the standard library, so commands that only compare states start at once.
"""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    """The states of a node, in the order in which a trainer usually passes through them."""

    STARTING = "starting"
    """The base model is being downloaded or loaded."""
    ASKING = "asking"
    """The node asks peers which of its own updates they know, so that it signs no two different updates of
    one step."""
    CATCHING_UP = "catching-up"
    """The node loads updates that its neighbours have and it lacks. It does this in a complete run, too."""
    TRAINING = "training"
    WAITING = "waiting"
    """The node may not make updates now, for the reason in `Status.wait`. Meanwhile it still receives and
    passes on updates."""
    PAUSED = "paused"
    """The node computes nothing, because its owner paused it or because of a limit (see `Status.pauses`)."""
    FINISHING = "finishing"
    """The node ends as soon as its neighbours have its last updates."""
    IDLE = "idle"
    """The node receives and passes on updates and computes nothing. It is a relay, or a trainer that has made
    all its steps."""
    COMPLETE = "complete"
    """The run is over. All its updates are stored here, except those that a neighbour announces but does not
    send. This node will make no more. Once all nodes are complete and have equal digests, the digests stay
    equal."""


class Wait(StrEnum):
    """Reasons why a trainer may not make updates now, most of them in an organised run only."""

    WORK = "work"
    """The organiser has not admitted the node, which still computes the proof of work for its join
    request."""
    JOIN_REQUEST = "petition"
    """The organiser has not admitted the node, whose join request waits for a decision."""
    ORGANISER = "organiser"
    """This node is to organise the run, but does not sign decisions yet."""
    QUOTA = "quota"
    """The node has made all updates that its quota allows in the open epoch."""
    REVOKED = "revoked"
    """The node's admission was revoked."""
    DECISIONS = "decisions"
    """The node's own updates belong to a later epoch than the decisions stored here have opened. The node
    asks peers for the missing decisions."""
    HISTORY = "history"
    """The checkpoint with which the node begins has not arrived yet, or does not count any more."""
    SEALS = "seals"
    """The closed epochs have as many updates as the run's budget. The node waits for the seals of the last
    ones."""
    BASES = "bases"
    """Published bases have not arrived yet (also in an open run)."""
    NODES = "nodes"
    """The node has no link to another node of the run, and knows only peers that do not run sfnode (also in
    an open run)."""
    EPSILON = "epsilon"
    """The node's updates have revealed as much of its rows as its owner allows (also in an open run)."""
    UNKNOWN_DECISION = "unknown-decision"
    """The organiser made a decision that only a later version of sfnode understands."""


class RunHealth(StrEnum):
    """Verdicts on the model of an organised run. They compare results on the validation rows. Two results
    differ only if their 95 % confidence intervals do not overlap."""

    UNKNOWN = "unknown"
    """No model was evaluated, or there is no result with which to compare it."""
    BETTER = "better"
    """The model is better than the base model."""
    NO_BETTER = "no-better"
    """The model is neither better nor worse than the base model, and not worse than the run's best model."""
    WORSE = "worse"
    """The model is worse than the base model, or than the run's best model."""


HEALTH_WORDS = {
    RunHealth.UNKNOWN: "not known yet",
    RunHealth.BETTER: "better",
    RunHealth.NO_BETTER: "not certainly better",
    RunHealth.WORSE: "WORSE",
}


class Uncounted(StrEnum):
    """Reasons why updates in a closed epoch do not count, in the order in which they are checked."""

    WAITS = "waits"
    JUDGE = "judge"
    HARMFUL = "harmful"
    OFTEN_LARGE = "often-large"
    UNPROVEN = "unproven"
    UNLIKE = "unlike"
    OUTLIER = "outlier"
    OVERSIZED = "oversized"
    REVOKED = "revoked"
    TAKEN_BACK = "taken-back"
    NOTHING = "nothing"


UNCOUNTED_WORDS = {
    Uncounted.WAITS: "no seal has judged it yet",
    Uncounted.JUDGE: "the organiser has left it out, and the figures do not tell why",
    Uncounted.HARMFUL: "its author's work evidently does harm",
    Uncounted.OFTEN_LARGE: "its author's work is far too large again and again",
    Uncounted.UNPROVEN: "what was measured does not tell that its author's work helps",
    Uncounted.UNLIKE: "its author's work agrees far less with the rows kept aside than others' does",
    Uncounted.OUTLIER: "it weighs far more than others' work",
    Uncounted.OVERSIZED: "its numbers are too large to count at once",
    Uncounted.REVOKED: "it was named after its author was revoked",
    Uncounted.TAKEN_BACK: "its round was taken back, or it comes from one that was",
    Uncounted.NOTHING: "the whole round counts nothing, or the work moves nothing",
}
