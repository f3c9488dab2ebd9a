"""Restarts the network daemon (p2pd) whenever it breaks, with a back-off while that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.transport.base import Transport, TransportError

RESTART_PAUSE, RESTART_PAUSE_MOST = 0.5, 15.0
"""Seconds before another attempt to restart a transport that could not be restarted; doubles."""

RESTART_SPACING = 5.0
"""Seconds between two restarts at least, should the network daemon die as soon as it runs."""


async def keep_running(
    transport: Transport, restarted: Callable[[], None], clock: Callable[[], float]
) -> None:
    """Restart a transport whenever it breaks, and call `restarted` each time; until cancelled."""
    last = float("-inf")
    while True:
        why = await transport.broken()
        await asyncio.sleep(last + RESTART_SPACING - clock())
        last, pause = clock(), RESTART_PAUSE
        log.warning("the network daemon %s; restarting it", why)
        while not await _restarts(transport):
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_PAUSE_MOST)
        restarted()
        log.info("the network daemon is back after %.1f s", clock() - last)


async def _restarts(transport: Transport) -> bool:
    """Try once; return whether it works."""
    try:
        await transport.restart()
    except (TransportError, UserError) as error:
        log.warning("restarting the network daemon failed: %s", error)
        return False
    return True
