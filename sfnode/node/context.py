"""The context of some parts of a node: of those that observe the node, ask its model, or exist only in some
nodes."""

from __future__ import annotations

from dataclasses import dataclass

from sfnode.modelshare.sharing import Sharing
from sfnode.node.driver import Driver
from sfnode.node.peering import Peering
from sfnode.node.run_context import RunContext
from sfnode.node.training.limiter import ResourceLimiter
from sfnode.node.training.model import LocalModel


@dataclass(frozen=True, slots=True)
class NodeContext(RunContext):
    """The run's context (`RunContext`), and the parts that every node has."""

    driver: Driver
    limiter: ResourceLimiter
    peering: Peering
    sharing: Sharing
    model: LocalModel
