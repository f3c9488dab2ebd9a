"""One node of one run: puts log, machine, transport, engine and control socket together, and apart again.

The order of starting is: folder, network, manifest, log, links, engine. The order of stopping is the reverse
and takes less than two seconds, whatever the engine is doing; everything admitted is on disk by then.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import sfnode
from sfnode.config import Manifest, NodeSettings
from sfnode.engine.core import UpdateBatch
from sfnode.observe import log
from sfnode.runtime import control, joining
from sfnode.runtime.driver import Driver
from sfnode.runtime.links import Neighbours
from sfnode.runtime.replay import batches
from sfnode.runtime.status import CoreStatus, EvaluationStatus, FeedStatus, LinkStatus, Status
from sfnode.runtime.training import Training
from sfnode.runtime.worker import Worker
from sfnode.store.datadir import DataDir, open_data_dir
from sfnode.store.identity import load_or_create
from sfnode.store.log import UpdateLog
from sfnode.transport.base import PeerRecord, Transport, TransportError
from sfprotocol import codec
from sfprotocol.events import ContinueAs
from sfprotocol.frontier import Frontier
from sfprotocol.machine import ASK_TIMEOUT, Machine
from sfprotocol.messages import Feed, ManifestReply, ManifestRequest
from sfprotocol.signing import Sign

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer

WATCH_INTERVAL = 0.5
"""Seconds between looks at whether the node has caught up, or is done."""

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

ENGINE_GRACE = 0.5
"""Seconds that a step in progress has when the node stops; then it is abandoned."""

SETTLE_TIME = 3.0
"""Seconds without news after which a node that is done may leave, if its neighbours agree."""

LEAVE_GRACE = 30.0
"""Seconds after which it leaves even so."""

MakeTransport = Callable[[NodeSettings, DataDir, tuple[str, ...]], Transport]
"""Builds the transport for these settings, this folder and these bootstrap addresses."""


@dataclass(slots=True)
class Progress:
    """What the node waits for on its way out."""

    known: int = -1
    changed_at: float = 0.0
    done_at: float | None = None


class RunningNode:
    """A node that has joined its run. Built by `run`; answers the control API."""

    def __init__(
        self,
        settings: NodeSettings,
        manifest: Manifest,
        data_dir: DataDir,
        update_log: UpdateLog,
        transport: Transport,
    ) -> None:
        self.settings = settings
        self.manifest = manifest
        self.log = update_log
        self.transport = transport
        self.clock = asyncio.get_running_loop().time
        self.stopping = asyncio.Event()
        self._started = self.clock()
        self._fault: BaseException | None = None
        self._progress = Progress()
        self.machine = self._machine(data_dir)
        self.driver = Driver(
            self.machine,
            update_log,
            clock=self.clock,
            apply=self._apply,
            continue_as=self._continue_as,
            after_round=self._after_round,
        )
        self.neighbours = Neighbours(
            transport,
            self.driver,
            topic=manifest.run_id,
            book=[*settings.peers, *joining.remembered_peers(update_log)],
            own_record=self._record,
            remember=lambda addresses: joining.remember_peers(update_log, addresses),
            random=SystemRandom(),
        )
        transport.on_request(self._answer)
        self.training: Training | None = None
        self.worker: Worker[Trainer] | None = None
        self._engine_loaded = False
        if settings.role == "trainer":
            self._start_engine()

    # -- putting it together -----------------------------------------------------------------------

    def _machine(self, data_dir: DataDir) -> Machine:
        parameters = self.manifest.parameters()
        frontier = Frontier(parameters)
        for tail in self.log.tails():
            frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch)
        own: Feed | None = None
        sign: Sign = _never_sign
        proven = True
        if self.settings.role == "trainer":
            identity = load_or_create(data_dir.identity)
            own, proven = joining.own_feed(self.log, identity)
            sign = identity.sign
        return Machine(
            parameters,
            frontier,
            own=own,
            sign=sign,
            draw_incarnation=joining.draw_incarnation,
            proven=proven,
            now=self.clock(),
        )

    def _start_engine(self) -> None:
        self.worker = Worker(self._load_engine, self._on_engine_ready, self._on_result, self.fail)
        for batch in batches(self.log, self.manifest.run_id):
            self.worker.apply(batch)
        self.training = Training(
            self.machine,
            order=self.worker.order,
            post=self.driver.post,
            clock=self.clock,
            queries=self.settings.queries,
            steps=self.settings.steps,
        )

    def _load_engine(self) -> Trainer:
        """On the engine's thread: torch takes seconds to load."""
        import torch

        from sfnode.engine.trainer import Trainer

        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)
        return Trainer.load(
            self.manifest,
            model_override=self.settings.model,
            data_override=self.settings.data,
            shard=self.settings.shard,
            device=self.settings.device,
        )

    # -- callbacks ---------------------------------------------------------------------------------

    def _apply(self, batch: UpdateBatch) -> None:
        if self.worker:
            self.worker.apply(batch)

    def _continue_as(self, action: ContinueAs) -> None:
        log.warning("peers know more of our own updates than this log: continuing under a new incarnation")
        joining.remember_feed(self.log, action.feed)

    def _after_round(self) -> None:
        if self.training:
            self.training.advance()

    def _on_engine_ready(self) -> None:
        self._engine_loaded = True
        log.info("model loaded")

    def _on_result(self, order: Any, result: Any) -> None:
        if self.training:
            self.training.on_result(order, result)

    def fail(self, error: BaseException) -> None:
        """A local fault: stop the node and let `run` raise it."""
        self._fault = self._fault or error
        self.stopping.set()

    def stop(self) -> None:
        """Ask the node to stop."""
        self.stopping.set()

    def _record(self) -> PeerRecord:
        role = 0 if self.settings.role == "trainer" else 1
        addresses = tuple(self.transport.addresses())
        return PeerRecord(self.transport.peer, addresses, role, self.machine.frontier.known)

    async def _answer(self, _: str, frame: bytes) -> bytes:
        if not isinstance(codec.decode(frame), ManifestRequest):
            raise TransportError("only manifests are answered here")
        return codec.encode(ManifestReply(self.manifest.canonical()))

    # -- living ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run until `stop`, a fault, or the end that the settings ask for; raises the fault."""
        tasks = [
            asyncio.create_task(self._guard(job))
            for job in (self.driver.run, self.neighbours.run, self._watch, self._report)
        ]
        try:
            await self.stopping.wait()
        finally:
            await self._end(tasks)
        if self._fault:
            raise self._fault

    async def _guard(self, job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Stop computing, write down and send what is finished, and hang up."""
        self.neighbours.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.worker and not await self.worker.stop(ENGINE_GRACE):
            log.debug("a step in progress was abandoned")
        if self.training and self._fault is None:
            self.training.flush()
            await self.driver.round()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENGINE_GRACE):
                await self.driver.close_links()

    async def _watch(self) -> None:
        while True:
            if self.training and not self.training.ready and self._engine_loaded:
                self.training.ready = self._caught_up()
                self.training.advance()
            if self._may_leave():
                log.info("done: leaving")
                self.stop()
            await asyncio.sleep(WATCH_INTERVAL)

    def _caught_up(self) -> bool:
        """We have all that our first neighbours had; or there is nobody to learn from."""
        if any(link.synced for link in self.machine.links.values()):
            return self.machine.pulling == 0
        if self.settings.peers:
            return False
        waited = self.clock() - self._started > ASK_TIMEOUT
        return waited or not joining.remembered_peers(self.log)

    def _may_leave(self) -> bool:
        """Whether this node's work is done and its neighbours have all of it."""
        complete = self.settings.until_complete and self.machine.complete
        exhausted = self.training is not None and self.training.exhausted
        now, progress = self.clock(), self._progress
        if progress.known != self.machine.frontier.known:
            progress.known, progress.changed_at = self.machine.frontier.known, now
        if not (complete or exhausted):
            progress.done_at = None
            return False
        progress.done_at = progress.done_at or now
        links = self.machine.links.values()
        settled = complete and now - progress.changed_at > SETTLE_TIME and all(lk.agreed for lk in links)
        handed_over = exhausted and bool(links) and not any(lk.dirty or not lk.writable for lk in links)
        return settled or (handed_over and not complete) or now - progress.done_at > LEAVE_GRACE

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            s = self.status()
            loss = "" if s.loss is None else f"  loss {s.loss:.3f}"
            log.info(
                "%s  %d of %d updates  own %d at %.1f/s%s  links %d  digest %s",
                s.state, s.known, s.update_budget, s.own_updates, s.updates_per_second, loss,
                len(s.links), s.digest[:12],
            )  # fmt: skip

    # -- the control API ---------------------------------------------------------------------------

    async def evaluate(self, base: bool, limit: int) -> EvaluationStatus:
        """Accuracy or loss on the test rows, of the model as of now or of the base model."""
        assert self.worker is not None
        digest = "" if base else self.machine.frontier.digest().hex()

        def evaluate(trainer: Trainer) -> Any:
            return trainer.evaluate_base(limit) if base else trainer.evaluate(limit)

        result = await self.worker.call(evaluate)
        return EvaluationStatus(
            metric=result.metric, value=result.value, loss=result.loss, count=result.count, digest=digest
        )

    async def core_status(self) -> CoreStatus:
        """State digest and core digest of one and the same moment."""
        digest, known = self.machine.frontier.digest().hex(), self.machine.frontier.known
        core = ""
        if self.worker:
            core = (await self.worker.call(lambda trainer: trainer.core.digest())).hex()
        return CoreStatus(digest=digest, core_digest=core, known=known)

    def status(self) -> Status:
        machine, training, traffic = self.machine, self.training, self.driver.traffic
        open_links = [pump.link for pump in self.driver.pumps.values()]
        return Status(
            version=sfnode.__version__,
            run_id=self.manifest.run_id.hex(),
            run_name=self.manifest.name,
            role=self.settings.role,
            state=self._state(),
            pid=os.getpid(),
            peer=self.transport.peer,
            addresses=self.transport.addresses(),
            known=machine.frontier.known,
            update_budget=machine.run.update_budget,
            epoch=machine.run.epoch_of(machine.frontier.known),
            epochs=machine.run.last_epoch + 1,
            digest=machine.frontier.digest().hex(),
            origin=machine.own.origin.hex() if machine.own else "",
            incarnation=machine.own.incarnation if machine.own else 0,
            own_updates=training.made if training else 0,
            updates_per_second=training.rate() if training else 0.0,
            loss=training.loss if training else None,
            pulling=machine.pulling,
            links=self._link_statuses(),
            feeds=[
                FeedStatus(origin=s.feed.origin.hex(), incarnation=s.feed.incarnation, updates=s.next)
                for s in machine.frontier
            ],
            bytes_sent=traffic.sent + sum(link.bytes_sent for link in open_links),
            bytes_received=traffic.received + sum(link.bytes_received for link in open_links),
            segment_bytes_sent=traffic.segment_bytes_sent,
            updates_sent=traffic.updates_sent,
            log_bytes=self.log.size_bytes(),
            uptime=self.clock() - self._started,
        )

    def _link_statuses(self) -> list[LinkStatus]:
        pumps = ((self.machine.links.get(key), pump.link) for key, pump in self.driver.pumps.items())
        return [
            LinkStatus(
                peer=link.peer,
                outbound=link.outbound,
                role="relay" if state.role else "trainer",
                known=state.known,
                agrees=state.agreed,
                bytes_sent=link.bytes_sent,
                bytes_received=link.bytes_received,
            )
            for state, link in pumps
            if state is not None and state.greeted
        ]

    def _state(self) -> str:
        if self.machine.complete:
            return "complete"
        if self.training is None:
            return "idle"
        if not self._engine_loaded:
            return "starting"
        if not self.training.ready:
            return "catching-up"
        if not self.machine.may_compute:
            return "asking"
        return "idle" if self.training.exhausted else "training"


def _never_sign(_: bytes) -> bytes:
    raise AssertionError("a relay has nothing to sign")


async def run(
    settings: NodeSettings, make_transport: MakeTransport, on_joined: Callable[[RunningNode], None]
) -> None:
    """Join the run and live until a signal, a stop through the control socket, or the end.

    `on_joined` is called once the node is on the network. Raises UserError for whatever the user can act on.
    """
    async with AsyncExitStack() as stack:
        data_dir = stack.enter_context(open_data_dir(settings.data_dir))
        local = joining.local_manifest(settings, data_dir)
        known_before = data_dir.manifest.exists()
        transport = make_transport(settings, data_dir, () if known_before else settings.peers)
        stack.push_async_callback(transport.stop)
        await transport.start()
        manifest = await joining.agree_on_manifest(settings, local, transport, data_dir)
        update_log = stack.enter_context(UpdateLog.open(data_dir.log, manifest.run_id))
        node = RunningNode(settings, manifest, data_dir, update_log, transport)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, node.stop)
        stack.push_async_callback(await control.serve(node, data_dir.control_socket))
        on_joined(node)
        await node.live()
