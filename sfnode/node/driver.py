"""The asyncio adapter of the protocol host: takes frames and own updates, writes the log on a thread, sends
frames.

The host (`sfprotocol.host`) works in rounds and keeps the order "durable, then sent, then applied". In each
round, the driver writes the commit on a separate thread, and carries out the effects once the commit is on
disk. The driver knows links only as objects that take frames, and the engine only as a reader of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sfnode.daemon_thread import DaemonExecutor
from sfnode.logging import log
from sfnode.node.disk_wait import DiskWait
from sfnode.node.link_pump import LinkPump
from sfnode.resources.bandwidth_limits import Bandwidth
from sfnode.store.data_folder import remember_signing
from sfnode.store.log import CardRecord, CutRecord, Record, UpdateLog
from sfnode.store.replay import remember_checkpoint
from sfnode.transport.base import Link
from sfprotocol import wire_codec
from sfprotocol.events import Cut, Event, JoinRequested, LinkDown, LinkId, LinkUp, Rebase
from sfprotocol.host import Advanced, Close, Commit, Effect, Host, Send, cut_chain
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, Proof, RunParameters, Segment, Summary
from sfprotocol.signing import genesis
from sfprotocol.wire_codec import LENGTH_BYTES

DROP_GRACE = 1.0
"""Maximum time, in seconds, for which a dropped link stays open so that a last Goodbye can be sent."""

KEEP_INTERVAL = 15.0
"""Seconds between frames on each link while a round waits for room on the disk. Peers drop a link after four
times this interval without a frame (SPEC L7)."""


@dataclass(slots=True)
class Traffic:
    """Traffic, in bytes and updates, over all links since the start, including closed links."""

    sent: int = 0
    received: int = 0
    segment_bytes_sent: int = 0
    updates_sent: int = 0


class LogStore:
    """The update log as the host's `Store`; `append` runs on the disk thread."""

    def __init__(
        self, update_log: UpdateLog, run: RunParameters, continue_as: Callable[[Feed], None]
    ) -> None:
        """`continue_as` records durably that this node continues with a new own feed."""
        self._log = update_log
        self._run = run
        self._continue_as = continue_as
        self.read = update_log.read
        self.past = update_log.past
        self.label = update_log.label

    def append(self, commit: Commit) -> None:
        """Write `commit`. Raises UserError DISK_FULL and LocalProtocolError; the log is then as it was.

        A new own feed is recorded first. If the process ends before the log is written, the new incarnation
        stays unused. In return the node never continues a feed of which other nodes may know more updates
        than this log (SPEC I3).
        """
        if commit.own is not None:
            self._continue_as(commit.own)
        if commit.control:
            remember_signing(self._log, all(kept.ours for kept in commit.control))
        records = [Record(admit.feed, admit.segment, admit.chain) for admit in commit.admits]
        cuts = [self._cut_record(cut.proof) for cut in commit.cuts]
        cuts += [CutRecord(feed, 0, genesis(self._run.run_id, feed), b"") for feed in commit.evicted]
        cards = [CardRecord(card.feed, wire_codec.encode(card, *self._run.form)) for card in commit.cards]
        self._log.append(
            records,
            cuts,
            cards,
            control=commit.control,
            authority=[wire_codec.encode(message, *self._run.form) for message in commit.authority],
            statement=wire_codec.encode(commit.statement, *self._run.form) if commit.statement else b"",
            replacing=self._run.organised is not None,
        )
        if commit.rebase:
            self._rebase(commit.rebase)

    def _rebase(self, rebase: Rebase) -> None:
        """Make the log begin at the bases of a checkpoint. The checkpoint is recorded first. If the process
        then ends before the log is pruned, the node only claims to keep fewer updates than it does (SPEC
        O15)."""
        remember_checkpoint(self._log, rebase.checkpoint)
        self._log.rebase(rebase.bases)

    def proof(self, feed: Feed) -> Proof | None:
        """Return the proof of the lowest cut of `feed`; None if it is not cut."""
        frame = self._log.proof(feed)
        if not frame:
            return None
        proof = wire_codec.decode(frame, *self._run.form)
        assert isinstance(proof, Proof)
        return proof

    def _cut_record(self, proof: Proof) -> CutRecord:
        frame = wire_codec.encode(proof, *self._run.form)
        return CutRecord(proof.feed, proof.cut, cut_chain(self._run, proof), frame)


class Driver:
    """Runs the host, one round after another, until `finish` or until a local fault ends the node."""

    def __init__(
        self,
        machine: Machine,
        update_log: UpdateLog,
        *,
        clock: Callable[[], float],
        continue_as: Callable[[Feed], None],
    ) -> None:
        """`continue_as` records durably that this node continues with a new own feed. It is called on the
        disk thread. Other parts add their callbacks to the lists below."""
        self.machine = machine
        self.traffic = Traffic()
        self.bandwidth = Bandwidth()
        self.pumps: dict[LinkId, LinkPump] = {}
        self.disk = DiskWait()
        """Repeats all writes of this node that find no room on the disk."""
        self.between_rounds = asyncio.Lock()
        """Lock held during a round. While another task holds it, all updates that the machine has admitted
        are on disk, and `on_round` was called for them."""
        self.retreat: list[Callable[[Mapping[Feed, int]], Awaitable[None]]] = []
        """Functions that are called before a round replaces updates in the log. They get the first replaced
        step of each feed concerned. Each function returns once nothing needs the old updates."""
        self.on_fault: list[Callable[[str], None]] = []
        """Functions that are called when a peer broke a rule, with its peer id, before the link is
        dropped."""
        self.on_join_request: list[Callable[[JoinRequested], None]] = []
        self.on_round: list[Callable[[tuple[Feed, ...]], None]] = []
        """Functions that are called once a round is durable and carried out, with the feeds whose counted
        updates have changed."""
        self.after_round: list[Callable[[], None]] = []
        """Functions that are called whenever the machine's state may have changed."""
        self.look_at: list[Callable[[], float]] = []
        """Functions that return the time at which a round is due even if the machine has nothing to do."""
        self._store = LogStore(update_log, machine.run, continue_as)
        self._host = Host(machine, self._store)
        self._clock = clock
        self._log = update_log
        self._finishing = False
        """Whether no more events are accepted. The queued ones are still handled."""
        self._finished = False
        self._arrived = asyncio.Event()
        self._round_done = asyncio.Event()
        self._disk = DaemonExecutor("disk")
        self._summaries: dict[LinkId, tuple[float, Summary]] = {}
        """Time of the last Summary on each link, and that Summary without its entries."""
        self._dropping: dict[asyncio.Task[None], None] = {}
        self._next_link = 0

    def post(self, event: Event) -> None:
        """Hand an event to the machine (from the event loop's thread)."""
        if not self._finishing:
            self._host.post(event)
            self._arrived.set()

    def look(self) -> None:
        """Have `run` start a round soon, even without an event."""
        self._arrived.set()

    def finish(self) -> None:
        """Let `run` return once all events posted until now are handled."""
        self._finishing = True
        self._arrived.set()

    async def run(self) -> None:
        """Run the host. Raises LocalProtocolError and UserError, which end the node: DISK_FULL only after
        `disk.leave`.

        Ends after `finish`. If `run` is cancelled instead, a commit under way is still written, but has no
        other effect. So cancel `run` only when the node ends.
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
        number = self._next_link
        pump = LinkPump(number, link, self.post, lambda: self._host.has_room(number), self.bandwidth)
        self.pumps[number] = pump
        self.post(LinkUp(number, link.peer))
        try:
            await pump.finished()
            if pump.fault:
                self._blame(link.peer, pump.fault)
        finally:
            del self.pumps[number]
            self._summaries.pop(number, None)
            self.traffic.sent += link.bytes_sent
            self.traffic.received += link.bytes_received
            self.post(LinkDown(number))

    async def hand_over(self, grace: float) -> None:
        """Wait until all posted events are handled and all updates are handed to every link, `grace` seconds
        at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while not self._finished and (self._host.waiting or not handed_over(self.machine)):
                    self._round_done.clear()
                    await self._round_done.wait()

    async def close_links(self, grace: float) -> None:
        """Wait at most `grace` seconds for queued frames to leave, then end all links."""
        pumps = list(self.pumps.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(pump.drain() for pump in pumps))
        for pump in pumps:
            pump.close()
        for task in self._dropping:
            task.cancel()

    # -- rounds ------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait until an event arrives or the host's next deadline."""
        if self._host.waiting or self._finishing:
            await asyncio.sleep(0)
            return
        deadlines = self._host.next_deadline(), *(at() for at in self.look_at)
        delay = max(0.0, min(deadlines) - self._clock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._arrived.wait()

    async def _round(self) -> None:
        """Handle the queued events, write the commit and carry out the effects."""
        self._arrived.clear()
        commit = self._host.decide(self._clock(), clock=self._clock)
        for pump in self.pumps.values():
            pump.resume()
        if commit is not None:
            for cut in commit.cuts:
                _report_cut(cut)
            if replaced := self._replaced(commit):
                for retreat in self.retreat:
                    await retreat(replaced)
            for part in _parts(commit):
                await self.disk.patiently(partial(self._append, part), self._keep_links)
        self._carry_out(self._host.carry_out())
        self._finished = self._finishing and not self._host.waiting
        self.changed()
        self._round_done.set()

    async def _append(self, commit: Commit) -> None:
        appending = asyncio.get_running_loop().run_in_executor(self._disk, self._store.append, commit)
        await asyncio.shield(appending)

    def _keep_links(self) -> None:
        """Repeat the last Summary on each link without its entries, so that peers do not take this node for
        dead. A new Summary would report decisions that are not on disk."""
        now = self._clock()
        for number, (sent, summary) in list(self._summaries.items()):
            if now - sent >= KEEP_INTERVAL:
                self._summaries[number] = now, summary
                self.pumps[number].send(wire_codec.encode(summary, *self.machine.run.form))

    def changed(self) -> None:
        """Call the functions of `after_round`. Other parts of the node call this method when something has
        changed without a round, such as when the model is loaded."""
        for told in self.after_round:
            told()

    def _carry_out(self, effects: list[Effect]) -> None:
        moved: dict[Feed, None] = {}
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case Close():
                    self._close(effect)
                case Advanced(feed=feed):
                    moved[feed] = None
                case JoinRequested():
                    for hear in self.on_join_request:
                        hear(effect)
        for told in self.on_round:
            told(tuple(moved))

    def _replaced(self, commit: Commit) -> dict[Feed, int]:
        """Return the first step that `commit` replaces in the log, keyed by feed. Feeds without replaced
        steps are left out."""
        replaced: dict[Feed, int] = {}
        for feed, segment in ((admit.feed, admit.segment) for admit in commit.admits):
            if segment.first < self._log.stop(feed):
                replaced[feed] = min(segment.first, replaced.get(feed, segment.first))
        return replaced

    def _send(self, send: Send) -> None:
        pump = self.pumps.get(send.link)
        if pump is None:
            return
        if isinstance(send.message, Segment):
            self.traffic.segment_bytes_sent += LENGTH_BYTES + len(send.frame)
            self.traffic.updates_sent += send.message.count
        elif isinstance(send.message, Summary) and not send.message.more:
            self._summaries[send.link] = self._clock(), replace(send.message, entries=())
        pump.send(send.frame, segment=isinstance(send.message, Segment))

    def _close(self, close: Close) -> None:
        pump = self.pumps.get(close.link)
        if pump is None:
            return
        if close.fault:
            self._blame(pump.link.peer, close.fault)
        self._dropping[task := asyncio.create_task(_close_drained(pump))] = None
        task.add_done_callback(self._dropping.pop)

    def _blame(self, peer: str, fault: str) -> None:
        log.warning("dropped the link to %s, which broke rule %s", peer, fault)
        for hear in self.on_fault:
            hear(peer)


def _parts(commit: Commit) -> list[Commit]:
    """Divide a commit into its transactions, so that no transaction is written twice when a later one must be
    repeated."""
    if not commit.rebase:
        return [commit]
    return [replace(commit, rebase=None), Commit(rebase=commit.rebase)]


def handed_over(machine: Machine) -> bool:
    """Return whether every neighbour that has told which updates it has was sent all updates that it lacks,
    and our whole own feed."""
    own, stop = machine.own, machine.frontier.next(machine.own) if machine.own else 0
    return not any(
        link.synced and (link.outbox.dirty or not link.outbox.writable or (own and link.position(own) < stop))
        for link in machine.links.values()
    )


def _report_cut(cut: Cut) -> None:
    log.warning(
        "origin %s has signed two histories: %d of its updates do not count any more",
        cut.proof.feed.origin.hex()[:16], cut.stop - cut.proof.cut,
    )  # fmt: skip


async def _close_drained(pump: LinkPump) -> None:
    """Close a link after its queued frames have left: a Goodbye should still reach the peer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_GRACE):
            await pump.drain()
    pump.close()
