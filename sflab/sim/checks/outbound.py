"""Every node has links of its own choice: without them its neighbours are whoever came first."""

from __future__ import annotations

from sflab.sim.world.node import Node
from sflab.sim.world.peering import Managed
from sflab.sim.world.violation import Violation
from sflab.sim.world.world import World
from sfnode.peers.selection import MIN_OUTBOUND

GRACE = 5.0
"""Seconds within which a node must dial a peer that it knows and that would take the link: two checks of its
links and a dial."""


class OutboundLinks:
    """Finds nodes with fewer than MIN_OUTBOUND links of their own choice that could have more."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[str, float] = {}

    def look(self) -> None:
        """Raise Violation if a node could have had more for longer than GRACE."""
        keeper, now = self._world.keeper, self._world.now
        if not isinstance(keeper, Managed):
            return
        lacking = [node.name for node in self._world.living() if _could_have_more(keeper, node)]
        self._since = {name: self._since.get(name, now) for name in lacking}
        for name, since in self._since.items():
            if now - since > GRACE:
                raise Violation(
                    "outbound", f"{name} has too few links of its own choice since {since:.1f} s", (name,)
                )


def _could_have_more(keeper: Managed, node: Node) -> bool:
    manager = keeper.manager(node)
    if manager is None:
        return False
    lacking = MIN_OUTBOUND - sum(standing.outbound for standing in manager.standings())
    return lacking > 0 and len(keeper.prospects(node)) >= lacking
