"""When a node that has done what it was asked for may go: once its neighbours have what it has.

Reads the machine; decides nothing about training, and closes nothing. What nobody has taken stays in the log,
and is handed over after the next start.
"""

from __future__ import annotations

from collections.abc import Callable

from sfnode.runtime.driver import handed_over
from sfprotocol.machine import Machine

SETTLE_TIME = 3.0
"""Seconds without news after which a complete run counts as complete for the neighbours too, and without a
neighbour after which there is none."""

LEAVE_GRACE = 30.0
"""Seconds after which a node that is done leaves whatever its neighbours have."""


class Departure:
    """Ask `due` whenever the machine's state may have changed, and once a second at least."""

    def __init__(
        self,
        machine: Machine,
        *,
        done: Callable[[], bool],
        alone: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`done`: nothing is left of what the user asked this node for; `alone`: there is no neighbour, and
        nobody is just being asked to become one."""
        self._machine = machine
        self._done = done
        self._alone = alone
        self._clock = clock
        self._known = machine.frontier.known
        self._news_at = clock()
        self._done_at: float | None = None
        self._company_at = clock()
        """When there was somebody to hand anything to, or the node was not done yet."""

    def due(self) -> bool:
        """Whether the node should leave now."""
        now = self._clock()
        if self._known != self._machine.frontier.known:
            self._known, self._news_at = self._machine.frontier.known, now
        done = self._done()
        if not (done and self._alone()):
            self._company_at = now
        if not done:
            self._done_at = None
            return False
        if self._done_at is None:
            self._done_at = now
        settled = self._agreed(now) if self._machine.complete else self._handed_over(now)
        return settled or now - self._done_at > LEAVE_GRACE

    def _agreed(self, now: float) -> bool:
        """The run is complete, the last update was a while ago, and all neighbours have the same ones."""
        agree = all(link.agreed for link in self._machine.links.values())
        return agree and now - self._news_at > SETTLE_TIME

    def _handed_over(self, now: float) -> bool:
        """Some neighbour is there, and everything we had to say has been written to all that are; or none is
        there to be waited for."""
        taken = any(link.synced for link in self._machine.links.values()) and handed_over(self._machine)
        return taken or now - self._company_at > SETTLE_TIME
