"""Whether p2pd is alive, and what it says about itself, asked through hivemind's P2P.

It may die, hang, or lose its conversation with hivemind while it seems well. Imports nothing of hivemind, but
knows what is inside its P2P.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sfnode.transport.base import TransportError, peer_of
from sfnode.transport.calls import Calls, cancel
from sfnode.transport.daemon import Daemon

ANSWER_DEADLINE = 2.0
"""Seconds for p2pd to say its id over a local socket; a busy one needs milliseconds."""

PING_INTERVAL = 0.4
"""Seconds between two such questions, which cost half a millisecond."""

HANG_TICK, HANG_TICKS = 0.25, 5
"""How long p2pd may leave one unanswered, in seconds and wakings of our own loop: so a pause of this process
(a busy machine, a laptop that slept) is not taken for one of p2pd's. 0.4 s + 5 x 0.25 s make 1.65 s."""


class Pulse:
    """Of one p2pd, to which `p2p` is attached."""

    def __init__(self, p2pd: Daemon, p2p: Any, calls: Calls, relays: Sequence[str]) -> None:
        """`relays`: full addresses of those that we have asked to pass others on to us."""
        self.ways: list[str] = []
        """Where p2pd says that this node is reached, without /p2p/ID."""
        self._p2pd = p2pd
        self._p2p = p2p
        self._calls = calls
        self._relays = relays

    async def ask(self, deadline: float = ANSWER_DEADLINE) -> None:
        """Have p2pd say where this node is reached. Raises TransportError."""
        _, found = await self._calls.within(
            deadline, "asking p2pd for its addresses", self._p2p._client.identify()
        )
        ways = []
        for way in found:
            with suppress(Exception):  # libp2p knows more kinds of addresses than hivemind
                ways.append(str(way))
        if self._relays:
            # p2pd keeps quiet about relayed ways, or names only those through public addresses.
            peers = await self.connected()
            ways += [f"{relay}/p2p-circuit" for relay in self._relays if peer_of(relay) in peers]
        self.ways = list(dict.fromkeys(ways))

    async def connected(self) -> set[str]:
        """The peers to which p2pd has connections. Raises TransportError."""
        call = self._p2p._client.list_peers()
        peers = await self._calls.within(ANSWER_DEADLINE, "asking p2pd for its peers", call)
        return {str(peer.peer_id) for peer in peers}

    async def beats(self) -> bool:
        """Whether everything is well."""
        if not self._p2pd.alive or any(task.done() for task in _conversations(self._p2p)):
            return False
        try:
            await self.ask()
        except TransportError:
            return False
        _forget_finished(self._p2p)
        return True

    async def stops(self) -> str:
        """Returns when p2pd has died or hangs, and which."""
        ends = {
            asyncio.create_task(self._p2pd.ended()): "is gone",
            asyncio.create_task(_hung_up(self._p2p)): "is gone",  # heard of sooner at times
            asyncio.create_task(self._hung()): "hangs",
        }
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(ends)
        return next(why for end, why in ends.items() if end in done)

    async def _hung(self) -> None:
        """Returns when p2pd has left a question unanswered for HANG_TICKS."""
        ticks = 0
        while ticks < HANG_TICKS:
            question = asyncio.create_task(self.beats())
            while not question.done() and ticks < HANG_TICKS:
                await asyncio.wait([question], timeout=HANG_TICK)
                ticks += 1
            if question.done() and question.result():
                ticks = 0
                await asyncio.sleep(PING_INTERVAL)
        await cancel([question])


async def detach(p2p: Any) -> None:
    """End hivemind's tasks and let calls that wait for p2pd fail instead of hang."""
    control = p2p._client.control
    for call in list(control._pending_calls.values()):
        if not call.done():
            call.set_exception(TransportError("the network is stopped"))
    await p2p.shutdown()
    await cancel([*_conversations(p2p), *control._handler_tasks.values()])


def _conversations(p2p: Any) -> list[asyncio.Task[Any]]:
    """The tasks in which hivemind talks to p2pd. When one has ended, calls hang."""
    control = p2p._client.control
    tasks = (control._read_task, control._write_task, p2p._listen_task)
    return [task for task in tasks if task is not None]


async def _hung_up(p2p: Any) -> None:
    """Returns when one of these has ended."""
    await asyncio.wait(_conversations(p2p), return_when=asyncio.FIRST_COMPLETED)


def _forget_finished(p2p: Any) -> None:
    """hivemind keeps the task of every DHT question that the asker has cancelled; drop them."""
    tasks = p2p._client.control._handler_tasks
    for call_id in [call_id for call_id, task in tasks.items() if task.done()]:
        del tasks[call_id]
