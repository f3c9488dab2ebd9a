"""What several tests of the transport do."""

from __future__ import annotations

from sfnode.transport.base import Link, LinkClosed


async def read_all(link: Link) -> list[bytes]:
    """What arrives until the link ends."""
    frames = []
    try:
        while True:
            frames.append(await link.receive())
    except LinkClosed:
        return frames
