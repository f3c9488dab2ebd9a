"""Nodes inside other programs: start, stop, and no side effects on the program."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from itertools import product
from typing import Any

import pytest

from sfnode.control.client import Client
from sfnode.daemon import Node
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.settings import Settings
from sfnode.store.data_folder import open_data_dir
from sfnode.transport.memory import MemoryTransport, Network
from tests.node.helpers import SmallEngine, Swarm, eventually
from tests.refusals import fails_with


def failing(run: Manifest) -> SmallEngine:
    """An engine that cannot be loaded."""
    raise UserError(Code.MODEL_NOT_FOUND, "no model", "Get one.")


class Program:
    """Makes nodes of one run, as a program that uses the library does."""

    def __init__(self, swarm: Swarm) -> None:
        self.folder = swarm.folder / "mine"
        self._run_file = swarm.run_file
        self._network: Network = swarm.network

    def slow(self) -> SlowToStart:
        return SlowToStart(self._network, "mine")

    def node(
        self,
        engine: Callable[[Manifest], Any] = lambda run: SmallEngine(run).go(),
        transport: MemoryTransport | None = None,
    ) -> Node:
        return Node(
            Settings(data_dir=self.folder, run=self._run_file),
            make_transport=lambda *_: transport or MemoryTransport(self._network, "mine"),
            load_engine=lambda _, run: engine(run),
        )


@pytest.fixture
def program(swarm: Swarm) -> Program:
    return Program(swarm)


def surroundings() -> tuple[Any, ...]:
    """Return the process-wide state that a node must not change."""
    root, ours = logging.getLogger(), logging.getLogger("sfnode")
    return (
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        (root.level, list(root.handlers), ours.level, list(ours.handlers)),
        asyncio.get_running_loop().get_exception_handler(),
    )


async def test_making_a_node_does_nothing(program: Program) -> None:
    node = program.node()
    assert not program.folder.exists()
    await node.stop()  # one that was never started has nothing to stop
    for question in (node.status, node.leave, node.finish, node.addresses):
        with pytest.raises(RuntimeError, match="start"):
            question()
    with pytest.raises(RuntimeError, match="not started"):
        await node.wait()


async def test_a_node_leaves_signals_and_logging_alone_and_nothing_of_itself_behind(program: Program) -> None:
    before, tasks = surroundings(), asyncio.all_tasks()
    async with program.node() as node:
        assert surroundings() == before
        await eventually(lambda: node.status().own_updates > 5)
        assert (await node.evaluate(limit=3)).count == 3
        assert (await node.evaluate(base=True)).base
        assert (await node.generate("a", tokens=9)).base == "a"
        assert (await node.digest()).core_digest
        assert (await Client(node.control_socket).status()).peer == "mine"
        assert node.manifest.run_id.hex() == node.status().run_id
    assert surroundings() == before
    assert asyncio.all_tasks() == tasks
    await eventually(lambda: "engine" not in {thread.name for thread in threading.enumerate()})
    with open_data_dir(program.folder):
        pass  # nobody holds it any more


async def test_a_node_is_stopped_as_often_as_one_likes_and_started_once(program: Program) -> None:
    node = program.node()
    await node.start()
    await node.stop()
    await node.stop()
    await node.wait()
    with pytest.raises(RuntimeError, match="once"):
        await node.start()
    async with program.node():  # another one goes on in the same folder
        pass


async def test_leaving_and_finishing_return_at_once_and_waiting_until_the_end(program: Program) -> None:
    for end in (Node.leave, Node.finish):
        node = program.node()
        await node.start()
        end(node)
        async with asyncio.timeout(5):
            await node.wait()


async def test_to_give_up_waiting_does_not_stop_the_node(program: Program) -> None:
    async with program.node() as node:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await node.wait()
        known = node.status().known
        await eventually(lambda: node.status().known > known)


async def test_what_a_node_fails_with_is_raised_whoever_waits_for_it(program: Program) -> None:
    with pytest.raises(UserError, match="no model"):
        async with program.node(failing) as node:
            await node.wait()
    unwatched = program.node(failing)
    await unwatched.start()
    await eventually(lambda: unwatched.running.stopping.is_set())
    with pytest.raises(UserError, match="no model"):
        await unwatched.stop()
    with pytest.raises(UserError, match="no model"):
        async with program.node(failing) as node:
            await eventually(lambda: node.running.stopping.is_set())


async def test_an_error_of_the_program_is_not_replaced_by_the_stopping_of_the_node(program: Program) -> None:
    async def divide() -> None:
        async with program.node() as node:
            await eventually(lambda: node.status().own_updates > 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await divide()
    with open_data_dir(program.folder):
        pass


async def test_a_start_that_fails_leaves_nothing_running(program: Program) -> None:
    tasks = asyncio.all_tasks()
    with open_data_dir(program.folder), fails_with(Code.DATA_DIR_IN_USE):
        await program.node().start()
    assert asyncio.all_tasks() == tasks


async def starts(program: Program) -> AsyncIterator[tuple[Node, asyncio.Task[Node]]]:
    """Yield nodes at various moments of their start, each with the task that starts it. Afterwards nothing of
    the node may be left."""
    tasks = asyncio.all_tasks()
    for ticks, pause in product(range(0, 12, 2), (0, 0.002)):
        node = program.node()
        starting = asyncio.create_task(node.start())
        for _ in range(ticks):
            await asyncio.sleep(pause)
        yield node, starting
        assert asyncio.all_tasks() == tasks
        with open_data_dir(program.folder):
            pass


async def test_a_start_that_is_called_off_leaves_nothing_running(program: Program) -> None:
    called_off = 0
    async for node, starting in starts(program):
        called_off += starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        async with asyncio.timeout(5):
            await node.stop()
    assert called_off > 1


async def test_a_node_is_stopped_while_another_task_starts_it(program: Program) -> None:
    refused = 0
    async for node, starting in starts(program):
        async with asyncio.timeout(5):
            await asyncio.gather(node.stop(), node.stop())
            (outcome,) = await asyncio.gather(starting, return_exceptions=True)
        if outcome is not None:
            assert isinstance(outcome, RuntimeError)
            assert "stopped while it started" in str(outcome)
            refused += 1
    assert refused > 0


async def test_the_program_goes_on_while_a_node_waits_for_its_folder(program: Program) -> None:
    with open_data_dir(program.folder) as folder:
        lock = folder.lock
    with lock.open() as asking:  # as `sfnode status` does, for a moment
        fcntl.flock(asking, fcntl.LOCK_SH)
        node = program.node()
        starting = asyncio.create_task(node.start())
        await asyncio.sleep(0.2)
        assert not starting.done()
        fcntl.flock(asking, fcntl.LOCK_UN)
        async with asyncio.timeout(5):
            await starting
    await node.stop()


class SlowToStart(MemoryTransport):
    """A transport that never finishes starting. It takes some turns of the loop to stop, and then calls
    `fault`."""

    fault: UserError | None = None
    begun = stopped = False
    deadline: asyncio.Timeout | None = None
    """Expires once it has begun to start: a busy machine takes its time to get there."""

    async def start(self) -> None:
        self.begun = True
        if self.deadline:
            self.deadline.reschedule(0)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0.01)
        await super().stop()
        self.stopped = True
        if self.fault is not None:
            raise self.fault


async def test_several_calls_to_stop_do_not_cut_the_taking_apart_short(program: Program) -> None:
    transport = program.slow()
    node = program.node(transport=transport)
    starting = asyncio.create_task(node.start())
    await eventually(lambda: transport.begun)
    async with asyncio.timeout(5):
        first = asyncio.create_task(node.stop())
        await asyncio.sleep(0.02)
        await node.stop()
        await first
    assert transport.stopped
    with pytest.raises(RuntimeError, match="stopped while it started"):
        await starting


async def test_a_timeout_around_start_is_the_callers_even_if_taking_apart_fails(program: Program) -> None:
    transport = program.slow()
    transport.fault = UserError(Code.DATA_DIR_IN_USE, "cannot stop", "Wait.")
    node = program.node(transport=transport)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as transport.deadline:
            await node.start()
    with pytest.raises(UserError, match="cannot stop"):
        await node.stop()
