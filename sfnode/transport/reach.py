"""Whether anybody listens at an address, before libp2p is asked to dial it.

libp2p does not dial an address again for 5 s after a failure, and for longer after every further one (up to
5 minutes): a peer that comes back would be met long after that. So it gets to know only addresses at which a
TCP connection can be opened, and hardly ever learns that a peer was away: the DHT asks a peer that has just
gone once more, which costs those 5 s if it comes back at once. Knows no libp2p beyond that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

KNOCK_DEADLINE = 4.0
"""Seconds for a TCP connection: a lost first packet is sent again after 1 s, a second one after 3."""

MOMENT = 0.1
"""Seconds for other addresses of the same peer, of which libp2p takes the best."""

_TCP = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d{1,5})(?:/.*)?")


async def listening(ways: Sequence[str]) -> list[str]:
    """Those of `ways` at which somebody listens (in a relayed one: the relay), or of which one cannot tell
    (UDP, or a relay without its address); in their order.

    Returns a moment after the first has answered, or when all have failed.
    """
    knocks = {asyncio.create_task(_answers(way)): way for way in dict.fromkeys(ways)}
    try:
        for knock in asyncio.as_completed(knocks):
            if await knock:
                await asyncio.wait(knocks, timeout=MOMENT)
                break
        return [way for task, way in knocks.items() if task.done() and task.result()]
    finally:
        await _forget(knocks)


async def _answers(way: str) -> bool:
    place = _TCP.fullmatch(way)
    if place is None:
        return True
    with suppress(OSError, TimeoutError, ValueError, OverflowError):
        async with asyncio.timeout(KNOCK_DEADLINE):
            _, writer = await asyncio.open_connection(place[1].partition("%")[0], int(place[2]))
            writer.transport.abort()
            return True
    return False


async def _forget(tasks: Iterable[asyncio.Task[bool]]) -> None:
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
