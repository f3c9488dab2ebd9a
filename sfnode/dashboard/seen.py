"""What the views show: everything about one node at one moment, asked through the client."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from sfnode.client import Client
from sfnode.runtime.status import Status
from sfnode.runtime.viewed import Curves, Progress, Swarm, SwarmNode

PATIENCE = 30.0
"""Seconds for which a digest may differ from a neighbour's before one should wonder: while updates are under
way two nodes are hardly ever at the same set of them at the same moment."""


class Seen(NamedTuple):
    """One look."""

    status: Status
    progress: Progress
    curves: Curves
    swarm: Swarm


async def look(client: Client) -> Seen:
    """Ask the node for everything. Raises UserError NODE_NOT_RUNNING if there is none."""
    return Seen(*await asyncio.gather(client.status(), client.progress(), client.curves(), client.swarm()))


def agreement(node: SwarmNode, known: int) -> str:
    """In words how a neighbour's state compares with ours, who know `known` updates."""
    if node.agrees:
        return "same digest"
    if node.known < known:
        return f"{known - node.known:,} behind"
    if node.known > known:
        return f"{node.known - known:,} ahead"
    return "digest differs" if (node.differs_for or 0) > PATIENCE else "under way"
