"""Peers that broke a rule, and the time for which each gets no link: sans-IO, the time is passed in."""

from __future__ import annotations

from sfnode.peers.backoff import doubled

FAULT_FIRST, FAULT_MOST = 60.0, 3_600.0
"""First and maximum time, in seconds, for which a peer that broke a rule gets no link in either direction.
The time doubles with each fault. A new id costs nothing, but the refusal stops a broken program from coming
back, and makes an attacker begin anew each time."""

FAULT_MEMORY = 3_600.0
"""Time, in seconds, for which a peer's faults are remembered after its refusal has ended. Another fault
within that time counts as a repetition, so that the next refusal is longer. A useful link clears the faults
earlier."""

MAX_FAULTS = 256
"""Maximum number of peers whose faults are remembered (40 KiB). When there are more, the faults of the peer
whose refusal ends first are forgotten."""


class Faults:
    """The faults of peers. At most MAX_FAULTS peers are remembered."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, float]] = {}
        """Number of faults of each peer, and the time until which the peer gets no link."""

    def add(self, peer: str, now: float) -> None:
        """Refuse the peer any link for a while, as it broke a rule."""
        times, until = self._of.pop(peer, (0, now))
        if now - until > FAULT_MEMORY:
            times = 0
        self._of[peer] = times + 1, now + doubled(FAULT_FIRST, times, FAULT_MOST)
        if len(self._of) > MAX_FAULTS:
            del self._of[min(self._of, key=lambda name: self._of[name][1])]

    def forgive(self, peer: str) -> None:
        """Forget the faults of a peer."""
        self._of.pop(peer, None)

    def refused(self, peer: str, now: float) -> bool:
        """Return whether this peer gets no link at `now` because of a fault."""
        return peer in self._of and now < self._of[peer][1]
