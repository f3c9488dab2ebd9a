"""Every node has links of its own choice: without them its neighbours are whoever came first."""

from __future__ import annotations

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.world import World
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
        if not self._world.managed:
            return
        now = self._world.now
        lacking = [node.name for node in self._world.living() if _could_have_more(self._world, node)]
        self._since = {name: self._since.get(name, now) for name in lacking}
        for name, since in self._since.items():
            if now - since > GRACE:
                raise Violation(
                    "outbound", f"{name} has too few links of its own choice since {since:.1f} s", (name,)
                )


def _could_have_more(world: World, node: Computer) -> bool:
    manager = node.running.peering.manager
    lacking = MIN_OUTBOUND - sum(standing.outbound for standing in manager.standings())
    return lacking > 0 and len(_prospects(world, node)) >= lacking


def _prospects(world: World, one: Computer) -> list[str]:
    """Return the peers that `one` may dial now and that would take the link."""
    manager = one.running.peering.manager
    ready = (peer for peer in manager.book.dialable(world.now) if peer not in manager.linked)
    return [peer for peer in ready if world.network.reaches(one.name, peer) and _would_take(world, peer, one)]


def _would_take(world: World, peer: str, one: Computer) -> bool:
    node = world.nodes.get(peer)
    if node is None or not node.up:
        return node is None
    manager = node.running.peering.manager
    return manager.has_room_for(one.name, f"{one.address}/p2p/{one.name}", world.now)
