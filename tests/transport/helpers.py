"""What several tests of the transport do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sfnode.transport.base import Link, LinkClosed

POOL = 3
"""Real nodes that the tests of one module share."""


async def read_all(link: Link) -> list[bytes]:
    """What arrives until the link ends."""
    frames = []
    try:
        while True:
            frames.append(await link.receive())
    except LinkClosed:
        return frames


async def eventually(probe: Callable[[], Awaitable[object]]) -> None:
    """Wait for something outside this process, which has no event to wait for."""
    give_up = asyncio.get_running_loop().time() + 20
    while not await probe():
        assert asyncio.get_running_loop().time() < give_up
        await asyncio.sleep(0.01)
