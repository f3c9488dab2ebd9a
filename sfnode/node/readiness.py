"""Whether a node that has started has caught up with its run, so that what it trains is the run's model.

Reads the machine; it asks no peer and starts no training.
"""

from __future__ import annotations

from collections.abc import Callable

from sfprotocol.machine import ASK_TIMEOUT, Machine

UNDER_WAY = 64
"""Updates that a node may lack and train: what others have made in the last moments is always on its way."""


class Readiness:
    """Ask `done` whenever the machine's state may have changed, and once a second at least."""

    def __init__(
        self,
        machine: Machine,
        *,
        told_peers: bool,
        met_peers: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`told_peers`: the settings name peers; `met_peers`: whether the log remembers any."""
        self._machine = machine
        self._told_peers = told_peers
        self._met_peers = met_peers
        self._clock = clock
        self._started_at = clock()
        self._progress = 0, self._started_at
        """Number of updates that we knew, and the time since which it has not grown."""

    def done(self) -> bool:
        """Whether we have all that our first neighbours had, or there is nobody to learn from."""
        if any(link.synced for link in self._machine.links.values()):
            return self._is_abreast()
        if self._told_peers and not self._machine.frontier.known:
            return False  # a newcomer: what it would train is not the model of the run
        if not (self._told_peers or self._met_peers()):
            return True
        return self._clock() - self._started_at > ASK_TIMEOUT

    def _is_abreast(self) -> bool:
        """Whether we lack no more than what is always under way, or nobody gives what they say they have."""
        known = self._machine.frontier.known
        if known != self._progress[0]:
            self._progress = known, self._clock()
        much = self._machine.lacking > UNDER_WAY + known // 64
        return not much or self._clock() - self._progress[1] > ASK_TIMEOUT
