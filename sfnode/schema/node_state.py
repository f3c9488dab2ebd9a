"""The state of a node, and of its run, in one word: the same in the control API, `--json`, metrics, dashboard
and `top`.

Imports next to nothing but the standard library, so that commands that only compare states start at once.
"""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    """The states of a node, in the order in which a trainer usually passes through them."""

    STARTING = "starting"
    """The base model is being downloaded or loaded."""
    ASKING = "asking"
    """Peers are asked how far they know this node's feed, so that it does not contradict itself."""
    CATCHING_UP = "catching-up"
    """The node is loading updates that its neighbours have and it lacks, also those of a run that is over."""
    TRAINING = "training"
    WAITING = "waiting"
    """It may make no updates now; `Status.wait` says why. It serves others meanwhile."""
    PAUSED = "paused"
    """It computes nothing: its owner asked for that, or a limit does; `Status.pauses` says which."""
    FINISHING = "finishing"
    """It leaves as soon as its step is handed over to neighbours."""
    IDLE = "idle"
    """It serves others and computes nothing: a relay, or a trainer that has made all its steps."""
    COMPLETE = "complete"
    """The run is over, nothing of it is lacking but what a neighbour claims and does not bring, and no more
    will come from this node. Once all nodes are complete and their digests are equal, they stay equal."""


class Wait(StrEnum):
    """The reasons for which a trainer may make no updates now, most of them in an organised run only."""

    WORK = "work"
    """It is not admitted, and computes the proof of work that its join request will show."""
    JOIN_REQUEST = "petition"
    """It is not admitted, and has asked to be."""
    ORGANISER = "organiser"
    """It is not admitted, and the organiser here does not sign yet."""
    QUOTA = "quota"
    """It has made as many updates as it may in the open epoch."""
    REVOKED = "revoked"
    """Its admission was taken back."""
    DECISIONS = "decisions"
    """Decisions are lacking here that its own updates follow from."""
    HISTORY = "history"
    """The checkpoint with which it begins has not come yet, or does not count any more."""
    SEALS = "seals"
    """The last seals are to come: what is closed reaches the budget."""
    BASES = "bases"
    """Published bases are not here yet, in an open run, too."""
    NODES = "nodes"
    """No other node of the run is to be found in the DHT of the given peers, in an open run, too."""
    EPSILON = "epsilon"
    """It has told as much of its rows as its owner allows, in an open run, too."""
    UNKNOWN_DECISION = "unknown-decision"
    """A decision is of a later version."""


class RunHealth(StrEnum):
    """The verdicts of the results on the validation rows about an organised run, beyond noise."""

    UNKNOWN = "unknown"
    """Nothing was evaluated, or there is nothing to compare it with."""
    BETTER = "better"
    """The model is better than the base model."""
    NO_BETTER = "no-better"
    """It is neither better than the base model nor worse than it was."""
    WORSE = "worse"
    """It is worse than the base model, or than it was at its best."""


HEALTH_WORDS = {
    RunHealth.UNKNOWN: "not known yet",
    RunHealth.BETTER: "better",
    RunHealth.NO_BETTER: "not certainly better",
    RunHealth.WORSE: "WORSE",
}


class Uncounted(StrEnum):
    """The reasons for which work that a close has named does not count, the first that holds."""

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
