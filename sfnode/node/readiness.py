"""Decides when a node has caught up and may train, and when it may leave because its neighbours have its
updates.

This module only reads the machine. It asks no peer, starts no training and closes nothing. Updates that no
neighbour took stay in the log and are handed over after the next start.

It costs a peer nothing to claim updates, and hardly anything to send one valid update now and then. So a node
waits for a neighbour only while that neighbour delivers a fixed share of the claimed updates in time. Each
neighbour is judged alone. The node waits only for the neighbours that it meets first, because new ones could
come without end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfnode.node.driver import handed_over
from sfprotocol.link import Link
from sfprotocol.machine import ASK_TIMEOUT, Machine

UNDER_WAY = 64
"""Number of updates that a training node may lack, in addition to a 64th of its known updates, because the
latest updates of others are always on their way."""

SHARE = 64
"""Divisor for the number of updates that a neighbour must deliver within ASK_TIMEOUT. It must deliver the
updates that it claims and we lack, divided by SHARE, but at least UNDER_WAY; otherwise the node stops waiting
for it. At two bytes an update, a neighbour with a connection of 100 kbit/s can claim 7 million updates and
still deliver in time; with 1 Mbit/s it can claim 70 million. A peer that claims n updates and delivers as
slowly as allowed delays a newcomer by ln(n) times 21 minutes (SHARE * ASK_TIMEOUT), and must deliver all
n."""

BEGIN_ALONE = 30.0
"""Minimum time, in seconds, for which a node that may begin a run looks for others in a DHT of strangers. In
that time every present node renews its record, and this node completes some searches."""

LOOKS = 20
"""Number of checks of the neighbours' claims within ASK_TIMEOUT. One check takes 10 ms at 65,536 feeds."""


@dataclass(slots=True)
class _Mark:
    """The situation at the time `at`, when one of the first neighbours had last delivered enough. `ahead` is
    the number of updates that this neighbour claimed and we lacked."""

    ahead: int
    known: int
    """Number of updates known to us at that time."""
    at: float


class Readiness:
    """Decides whether a node has caught up. Ask `done` whenever the machine's state may have changed, and at
    least once a second."""

    def __init__(
        self,
        machine: Machine,
        *,
        told_peers: bool,
        met_peers: Callable[[], bool],
        nobody_else: Callable[[], bool] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        """`told_peers` is whether the settings name peers. `met_peers` returns whether the log remembers
        peers. `nobody_else` returns whether no other node of the run can be found and this node may begin the
        run."""
        self._machine = machine
        self._told_peers = told_peers
        self._met_peers = met_peers
        self._nobody_else = nobody_else
        self._clock = clock
        self._started_at = clock()
        self._marks: dict[str, _Mark] = {}
        """Marks of the first neighbours, keyed by peer. They are kept while a link is broken."""
        self._met_at = self._look_at = float("inf")
        """Times of the first neighbour's full Summary (`_met_at`), and of the next check of all claims
        (`_look_at`)."""
        self._behind = False
        """Whether any neighbour was worth waiting for at the last check."""

    def done(self) -> bool:
        """Return whether we have the updates of our first neighbours, or there is no neighbour to get updates
        from."""
        if any(link.synced for link in self._machine.links.values()):
            return self._is_abreast()
        if self._told_peers and not self._machine.frontier.known:
            return self.begins()  # else a newcomer would train another model than the run's
        if not (self._told_peers or self._met_peers()):
            return True
        return self._silence() > ASK_TIMEOUT

    def begins(self) -> bool:
        """Return whether this node begins the run by itself."""
        return self.is_due_to_begin() and self._nobody_else()

    def is_due_to_begin(self) -> bool:
        """Return whether this node has looked for others for long enough."""
        return self._silence() > BEGIN_ALONE

    def _silence(self) -> float:
        """Return the seconds since a neighbour last delivered enough, or since the start."""
        return self._clock() - max((mark.at for mark in self._marks.values()), default=self._started_at)

    def _is_abreast(self) -> bool:
        """Return whether we lack only as many updates as are always on their way, or no neighbour delivers
        the updates that it claims."""
        if not self._is_much(self._machine.lacking):
            return True
        now = self._clock()
        if not self._marks:
            self._met_at = self._look_at = min(now, self._met_at)
        if now >= self._look_at:
            self._look_at = now + ASK_TIMEOUT / LOOKS
            links = [link for link in self._machine.links.values() if link.synced]
            worth = [self._is_worth_waiting(link, now) for link in links]  # each call sets a mark
            self._behind = any(worth)
        return not self._behind

    def _is_worth_waiting(self, link: Link, now: float) -> bool:
        """Return whether this neighbour has updates that we lack, and delivers the updates that it claims."""
        frontier = self._machine.frontier
        claims = [(feed, stop) for feed, stop in link.has.items() if frontier.lacks(feed, stop)]
        ahead = sum(stop - frontier.next(feed) for feed, stop in claims)
        mark = self._marks.get(link.peer)
        if mark is None:
            if now - self._met_at > ASK_TIMEOUT:
                return False
            mark = self._marks[link.peer] = _Mark(ahead, frontier.known, now)
        due = max(UNDER_WAY, mark.ahead // SHARE)
        if mark.ahead - ahead >= due and frontier.known - mark.known >= due:  # claims can be taken back
            mark = self._marks[link.peer] = _Mark(ahead, frontier.known, now)
        return self._is_much(ahead) and now - mark.at <= ASK_TIMEOUT

    def _is_much(self, lacking: int) -> bool:
        return lacking > UNDER_WAY + self._machine.frontier.known // 64


SETTLE_TIME = 3.0
"""Time, in seconds, without new updates after which a complete run counts as complete at the neighbours, too.
Also the time without a neighbour after which a node that is done stops waiting for one."""

LEAVE_GRACE = 30.0
"""Maximum time, in seconds, for which a node that is done stays, even if its neighbours lack updates."""


class Shutdown:
    """Decides when a node may leave. Ask `due` whenever the machine's state may have changed, and at least
    once a second."""

    def __init__(
        self,
        machine: Machine,
        *,
        done: Callable[[], bool],
        alone: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`done` returns whether the node has made all updates that its user asked for. `alone` returns
        whether there is no neighbour and no peer is being dialled."""
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
        """Return whether all neighbours have the same updates as we, and the last update came more than
        SETTLE_TIME ago."""
        agree = all(link.agreed for link in self._machine.links.values())
        return agree and now - self._last_update_at > SETTLE_TIME

    def _handed_over(self, now: float) -> bool:
        """Return whether all neighbours were sent every update, or there was no neighbour for SETTLE_TIME."""
        sent = any(link.synced for link in self._machine.links.values()) and handed_over(self._machine)
        return sent or now - self._not_alone_at > SETTLE_TIME
