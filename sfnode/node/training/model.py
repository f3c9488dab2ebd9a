"""Loads the model of a running node, keeps it at the updates that count, trains it, and asks the engine
questions about the model in a known state.

Only this module knows both the engine's thread and the scheduler of steps. A relay has neither: there, all
calls have no effect, and every question is refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.node import accounting
from sfnode.node.driver import Driver
from sfnode.node.run_context import RunContext
from sfnode.node.training.bases import PublishedBases
from sfnode.node.training.engine_thread import EngineThread, Order
from sfnode.node.training.limiter import ResourceLimiter
from sfnode.node.training.step_scheduler import StepScheduler, batches_of
from sfnode.settings import Settings
from sfnode.store import checkpoint as states
from sfnode.store.checkout import Checkout, last_of, last_seal
from sfnode.store.data_folder import Layout
from sfnode.store.named_files import places_of
from sfnode.store.replay import changes
from sfprotocol.messages import Feed
from sfprotocol.weighing import Counted

if TYPE_CHECKING:
    from sfnode.engine.trainable_model import StepResult
    from sfnode.engine.trainer import ReplicatedTrainer as Engine
    from sfprotocol.seeds import I64

ENGINE_GRACE = 0.5
"""Maximum time, in seconds, for which a node that stops waits for the step in progress. Then the step is
abandoned."""

LoadEngine = Callable[[Settings, Manifest], "Engine"]
"""Function that loads the model and the data. It is called on the engine's thread."""

T = TypeVar("T")


class ModelMoment(NamedTuple):
    """The state of the model about which the engine was asked."""

    digest: str
    known: int
    epoch: int | None = None
    """Epoch of the seal; in an open run the open epoch."""


@dataclass(eq=False, slots=True)
class PendingQuestion:
    """A question that the engine has not answered yet."""

    what: str
    """Description of the engine's work, such as `measuring epoch 3`; empty for short work."""
    since: float = math.inf
    """Time at which the engine began with the question; infinity before."""


class LocalModel:
    """The model of one node; nothing is loaded before `start`.

    Everything is called on the event loop.
    """

    def __init__(
        self,
        context: RunContext,
        driver: Driver,
        limiter: ResourceLimiter,
        bases: PublishedBases | None,
        *,
        load: Callable[[], Engine],
        caught_up: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`load` loads the engine, on its thread. `caught_up` returns whether the node has caught up with the
        run's updates. `fail` is called with the error that ends the engine."""
        self.doubts: list[Callable[[], UserError | None]] = []
        """Functions that return a problem because of which this node cannot tell which updates count, or
        None."""
        self.limits: list[Callable[[], float]] = []
        """Functions that return how many further updates this node may make. The smallest of these numbers
        applies."""
        self.thread: EngineThread | None = None
        self.scheduler: StepScheduler | None = None
        self.loaded = False
        self._asked: list[PendingQuestion] = []
        """Questions without an answer, in the order in which they will be answered."""
        self._context = context
        self._machine = context.machine
        self._driver = driver
        self._limiter = limiter
        self._bases = bases
        self._load = load
        self._caught_up = caught_up
        self._fail = fail
        driver.on_round.append(self.follow)  # before the organiser, which asks about the state after a round
        driver.retreat.append(self.retreat)

    # -- living ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the model and begin to train it. Called between two rounds of the driver.

        Raises UserError CHECKPOINT_UNUSABLE if the log was pruned and no checkpoint stored here is usable.
        """
        self.thread = EngineThread(
            self._load,
            partial(changes, self._context.log, subspace_of=self._machine.run.subspace_of),
            on_ready=self._on_ready,
            on_result=self._on_result,
            on_failure=self._fail,
            begin=self._beginning(),
        )
        self.follow([state.feed for state in self._machine.frontier])
        self.scheduler = self._make_scheduler(self.thread)
        self._limiter.serve(self.scheduler, self.thread)
        self.thread.start()

    def advance(self) -> None:
        """Let the scheduler order steps."""
        if self.scheduler:
            self.scheduler.ready = self.scheduler.ready or (self.loaded and self._caught_up())
            self.scheduler.advance()

    def follow(self, feeds: Sequence[Feed]) -> None:
        """Tell the engine which updates of these feeds count now."""
        outdated = self._machine.organised is not None and self._machine.organised.outdated
        if self.thread and feeds and not outdated:  # otherwise the log lacks updates to read
            self.thread.advance({feed: self._machine.counted(feed) for feed in feeds})

    async def retreat(self, stops: Mapping[Feed, int]) -> None:
        """Remove the updates of these feeds from the engine's cores, from the step in `stops` on, and wait
        until that is done."""
        if self.thread:
            kept = {feed: self._machine.counted(feed, stop) for feed, stop in stops.items()}
            await self.thread.retreat(kept)

    async def stop(self) -> None:
        """Stop computing, and post the finished updates."""
        if self.thread and not await self.thread.stop(ENGINE_GRACE):
            log.debug("a step in progress was abandoned")
        if self.scheduler:
            self.scheduler.flush()

    @property
    def busy(self) -> bool:
        """Whether own updates are under way."""
        return self.scheduler is not None and self.scheduler.busy

    @property
    def exhausted(self) -> bool:
        """Whether the settings limit the number of this node's updates, and the node has reached that limit
        or can make no more updates."""
        return self.scheduler is not None and self.scheduler.exhausted

    def _make_scheduler(self, thread: EngineThread) -> StepScheduler:
        settings = self._context.settings
        scheduler = StepScheduler(
            self._machine,
            order=thread.order,
            post=self._driver.post,
            clock=self._context.clock,
            queries=settings.queries_of(self._context.manifest.training) * batches_of(len(settings.devices)),
            steps=settings.steps,
            together=self._context.manifest.training.batch_updates,
            left=lambda: min((left() for left in self.limits), default=math.inf),
        )
        if self._bases:
            scheduler.hindered = partial(self._lacks_any, self._bases, thread)
        return scheduler

    def _lacks_any(self, bases: PublishedBases, thread: EngineThread) -> bool:
        """Tell the engine of new bases. Return whether bases that the next step needs are missing."""
        bases.tell(thread)
        return bool(bases.lacking())

    def _beginning(self) -> Callable[[Engine], Mapping[Feed, Counted]]:
        """Return the function that gives the engine the cores of the newest usable checkpoint stored here."""
        context, run_state = self._context, self._machine.frontier.run_state
        found = states.start(context.data_dir.checkpoints, run_state, context.log)

        def begin(engine: Engine) -> Mapping[Feed, Counted]:
            if state := found.state(context.manifest, run_state):
                engine.begin(state.cores)
            return found.counted

        return begin

    def _on_ready(self) -> None:
        self.loaded = True
        log.info("model loaded")
        self._limiter.model_loaded()
        self._driver.changed()

    def _on_result(self, order: Order, result: StepResult) -> None:
        self._limiter.step_done()  # before more is ordered
        if self.scheduler:
            self.scheduler.on_result(order, result)

    # -- questions ---------------------------------------------------------------------------------

    async def is_abreast(self) -> bool:
        """Wait until the engine has applied all present updates, and return True. Return False at once while
        the engine is loading."""
        if self.thread is None:
            return self._context.settings.role == "relay"
        if self.loaded:
            await self.thread.ask(lambda engine: None)
        return self.loaded

    @property
    def asked(self) -> PendingQuestion | None:
        """The question on which the engine is working, if the question has a description; else None."""
        return next((one for one in self._asked if one.what and one.since < math.inf), None)

    async def ask(
        self,
        question: Callable[[Engine], T],
        of: Callable[[], Mapping[Feed, Counted]] | None = None,
        what: str = "",
    ) -> tuple[ModelMoment, T]:
        """Return the present moment, and the engine's answer about the model with exactly the updates of that
        moment.

        With `of`, which is called at that moment, the question is about the model with the updates that `of`
        returns. `what` describes the engine's work to the owner until the answer. Raises UserError BAD_OPTION
        for a relay, NODE_NOT_RUNNING before the model is loaded and if the node ends before the answer,
        OUT_OF_MEMORY and DEVICE.
        """
        if self._context.settings.role == "relay":
            raise UserError(Code.BAD_OPTION, "a relay holds no model", "Ask a trainer of the run.")
        if self.thread is None:
            raise UserError(
                Code.NODE_NOT_RUNNING,
                "the node has no model yet",
                "Ask again once it trains: `sfnode status` says when.",
            )
        if problem := next(filter(None, (doubt() for doubt in self.doubts)), None):
            raise problem
        async with self._driver.between_rounds:
            frontier = self._machine.frontier
            moment = ModelMoment(frontier.digest().hex(), frontier.known)
            if self._bases:
                self._bases.tell(self.thread)  # the bases that the decisions of this moment name
            asked, do = PendingQuestion(what), self._limiter.offloading_again(question)

            def begun(engine: Engine) -> T:
                asked.since = self._context.clock()
                return do(engine)

            answer = self.thread.ask(begun, of and of())
        self._asked.append(asked)
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
        except (MemoryError, RuntimeError) as error:
            from sfnode.engine.trainer import fault_of  # it loads torch

            raise fault_of(self._context.settings.devices[0], error) or error from error
        finally:
            self._asked.remove(asked)

    async def ask_of_step(
        self,
        question: Callable[[Engine, Mapping[int, I64]], T],
        after: Callable[[], Mapping[Feed, Counted]],
        before: Callable[[], Mapping[Feed, Counted]],
        what: str,
    ) -> T:
        """Return the engine's answer about the step from one state to another. The engine first computes the
        cores `after` the step. Then it answers in the state `before` the step, without other work in between.
        Raises as `ask`."""
        cores: list[Mapping[int, I64]] = []
        _, (_, answer) = await asyncio.gather(
            self.ask(lambda engine: cores.append(engine.cores()), after),
            self.ask(lambda engine: question(engine, cores[0]), before, what),
        )
        return answer

    async def ask_of_last_seal(
        self, question: Callable[[Engine], T], what: str = ""
    ) -> tuple[ModelMoment, T]:
        """Return the state of the model that `sfnode export` would write, with its core digest, and the
        engine's answer about that model.

        This model is the one of the last seal whose updates are all stored. Before the first seal it is the
        base model, and in an open run the present model. Raises as `ask`.
        """
        organised, held = self._machine.organised, self._machine.frontier.next
        if organised is None:
            moment, now = await self.ask(question, what=what)
            return moment._replace(epoch=self._machine.epoch), now
        found: list[Checkout] = []

        def counted() -> Mapping[Feed, Counted]:
            last = last_of(organised.run_state, held)
            found.append(last or last_seal(self._machine.run, self._context.log.control(), held))
            return found[-1].counted

        _, (digest, answer) = await self.ask(
            lambda engine: (engine.core.digest().hex(), question(engine)), counted, what
        )
        return ModelMoment(digest, found[-1].updates, found[-1].epoch), answer


# -- loading ------------------------------------------------------------------------------------


SECRET_BYTES = 16
"""Length, in bytes, of the secret that hides which of its own rows a node draws. The secret is new at each
start, because no other node has to repeat the draws."""

_loading = Lock()
"""Lock for loading: a process may run several nodes, and transformers cannot load two models at a time in one
process."""


def clip_of(settings: Settings, manifest: Manifest) -> float:
    """Return the clip of a node with noise: the bound on a slope, or in a first-order run on the length of a
    row's gradient. By default it is the run's bound."""
    numbers = manifest.training
    return settings.noise_clip or (numbers.norm_limit or numbers.scalar_limit) * numbers.scalar_delta


def load_trainer(settings: Settings, manifest: Manifest) -> Engine:
    """Load the base model and the training rows. Takes seconds: call it on the engine's thread.

    Raises UserError MODEL_*, DATA_* or DEVICE.
    """
    import torch

    from sfnode.engine.estimator import LocalNoise
    from sfnode.engine.trainer import ReplicatedTrainer

    layout = Layout(settings.data_dir)
    noise = LocalNoise(settings.noise, clip_of(settings, manifest)) if settings.noisy else None
    if settings.limits.threads:
        torch.set_num_threads(settings.limits.threads)
    with _loading:
        engine = ReplicatedTrainer.load_on(
            settings.devices,
            manifest,
            batch=settings.queries_of(manifest.training) * manifest.training.batch_updates,
            model_override=settings.model,
            data_override=settings.data,
            skip_bad_rows=settings.skip_bad_rows,
            shard=settings.shard,
            dtype=settings.dtype,
            bases=layout.bases,
            places=places_of(layout),
            secret=token_bytes(SECRET_BYTES) if settings.data else b"",
            noise=noise,
        )
    if noise:
        noise.multiplier = accounting.multiplier_of(settings, manifest, engine.odds)
    return engine
