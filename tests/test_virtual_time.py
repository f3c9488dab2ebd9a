"""Tests of virtual time: waiting takes no real time, a seed determines the order, and calls that take real
time raise."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from sfnode import virtual_time
from sfnode.daemon_thread import DaemonExecutor
from sfnode.virtual_time import NotInVirtualTimeError, Program, VirtualLoop


async def naps() -> list[tuple[str, float]]:
    said: list[tuple[str, float]] = []

    async def nap(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        said.append((name, round(asyncio.get_running_loop().time(), 3)))

    await asyncio.gather(nap("long", 3600.0), nap("short", 1.0))
    return said


def test_an_hour_passes_in_a_moment_and_timers_come_in_their_order() -> None:
    began = time.monotonic()
    assert virtual_time.run(naps()) == [("short", 1.0), ("long", 3600.0)]
    assert time.monotonic() - began < 1


async def race() -> list[str]:
    """Return the work that was done at half of a job's duration."""
    done: list[str] = []
    working = asyncio.create_task(asyncio.to_thread(done.append, "work"))
    await asyncio.sleep(virtual_time.WORK[0] / 2)
    seen = list(done)
    await working
    assert done == ["work"]
    return seen


def test_work_is_done_when_it_begins_or_when_it_ends_as_the_seed_says() -> None:
    seen = [virtual_time.run(race(), seed) for seed in range(20)]
    assert [] in seen
    assert ["work"] in seen
    assert seen == [virtual_time.run(race(), seed) for seed in range(20)]


async def one_after_the_other() -> None:
    loop, executor, done = asyncio.get_running_loop(), DaemonExecutor("disk"), list[int]()
    jobs = [loop.run_in_executor(executor, done.append, number) for number in range(50)]
    await asyncio.wait(jobs)
    assert done == list(range(50))
    assert executor.thread is None, "there are no threads in virtual time"
    assert loop.time() > 50 * virtual_time.WORK[0]


@pytest.mark.parametrize("seed", range(5))
def test_an_executor_does_one_thing_after_the_other(seed: int) -> None:
    virtual_time.run(one_after_the_other(), seed)


async def posting() -> list[str]:
    loop, heard = asyncio.get_running_loop(), list[str]()

    def work() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        loop.call_soon_threadsafe(heard.append, "posted")

    working = loop.run_in_executor(None, work)
    await asyncio.sleep(virtual_time.WORK[0] / 2)
    assert not heard, "before the work has ended"
    await working
    await asyncio.sleep(0)
    return heard


@pytest.mark.parametrize("seed", range(5))
def test_what_work_posts_lands_when_it_ends(seed: int) -> None:
    assert virtual_time.run(posting(), seed) == ["posted"]


async def failing() -> None:
    await asyncio.to_thread(int, "no number")


def test_what_work_raises_is_raised_where_it_is_awaited() -> None:
    with pytest.raises(ValueError, match="no number"):
        virtual_time.run(failing())


def test_a_program_that_was_killed_does_nothing_more() -> None:
    loop, program, done = VirtualLoop(Random(1)), Program(), list[str]()

    async def work() -> None:
        virtual_time.begin(program)
        for name in "abc":
            await asyncio.to_thread(done.append, name)

    task = loop.create_task(work())
    loop.call_later(0.9 * virtual_time.WORK[0], setattr, program, "alive", False)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert done in ([], ["a"])


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def always() -> None:
    while True:  # noqa: ASYNC110 (it is what a program that never waits does)
        await asyncio.sleep(0)


async def listening() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


async def reading() -> None:
    one, other = socket.socketpair()
    with one, other:
        asyncio.get_running_loop().add_reader(one, print)


async def starting() -> None:
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize("what", [never, always, listening, reading, starting])
def test_what_cannot_be_in_virtual_time_raises(what: object) -> None:
    with pytest.raises(NotInVirtualTimeError):
        virtual_time.run(what())  # type: ignore[operator]


def test_a_thread_pool_is_taken_for_one_thread_and_starts_none() -> None:
    async def use() -> int:
        with ThreadPoolExecutor(1) as pool:
            found = await asyncio.get_running_loop().run_in_executor(pool, len, "four")
            assert not pool._threads
            return found

    assert virtual_time.run(use()) == 4
