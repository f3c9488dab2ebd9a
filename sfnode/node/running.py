"""A node that has joined its run: its parts, wired to each other, and what each tells the others.

`sfnode.node.node` builds it once folder, network, manifest and log are there, and takes those apart again.
Stopping takes less than two seconds, whatever the engine is doing; everything computed by then is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import NamedTuple, TypeVar

from sfnode.errors import Code, UserError
from sfnode.loggers.record import Logger
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.modelshare.bases import BasesShare
from sfnode.modelshare.data import DataShare
from sfnode.modelshare.sharing import Sharing
from sfnode.node import clock, contacts, startup
from sfnode.node.audits import Auditing
from sfnode.node.checkpoints import Checkpoints
from sfnode.node.clock import ClockCheck
from sfnode.node.driver import Driver
from sfnode.node.engine_thread import Engine, EngineThread, Order, StepResult
from sfnode.node.exports import Exports
from sfnode.node.organising import Organising, be_admitted, organises
from sfnode.node.peering import Peering
from sfnode.node.privacy import Privacy
from sfnode.node.readiness import Readiness
from sfnode.node.recorder import Recorder
from sfnode.node.samples import Sampling
from sfnode.node.shutdown import Departure
from sfnode.node.state import describe
from sfnode.node.step_scheduler import StepScheduler, batches_of
from sfnode.node.views import Views
from sfnode.organising.reports import Reports
from sfnode.peers.address_book import AddressBook
from sfnode.peers.latency import ECHO, introduction
from sfnode.resources.limiter import ResourceLimiter
from sfnode.resources.quotas import DailyTraffic
from sfnode.resources.sensors import Sensors
from sfnode.schema.evaluation import Drift, Evaluation, NodeEvaluation
from sfnode.schema.metrics import trained_by
from sfnode.schema.status import AlarmStatus, CoreStatus, Status
from sfnode.schema.views import Generated
from sfnode.settings import Settings
from sfnode.store import checkpoint as states
from sfnode.store.checkout import Checkout, last_seal
from sfnode.store.data_folder import DataDir
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes
from sfnode.transport.base import Asker, PeerRecord, Transport, TransportError
from sfprotocol import wire_codec
from sfprotocol.decisions import Bases
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import Feed, ManifestReply, ManifestRequest, PartRequest
from sfprotocol.weighing import Counted

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

REPORTED = {"state", "known", "update_budget", "epoch", "own_updates", "updates_per_second", "loss", "digest"}
"""Fields of the status that such a line has, for programs."""

ENGINE_GRACE = 0.5
"""Seconds that a step in progress may still take when the node stops; then it is abandoned."""

LINK_GRACE = 0.4
"""Seconds for handing our last updates to neighbours when the node stops, and as many for the last frames."""

MODEL_SOURCES = 16
"""Peers that are asked for what has to come from peers: data, the base model, bases."""

LoadEngine = Callable[[Settings, Manifest], Engine]
"""Loads the model and the data; called on the engine's thread."""

T = TypeVar("T")


class Moment(NamedTuple):
    """The state whose model an answer of the engine is about."""

    digest: str
    known: int
    epoch: int | None = None
    """Epoch of the seal; in an open run the one that is open."""


class RunningNode:
    """The parts of one node; answers the control API."""

    def __init__(
        self,
        settings: Settings,
        manifest: Manifest,
        data_dir: DataDir,
        update_log: UpdateLog,
        transport: Transport,
        load_engine: LoadEngine,
        draw_incarnation: Callable[[], int],
        logger: Logger,
    ) -> None:
        self.settings = settings
        self.manifest = manifest
        self.log = update_log
        self.data_dir = data_dir
        self.transport = transport
        self.clock = asyncio.get_running_loop().time
        self.started_at = self.clock()
        self.stopping = asyncio.Event()
        self._fault: BaseException | None = None
        self.machine = startup.open_machine(
            settings, manifest, data_dir, update_log, self.clock(), draw_incarnation
        )
        self.driver = Driver(
            self.machine,
            update_log,
            clock=self.clock,
            advanced=self._advanced,
            retreat=self._retreat,
            continue_as=self._continue_as,
            after_round=self._after_round,
        )
        organised = self.machine.organised
        self.reports = Reports(manifest, organised, self.clock()) if organised else None
        self.asked_at: float | None = None
        """Time at which this node first asked to be admitted."""
        self._told: frozenset[str] = frozenset()
        """Numbers of the alarms that the log tells of."""
        self.contacts_url = contacts.known_url(settings.contacts_url, update_log)
        """The web page with the current contacts of the run; empty if none is known."""
        self._look_for_others()
        self._readiness = Readiness(
            self.machine,
            told_peers=bool(settings.peers),
            met_peers=lambda: bool(startup.remembered_peers(update_log)),
            clock=self.clock,
        )
        self.views = Views(self, self._readiness.done)
        self.recorder = Recorder(self, logger)
        self.clock_check = ClockCheck(transport.clock_ahead, lambda: self.book.sample(clock.PEERS))
        self.limiter = ResourceLimiter(
            settings.limits,
            machine=Sensors(*settings.devices),
            bandwidth=self.driver.bandwidth,
            traffic=DailyTraffic(update_log),
            close_links=self.peering.stay_away,
            fail=self.fail,
            clock=self.clock,
        )
        self.sharing = Sharing(
            settings,
            manifest,
            data_dir,
            transport,
            peers=self.givers,
            bandwidth=self.driver.bandwidth,
            clock=self.clock,
        )
        self.data = self._data_share()
        """Files of the run's public data."""
        self.bases = self._bases_share() if manifest.training.bases else None
        """Published bases, in a run that has them."""
        self._told_bases: tuple[Bases, ...] = ()
        """Those that the engine was told of, or has to be told of again if there are none."""
        self.checkpoints = Checkpoints(self) if self.machine.organised else None
        """Checkpoints of an organised run."""
        self.organising = Organising(self) if organises(self) else None
        """The organiser, where its key is."""
        self.auditing = Auditing(self) if settings.audit else None
        self.privacy = Privacy(self) if settings.noise else None
        self.exports = Exports(self) if settings.export_every else None
        self.sampling = Sampling(self) if settings.samples and settings.role == "trainer" else None
        self._introduction = self._introduce()
        """Reply to those who measure how far away this node is."""
        self._departure = Departure(
            self.machine, done=self._done, alone=lambda: self.peering.alone, clock=self.clock
        )
        transport.on_request(self._answer)
        self._load_engine = load_engine
        self.scheduler: StepScheduler | None = None
        self.engine_thread: EngineThread | None = None
        self.engine_loaded = False

    def _data_share(self) -> DataShare:
        return DataShare(
            self.settings,
            self.manifest,
            self.data_dir.data,
            self.sharing,
            request=self.transport.request,
            peers=self.givers,
            rate_limit=self.driver.bandwidth.download,
            clock=self.clock,
        )

    def _bases_share(self) -> BasesShare:
        run = self.settings.run
        return BasesShare(
            self.manifest,
            self.data_dir.bases,
            run.parent if run else None,
            self.sharing,
            published=self._published,
            fetches=self.settings.role == "trainer" or self.sharing.gives,
            come=self._bases_have_come,
            request=self.transport.request,
            peers=self.givers,
            rate_limit=self.driver.bandwidth.download,
            clock=self.clock,
        )

    def _introduce(self) -> bytes:
        """Return who this node is, to neighbours: the origin of one that bears a name, of others nothing."""
        own = self.machine.own
        if own is None or not self.settings.display_name:
            return ECHO
        return introduction(self.manifest.run_id, own.origin, self.transport.peer, self.machine.sign)

    def _look_for_others(self) -> None:
        given, remembered = self.settings.peers, startup.remembered_peers(self.log)
        random = SystemRandom()
        self.book = AddressBook(self.transport.peer, given, remembered, random)
        self.peering = Peering(
            self.transport,
            self.driver,
            topic=self.manifest.run_id,
            book=self.book,
            own_record=self._record,
            remember=self._remember,
            random=random,
            rostered=not self.manifest.organised.private,
        )

    # -- callbacks ---------------------------------------------------------------------------------

    def _remember(self, met: list[str]) -> None:
        """Keep the addresses of peers for the next start, and for links; called on another thread."""
        startup.remember_peers(self.log, met)
        with suppress(UserError):
            contacts.keep(self.data_dir.contacts, self.manifest, met, self.contacts_url)

    def _published(self) -> tuple[Bases, ...]:
        """Return the published bases of the run as of now."""
        counting = self.machine.frontier.counting
        return counting.bases if counting else (Bases(0, self.machine.run.bases),)

    def _bases_have_come(self) -> None:
        self._told_bases = ()
        self._after_round()

    def _lacks_bases(self) -> bool:
        """Tell the engine of bases that are new or have come; return whether some are lacking for a step."""
        published = self._published()
        if self.engine_thread and published != self._told_bases:
            self._told_bases = published
            self.engine_thread.call(lambda engine: engine.use_bases(published))
        return bool(self.lacking_bases())

    def lacking_bases(self) -> list[Bases]:
        """Return the published bases without which this node makes no updates now."""
        if self.bases is None or self.settings.role == "relay":
            return []
        return self.bases.lacking(self.machine.run.subspace_of(self.machine.epoch))

    def bases_problem(self) -> UserError | None:
        """Return what keeps these from being here, if it does not come right by itself."""
        return self.bases.problem(self.lacking_bases()) if self.bases else None

    def _advanced(self, feeds: Iterable[Feed]) -> None:
        """Have the engine follow the feeds of which something else counts now."""
        outdated = self.machine.organised is not None and self.machine.organised.outdated
        if self.engine_thread and not outdated:  # else what it would have to read is gone
            self.engine_thread.advance({feed: self.machine.counted(feed) for feed in feeds})

    async def _retreat(self, stops: Mapping[Feed, int]) -> None:
        """Have the engine hold nothing of these feeds from some step on, and wait until it does."""
        if self.engine_thread:
            kept = {feed: self.machine.counted(feed, stop) for feed, stop in stops.items()}
            await self.engine_thread.retreat(kept)

    def _continue_as(self, feed: Feed) -> None:
        """Record the new feed of our own; called on the disk thread."""
        last = startup.last_feed(self.log, feed.origin)
        startup.tell_of_new_feed(self.log, last, "cannot prove that this log is all we ever said")
        startup.remember_feed(self.log, feed)

    def _after_round(self) -> None:
        """Give the scheduler its turn, and leave if it is time; there is a round at least once a second."""
        if self.scheduler:
            self.scheduler.ready = self.scheduler.ready or (self.engine_loaded and self._readiness.done())
            self.scheduler.advance()
        if self.reports:
            for line in self.reports.news(self.clock()):
                log.info("%s", line)
        self.recorder.after_round()
        if not self.stopping.is_set() and self._departure.due():
            log.info("done: leaving")
            self.stop()

    def _on_engine_ready(self) -> None:
        self.engine_loaded = True
        log.info("model loaded")
        self.limiter.model_loaded()
        self._after_round()

    def _on_result(self, order: Order, result: StepResult) -> None:
        self.limiter.step_done()  # before more is ordered
        if self.scheduler:
            self.scheduler.on_result(order, result)

    def _done(self) -> bool:
        complete = self.settings.until_complete and self.machine.complete
        if self.limiter.finishing and not (self.scheduler and self.scheduler.busy):
            return True
        return complete or (self.scheduler is not None and self.scheduler.exhausted)

    def _record(self) -> PeerRecord:
        role = 0 if self.settings.role == "trainer" else 1
        addresses = tuple(self.transport.addresses())
        return PeerRecord(self.transport.peer, addresses, role, self.machine.frontier.known)

    async def _answer(self, asker: Asker, frame: bytes) -> bytes:
        if frame == ECHO:
            return self._introduction
        try:
            question = wire_codec.decode(frame)
        except RemoteProtocolError as error:
            raise TransportError(str(error)) from error
        if isinstance(question, PartRequest):
            return wire_codec.encode(await self.sharing.answer(question, asker))
        if not isinstance(question, ManifestRequest):
            raise TransportError("only manifests and models are answered here")
        return wire_codec.encode(ManifestReply(self.manifest.canonical()))

    # -- living ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run until `stop`, a fault, or the end that the settings ask for. Raises the fault."""
        self.recorder.begin()
        if self.settings.role == "trainer" and (self.checkpoints is None or self.checkpoints.begun.is_set()):
            self._start_engine()
        driving = asyncio.create_task(self._guard(self.driver.run))
        jobs = (
            *(self.peering.run, self.views.run, self.limiter.run),
            *(self._stock, self._report, partial(be_admitted, self), self.clock_check.run),
            *((self._keep_company,) if self.contacts_url else ()),
            *((self.recorder.run,) if self.settings.log_to else ()),
            *((self.checkpoints.run, self._train_once_begun) if self.checkpoints else ()),
            *((self.bases.run,) if self.bases else ()),
            *((self.auditing.run,) if self.auditing else ()),
            *((self.privacy.run,) if self.privacy else ()),
            *((self.exports.run,) if self.exports else ()),
            *((self.sampling.run,) if self.sampling else ()),
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
        self.limiter.finish()
        self._after_round()

    def fail(self, error: BaseException) -> None:
        """A local fault: stop the node and let `live` raise it."""
        self._fault = self._fault or error
        self.stop()

    def _start_engine(self) -> None:
        self.engine_thread = EngineThread(
            lambda: self._load_engine(self._gathered(), self.manifest),
            partial(changes, self.log, subspace_epochs=self.machine.run.subspace_epochs),
            on_ready=self._on_engine_ready,
            on_result=self._on_result,
            on_failure=self.fail,
            begin=self._begin_engine(),
        )
        self._advanced([state.feed for state in self.machine.frontier])
        self.scheduler = StepScheduler(
            self.machine,
            order=self.engine_thread.order,
            post=self.driver.post,
            clock=self.clock,
            queries=self.settings.queries * batches_of(len(self.settings.devices)),
            steps=self.settings.steps,
            together=self.manifest.training.batch_updates,
        )
        if self.bases:
            self.scheduler.hindered = self._lacks_bases
        self.limiter.serve(self.scheduler, self.engine_thread)
        self.engine_thread.start()

    def _gathered(self) -> Settings:
        """Have the run's data and its base model here, on a thread that may wait; return the settings with
        the folder of the model. Raises as `DataShare.find` and `Sharing.find`."""
        self.data.find()
        return self.sharing.find()

    async def _stock(self) -> None:
        """Get what a relay is to give to others; a trainer's engine thread asks for it."""
        if self.settings.role == "relay" and self.sharing.gives:
            await asyncio.to_thread(self._gathered)

    async def _keep_company(self) -> None:
        links = self.driver.pumps
        await contacts.keep_company(
            self.contacts_url, self.manifest.run_id, lambda: len(links), self.peering.hear, SystemRandom()
        )

    def _begin_engine(self) -> Callable[[Engine], Mapping[Feed, Counted]]:
        """Return what gives the engine the cores of the newest checkpoint that is here and usable.

        Raises UserError CHECKPOINT_UNUSABLE if the log has not everything without one.
        """
        folder, counting = self.data_dir.checkpoints, self.machine.frontier.counting
        checkpoint, counted = states.start(folder, counting, self.log)

        def begin(engine: Engine) -> Mapping[Feed, Counted]:
            if checkpoint and counting:
                engine.begin(states.load(folder, self.manifest, counting, checkpoint).cores)
            return counted

        return begin

    async def engine_is_abreast(self) -> bool:
        """Wait until the engine has applied everything until now; False while it is still loading."""
        if self.engine_thread is None:
            return self.settings.role == "relay"
        if self.engine_loaded:
            await self.engine_thread.ask(lambda engine: None)
        return self.engine_loaded

    async def _train_once_begun(self) -> None:
        """Start the engine of a node that begins with a checkpoint, once that is here."""
        if self.settings.role == "trainer" and self.engine_thread is None and self.checkpoints:
            await self.checkpoints.begun.wait()
            async with self.driver.between_rounds:  # within a round more is admitted than is on disk
                if not self.stopping.is_set():
                    self._start_engine()

    def givers(self) -> list[str]:
        """Return addresses of peers that may have what this node lacks: data, model, bases, a checkpoint."""
        return self.book.sample(MODEL_SOURCES)

    async def _guard(self, job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)

    async def _end(self, driving: asyncio.Task[None], looking: list[asyncio.Task[None]]) -> None:
        """Stop computing, log and send what is finished, and close the links."""
        self.peering.leave()
        self.sharing.close()
        self.limiter.stop()
        if self.organising:
            await self.organising.stop()
        if self.engine_thread and not await self.engine_thread.stop(ENGINE_GRACE):
            log.debug("a step in progress was abandoned")
        if self.scheduler:
            self.scheduler.flush()
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
            self._sound(s.alarms)
            trained = trained_by(s.task)
            loss = "" if s.loss is None else f"  {trained.name} {trained.of(s.loss):.3f}"
            log.info(
                "%s  %d of %d updates  own %d at %.1f/s%s  links %d  digest %s",
                s.state, s.known, s.update_budget, s.own_updates, s.updates_per_second, loss,
                len(s.links), s.digest[:12],
                extra=s.model_dump(include=REPORTED),
            )  # fmt: skip

    def _sound(self, alarms: list[AlarmStatus]) -> None:
        """Log the alarms that are new, and which are over."""
        for alarm in alarms:
            if alarm.code not in self._told:
                log.error(
                    "%s: %s. %s", alarm.code, alarm.what, alarm.fix,
                    extra={"code": alarm.code, "fix": alarm.fix},
                )  # fmt: skip
        now = frozenset(alarm.code for alarm in alarms)
        for code in sorted(self._told - now):
            log.info("%s is over", code)
        self._told = now

    # -- the control API ---------------------------------------------------------------------------

    def status(self) -> Status:
        return describe(self)

    async def evaluate(self, base: bool, limit: int, calibrated: bool = False) -> NodeEvaluation:
        """Accuracy or loss on the test rows, of the model that counts (`ask_of_model`) or of the base model,
        which may be `calibrated`."""
        wanted = self.limiter.until_a_pause()

        def of_model(engine: Engine) -> tuple[Evaluation, Drift]:
            return engine.evaluate(limit, wanted), engine.drift().whole

        drift: Drift | None = None
        if base:
            moment, result = await self.ask_engine(
                lambda engine: engine.evaluate_base(limit, wanted, calibrated=calibrated)
            )
        else:
            moment, (result, drift) = await self.ask_of_model(of_model)
        answer = NodeEvaluation(
            **dict(result),
            seconds=self.clock() - self.started_at,
            known=0 if base else moment.known,
            base=base,
            digest=None if base else moment.digest,
            drift=drift,
        )
        self.views.remember(answer)
        self.recorder.evaluated(answer)
        return answer

    async def generate(self, prompt: str, tokens: int) -> Generated:
        """Continue `prompt` with the base model and the model that counts (`ask_of_model`), by at most
        `tokens` tokens each."""
        moment, (base, now) = await self.ask_of_model(lambda engine: engine.generate(prompt, tokens))
        return Generated(base=base, now=now, digest=moment.digest, known=moment.known)

    async def ask_of_model(self, question: Callable[[Engine], T]) -> tuple[Moment, T]:
        """Return the engine's answer about the model that `sfnode export` would write: that of the last seal
        which is here as a whole, with its core digest; in an open run, that of now.

        Until the first seal it is the base model. Raises as `ask_engine`.
        """
        if self.machine.organised is None:
            moment, now = await self.ask_engine(question)
            return moment._replace(epoch=self.machine.epoch), now
        found: list[Checkout] = []

        def counted() -> Mapping[Feed, Counted]:
            found.append(last_seal(self.machine.run, self.log.control(), self.machine.frontier.next))
            return found[-1].counted

        _, (digest, answer) = await self.ask_engine(
            lambda engine: (engine.core.digest().hex(), question(engine)), counted
        )
        return Moment(digest, found[-1].updates, found[-1].epoch), answer

    async def core_status(self) -> CoreStatus:
        """State digest and core digest of one and the same moment; a relay has no cores."""
        if self.engine_thread is None:
            frontier = self.machine.frontier
            return CoreStatus(digest=frontier.digest().hex(), core_digest=None, known=frontier.known)
        moment, core = await self.ask_engine(lambda engine: engine.core.digest())
        return CoreStatus(digest=moment.digest, core_digest=core.hex(), known=moment.known)

    async def ask_engine(
        self, question: Callable[[Engine], T], of: Callable[[], Mapping[Feed, Counted]] | None = None
    ) -> tuple[Moment, T]:
        """Return the engine's answer, and the moment whose updates, and no others, it had applied by then.

        With `of`, which is asked at that moment, it has applied those instead. Raises UserError BAD_OPTION
        for a relay, and NODE_NOT_RUNNING if the node ends before it has answered.
        """
        if self.engine_thread is None:
            raise UserError(Code.BAD_OPTION, "a relay holds no model", "Ask a trainer of the run.")
        if self.checkpoints and (problem := self.checkpoints.doubt()):
            raise problem
        async with self.driver.between_rounds:
            frontier = self.machine.frontier
            moment = Moment(frontier.digest().hex(), frontier.known)
            if self.bases:
                self._lacks_bases()  # the engine knows of all that this moment's decisions name
            answer = self.engine_thread.ask(self.limiter.offloading_again(question), of and of())
        try:
            return moment, await answer
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            raise UserError(
                Code.NODE_NOT_RUNNING,
                "the node ended before it could answer",
                "Start it again, or use `sfnode eval` on its folder.",
            ) from None
