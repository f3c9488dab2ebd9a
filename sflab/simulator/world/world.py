"""One simulated run: loop, network, computers and oracle. One seed determines all randomness."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TextIO

from sflab.simulator.world.computer import ORDINARY, Computer, Hardware
from sflab.simulator.world.disk import Files
from sflab.simulator.world.engine import measured
from sflab.simulator.world.oracle import Oracle, Violation, updates_of
from sflab.simulator.world.runs import OPEN_RUN, remembering
from sflab.simulator.world.trace import Trace, Traffic
from sfnode.descriptors import allow_most
from sfnode.manifest import Manifest
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import Judge
from sfnode.store.log import Record, UpdateLog
from sfnode.transport.base import PeerRecord
from sfnode.transport.memory import CALM, Conditions, Network
from sfnode.transport.roster import pack_record
from sfnode.virtual_time import NotInVirtualTimeError, VirtualLoop
from sfprotocol import control_feed
from sfprotocol.messages import Feed, Segment
from sfprotocol.seeds import update_seeds
from sfprotocol.wire_codec import LENGTH_BYTES

RAM_DISK = Path("/dev/shm")
"""Folder in memory, if there is one, where a sync costs nothing. Folders are deleted after their run."""


class Islands(Network):
    """Network with partitions, which also apply to computers that are added later."""

    def __init__(self, world: World, conditions: Conditions) -> None:
        super().__init__(Random(f"{world.seed}/network"), conditions)
        self.deaf: set[tuple[int, int]] = set()
        """Pairs of islands. Frames from the first are lost on the way to the second."""
        self.on_frame = world.carried
        self._world = world

    def hears(self, one: str, other: str) -> bool:
        return not self.deaf or (self._island(one), self._island(other)) not in self.deaf

    def _island(self, name: str) -> int:
        node = self._world.nodes.get(name)
        return node.island if node else 0


class World:
    """One simulated run. Must be closed."""

    def __init__(
        self,
        seed: int,
        *,
        conditions: Conditions = CALM,
        hardware: Hardware = ORDINARY,
        manifest: Manifest = OPEN_RUN,
        trace_file: TextIO | None = None,
        managed: bool = False,
        policy: OrganiserPolicy | None = None,
        judge: Judge | None = None,
        judged: bool = False,
        elects: bool = False,
        computer: type[Computer] = Computer,
        watched: bool = True,
    ) -> None:
        """`managed` tells whether all nodes reach each other; otherwise only the pairs given to `want` do.

        `watched` tells whether everything that nodes write to disk is checked. The nodes' engines must then
        be engines of integers.
        """
        self.seed = seed
        self.manifest = manifest
        self.run = manifest.parameters()
        self.hardware = hardware
        self.managed = managed
        self.policy = policy
        self.judge = judge
        self.judged = judged
        """Whether seals have factors other than 1, and skip and recount feeds."""
        self.computer = computer
        self.watched = watched
        self.elects = elects
        """Whether the run has stand-ins. Then no decision that a node has shown is ever taken back."""
        self.signed: dict[tuple[int, int], tuple[bytes, set[str]]] = {}
        """Chain head after each decision, and the nodes that had that decision on disk; keyed by term and
        position."""
        self.shown: dict[int, tuple[bytes, str]] = {}
        """Chain head after each decision on an honest node's disk, and the first node that had the decision;
        keyed by position. Empty in a run without stand-ins."""
        self.leaderless_since: float | None = None
        """Time at which the organising node died; None while a node organises."""
        self.undone: set[bytes] = set()
        """Origins with undone work."""
        self.may_fork: set[int] = set()
        """Terms whose key is in use twice."""
        allow_most()  # a node opens six files
        self._folder = tempfile.TemporaryDirectory(
            prefix="sfnode-", dir=RAM_DISK if os.access(RAM_DISK, os.W_OK) else None
        )
        self.folder = Path(self._folder.name)
        self.loop = VirtualLoop(Random(f"{seed}/executors"))
        self.loop.set_exception_handler(self._on_loop_error)
        self.trace = Trace(trace_file)
        self.traffic = Traffic()
        self.nodes: dict[str, Computer] = {}
        """All honest nodes, including those that are down or left."""
        self.network = Islands(self, conditions)
        if not managed:
            self.network.pairs = set()
        self.oracle = Oracle(self.run)
        self.verify = remembering()
        self.random = Random(f"{seed}/troubles")  # another label would change all runs
        self.names: dict[bytes, set[str]] = {}
        """Display names of each honest origin. Twins have different names."""
        self.left: set[str] = set()
        """Names of nodes that left for good."""
        self.faults_middle = float("inf")
        """Time in the middle of the faults."""
        self.faults_end = float("inf")
        """Time at which the faults end. No updates are made after it."""
        self.others: dict[str, Any] = {}
        """Adversaries, keyed by name."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.error: BaseException | None = None
        """First violation, or first error of a node."""
        self.who: tuple[str, ...] = ()
        """Name of the node with the first error; empty if no node is known to have it."""
        self._level = logging.getLogger("sfnode").level
        logging.getLogger("sfnode").setLevel(logging.CRITICAL + 1)

    def __getitem__(self, name: str) -> Computer:
        return self.nodes[name]

    @property
    def now(self) -> float:
        return self.loop.time()

    def later(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call `do(*arguments)` in `seconds`, on the loop."""
        self.loop.call_later(seconds, do, *arguments)

    def close(self) -> None:
        """Stop all nodes, and free everything."""
        logging.getLogger("sfnode").setLevel(self._level)
        for node in self.nodes.values():
            node.crash()
        with suppress(NotInVirtualTimeError):
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.close()
        self._folder.cleanup()

    def run_until(self, end: float) -> None:
        """Let time pass until `end`. Raises the first error."""
        try:
            self.loop.run_until_complete(self._until(end))
        except NotInVirtualTimeError as error:
            self.failed(Violation("timer", str(error)), "")
        if self.error:
            raise self.error

    def do(self, act: Callable[..., object], *arguments: Any) -> None:
        """Call `act(*arguments)` now, on the loop."""
        self.loop.call_soon(act, *arguments)
        self.run_until(self.now)

    async def _until(self, end: float) -> None:
        self._ended = self.loop.create_future()
        timer = self.loop.call_at(end, self._end)
        await self._ended
        timer.cancel()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def failed(self, error: BaseException, who: str) -> None:
        """Record an error of the node `who`, unless it is not the first one, and stop the run."""
        if not self.error:
            self.error, self.who = error, (who,) if who else ()
        self._end()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if error := context.get("exception"):
            self.failed(error, "")

    # -- computers ---------------------------------------------------------------------------------

    def add(self, name: str, files: Files | None = None) -> Computer:
        """Add a computer that is off. With the `files` of another computer, it is the twin of that
        computer."""
        node = self.computer(self, name, self.hardware, files)
        number = len(self.nodes)
        node.address = f"/ip4/{20 + number // 250}.{number % 250}.0.1/tcp/1"
        self.nodes[name] = node
        self.oracle.honest.add(node.origin)
        self.names.setdefault(node.origin, set()).add(name)
        return node

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that belongs to no node."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def announce(self, name: str, addresses: list[str]) -> None:
        """Add an adversary to the roster, for good."""
        record = PeerRecord(name, tuple(addresses), 0, 0)
        self.network.write(self.run.run_id, name, float("inf"), pack_record(record))

    def want(self, one: Computer, other: Computer, *, both: bool = True) -> None:
        """Give `one` the other's address, as its user would.

        In a world that is not `managed`, the two can then reach each other. With `both`, `other` also dials
        `one` there.
        """
        if self.network.pairs is not None:
            self.network.pairs.add(frozenset((one.name, other.name)))
            if both:
                other.contacts.append(f"{one.address}/p2p/{one.name}")
        one.contacts.append(f"{other.address}/p2p/{other.name}")
        if one.up:
            one.hear(PeerRecord(other.name, (one.contacts[-1],), 0, 0))

    def linked(self, one: Computer, other: Computer) -> bool:
        """Return whether the two have a link."""
        return any(link.peer == other.name for link in one.links)

    def living(self) -> Iterator[Computer]:
        """Return the nodes that are up, in the order in which they were added."""
        return (node for node in self.nodes.values() if node.up)

    def staying(self) -> Iterator[Computer]:
        """Return all nodes except those that left for good."""
        return (node for node in self.nodes.values() if node.name not in self.left)

    def pick(self) -> Computer | None:
        """Return a random node that is up; None if no node is up."""
        living = list(self.living())
        return self.random.choice(living) if living else None

    def neighbours(self, one: Computer) -> list[Computer]:
        """Return the honest nodes linked with a node."""
        return [self.nodes[link.peer] for link in one.links if link.peer in self.nodes]

    # -- observations ------------------------------------------------------------------------------

    def carried(self, sender: str, receiver: str, frame: bytes) -> None:
        """Record a sent frame."""
        self.trace.frame(self.now, frame)
        size = len(frame) + LENGTH_BYTES
        if node := self.nodes.get(sender):
            node.bytes_out += size
        if node := self.nodes.get(receiver):
            node.bytes_in += size

    def became_durable(self, node: Computer, log: UpdateLog, records: Sequence[Record]) -> None:
        """Record segments that `node` has on disk now. Raises Violation."""
        for feed, segment, chain in records:
            node._note("admits", segment)
            mine = feed.origin == node.origin and self._is_measured(node, segment)
            if not self.oracle.knows(feed, segment.stop, chain):
                before, _ = log.past(feed, segment.first)
                if mine:
                    self.oracle.made(feed, before, segment, self.now, node.name)
                else:
                    self.oracle.admitted(feed, segment, before, self.now, node.name)
            if not (mine or node.hostile):
                self._delivered(node, feed, segment.first, segment.stop)

    def _is_measured(self, node: Computer, segment: Segment) -> bool:
        """Return whether the node's engine would make exactly these updates."""
        seeds = update_seeds(segment.feed_key, segment.first, segment.count).tolist()
        scalars = tuple(scalar for _, scalar in updates_of(segment.parts))
        return scalars == measured(seeds, self.run, node.salt)

    def decided(self, node: Computer, log: UpdateLog) -> None:
        """Record the decisions that `node` has on disk now.

        Raises Violation if another node had different decisions of the same term, unless the scenario forks
        that term. Decisions that only the organiser's disk had may be lost.
        """
        chain = control_feed.genesis(self.run.run_id)
        for position, entry in enumerate(log.control()):
            chain = control_feed.extend(chain, entry.term, entry.record)
            known, holders = self.signed.setdefault((entry.term, position), (chain, set()))
            if known != chain and entry.term not in self.may_fork:
                if holders != {node.name}:
                    said = f"decision {position} of term {entry.term} was signed twice"
                    raise Violation("organiser", said, (node.name,))
                self.signed[entry.term, position] = chain, holders
            holders.add(node.name)
            if self.elects and not node.hostile:
                self._shown(node, position, chain)

    def _shown(self, node: Computer, position: int, chain: bytes) -> None:
        """Record a decision that a node shows to its owner.

        Raises Violation if another node showed a different decision: one of the two must be taken back.
        """
        known, by = self.shown.setdefault(position, (chain, node.name))
        if known != chain:
            said = f"{by} and {node.name} have shown different decisions at position {position}"
            raise Violation("elections", said, (by, node.name))

    def _delivered(self, node: Computer, feed: Feed, first: int, stop: int) -> None:
        self.traffic.deliveries += stop - first
        made_at = self.oracle.story(feed).made_at
        self.traffic.latencies.extend(
            self.now - since for since in made_at[first:stop] if since >= node.up_since
        )
