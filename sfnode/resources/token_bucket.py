"""A token bucket that may run into debt: a rate that is kept on average, spent in pieces of any size.

Used for bytes per second (`bandwidth`) and for CPU time, busy time and energy per second (`policy`). Pure:
the time is an argument.
"""

from __future__ import annotations

BURST = 0.25
"""Seconds of its rate that a bucket holds: enough that no time between two steps is lost, too little to be
noticed as a burst."""


class TokenBucket:
    """Rate limit in units per second, spent in pieces of any size; any excess is a debt to wait for.

    `now` is in seconds and never decreases.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._capacity = self._tokens = BURST * rate
        self._at = now

    def spend(self, amount: float, now: float) -> None:
        """Take `amount` out, which may leave the bucket in debt."""
        self._tokens = min(self._capacity, self._tokens + self._rate * (now - self._at) - amount)
        self._at = now

    def wait(self, now: float, full: float = 0.0) -> float:
        """Return the seconds until the debt is paid and this share (0 to 1) of the bucket is full again."""
        self.spend(0, now)
        return max(0.0, (full * self._capacity - self._tokens) / self._rate)
