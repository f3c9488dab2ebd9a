"""How long a question to a neighbour takes, measured only while somebody wants to know.

Neither the protocol nor libp2p's daemon tells round trips, so this asks each neighbour for an echo on a
stream of its own, over the connection that is there. What comes out is the time until the answer, the opening
of the stream included: one to two round trips of the network. It costs a neighbour some hundred bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from sfnode.errors import UserError
from sfnode.transport.base import Transport, TransportError, peer_of

ECHO = b"\xc0"
"""The question, and its answer (SPEC L6)."""

INTERVAL = 10.0
"""Seconds between two questions to one neighbour, however often somebody looks."""

DEADLINE = 5.0
"""Seconds after which there is no answer."""


class Latency:
    """Of the neighbours of one node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._found: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def of(self, peer: str) -> float | None:
        """Seconds, as last measured; None if it never answered."""
        return self._found.get(peer)

    def look(self, ways: dict[str, str]) -> None:
        """Somebody wants to know: ask these neighbours, an address for each, unless it is too soon."""
        now = asyncio.get_running_loop().time()
        self._forget(ways)
        for peer, address in ways.items():
            if now - self._asked.get(peer, float("-inf")) >= INTERVAL:
                self._asked[peer] = now
                self._asking.add(task := asyncio.create_task(self._ask(address)))
                task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        with suppress(TransportError, UserError, TimeoutError):
            async with asyncio.timeout(DEADLINE):
                answer = await self._transport.request(address, ECHO)
            if answer == ECHO and peer_of(address) in self._asked:  # else it has gone meanwhile
                self._found[peer_of(address)] = clock() - began

    def _forget(self, wanted: Collection[str]) -> None:
        for peer in self._asked.keys() - set(wanted):
            del self._asked[peer]
            self._found.pop(peer, None)
