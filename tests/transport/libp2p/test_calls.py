"""Calls into a library that may never return, and tasks that it abandons."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path

import hivemind
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.traverse import traverse_dht

from sfnode.transport.base import TransportError
from sfnode.transport.libp2p.calls import AbandonedTasks, Calls


async def hang():
    await asyncio.Event().wait()


async def test_a_call_has_a_deadline():
    with pytest.raises(TransportError, match=r"asking: no answer within 0\.01 s"):
        await Calls().within(0.01, "asking", hang())


async def test_what_a_library_raises_becomes_our_error():
    async def fail():
        raise ValueError("two\nlines")

    with pytest.raises(TransportError, match="asking: two lines"):
        await Calls().within(1, "asking", fail())


async def test_all_calls_fail_at_once_when_told_so_and_later_ones_before_they_begin():
    calls, begun = Calls(), []

    async def begin():
        begun.append(1)
        await hang()

    waiting = [asyncio.create_task(calls.within(60, "asking", begin())) for _ in range(3)]
    await asyncio.sleep(0)
    calls.fail()
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["asking: the network is stopped"] * 3
    with pytest.raises(TransportError, match="stopped"):
        await calls.within(60, "asking", begin())
    assert len(begun) == 3


async def test_a_call_that_is_cancelled_stays_cancelled():
    waiting = asyncio.create_task(Calls().within(60, "asking", hang()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("library", [Path(__file__).parent, Path("/elsewhere")])
async def test_tasks_that_a_library_leaves_pending_make_no_noise_and_ours_do(library, caplog):
    """asyncio logs such a task without an exception, only with the place where it waits."""
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.addFilter(quiet := AbandonedTasks(library, Path("/nowhere")))
    caplog.set_level(logging.ERROR, "asyncio")
    try:
        loop = asyncio.get_running_loop()
        task = loop.create_task(hang())
        await asyncio.sleep(0)
        complaint = {"task": task, "message": "Task was destroyed but it is pending!"}
        loop.call_exception_handler(complaint)  # as the garbage collector would
        task.cancel()
        gc.collect(1)
        noise = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    finally:
        asyncio_log.removeFilter(quiet)
        caplog.clear()
    assert bool(noise) == (library == Path("/elsewhere"))


async def test_a_search_that_is_cut_short_makes_no_noise_when_it_is_collected(caplog):
    """hivemind cancels its workers, but not the tasks in which each of these waits for the search's end."""

    async def get_neighbors(peer, queries):
        raise ConnectionError

    async def search():
        await traverse_dht(
            queries=[DHTID(1)], initial_nodes=[DHTID(2), DHTID(3)], beam_size=2, num_workers=2,
            queries_per_call=1, get_neighbors=get_neighbors,
        )  # fmt: skip

    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.addFilter(quiet := AbandonedTasks(Path(hivemind.__file__).parent, Path("/nowhere")))
    caplog.set_level(logging.DEBUG)
    try:
        with pytest.raises(TransportError):
            await Calls().within(1, "searching", search())
        await asyncio.sleep(0)
        gc.collect()
    finally:
        asyncio_log.removeFilter(quiet)
    assert "abandoned task: Task was destroyed but it is pending! task: <Task" in caplog.text.replace(
        "\n", " "
    )
    assert [record.name for record in caplog.records if record.name == "asyncio"] == []
    caplog.clear()
