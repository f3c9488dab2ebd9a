"""One node of one run: puts log, machine, transport, engine and control socket together, and apart again.

The order of starting is: folder, network, manifest, log, links, engine. The order of stopping is the reverse
and takes less than two seconds, whatever the engine is doing; everything computed by then is on disk.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import SystemRandom
from typing import NamedTuple, TypeVar

from sfnode.config import Manifest, NodeSettings
from sfnode.engine.core import UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.observe import log
from sfnode.runtime import control, joining, metrics
from sfnode.runtime.book import AddressBook
from sfnode.runtime.describe import describe
from sfnode.runtime.driver import Driver
from sfnode.runtime.guest import Guest
from sfnode.runtime.latency import ECHO
from sfnode.runtime.leaving import Departure
from sfnode.runtime.ledger import Ledger
from sfnode.runtime.links import Neighbours
from sfnode.runtime.loading import load_trainer
from sfnode.runtime.replay import batches
from sfnode.runtime.road import Road
from sfnode.runtime.senses import Sensors
from sfnode.runtime.sharing import Sharing
from sfnode.runtime.status import CoreStatus, EvaluationStatus, Status
from sfnode.runtime.training import Training
from sfnode.runtime.viewed import Generated
from sfnode.runtime.views import Views
from sfnode.runtime.worker import Engine, Order, StepResult, Worker
from sfnode.store.datadir import DataDir, open_data_dir
from sfnode.store.log import UpdateLog
from sfnode.transport.base import PeerRecord, Transport, TransportError
from sfprotocol import codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import ContinueAs
from sfprotocol.machine import ASK_TIMEOUT
from sfprotocol.messages import ManifestReply, ManifestRequest, PartRequest

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

REPORTED = {"state", "known", "update_budget", "epoch", "own_updates", "updates_per_second", "loss", "digest"}
"""What of the status such a line has as fields, for programs."""

ENGINE_GRACE = 0.5
"""Seconds that a step in progress has when the node stops; then it is abandoned."""

LINK_GRACE = 0.4
"""Seconds that neighbours have to take our last updates when the node stops, and then the last frames."""

UNDER_WAY = 64
"""Updates that a node may lack and train: what others have made in the last moments is always on its way."""

MODEL_SOURCES = 16
"""Peers that are looked at for a base model that has to come from peers."""

MakeTransport = Callable[[NodeSettings, DataDir, tuple[str, ...]], Transport]
"""Builds the transport for these settings, this folder and these bootstrap addresses."""

LoadEngine = Callable[[NodeSettings, Manifest], Engine]
"""Loads the model and the data; called on the engine's thread."""

T = TypeVar("T")


class Moment(NamedTuple):
    """Which model an answer of the engine is about."""

    digest: str
    known: int


class RunningNode:
    """A node that has joined its run. Built by `run`; answers the control API."""

    def __init__(
        self,
        settings: NodeSettings,
        manifest: Manifest,
        data_dir: DataDir,
        update_log: UpdateLog,
        transport: Transport,
        load_engine: LoadEngine,
    ) -> None:
        self.settings = settings
        self.manifest = manifest
        self.log = update_log
        self.transport = transport
        self.clock = asyncio.get_running_loop().time
        self.started_at = self.clock()
        self.stopping = asyncio.Event()
        self._fault: BaseException | None = None
        self._tails = update_log.tails()
        self.machine = joining.open_machine(settings, manifest, data_dir, update_log, self.clock())
        self.driver = Driver(
            self.machine,
            update_log,
            clock=self.clock,
            apply=self._apply,
            continue_as=self._continue_as,
            after_round=self._after_round,
        )
        self._look_for_others()
        self.views = Views(self, self._caught_up)
        self.guest = Guest(
            settings.limits,
            machine=Sensors(settings.device),
            throttle=self.driver.throttle,
            ledger=Ledger(update_log),
            away=self.neighbours.stay_away,
            fail=self.fail,
            clock=self.clock,
        )
        self.sharing = Sharing(
            settings,
            manifest,
            data_dir,
            transport,
            peers=lambda: self.book.sample(MODEL_SOURCES),
            throttle=self.driver.throttle,
            clock=self.clock,
        )
        self._departure = Departure(
            self.machine, done=self._done, alone=lambda: self.neighbours.alone, clock=self.clock
        )
        transport.on_request(self._answer)
        self._load_engine = load_engine
        self._progress = 0, self.started_at
        """How many updates we knew, and since when not more."""
        self.training: Training | None = None
        self.worker: Worker | None = None
        self.engine_loaded = False

    def _look_for_others(self) -> None:
        given, remembered = self.settings.peers, joining.remembered_peers(self.log)
        random = SystemRandom()
        self.book = book = AddressBook(self.transport.peer, given, remembered, random)
        self.neighbours = Neighbours(
            self.transport,
            self.driver,
            book=book,
            remember=lambda addresses: joining.remember_peers(self.log, addresses),
        )
        self.road = Road(
            self.transport,
            self.neighbours,
            topic=self.manifest.run_id,
            book=book,
            own_record=self._record,
            random=random,
        )

    # -- callbacks ---------------------------------------------------------------------------------

    def _apply(self, batch: UpdateBatch) -> None:
        if self.worker:
            self.worker.apply(batch)

    def _continue_as(self, action: ContinueAs) -> None:
        log.warning("cannot prove that this log is all we ever said: continuing under a new incarnation")
        joining.remember_feed(self.log, action.feed)

    def _after_round(self) -> None:
        """There is a round once a second at least."""
        if self.training:
            self.training.ready = self.training.ready or (self.engine_loaded and self._caught_up())
            self.training.advance()
        if not self.stopping.is_set() and self._departure.due():
            log.info("done: leaving")
            self.stop()

    def _on_engine_ready(self) -> None:
        self.engine_loaded = True
        log.info("model loaded")
        self.guest.begin_pace()
        self._after_round()

    def _on_result(self, order: Order, result: StepResult) -> None:
        self.guest.step_done()  # before more is ordered
        if self.training:
            self.training.on_result(order, result)

    def _caught_up(self) -> bool:
        """We have all that our first neighbours had; or there is nobody to learn from."""
        if any(link.synced for link in self.machine.links.values()):
            return self._is_abreast()
        if self.settings.peers and not self.machine.frontier.known:
            return False  # a newcomer: what it would train is not the model of the run
        if not (self.settings.peers or joining.remembered_peers(self.log)):
            return True
        return self.clock() - self.started_at > ASK_TIMEOUT

    def _is_abreast(self) -> bool:
        """We lack no more than what is always under way; or nobody gives us what they say they have."""
        known = self.machine.frontier.known
        if known != self._progress[0]:
            self._progress = known, self.clock()
        much = self.machine.lacks_more_than(UNDER_WAY + known // 64)
        return not much or self.clock() - self._progress[1] > ASK_TIMEOUT

    def _done(self) -> bool:
        complete = self.settings.until_complete and self.machine.complete
        if self.guest.finishing and not (self.training and self.training.busy):
            return True
        return complete or (self.training is not None and self.training.exhausted)

    def _record(self) -> PeerRecord:
        role = 0 if self.settings.role == "trainer" else 1
        addresses = tuple(self.transport.addresses())
        return PeerRecord(self.transport.peer, addresses, role, self.machine.frontier.known)

    async def _answer(self, _: str, frame: bytes) -> bytes:
        if frame == ECHO:
            return ECHO
        try:
            question = codec.decode(frame)
        except RemoteProtocolError as error:
            raise TransportError(str(error)) from error
        if isinstance(question, PartRequest):
            return codec.encode(await self.sharing.answer(question))
        if not isinstance(question, ManifestRequest):
            raise TransportError("only manifests and models are answered here")
        return codec.encode(ManifestReply(self.manifest.canonical()))

    # -- living ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run until `stop`, a fault, or the end that the settings ask for; raises the fault."""
        if self.settings.role == "trainer":
            self._start_engine()
        driving = asyncio.create_task(self._guard(self.driver.run))
        jobs = (
            *(self.road.run, self.neighbours.run, self.views.run, self.guest.run),
            *(self.sharing.run, self._report),
        )
        looking = [asyncio.create_task(self._guard(job)) for job in jobs]
        try:
            await self.stopping.wait()
        finally:
            await self._end(driving, looking)
        if self._fault:
            raise self._fault

    def stop(self) -> None:
        """Ask the node to stop."""
        self.stopping.set()

    def finish(self) -> None:
        """Ask the node to complete what is running, hand it over and stop."""
        self.guest.finish()
        self._after_round()

    def fail(self, error: BaseException) -> None:
        """A local fault: stop the node and let `live` raise it."""
        self._fault = self._fault or error
        self.stop()

    def _start_engine(self) -> None:
        self.worker = Worker(self._load, self._on_engine_ready, self._on_result, self.fail)
        self.training = Training(
            self.machine,
            order=self.worker.order,
            post=self.driver.post,
            clock=self.clock,
            queries=self.settings.queries,
            steps=self.settings.steps,
        )
        self.guest.serve(self.training, self.worker)

    def _load(self) -> Engine:
        """On the engine's thread: the model with all that the log held when the machine was opened. What was
        admitted since waits in the worker's queue."""
        engine = self._load_engine(self.sharing.find(), self.manifest)
        for batch in batches(self.log, self.manifest.run_id, self._tails):
            engine.apply(batch)
        return engine

    async def _guard(self, job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)

    async def _end(self, driving: asyncio.Task[None], looking: list[asyncio.Task[None]]) -> None:
        """Stop computing, write down and send what is finished, and hang up."""
        self.neighbours.leave()
        self.sharing.close()
        if self.worker and not await self.worker.stop(ENGINE_GRACE):
            log.debug("a step in progress was abandoned")
        if self.training:
            self.training.flush()
        await self.driver.hand_over(LINK_GRACE)
        self.driver.finish()
        await driving
        await self.driver.close_links(LINK_GRACE)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            s = self.status()
            loss = "" if s.loss is None else f"  loss {s.loss:.3f}"
            log.info(
                "%s  %d of %d updates  own %d at %.1f/s%s  links %d  digest %s",
                s.state, s.known, s.update_budget, s.own_updates, s.updates_per_second, loss,
                len(s.links), s.digest[:12],
                extra=s.model_dump(include=REPORTED),
            )  # fmt: skip

    # -- the control API ---------------------------------------------------------------------------

    def status(self) -> Status:
        return describe(self)

    async def evaluate(self, base: bool, limit: int) -> EvaluationStatus:
        """Accuracy or loss on the test rows, of the model as of now or of the base model."""
        wanted = self.guest.until_a_pause()
        moment, result = await self._ask_engine(
            lambda engine: engine.evaluate_base(limit, wanted) if base else engine.evaluate(limit, wanted)
        )
        digest = "" if base else moment.digest
        answer = EvaluationStatus(
            metric=result.metric,
            value=result.value,
            low=result.low,
            high=result.high,
            loss=result.loss,
            count=result.count,
            digest=digest,
        )
        self.views.measured(answer, 0 if base else moment.known)
        return answer

    async def generate(self, prompt: str, tokens: int) -> Generated:
        """What the base model and the model as of now write after `prompt`, at most `tokens` tokens each."""
        moment, (base, now) = await self._ask_engine(lambda engine: engine.generate(prompt, tokens))
        return Generated(base=base, now=now, digest=moment.digest, known=moment.known)

    async def core_status(self) -> CoreStatus:
        """State digest and core digest of one and the same moment; a relay has no cores."""
        if self.worker is None:
            frontier = self.machine.frontier
            return CoreStatus(digest=frontier.digest().hex(), core_digest="", known=frontier.known)
        moment, core = await self._ask_engine(lambda engine: engine.core.digest())
        return CoreStatus(digest=moment.digest, core_digest=core.hex(), known=moment.known)

    async def _ask_engine(self, question: Callable[[Engine], T]) -> tuple[Moment, T]:
        """The engine's answer, and the moment whose updates, and no others, it had applied by then."""
        if self.worker is None:
            raise UserError(Code.BAD_OPTION, "a relay holds no model", "Ask a trainer of the run.")
        async with self.driver.between_rounds:
            frontier = self.machine.frontier
            moment = Moment(frontier.digest().hex(), frontier.known)
            answer = self.worker.call(self.guest.asking(question))
        return moment, await answer


async def run(
    settings: NodeSettings,
    make_transport: MakeTransport,
    on_joined: Callable[[RunningNode], None],
    load_engine: LoadEngine = load_trainer,
) -> None:
    """Join the run and live until a signal, a stop through the control socket, or the end.

    `on_joined` is called once the node is on the network. Raises UserError for whatever the user can act on.
    """
    async with AsyncExitStack() as stack:
        data_dir = stack.enter_context(open_data_dir(settings.data_dir))
        local = joining.local_manifest(settings, data_dir)
        known_before = data_dir.manifest.exists()
        joining.leave_copied_name(local, data_dir)
        transport = make_transport(settings, data_dir, () if known_before else settings.peers)
        stack.push_async_callback(transport.stop)
        await transport.start()
        manifest = await joining.agree_on_manifest(settings, local, transport, data_dir)
        update_log = stack.enter_context(UpdateLog.open(data_dir.log, manifest.run_id))
        node = RunningNode(settings, manifest, data_dir, update_log, transport, load_engine)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, node.stop)
        stack.push_async_callback(await control.serve(node, data_dir.control_socket))
        if settings.metrics:
            stack.push_async_callback(await metrics.serve(node, *settings.metrics))
        on_joined(node)
        await node.live()
