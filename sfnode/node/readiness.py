"""Beginning and leaving: whether a node has caught up with its run, so that what it trains is the run's
model, and whether it may leave, as its neighbours have what it has.

Reads the machine; it asks no peer, starts no training and closes nothing. Updates that no neighbour has taken
when it leaves stay in the log and are handed over after the next start.

A claim costs nothing, and so does a single valid update now and then. So a node waits for a neighbour only as
long as that neighbour's claims come true, and in proportion to what it claims. What one peer invents does not
count against what another delivers, and only neighbours that the node meets at first are waited for: there is
no end of peers that come later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfnode.node.driver import handed_over
from sfprotocol.link import Link
from sfprotocol.machine import ASK_TIMEOUT, Machine

UNDER_WAY = 64
"""Updates that a node may lack and train: what others have made in the last moments is always on its way."""

SHARE = 64
"""The part of what a neighbour has, and we lack, that must come within ASK_TIMEOUT (but at least UNDER_WAY
updates) for us to go on waiting: two bytes an update, a line of 100 kbit/s brings a history of 7 million in
time, one of 1 Mbit/s 70 million. Who claims n updates and delivers as slowly as this allows delays a newcomer
by SHARE * ASK_TIMEOUT (21 minutes) for each factor e in n, and has to deliver them all."""

BEGIN_ALONE = 30.0
"""Seconds for which a node whose part it is to begin a run looks for others in the DHT of strangers: whoever
is there has renewed its record in that time, and some searches have ended."""

LOOKS = 20
"""Looks at what each neighbour claims, within ASK_TIMEOUT: one takes 10 ms at 65,536 feeds."""


@dataclass(slots=True)
class _Mark:
    """The lead that one of the first neighbours claimed when it had last made good enough of it."""

    ahead: int
    known: int
    """Updates that we knew then."""
    at: float


class Readiness:
    """Ask `done` whenever the machine's state may have changed, and once a second at least."""

    def __init__(
        self,
        machine: Machine,
        *,
        told_peers: bool,
        met_peers: Callable[[], bool],
        nobody_else: Callable[[], bool] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        """`told_peers`: the settings name peers; `met_peers`: whether the log remembers any; `nobody_else`:
        whether no other node of the run is to be found, and it is for this one to begin it."""
        self._machine = machine
        self._told_peers = told_peers
        self._met_peers = met_peers
        self._nobody_else = nobody_else
        self._clock = clock
        self._started_at = clock()
        self._marks: dict[str, _Mark] = {}
        """Marks of the peers among the first neighbours, also while a link to one is broken."""
        self._met_at = self._look_at = float("inf")
        """Times at which the first neighbour had told what it has, and of the next look at all."""
        self._behind = False
        """The result of the last look."""

    def done(self) -> bool:
        """Whether we have all that our first neighbours had, or there is nobody to learn from."""
        if any(link.synced for link in self._machine.links.values()):
            return self._is_abreast()
        if self._told_peers and not self._machine.frontier.known:
            return self.begins()  # else a newcomer: what it would train is not the model of the run
        if not (self._told_peers or self._met_peers()):
            return True
        return self._silence() > ASK_TIMEOUT

    def begins(self) -> bool:
        """Whether this node begins the run by itself."""
        return self.is_due_to_begin() and self._nobody_else()

    def is_due_to_begin(self) -> bool:
        """Whether it has looked for others for as long as it is to."""
        return self._silence() > BEGIN_ALONE

    def _silence(self) -> float:
        """Return the seconds since a neighbour was last of use, or since the start."""
        return self._clock() - max((mark.at for mark in self._marks.values()), default=self._started_at)

    def _is_abreast(self) -> bool:
        """Whether we lack no more than what is always under way, or nobody gives what they say they have."""
        if not self._is_much(self._machine.lacking):
            return True
        now = self._clock()
        if not self._marks:
            self._met_at = self._look_at = min(now, self._met_at)
        if now >= self._look_at:
            self._look_at = now + ASK_TIMEOUT / LOOKS
            links = [link for link in self._machine.links.values() if link.synced]
            worth = [self._is_worth_waiting(link, now) for link in links]  # of each, not the first
            self._behind = any(worth)
        return not self._behind

    def _is_worth_waiting(self, link: Link, now: float) -> bool:
        """Whether this neighbour is ahead of us, and what it claims comes."""
        frontier = self._machine.frontier
        claims = [(feed, stop) for feed, stop in link.has.items() if frontier.lacks(feed, stop)]
        ahead = sum(stop - frontier.next(feed) for feed, stop in claims)
        mark = self._marks.get(link.peer)
        if mark is None:
            if now - self._met_at > ASK_TIMEOUT:
                return False
            mark = self._marks[link.peer] = _Mark(ahead, frontier.known, now)
        due = max(UNDER_WAY, mark.ahead // SHARE)
        if mark.ahead - ahead >= due and frontier.known - mark.known >= due:  # a claim can be taken back
            mark = self._marks[link.peer] = _Mark(ahead, frontier.known, now)
        return self._is_much(ahead) and now - mark.at <= ASK_TIMEOUT

    def _is_much(self, lacking: int) -> bool:
        return lacking > UNDER_WAY + self._machine.frontier.known // 64


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
