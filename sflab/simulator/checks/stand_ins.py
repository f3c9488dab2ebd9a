"""Checks of runs with stand-ins: nothing that was decided is taken back, and the run goes on without whoever
began it. That no two nodes show different decisions is checked where they become durable (`world`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.world import World


@dataclass
class StandIns:
    """Looks at all nodes; tells how long elections have taken."""

    world: World
    elections: list[float] = field(default_factory=list)
    """Seconds from each death of whoever organised until somebody else did."""
    counting: list[float] = field(default_factory=list)
    """The same until more updates counted."""
    _seen: dict[str, tuple[object, int]] = field(default_factory=dict)
    """The node's life and the number of its decisions when it was last looked at."""
    _fallen: float | None = None
    _counted: int = 0

    def look(self, living: list[Computer]) -> None:
        """Raise Violation where decisions are gone that a node had."""
        for node in living:
            feed = node.organised.control.feed
            life, stop = self._seen.get(node.name, (None, 0))
            if life is node.node and stop > feed.stop:
                raise Violation("elections", f"{node.name} has taken decisions back", (node.name,))
            self._seen[node.name] = node.node, feed.stop
        self._measure()

    def _measure(self) -> None:
        world = self.world
        leader = next((node for node in world.living() if node.leads), None)
        if world.leaderless_since is not None and leader:
            self.elections.append(world.now - world.leaderless_since)
            self._fallen, world.leaderless_since = world.leaderless_since, None
            self._counted = leader.organised.counting.counted
        if self._fallen is not None and leader and leader.organised.counting.counted > self._counted:
            self.counting.append(world.now - self._fallen)
            self._fallen = None
