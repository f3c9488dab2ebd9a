"""A node that has joined its run: makes the parts of the node and connects them.

A node is built from a folder, a transport, a manifest, a log and a machine (`RunContext`). Stopping takes
less than two seconds, whatever the engine is doing, and leaves all computed updates on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sfnode.errors import Code, UserError
from sfnode.loggers import Logger
from sfnode.logging import log
from sfnode.modelshare.data import find_data
from sfnode.modelshare.download import Givers
from sfnode.modelshare.sharing import Sharing
from sfnode.node import outside, startup
from sfnode.node.checkpoints import NodeCheckpoints
from sfnode.node.context import NodeContext
from sfnode.node.driver import Driver
from sfnode.node.following import follow
from sfnode.node.notifying import notify
from sfnode.node.organising import Organising, be_admitted, note_offer, organises
from sfnode.node.outside import ClockCheck
from sfnode.node.peering import peering_of
from sfnode.node.privacy import Privacy
from sfnode.node.readiness import Readiness, Shutdown
from sfnode.node.recorder import Recorder, log_progress
from sfnode.node.run_context import RunContext
from sfnode.node.samples import Sampling
from sfnode.node.training.bases import PublishedBases
from sfnode.node.training.limiter import ResourceLimiter
from sfnode.node.training.model import LoadEngine, LocalModel
from sfnode.node.views import Views
from sfnode.organising.reporting.reports import Reports
from sfnode.peers.latency import ECHO, introduction
from sfnode.resources.bandwidth_limits import DailyTraffic
from sfnode.schema.measurements import Evaluation, NodeEvaluation
from sfnode.schema.status import CoreStatus, Status
from sfnode.schema.views import Generated, Samples
from sfnode.settings import Settings
from sfnode.transport.base import Asker, TransportError, call_off
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import ManifestReply, ManifestRequest, PartRequest

if TYPE_CHECKING:
    from sfnode.engine.trainer import ReplicatedTrainer as Engine

LINK_GRACE = 0.4
"""Maximum time, in seconds, of each of two waits when the node stops: until our last updates are handed over,
and then until the last frames have left."""

T = TypeVar("T")

Job = Callable[[], Awaitable[None]]
"""A task of a node, which runs until it is cancelled."""


class RunningNode:
    """The parts of one node, and its answers to the control API."""

    def __init__(
        self,
        joined: RunContext,
        load_engine: LoadEngine,
        logger: Logger,
        contacts_url: str,
        describe: Callable[[RunningNode], Status],
    ) -> None:
        """`contacts_url` is the web page with the run's current contacts; empty if unknown. `describe`
        returns the status (`node.state`)."""
        self.settings, self.manifest, self.data_dir = joined.settings, joined.manifest, joined.data_dir
        self.log, self.transport, self.machine = joined.log, joined.transport, joined.machine
        self.clock, self.outside = joined.clock, joined.outside
        self.started_at = joined.clock()
        self.status = partial(describe, self)
        self.stopping = asyncio.Event()
        self._fault: BaseException | None = None
        self.sequel: str | None = None
        """Link to the run that is joined after this one; None if no run follows."""
        self.asked_at: float | None = None
        """Time at which this node last began to send join requests; None before the first request."""

        # each part knows the earlier ones, and registers its callbacks there
        continue_as = partial(startup.continue_as, joined.log)
        self.driver = Driver(joined.machine, joined.log, clock=joined.clock, continue_as=continue_as)
        self.peering = peering_of(joined, self.driver, contacts_url)
        peers = partial(self.peering.book.sample, outside.PEERS)
        self.clock_check = ClockCheck(joined.transport.clock_ahead, peers)
        self.limiter = self._make_limiter()
        self.sharing = self._make_sharing()
        with_bases = joined.manifest.training.bases
        self.bases = (
            PublishedBases(joined, self.sharing, self.driver.disk, self.driver.changed)
            if with_bases
            else None
        )
        """Published bases; None in a run without published bases."""
        self.readiness = self._make_readiness()
        self.model = LocalModel(
            joined,
            self.driver,
            self.limiter,
            self.bases,
            load=lambda: load_engine(self._gather(), self.manifest),
            caught_up=self.readiness.done,
            fail=self.fail,
        )
        self._shutdown = Shutdown(
            joined.machine, done=self._done, alone=lambda: self.peering.alone, clock=joined.clock
        )
        self.context = NodeContext(
            **{one.name: getattr(joined, one.name) for one in fields(joined)},
            driver=self.driver,
            limiter=self.limiter,
            peering=self.peering,
            sharing=self.sharing,
            model=self.model,
        )

        # parts that only some nodes have
        organised, trains = joined.machine.organised, joined.settings.role == "trainer"
        self.checkpoints = NodeCheckpoints(self.context) if organised else None
        """Checkpoints; None in an open run."""
        self.organising = self._make_organising() if organises(joined) else None
        """The organiser; None in a node that neither organises nor stands in."""
        self.privacy = Privacy(self.context) if self.settings.noisy else None
        self.sampling = Sampling(self.context) if self.settings.samples and trains else None

        # parts that only observe
        self.reports = Reports(joined.manifest, organised, self.clock()) if organised else None
        samples = self.sampling.view if self.sampling else lambda: Samples(rows=[], moments=[])
        self.views = Views(
            self.context, started_at=self.started_at, caught_up=self.readiness.done, samples=samples
        )
        self.recorder = Recorder(joined, logger, self.reports, self.status)
        self.driver.after_round.append(self._after_round)

    # -- making the parts --------------------------------------------------------------------------

    def _make_limiter(self) -> ResourceLimiter:
        return ResourceLimiter(
            self.settings.limits,
            machine=self.outside.sensors(*self.settings.devices),
            bandwidth=self.driver.bandwidth,
            traffic=DailyTraffic(self.log, self.outside.today),
            disk=self.driver.disk,
            close_links=self.peering.stay_away,
            fail=self.fail,
            clock=self.clock,
        )

    def _make_sharing(self) -> Sharing:
        bandwidth = self.driver.bandwidth
        ways = self.peering.sources, self.transport.request, bandwidth.download
        givers = Givers(*ways, clock=self.clock, random=self.outside.random)
        return Sharing(self.settings, self.manifest, self.data_dir, givers, bandwidth.upload)

    def _make_readiness(self) -> Readiness:
        settings = self.settings
        return Readiness(
            self.machine,
            told_peers=bool(settings.peers),
            met_peers=lambda: bool(startup.remembered_peers(self.log)),
            nobody_else=lambda: self.may_begin and (settings.alone or self.peering.nobody_else()),
            clock=self.clock,
        )

    def _make_organising(self) -> Organising:
        assert self.checkpoints is not None  # every organised run has them
        return Organising(self.context, self.readiness, self.checkpoints.state_of, self.fail)

    @property
    def may_begin(self) -> bool:
        """Whether this node may begin the run: it is the organiser's node, or the run is open. A node may not
        begin a private run, nor any run while its clock is wrong: in both cases the DHT does not show other
        nodes."""
        its_part = self.settings.organise or self.machine.organised is None
        return its_part and not self.manifest.organised.private and not self.clock_check.problem

    def stand_in(self) -> str:
        """Offer to stand in for the organiser, now and after each restart, until this member is named a
        stand-in. Return the public key with which this member would sign, in hex.

        Raises UserError BAD_OPTION for a relay, which is no member, and in a run of an earlier protocol than
        4.
        """
        organised = self.machine.organised
        if organised is None or not organised.control.key or organised.control.feed.authority.terms == 1:
            raise UserError(
                Code.BAD_OPTION,
                "this node cannot stand in: it is no member, or the run speaks an earlier protocol than 4",
                "Join as a trainer; an earlier run passes on by `sfnode organise hand-over --out FILE`.",
            )
        note_offer(self.log)
        if self.organising is None:
            self.organising = self._make_organising()
        return organised.control.key.hex()

    # -- rounds ------------------------------------------------------------------------------------

    def _after_round(self) -> None:
        """Let the scheduler order steps, and leave if it is time. Called at least once a second."""
        self.model.advance()
        if self.reports:
            for line in self.reports.news(self.clock()):
                log.info("%s", line)
        self.recorder.after_round()
        if not self.stopping.is_set() and self._shutdown.due():
            log.info("done: leaving")
            self.stopping.set()

    def _done(self) -> bool:
        complete = self.settings.until_complete and self.machine.complete
        return (self.limiter.finishing and not self.model.busy) or complete or self.model.exhausted

    # -- living ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run until `stop`, a local fault, or the end that the settings ask for. Raises the error of a local
        fault."""
        self.recorder.begin()
        if self.settings.role == "trainer" and (self.checkpoints is None or self.checkpoints.begun.is_set()):
            self.model.start()
        driving = asyncio.create_task(self._guard(self.driver.run))
        looking = [asyncio.create_task(self._guard(job)) for job in self._jobs()]
        try:
            await self.stopping.wait()
        finally:
            await self._end(driving, looking)
        if self._fault:
            raise self._fault

    def stop(self) -> None:
        """Stop the node without joining another run afterwards."""
        self.sequel = None
        self.stopping.set()

    def finish(self) -> None:
        """Complete the step under way, hand its updates over and stop."""
        self.limiter.finish()
        self._after_round()

    def continue_in(self, link: str) -> None:
        """End this node as `finish` does. Afterwards the run to which `link` leads is joined."""
        self.sequel = link
        self.finish()

    def fail(self, error: BaseException) -> None:
        """Stop the node for a local fault, which `live` then raises."""
        self._fault = self._fault or error
        self.stop()

    def _jobs(self) -> tuple[Job, ...]:
        """Return the tasks that run beside the driver until the node stops."""
        notified, reports = self.settings.notify, self.reports if self.settings.follow else None
        return (
            *(self.peering.run, self.views.run, self.limiter.run, self.limiter.keep_traffic),
            *(self._stock, partial(log_progress, self.status), self.clock_check.run),
            partial(be_admitted, self.context, self.organising, self._note_asked, self.stopping),
            *((self.peering.ask_contacts,) if self.peering.contacts_url else ()),
            *((self.recorder.run,) if self.settings.log_to else ()),
            *((partial(notify, self.status, self.clock, notified),) if notified else ()),
            *((self.checkpoints.run, self._train_once_begun) if self.checkpoints else ()),
            *(part.run for part in (self.bases, self.privacy, self.sampling) if part),
            *((partial(follow, self.context, reports, self.continue_in),) if reports else ()),
        )

    def _note_asked(self) -> None:
        self.asked_at = self.clock()

    def _gather(self) -> Settings:
        """Find or download the run's data and base model, on a thread that may wait. Return the settings with
        the folder of the model. Raises as `find_data` and `Sharing.find`."""

        def gather() -> Settings:
            find_data(self.settings, self.manifest, self.data_dir, self.sharing)
            return self.sharing.find()

        return self.driver.disk.patiently_in_thread(gather)

    async def _stock(self) -> None:
        """Download the files that a relay gives to others. In a trainer the engine's thread downloads
        them."""
        if self.settings.role == "relay" and self.sharing.gives:
            await asyncio.to_thread(self._gather)

    async def _train_once_begun(self) -> None:
        """Start the engine of a node that begins with a checkpoint once the checkpoint is stored here."""
        if self.settings.role == "trainer" and self.model.thread is None and self.checkpoints:
            await self.checkpoints.begun.wait()
            async with self.driver.between_rounds:  # within a round, admitted updates may not be on disk
                if not self.stopping.is_set():
                    self.model.start()

    async def _guard(self, job: Job) -> None:
        try:
            await job()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self.stopping.is_set() and isinstance(error, UserError) and error.code is Code.DISK_FULL:
                log.warning("leaving without what could not be written: %s", error.what)
            else:
                self.fail(error)

    async def _end(self, driving: asyncio.Task[None], looking: list[asyncio.Task[None]]) -> None:
        """Stop computing, write and send the finished updates, and close the links."""
        self.driver.disk.leave()
        self.peering.leave()
        self.sharing.close()
        self.limiter.stop()
        if self.organising:
            await self.organising.stop()
        await self.model.stop()
        await self.driver.hand_over(LINK_GRACE)
        self.driver.finish()
        await driving
        await self.driver.close_links(LINK_GRACE)
        await call_off(looking)

    # -- the control API ---------------------------------------------------------------------------

    async def evaluate(
        self, base: bool, limit: int, calibrated: bool = False, probe: bool = False
    ) -> NodeEvaluation:
        """Evaluate a model on the test rows: with `base` the base model, otherwise the model of the last seal
        (`LocalModel.ask_of_last_seal`). With `base` and `calibrated`, the base model is calibrated first.
        With `probe`, also evaluate a linear probe and baselines without a model."""
        self._require_room()
        wanted = self.limiter.until_a_pause()

        def of_model(engine: Engine) -> tuple[Evaluation, dict[str, Any]]:
            """Return the evaluation, and the other fields of `NodeEvaluation`."""
            found = engine.evaluate(limit, wanted)
            beside: dict[str, Any] = {"drift": _unless_paused(wanted, engine.drift).whole}
            if probe:
                beside["probe"] = _unless_paused(wanted, lambda: engine.probe(limit))
                beside["baselines"] = _unless_paused(wanted, lambda: engine.baselines(limit))
            return found, beside

        beside: dict[str, Any] = {}
        if base:
            moment, result = await self.model.ask(
                lambda engine: engine.evaluate_base(limit, wanted, calibrated=calibrated),
                what="measuring the base model on the test rows",
            )
        else:
            moment, (result, beside) = await self.model.ask_of_last_seal(
                of_model, "measuring the model on the test rows"
            )
        answer = NodeEvaluation(
            **dict(result),
            seconds=self.clock() - self.started_at,
            known=0 if base else moment.known,
            base=base,
            digest=None if base else moment.digest,
            **beside,
        )
        self.views.remember(answer)
        self.recorder.evaluated(answer)
        return answer

    async def generate(self, prompt: str, tokens: int) -> Generated:
        """Continue `prompt` with the base model and with the model of the last seal
        (`LocalModel.ask_of_last_seal`), by at most `tokens` tokens each."""
        self._require_room()
        moment, (base, now) = await self.model.ask_of_last_seal(
            lambda engine: engine.generate(prompt, tokens)
        )
        return Generated(base=base, now=now, digest=moment.digest, known=moment.known)

    async def core_status(self) -> CoreStatus:
        """Return the state digest and the core digest of the same updates. A relay has no cores, and
        therefore no core digest."""
        if self.model.thread is None:
            frontier = self.machine.frontier
            return CoreStatus(digest=frontier.digest().hex(), core_digest=None, known=frontier.known)
        self._require_room()
        moment, core = await self.model.ask(lambda engine: engine.core.digest())
        return CoreStatus(digest=moment.digest, core_digest=core.hex(), known=moment.known)

    def _require_room(self) -> None:
        """Raise UserError DISK_FULL while the disk is full. A question to the engine waits for the end of the
        driver's round, which does not end while the disk is full."""
        if problem := self.driver.disk.problem:
            raise problem


def _unless_paused(wanted: Callable[[], bool], measure: Callable[[], T]) -> T:
    """Return what `measure` returns. Raises UserError PAUSED, without calling it, if `wanted()` is false."""
    if not wanted():
        from sfnode.engine.losses import paused  # it loads torch

        raise paused()
    return measure()


# -- questions of peers -------------------------------------------------------------------------


def answers_to_peers(node: NodeContext) -> Callable[[Asker, bytes], Awaitable[bytes]]:
    """Return the function that answers a peer's request, one frame, with one frame. It raises TransportError
    for an unknown request."""
    own_introduction = _introduction(node)

    async def answer(asker: Asker, frame: bytes) -> bytes:
        if frame == ECHO:
            return own_introduction
        try:
            question = wire_codec.decode(frame)
        except RemoteProtocolError as error:
            raise TransportError(str(error)) from error
        if isinstance(question, PartRequest):
            return wire_codec.encode(await node.sharing.answer(question, asker))
        if not isinstance(question, ManifestRequest):
            raise TransportError("only manifests and models are answered here")
        return wire_codec.encode(ManifestReply(node.manifest.canonical()))

    return answer


def _introduction(node: NodeContext) -> bytes:
    """Return the introduction for neighbours: with this node's origin if it has a display name, otherwise
    without an origin."""
    own = node.machine.own
    if own is None or not node.settings.display_name:
        return ECHO
    return introduction(node.machine.run.run_id, own.origin, node.transport.peer, node.machine.sign)
