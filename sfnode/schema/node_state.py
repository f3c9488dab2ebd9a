"""The state of a node in one word, the same in the control API, `--json`, metrics, dashboard and `top`.

Imports nothing but the standard library, so that commands that only compare states start at once.
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
    """The node is loading updates that its neighbours have and it lacks."""
    TRAINING = "training"
    PAUSED = "paused"
    """It computes nothing: its owner asked for that, or a limit does; `Status.pauses` says which."""
    FINISHING = "finishing"
    """It leaves as soon as its step is handed over to neighbours."""
    IDLE = "idle"
    """It serves others and computes nothing: a relay, or a trainer that has made all its steps."""
    COMPLETE = "complete"
    """The update budget is used up and nothing more will come from this node. When all nodes of a run are
    complete and their digests are equal, the digests stay equal."""
