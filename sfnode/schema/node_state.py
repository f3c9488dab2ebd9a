"""The state of a node, and of its run, in one word: the same in the control API, `--json`, metrics, dashboard
and `top`.

Imports hardly more than the standard library, so that commands that only compare states start at once.
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
    """The node loads updates that its neighbours have and it lacks, even if the run is over."""
    TRAINING = "training"
    WAITING = "waiting"
    """The node may not make updates now, for the reason in `Status.wait`. It serves others meanwhile."""
    PAUSED = "paused"
    """The node computes nothing, because of its owner's request or a limit (see `Status.pauses`)."""
    FINISHING = "finishing"
    """The node leaves as soon as neighbours have its step."""
    IDLE = "idle"
    """The node serves others and computes nothing. It is a relay, or a trainer that made all its steps."""
    COMPLETE = "complete"
    """The run is over. All its updates are stored here, except those that a neighbour announces but does not
    send. This node will make no more. Once all nodes are complete with equal digests, they stay equal."""


class Wait(StrEnum):
    """Reasons why a trainer may not make updates now, most of them in an organised run only."""

    WORK = "work"
    """The node is not admitted, and computes the proof of work for its join request."""
    JOIN_REQUEST = "petition"
    """The node is not admitted, and its join request waits."""
    ORGANISER = "organiser"
    """The node is not admitted, and the organiser here does not sign yet."""
    QUOTA = "quota"
    """The node has made all updates that its quota allows in the open epoch."""
    REVOKED = "revoked"
    """The node's admission was revoked."""
    DECISIONS = "decisions"
    """Decisions on which the node's own updates depend are missing."""
    HISTORY = "history"
    """The checkpoint with which the node begins has not arrived yet, or does not count any more."""
    SEALS = "seals"
    """The closed updates reach the budget. Only the last seals are missing."""
    BASES = "bases"
    """Published bases have not arrived yet (also in an open run)."""
    NODES = "nodes"
    """The DHT of the given peers shows no other node of the run (also in an open run)."""
    EPSILON = "epsilon"
    """The node's updates have revealed as much of its rows as its owner allows (also in an open run)."""
    UNKNOWN_DECISION = "unknown-decision"
    """A decision needs a later version."""


class RunHealth(StrEnum):
    """Verdicts on an organised run's model. They compare results on the validation rows, and ignore
    differences within the noise."""

    UNKNOWN = "unknown"
    """Nothing was evaluated, or nothing can be compared."""
    BETTER = "better"
    """The model is better than the base model."""
    NO_BETTER = "no-better"
    """The model is not better than the base model, and not worse than before."""
    WORSE = "worse"
    """The model is worse than the base model, or than its own best."""


HEALTH_WORDS = {
    RunHealth.UNKNOWN: "not known yet",
    RunHealth.BETTER: "better",
    RunHealth.NO_BETTER: "not certainly better",
    RunHealth.WORSE: "WORSE",
}


class Uncounted(StrEnum):
    """Reasons why closed work does not count, in the order in which they are checked."""

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
