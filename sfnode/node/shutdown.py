"""Shutdown of a node that has done its work: it may leave once its neighbours have what it has.

Reads the machine; decides nothing about training, and closes nothing. Updates that no neighbour has taken
stay in the log and are handed over after the next start.
"""

from __future__ import annotations

from collections.abc import Callable

from sfnode.node.driver import handed_over
from sfprotocol.machine import Machine

SETTLE_TIME = 3.0
"""Seconds without new updates after which a complete run counts as complete for the neighbours too; also the
seconds without a neighbour after which the node waits for none."""

LEAVE_GRACE = 30.0
"""Seconds after which a node that is done leaves, whatever its neighbours have or lack."""


class Shutdown:
    """Ask `due` whenever the machine's state may have changed, and once a second at least."""

    def __init__(
        self,
        machine: Machine,
        *,
        done: Callable[[], bool],
        alone: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`done`: the node has made all that its user asked for; `alone`: there is no neighbour, and no peer
        is being dialled."""
        self._machine = machine
        self._done = done
        self._alone = alone
        self._clock = clock
        self._known = machine.frontier.known
        self._last_update_at = clock()
        self._done_at: float | None = None
        self._not_alone_at = clock()
        """Time at which the node last had a neighbour or was not done."""

    def due(self) -> bool:
        """Return whether the node should leave now."""
        now = self._clock()
        if self._known != self._machine.frontier.known:
            self._known, self._last_update_at = self._machine.frontier.known, now
        done = self._done()
        if not (done and self._alone()):
            self._not_alone_at = now
        if not done:
            self._done_at = None
            return False
        if self._done_at is None:
            self._done_at = now
        settled = self._agreed(now) if self._machine.complete else self._handed_over(now)
        return settled or now - self._done_at > LEAVE_GRACE

    def _agreed(self, now: float) -> bool:
        """Whether all neighbours have the same updates, and the last one came a while ago."""
        agree = all(link.agreed for link in self._machine.links.values())
        return agree and now - self._last_update_at > SETTLE_TIME

    def _handed_over(self, now: float) -> bool:
        """Whether a neighbour is there and all neighbours were sent everything, or none has been there for a
        while."""
        sent = any(link.synced for link in self._machine.links.values()) and handed_over(self._machine)
        return sent or now - self._not_alone_at > SETTLE_TIME
