"""Rate limits in each direction, the bytes left in both together, and changes of both at any time."""

from __future__ import annotations

import asyncio
import math
import time

from sfnode.resources.bandwidth_limits import Bandwidth, RateLimit
from sfnode.resources.pauses import BURST
from sfprotocol.machine import LINK_TIMEOUT

STALE = 0.2
"""Seconds that the loop's time, read once a turn, may lag behind on a busy machine, and two frames beyond."""


async def carry(rate_limit: RateLimit, frames: int, size: int) -> float:
    """Carry so many frames and return the seconds that it took."""
    begun = time.monotonic()
    for _ in range(frames):
        await rate_limit.ready()
        rate_limit.count(size)
    return time.monotonic() - begun


async def test_nothing_waits_without_a_limit() -> None:
    assert await carry(Bandwidth().upload, 1000, 10_000) < 1


async def test_a_rate_is_kept_in_one_direction_by_all_links_together() -> None:
    bandwidth = Bandwidth()
    bandwidth.upload.limit(100_000)
    took = await asyncio.gather(*(carry(bandwidth.upload, 50, 1000) for _ in range(2)))
    assert max(took) >= 1 - BURST - STALE
    assert await carry(bandwidth.download, 100, 1000) < 0.5
    assert bandwidth.total == 200_000


async def test_bulk_transfers_go_one_at_a_time_and_after_the_links() -> None:
    bandwidth, went = Bandwidth(), []
    bandwidth.upload.limit(100_000)

    async def bulk(size: int) -> None:
        await bandwidth.upload.ready_for_bulk()
        went.append("bulk")
        bandwidth.upload.count(size)

    async def link() -> None:
        await bandwidth.upload.ready()
        went.append("link")

    begun = time.monotonic()
    await asyncio.gather(*(bulk(50_000) for _ in range(3)), link())
    assert went[:2] == ["bulk", "link"]  # the first finds nobody waiting
    assert time.monotonic() - begun >= 1 - BURST - STALE


async def test_reserved_bytes_keep_others_waiting_until_it_is_known_how_many_came() -> None:
    bandwidth = Bandwidth()
    heard: list[int] = []
    bandwidth.on_exhausted = lambda: heard.append(bandwidth.total)
    bandwidth.download.limit(10_000)
    bandwidth.set_remaining(100_000)
    bandwidth.download.reserve(100_000)
    waiting = [
        asyncio.create_task(wait) for wait in (bandwidth.download.ready_for_bulk(), bandwidth.upload.ready())
    ]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    bandwidth.download.count(0, 100_000)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert (bandwidth.total, heard) == (0, [])


async def test_no_bulk_transfer_silences_links_for_longer_than_their_peers_wait() -> None:
    rate_limit = Bandwidth().upload
    assert rate_limit.largest_bulk == math.inf
    rate_limit.limit(1000)
    assert rate_limit.largest_bulk <= 1000 * LINK_TIMEOUT / 2


async def test_a_waiting_link_goes_on_when_its_rate_limit_is_removed() -> None:
    bandwidth = Bandwidth()
    bandwidth.download.limit(1000)
    bandwidth.download.count(1_000_000)
    waiting = asyncio.create_task(bandwidth.download.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    bandwidth.download.limit(None)
    await asyncio.wait_for(waiting, 5)


async def test_both_directions_stop_when_no_bytes_are_left_until_there_are_more() -> None:
    bandwidth, heard = Bandwidth(), []
    bandwidth.on_exhausted = lambda: heard.append(bandwidth.total)
    bandwidth.set_remaining(1500)
    bandwidth.upload.count(1000)
    assert heard == []
    bandwidth.download.count(1000)
    assert heard == [2000]
    waiting = [
        asyncio.create_task(rate_limit.ready()) for rate_limit in (bandwidth.upload, bandwidth.download)
    ]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    bandwidth.set_remaining(math.inf)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
