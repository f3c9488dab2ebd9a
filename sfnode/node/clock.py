"""Compares this machine's clock with those of peers, by the time that their DHT nodes tell with every answer.

No update has a time in it, so a wrong clock harms no model; but it hides a node in the DHT.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence

from sfnode.errors import Code, UserError
from sfnode.transport.base import TransportError
from sfnode.transport.roster import CLOCK_WRONG

PEERS = 3
"""Peers that are asked: the median of three stands one that is wrong, or that lies."""

FIRST, AGAIN = 5.0, 1_800.0
"""Seconds until the peers are asked, when some are there, and asked again: a laptop may have slept."""


class ClockCheck:
    """A comparison of this clock with those of peers, again and again."""

    def __init__(self, ahead: Callable[[str], Awaitable[float]], peers: Callable[[], Sequence[str]]) -> None:
        """Take what asks the peer at an address how far ahead of ours its clock is, in seconds, and what
        names addresses of peers."""
        self._ahead = ahead
        self._peers = peers
        self.problem: UserError | None = None
        """CLOCK_DIFFERS, if the last comparison has found that."""

    async def run(self) -> None:
        """Compare until cancelled."""
        await asyncio.sleep(FIRST)
        while True:
            await self.compare()
            await asyncio.sleep(AGAIN)

    async def compare(self) -> None:
        """Compare once; without an answer everything stays as it is."""
        ahead = []
        for address in self._peers()[:PEERS]:
            try:
                ahead.append(await self._ahead(address))
            except (TransportError, UserError):
                continue
        if ahead:
            self.problem = _judged(statistics.median(ahead), len(ahead))


def _judged(ahead: float, count: int) -> UserError | None:
    if abs(ahead) < CLOCK_WRONG:
        return None
    way = "behind" if ahead > 0 else "ahead of"
    those = "the clock of a peer" if count == 1 else f"the clocks of {count} peers"
    return UserError(
        Code.CLOCK_DIFFERS,
        f"this clock is {_span(abs(ahead))} {way} {those}: nobody finds this node through the DHT",
        "Have the system set its clock (`timedatectl set-ntp true`); `sfnode doctor` asks a time server.",
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
