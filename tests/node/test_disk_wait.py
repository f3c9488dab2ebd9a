"""A node whose log has no room (SQLite itself reports it): it waits, reports it, and continues."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import disk_wait
from sfnode.node.disk_wait import DiskWait
from tests.node.helpers import Node, Swarm, eventually
from tests.refusals import fails_with

FULL = UserError(Code.DISK_FULL, "full", "Make room.")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", 0.05)


def allow(node: Node, pages: int | None = None) -> None:
    """Limit the log to its present number of pages, or to `pages`."""
    writer = node.node.log._writer
    writer.execute(f"PRAGMA max_page_count = {pages or writer.execute('PRAGMA page_count').fetchone()[0]}")


async def test_a_node_whose_log_finds_no_room_waits_and_continues(swarm: Swarm) -> None:
    a, b = await swarm.first(), await swarm.join("b", role="relay")
    await b.until(lambda: b.known > 20)
    allow(a)
    await eventually(lambda: a.node.status().paused_by == ["disk"])
    status = a.node.status()
    assert (status.state, [alarm.code for alarm in status.alarms]) == ("paused", ["SF041"])
    with fails_with(Code.DISK_FULL):
        await a.client.evaluate()
    await asyncio.sleep(0.3)
    assert b.known <= a.node.log.updates() <= a.known == status.known, "what is not on disk was not sent"
    allow(a, 1 << 20)
    await b.until(lambda: b.known > status.known)
    await eventually(lambda: a.node.status().state == "training")
    assert a.node.status().alarms == []
    assert len(a.node.log.tails()) == 1
    allow(a)
    await eventually(lambda: a.node.driver.disk.problem)
    async with asyncio.timeout(2):
        await a.stop()
    assert b.known <= a.machine.frontier.known
    await swarm.first()
    assert a.machine.own in b.machine.frontier, "it continues its feed"


async def test_every_other_error_ends_the_wait() -> None:
    disk, errors = DiskWait(), iter([FULL, FULL, ValueError("another")])

    async def fail() -> None:
        raise next(errors)

    with pytest.raises(ValueError, match="another"):
        await disk.patiently(fail)
    assert disk.problem is None


async def test_a_thread_waits_for_room_too_and_the_loop_hears_of_it() -> None:
    disk, room, heard = DiskWait(), threading.Event(), list[bool]()
    disk.changed.append(lambda: heard.append(disk.problem is not None))

    def write() -> str:
        if not room.is_set():
            raise FULL
        return "written"

    writing = asyncio.create_task(asyncio.to_thread(disk.patiently_in_thread, write))
    await eventually(lambda: disk.problem is FULL)
    room.set()
    assert await writing == "written"
    await eventually(lambda: heard == [True, False])
    room.clear()
    writing = asyncio.create_task(asyncio.to_thread(disk.patiently_in_thread, write))
    await eventually(lambda: disk.problem)
    disk.leave()
    with pytest.raises(UserError):
        await writing
