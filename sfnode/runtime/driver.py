"""Pumps the protocol machine: events in, actions out, on the event loop.

The driver is where the order "durable, then sent, then applied" is kept: all events that have arrived are
given to the machine, what it admits is appended to the log in one transaction, and only then is anything else
done. It knows links only as things that take frames, and the engine only as something that takes updates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from sfnode.engine.core import UpdateBatch
from sfnode.observe import log
from sfnode.runtime.pump import LinkPump
from sfnode.runtime.replay import batch_of, join, taken_back
from sfnode.runtime.throttle import Throttle
from sfnode.store.log import CardRecord, CutRecord, Record, UpdateLog
from sfnode.transport.base import LENGTH_BYTES, Link
from sfprotocol import codec
from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Cut,
    Drop,
    Event,
    Examine,
    Examined,
    KeepCard,
    LinkDown,
    LinkId,
    LinkUp,
    Received,
    Serve,
    Served,
    ShowProof,
    Transmit,
    Wake,
)
from sfprotocol.frontier import first_updates
from sfprotocol.machine import Machine
from sfprotocol.messages import Proof

MAX_ROUND = 512
"""Events taken into one commit: bounds how long a frame waits for the disk."""

ROUND_TIME = 0.05
"""Seconds after which no more are taken in: to hash the chains of long segments takes a while, and the event
loop has other things to do."""

DROP_GRACE = 1.0
"""Seconds for a last Goodbye to leave."""


@dataclass(slots=True)
class Traffic:
    """Bytes over all links since the start, links that are gone included."""

    sent: int = 0
    received: int = 0
    segment_bytes_sent: int = 0
    updates_sent: int = 0


class Driver:
    """Owns the machine; `run` pumps it until `finish` or until a local fault ends the node."""

    def __init__(
        self,
        machine: Machine,
        update_log: UpdateLog,
        *,
        clock: Callable[[], float],
        apply: Callable[[UpdateBatch], None],
        continue_as: Callable[[ContinueAs], None],
        after_round: Callable[[], None],
    ) -> None:
        """`apply` takes admitted updates; `continue_as` remembers a new own feed durably; `after_round` is
        called whenever the machine's state may have changed."""
        self.machine = machine
        self.traffic = Traffic()
        self.throttle = Throttle()
        self.pumps: dict[LinkId, LinkPump] = {}
        self.between_rounds = asyncio.Lock()
        """Who holds it finds that all that the machine has admitted is on disk and has been applied."""
        self.on_fault: Callable[[str], None] = lambda peer: None
        """Called with a peer that broke a rule, before its link is dropped."""
        self._log = update_log
        self._clock = clock
        self._apply = apply
        self._continue_as = continue_as
        self._after_round = after_round
        self._events: deque[Event | None] = deque()
        """None is the last one that is taken in."""
        self._finished = False
        self._arrived = asyncio.Event()
        self._round_done = asyncio.Event()
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self._dropping: set[asyncio.Task[None]] = set()
        self._next_link = 0

    def post(self, event: Event) -> None:
        """Hand an event to the machine (from the event loop's thread)."""
        self._events.append(event)
        self._arrived.set()

    def finish(self) -> None:
        """Let `run` return when all that was posted until now has been done."""
        self._events.append(None)
        self._arrived.set()

    async def run(self) -> None:
        """Pump. Raises UserError (disk full) and LocalProtocolError, which end the node.

        Ended by `finish`. When it is cancelled instead, a commit under way still happens, but nothing that
        should follow from it: only a node that comes to an end may do that.
        """
        try:
            while not self._finished:
                await self._wait()
                async with self.between_rounds:
                    await self._round()
        finally:
            self._finished = True
            self._round_done.set()
            self._disk.shutdown(wait=False)

    async def carry(self, link: Link) -> None:
        """Carry the protocol over `link` until it ends."""
        self._next_link += 1
        pump = self.pumps[self._next_link] = LinkPump(self._next_link, link, self.post, self.throttle)
        self.post(LinkUp(pump.id, link.peer))
        try:
            await pump.finished()
            if pump.fault:
                self._blame(link.peer, pump.fault)
        finally:
            del self.pumps[pump.id]
            self.traffic.sent += link.bytes_sent
            self.traffic.received += link.bytes_received
            self.post(LinkDown(pump.id))

    async def hand_over(self, grace: float) -> None:
        """Wait until all that was posted is done and every link has been given everything, `grace` seconds
        at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while not self._finished and (self._events or not handed_over(self.machine)):
                    self._round_done.clear()
                    await self._round_done.wait()

    async def close_links(self, grace: float) -> None:
        """Give what is queued `grace` seconds to leave, then end all links."""
        pumps = list(self.pumps.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(pump.drain() for pump in pumps))
        for pump in pumps:
            pump.close()
        for task in self._dropping:
            task.cancel()

    async def _wait(self) -> None:
        """Until an event arrives or the machine's next deadline."""
        if self._events:
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        delay = max(0.0, self.machine.next_deadline() - self._clock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._arrived.wait()

    async def _round(self) -> None:
        """Take in what has arrived and do what follows from it."""
        actions = self._handle_events()
        records = [Record(a.feed, a.segment, a.chain) for a in actions if isinstance(a, Admit)]
        cuts = [self._cut_record(a) for a in actions if isinstance(a, Cut)]
        cards = [self._card_record(a) for a in actions if isinstance(a, KeepCard)]
        if records or cuts or cards:
            append = partial(self._log.append, records, cuts, cards)
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._disk, append))
        self._carry_out(actions)
        self._after_round()
        self._round_done.set()

    def _handle_events(self) -> list[Action]:
        now = self._clock()
        actions: list[Action] = []
        for _ in range(min(len(self._events), MAX_ROUND)):
            event = self._events.popleft()
            if event is None:
                self._finished = True
                break
            actions += self.machine.handle(event, now)
            if isinstance(event, Received) and event.link in self.pumps:
                self.pumps[event.link].handled()
            if self._clock() - now > ROUND_TIME:
                break
        if now >= self.machine.next_deadline():
            actions += self.machine.handle(Wake(), now)
        return actions

    def _carry_out(self, actions: list[Action]) -> None:
        pieces: list[UpdateBatch] = []
        for action in actions:
            match action:
                case Admit(segment=segment, counted=counted):
                    parts = first_updates(segment.parts, counted)
                    pieces.append(batch_of(segment.feed_key, segment.first, parts))
                case Cut():
                    pieces += self._taken_back(action)
                case Transmit(link=link, message=message):
                    if pump := self.pumps.get(link):
                        pump.send(codec.encode(message, self.machine.run.scalar_bytes))
                case Serve():
                    self._serve(action)
                case ShowProof():
                    self._show(action)
                case Examine():
                    self._examine(action)
                case Drop():
                    self._drop(action)
                case ContinueAs():
                    self._continue_as(action)
        if pieces:
            self._apply(join(pieces))

    def _serve(self, action: Serve) -> None:
        pump = self.pumps.get(action.link)
        if pump is None:
            return  # LinkDown is on its way to the machine
        segment = self._log.read(action.feed, action.first, MAX_SEGMENT_UPDATES)
        if segment is None:
            raise LocalProtocolError(f"the log ends before step {action.first}, which is to be served")
        frame = codec.encode(replace(segment, hops=action.hops), self.machine.run.scalar_bytes)
        self.traffic.segment_bytes_sent += LENGTH_BYTES + len(frame)
        self.traffic.updates_sent += segment.count
        pump.send(frame, segment=True)
        self.post(Served(action.link, action.feed, segment.stop, action.hops))

    def _card_record(self, action: KeepCard) -> CardRecord:
        return CardRecord(action.card.feed, codec.encode(action.card, self.machine.run.scalar_bytes))

    # -- forks -------------------------------------------------------------------------------------

    def _cut_record(self, action: Cut) -> CutRecord:
        state = self.machine.frontier.state(action.proof.feed)
        proof = codec.encode(action.proof, self.machine.run.scalar_bytes)
        return CutRecord(state.feed, action.proof.cut, state.cut_chain, proof)

    def _taken_back(self, action: Cut) -> list[UpdateBatch]:
        feed, start = action.proof.feed, action.proof.cut
        log.warning(
            "origin %s has signed two histories: %d of its updates do not count any more",
            feed.origin.hex()[:16], action.stop - start,
        )  # fmt: skip
        key = self.machine.frontier.state(feed).key
        return [taken_back(self._log, key, feed, start, action.stop)] if start < action.stop else []

    def _show(self, action: ShowProof) -> None:
        proof = self._log.proof(action.feed)
        if proof is None:
            raise LocalProtocolError("a proof that is to be shown is not in the log")
        if pump := self.pumps.get(action.link):
            pump.send(proof)

    def _examine(self, action: Examine) -> None:
        against = action.against
        step = against.at if isinstance(against, Proof) else against.first
        chain, ours = self._log.past(action.feed, step)
        frame = self._log.proof(action.feed)
        kept = codec.decode(frame, self.machine.run.scalar_bytes) if frame else None
        assert kept is None or isinstance(kept, Proof)
        self.post(Examined(action.link, action.feed, against, chain, ours, kept))

    def _blame(self, peer: str, fault: str) -> None:
        log.warning("dropped the link to %s, which broke rule %s", peer, fault)
        self.on_fault(peer)

    def _drop(self, action: Drop) -> None:
        pump = self.pumps.get(action.link)
        if pump is None:
            return
        if action.fault:
            self._blame(pump.link.peer, action.fault)
        self._dropping.add(task := asyncio.create_task(_close_drained(pump)))
        task.add_done_callback(self._dropping.discard)


def handed_over(machine: Machine) -> bool:
    """Whether all neighbours that have told us what they have were given the rest, our own feed above all."""
    own, stop = machine.own, machine.frontier.next(machine.own) if machine.own else 0
    return not any(
        link.synced and (link.dirty or not link.writable or (own and link.position(own) < stop))
        for link in machine.links.values()
    )


async def _close_drained(pump: LinkPump) -> None:
    """A Goodbye queued before the drop should still reach the peer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_GRACE):
            await pump.drain()
    pump.close()
