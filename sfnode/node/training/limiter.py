"""Keeps a node within its owner's limits: reads the sensors, asks the policy, holds back steps and bytes.

It opens and closes three gates: for the steps of the engine, for the bytes on the links, and for the links
themselves. When a gate closes, a step that has begun is completed, and ordered steps that have not begun are
withdrawn. The limiter knows neither updates nor peers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sfnode.descriptors import patiently
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.logging import log
from sfnode.node.disk_wait import DiskWait
from sfnode.resources.bandwidth_limits import FLUSH_INTERVAL, Bandwidth, DailyTraffic
from sfnode.resources.pauses import (
    ComputeRate,
    ComputeUsage,
    PauseReason,
    Readings,
    pause_reasons,
    spare_cores,
)

if TYPE_CHECKING:
    from sfnode.engine.trainer import ReplicatedTrainer as Engine
    from sfnode.node.training.engine_thread import EngineThread
    from sfnode.node.training.step_scheduler import StepScheduler
    from sfnode.resources.sensors import Sensors

LOOK_INTERVAL = 1.0
"""Seconds between two readings of the sensors. When somebody starts a game, the device's memory is free after
about two seconds: after the next reading and the step under way. A reading takes a millisecond, or some tens
of milliseconds if it lists the running programs."""

RETURN_INTERVAL = 10.0
"""Seconds between two attempts to move the model back to a device that has had no room for it. A failed
attempt may move a part of the model to the device and back."""

ASKED = "asked for"
"""Text of the reason for a pause that the owner asked for."""

ASKED_BY_OWNER = "asked"
"""Name of the reason for a pause that the owner asked for. Other reasons have the name of a limit, DISK or
ROOM."""

DISK = "disk"
"""Name of the reason for a pause while the disk is full, because no update could be stored."""

ROOM = "room"
"""Name of the reason for a pause while a device has no room: other programs took the memory of the offloaded
model."""


T = TypeVar("T")


class ResourceLimiter:
    """Keeps one node within its limits. Await `start`, then `run` until cancelled.

    Everything is called on the event loop.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        machine: Sensors,
        bandwidth: Bandwidth,
        traffic: DailyTraffic,
        disk: DiskWait,
        close_links: Callable[[bool], None],
        fail: Callable[[BaseException], None],
        clock: Callable[[], float],
    ) -> None:
        """`close_links(True)` closes all links. `fail` is called with an error of the engine."""
        self.limits = limits
        self.reasons: list[PauseReason] = []
        """Reasons for the pause under way; empty if the node computes or only rests between two steps."""
        self.finishing = False
        """Whether no further step begins, and the node leaves after the step in progress."""
        self._stopped = False
        """Whether the node stops, so that evaluations are broken off."""
        self._machine = machine
        self._bandwidth = bandwidth
        self._traffic = traffic
        self._disk = disk
        self._close_links = close_links
        self._fail = fail
        self._clock = clock
        self._scheduler: StepScheduler | None = None
        self._engine_thread: EngineThread | None = None
        self._steps_ahead = 1
        """Number of steps that the scheduler orders at a time while no limit requires rests between steps."""
        self._readings: Readings | None = None
        self._spare: int | None = None
        """Cores free for threads of the engine; None before the first reading."""
        self._paused_until = -math.inf
        self._pause_count = 0
        self._beside_links = 0
        """Bytes of the network daemon's traffic that did not belong to links."""
        self._links_closed = False
        self._offloaded = False
        """Whether the engine was told to offload the model and has not restored it."""
        self._returning = False
        """Whether the engine was told to restore the model and has not answered."""
        self._no_room: str | None = None
        """Reason why the last attempt to restore the model failed; None if it did not fail. Further attempts
        follow."""
        self._return_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._sensing = asyncio.Lock()
        """Held while the sensors are read, and while limits are replaced."""
        self._compute_rate = ComputeRate(Limits(), math.inf, ComputeUsage(0.0, 0.0, 0.0), clock())

    async def start(self) -> None:
        """Apply the limits. Raises UserError LIMIT_UNAVAILABLE."""
        async with self._sensing:
            await asyncio.to_thread(self._machine.check, self.limits)
            self._apply()
        self._bandwidth.on_exhausted = self._settle
        self._disk.changed.append(self._settle)

    def serve(self, scheduler: StepScheduler, engine_thread: EngineThread) -> None:
        """Limit the steps of this engine, too. No step is ordered before the first reading of the sensors."""
        self._scheduler, self._engine_thread = scheduler, engine_thread
        self._steps_ahead = scheduler.ahead
        scheduler.held = True
        self._apply_steps_ahead()
        self._apply_threads()

    # -- what the owner asks for -------------------------------------------------------------------

    def pause(self, seconds: float | None) -> None:
        """Pause for `seconds` seconds; None means until `resume`. A node whose engine has not started pauses
        from its first step on."""
        self._paused_until = math.inf if seconds is None else self._clock() + seconds
        self._settle()

    def resume(self) -> None:
        """End a pause that the owner asked for. Limits still apply."""
        self._paused_until, self._no_room = -math.inf, None
        self._settle()

    def finish(self) -> None:
        """Order no further steps."""
        self.finishing = True
        self._settle()

    def stop(self) -> None:
        """Break off evaluations, because the node stops."""
        self._stopped = True

    async def limit(self, changes: Mapping[str, Any]) -> None:
        """Replace some limits; if one is refused, none is replaced. The new limits apply when this returns.

        First the sensors for the new limits are tried, on a thread, because this may load a driver. Raises
        pydantic's ValidationError, and UserError LIMIT_UNAVAILABLE.
        """
        async with self._sensing:
            limits = self.limits.changed(changes)
            await asyncio.to_thread(self._machine.check, limits)
            readings = await self._read_sensors(limits)
            new_threads = limits.threads != self.limits.threads
            self.limits = limits
            log.info("limits: %s", limits)
            self._apply()
            if new_threads:
                self._apply_threads()
        self._take_in(readings)

    @property
    def paused(self) -> bool:
        """Whether the node pauses: no step may begin, for longer than a rest between two steps."""
        return bool(self.reasons)

    def reason_texts(self) -> list[str]:
        """Return the reasons for the pause as texts."""
        return [reason.text for reason in self.reasons]

    def reason_names(self) -> list[str]:
        """Return the names of the reasons for the pause: names of limits, DISK, ROOM and ASKED_BY_OWNER."""
        return [reason.limit or ASKED_BY_OWNER for reason in self.reasons]

    def until_a_pause(self) -> Callable[[], bool]:
        """Return a function that returns True until the next pause begins or the node stops. Any thread may
        call it."""
        count = self._pause_count
        return lambda: self._pause_count == count and not self._stopped

    def offloading_again(self, question: Callable[[Engine], T]) -> Callable[[Engine], T]:
        """Return a function that asks `question`, and afterwards offloads the model again if a pause had
        offloaded it."""

        def ask(engine: Engine) -> T:
            try:
                return question(engine)
            finally:
                if self._offloaded:
                    engine.offload()

        return ask

    # -- what it does ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the sensors regularly and apply the limits, until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK_INTERVAL)
        finally:
            self._cancel_timer()
            self._bandwidth.on_exhausted = lambda: None

    async def keep_traffic(self) -> None:
        """Write the number of bytes that were carried today to the log, regularly and at the end. Raises
        DATA_DIR_UNUSABLE."""
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL)
                await self._disk.patiently(lambda: self._traffic.flush(self._carried()))
        finally:
            await self._traffic.flush(self._carried())

    def step_done(self) -> None:
        """Take into account the CPU time, device time and energy that a completed step has used."""
        if self._compute_rate.limited:
            self._settle()

    def model_loaded(self) -> None:
        """Start measuring the usage anew, so that no rest follows the loading of the model."""
        self._compute_rate = self._new_compute_rate()
        self._settle()

    def _apply(self) -> None:
        self._bandwidth.upload.limit(self.limits.upload_rate)
        self._bandwidth.download.limit(self.limits.download_rate)
        self._compute_rate = self._new_compute_rate()
        self._apply_steps_ahead()

    def _new_compute_rate(self) -> ComputeRate:
        return ComputeRate(self.limits, self._machine.cores, self._usage(), self._clock())

    def _apply_steps_ahead(self) -> None:
        """Set how many steps are ordered ahead: one if the compute rate is limited, so that a rest can follow
        every step."""
        if self._scheduler:
            self._scheduler.ahead = 1 if self._compute_rate.limited else self._steps_ahead

    def _apply_threads(self) -> None:
        """Set the engine's number of threads to the owner's limit; without a limit, to at most one for each
        free core."""
        count, most = self.limits.threads, self._spare
        self._tell_engine(lambda engine: engine.use_threads(count, most))

    def _tell_engine(self, job: Callable[[Engine], None]) -> None:
        """Run a job on the engine between two steps."""
        if self._engine_thread:
            self._engine_thread.call(job).add_done_callback(self._job_done)

    def _job_done(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and (error := outcome.exception()):
            self._fail(error)

    async def _look(self) -> None:
        async with self._sensing:
            readings = await self._read_sensors(self.limits)
        self._take_in(readings)

    async def _read_sensors(self, limits: Limits) -> Readings:
        offloaded_before = self._offloaded
        readings = await asyncio.to_thread(patiently, lambda: self._machine.look(limits))
        # A model offloaded from a GPU is in this process's memory, which would prevent its return to the GPU
        return readings._replace(resident=0) if offloaded_before or self._offloaded else readings

    def _take_in(self, readings: Readings) -> None:
        self._readings = readings
        spare = spare_cores(readings.free, self._spare)
        if spare != self._spare:
            self._spare = spare
            self._apply_threads()
        self._settle()

    def _settle(self) -> None:
        """Open or close the gates according to the present reasons."""
        self._cancel_timer()
        was_paused, self.reasons = self.paused, self._find_reasons()
        if was_paused != self.paused:
            self._pause_count += self.paused
            log.info("paused: %s", "; ".join(self.reason_texts())) if self.paused else log.info("resumed")
        self._apply_quota()
        now = self._clock()
        rest = 0.0 if self.paused else self._compute_rate.rest(self._usage(), now)
        if self.finishing or self._readings is None or rest > 0 or not self._may_compute(now):
            self._hold()
        else:
            self._release()
        if 0 < (wait := rest or self._paused_until - now) < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait, self._settle)

    def _may_compute(self, now: float) -> bool:
        """Return whether there is no reason to pause, or the only reason is ROOM and the next attempt to
        restore the model is due."""
        lacks_room = [reason.limit for reason in self.reasons] == [ROOM]
        return not self.paused or (lacks_room and now >= self._return_at)

    def _find_reasons(self) -> list[PauseReason]:
        """Return the reasons to pause. ROOM is returned only if there is no other reason. While there is
        another reason, no attempt to restore the model is made that would show whether the device has
        room."""
        reasons = self._present_reasons()
        return reasons or ([PauseReason(ROOM, self._no_room)] if self._no_room else [])

    def _present_reasons(self) -> list[PauseReason]:
        found: list[PauseReason] = []
        if self._readings is not None:
            readings = self._readings._replace(day_bytes=self._traffic.today(self._carried()))
            found = pause_reasons(self.limits, readings, {reason.limit for reason in self.reasons})
        if self._scheduler is None:
            found = [reason for reason in found if reason.limit == "mb_per_day"]
        elif problem := self._disk.problem:
            found = [PauseReason(DISK, f"disk: {problem.what}"), *found]
        left = self._paused_until - self._clock()
        return [PauseReason(None, asked_text(left)), *found] if left > 0 else found

    def _apply_quota(self) -> None:
        """Allow as many bytes as are left of the day's quota, and no links once the quota is used up."""
        self._bandwidth.set_remaining(self._traffic.remaining(self.limits.mb_per_day, self._carried()))
        closed = any(reason.limit == "mb_per_day" for reason in self.reasons)
        if closed != self._links_closed:
            self._links_closed = closed
            self._close_links(closed)

    def _carried(self) -> int:
        """Return the bytes carried since the start, by links and by other traffic of the network daemon.

        The daemon's counters contain each byte of a link twice: exchanged with this process, and over the
        network.
        """
        links = self._bandwidth.total
        if self._readings is not None:
            self._beside_links = max(self._beside_links, self._readings.moved - 2 * links)
        return links + self._beside_links

    def _hold(self) -> None:
        if self._scheduler is None or self._engine_thread is None:
            return
        self._scheduler.held, self._scheduler.paused = True, self.paused or self.finishing
        self._scheduler.forget(self._engine_thread.withdraw())
        self._scheduler.advance()
        # A process that takes too much memory would only grow if its model were offloaded
        if any(reason.limit != "memory" for reason in self.reasons) and not self._offloaded:
            self._offloaded = True
            self._tell_engine(lambda engine: engine.offload())

    def _release(self) -> None:
        if self._scheduler is None or self._engine_thread is None:
            return
        if self._offloaded:
            self._restore(self._engine_thread)
            return
        self._scheduler.held = self._scheduler.paused = False
        self._scheduler.advance()

    def _restore(self, engine_thread: EngineThread) -> None:
        """Move the model back to its device, and continue afterwards."""

        def restore(engine: Engine) -> None:
            engine.restore()
            self._offloaded = False  # before the engine's next job, in which `offloading_again` reads it

        if not self._returning:
            self._returning = True
            engine_thread.call(restore).add_done_callback(self._restored)

    def _restored(self, outcome: asyncio.Future[None]) -> None:
        self._returning, self._no_room = False, None
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, UserError) and error.code is Code.OUT_OF_MEMORY:
            self._no_room = f"room: {error.what}; tried again every {RETURN_INTERVAL:g} s"
            self._return_at = self._clock() + RETURN_INTERVAL
        elif error:
            self._fail(error)
        self._settle()

    def _usage(self) -> ComputeUsage:
        joules = self._machine.joules() if self.limits.watts is not None else 0.0
        return ComputeUsage(
            time.process_time(), self._engine_thread.busy if self._engine_thread else 0.0, joules
        )

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def asked_text(seconds: float) -> str:
    """Describe a pause that the owner asked for and that ends in `seconds`: `asked for, until 14:30`."""
    if math.isinf(seconds):
        return ASKED
    end = datetime.now() + timedelta(seconds=seconds)
    return f"{ASKED}, until {end:%H:%M}" if seconds < 12 * 3600 else f"{ASKED}, until {end:%Y-%m-%d %H:%M}"
