"""Types of what the control API, `--json` and metrics say; imports neither the node nor the engine.

The names below are loaded when they are first used: pydantic takes longer to import than most commands need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfnode.limits import Limits
    from sfnode.schema.evaluation import Evaluation, NodeEvaluation
    from sfnode.schema.node_state import NodeState
    from sfnode.schema.organising import (
        DecisionResult,
        Members,
        OrganiserStatus,
        PetitionList,
        SuccessionFile,
    )
    from sfnode.schema.results import InviteResult
    from sfnode.schema.status import CoreStatus, Status
    from sfnode.schema.views import (
        About,
        Curves,
        Feeds,
        FeedStatus,
        Generated,
        History,
        Origin,
        Origins,
        OwnStanding,
        Progress,
        Samples,
        Swarm,
        SwarmNode,
        Timeline,
    )

_MODULES = {
    "About": "sfnode.schema.views",
    "CoreStatus": "sfnode.schema.status",
    "Curves": "sfnode.schema.views",
    "DecisionResult": "sfnode.schema.organising",
    "Evaluation": "sfnode.schema.evaluation",
    "FeedStatus": "sfnode.schema.views",
    "Feeds": "sfnode.schema.views",
    "Generated": "sfnode.schema.views",
    "History": "sfnode.schema.views",
    "InviteResult": "sfnode.schema.results",
    "Limits": "sfnode.limits",
    "Members": "sfnode.schema.organising",
    "NodeEvaluation": "sfnode.schema.evaluation",
    "NodeState": "sfnode.schema.node_state",
    "OrganiserStatus": "sfnode.schema.organising",
    "Origin": "sfnode.schema.views",
    "Origins": "sfnode.schema.views",
    "OwnStanding": "sfnode.schema.views",
    "PetitionList": "sfnode.schema.organising",
    "Progress": "sfnode.schema.views",
    "Samples": "sfnode.schema.views",
    "Status": "sfnode.schema.status",
    "SuccessionFile": "sfnode.schema.organising",
    "Swarm": "sfnode.schema.views",
    "SwarmNode": "sfnode.schema.views",
    "Timeline": "sfnode.schema.views",
}

__all__ = [
    "About",
    "CoreStatus",
    "Curves",
    "DecisionResult",
    "Evaluation",
    "FeedStatus",
    "Feeds",
    "Generated",
    "History",
    "InviteResult",
    "Limits",
    "Members",
    "NodeEvaluation",
    "NodeState",
    "OrganiserStatus",
    "Origin",
    "Origins",
    "OwnStanding",
    "PetitionList",
    "Progress",
    "Samples",
    "Status",
    "SuccessionFile",
    "Swarm",
    "SwarmNode",
    "Timeline",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
