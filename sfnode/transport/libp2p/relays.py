"""The relays of a node that others cannot dial: which relays p2pd is given, and when it needs other ones.

p2pd asks a relay once for a reservation. If the relay goes away, p2pd does not ask it again for an hour. If
one relay does not answer at the start, p2pd waits three minutes before it asks the others. So p2pd is given
only relays that answer, and is restarted when this node has no reservation any more. Imports nothing of
hivemind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from sfnode.transport.base import is_private, peer_of
from sfnode.transport.libp2p.calls import wait_briefly
from sfnode.transport.libp2p.reachability import Names, listening

WANTED = 2
"""Target number of relays for p2pd. With two, one of them may go away without a restart."""

TRIED = 8
"""Maximum number of relays, besides the given ones, that are tried at a time. It is bounded because any peer
may claim to be a relay."""

ANSWER_PATIENCE = 3.0
"""Deadline, in seconds, for relays to answer before a start."""

LOST_PATIENCE, LOST_PATIENCE_MOST = 15.0, 600.0
"""First and maximum time, in seconds, without any reservation after which p2pd is restarted with other
relays. The time doubles with each restart until a relay grants a reservation, which takes a few seconds."""


class Relays:
    """The relays of one node. The object stays the same when p2pd is restarted."""

    def __init__(self, given: Sequence[str], names: Names, random: Random) -> None:
        """`given` are the full addresses of the relays that the user named, or else of the bootstrap
        peers."""
        self.known: Callable[[], Sequence[str]] = tuple
        """Returns the full addresses of peers that claim to relay for others."""
        self.chosen: tuple[str, ...] = tuple(given)
        """The relays that p2pd was given at its last start."""
        self._given, self._names, self._random = given, names, random
        self._patience = LOST_PATIENCE
        self._without = 0.0
        """Time since which this node has had no reservation at any relay."""
        self._asked: set[str] = set()
        """Peers that answered at the last start, and that p2pd has asked for a reservation."""
        self._placed: set[str] = set()
        """Peers that have granted a reservation since the last start."""
        self._gone: set[str] = set()
        """Peers with which p2pd has lost its connection since the last start, and which it does not ask
        again."""

    async def choose(self) -> tuple[str, ...]:
        """Choose relays for the next start of p2pd: all given relays that answer and, if these are fewer than
        WANTED, others.

        Given relays that granted no reservation after the last start are chosen only if no other relay
        answers.
        """
        refused = self._asked - self._placed
        given = await self._answering(self._given)
        found = [relay for relay in given if peer_of(relay) not in refused]
        if len(found) < WANTED:
            others = [one for one in await self._answering(self._others()) if peer_of(one) not in refused]
            found += others[: WANTED - len(found)]
        found = found or given
        self.chosen = tuple(found or self._given)
        self._asked, self._placed, self._gone = set(map(peer_of, found)), set(), set()
        self._without = asyncio.get_running_loop().time()
        return self.chosen

    def places(self, reported: Sequence[str], connected: set[str]) -> list[str]:
        """Return this node's addresses through the relays that have granted it a reservation.

        `reported` are the relayed addresses that p2pd reports. It reports none for relays with private
        addresses. So a reservation at such a relay is assumed as long as p2pd keeps its connection to the
        relay.
        """
        private = {peer_of(relay) for relay in self.chosen if is_private(relay)}
        self._gone |= {peer for peer in private & self._placed if peer not in connected}
        there = (private & connected) - self._gone
        found = [f"{relay}/p2p-circuit" for relay in self.chosen if peer_of(relay) in there]
        self._placed |= there | {peer_of(one.partition("/p2p-circuit")[0]) for one in reported}
        if found or reported:
            self._without, self._patience = asyncio.get_running_loop().time(), LOST_PATIENCE
        return [*reported, *found]

    async def want_a_start(self) -> bool:
        """Return whether p2pd should be restarted: this node has had no reservation for too long, and some
        relay answers that has not refused one."""
        now = asyncio.get_running_loop().time()
        if now - self._without < self._patience:
            return False
        self._without, self._patience = now, min(2 * self._patience, LOST_PATIENCE_MOST)
        answering = set(map(peer_of, await self._answering([*self._given, *self._others()])))
        return bool(answering - (self._asked - self._placed))

    def _others(self) -> list[str]:
        """Return the addresses of at most TRIED relays besides the given ones, in random order."""
        given = {peer_of(relay) for relay in self._given}
        others = [one for one in self.known() if "/p2p-circuit" not in one and peer_of(one) not in given]
        peers = list(dict.fromkeys(map(peer_of, others)))
        chosen = self._random.sample(peers, min(TRIED, len(peers)))
        return sorted(
            (one for one in others if peer_of(one) in chosen), key=lambda o: chosen.index(peer_of(o))
        )

    async def _answering(self, relays: Sequence[str]) -> list[str]:
        """Return one address of each relay that answers within ANSWER_PATIENCE, in the order of `relays`."""
        peers: dict[str, list[str]] = {}
        for relay in relays:
            peers.setdefault(peer_of(relay), []).append(relay)
        tries = [asyncio.create_task(listening(addresses, self._names)) for addresses in peers.values()]
        late = await wait_briefly(tries, ANSWER_PATIENCE)
        for task in late:
            task.cancel()
        return [task.result()[0] for task in tries if task not in late and task.result()]
