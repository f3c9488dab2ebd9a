"""A node as the guest of its machine's owner: when it computes, and how much it sends.

Holds what the owner asks for, looks at the machine, asks the governor, and opens and closes three gates: that
of the orders for the engine, that of the links' bytes, and that of the links themselves. It acts between two
forward passes: what has begun is completed, what has not is taken back. It knows neither updates nor peers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.observe import log
from sfnode.runtime.governor import MEGABYTE, Pace, Pause, Seen, Spent, pauses, spare_cores
from sfnode.runtime.ledger import Ledger
from sfnode.runtime.throttle import Throttle
from sfnode.runtime.training import ORDERS_AHEAD, Training
from sfnode.runtime.worker import Engine, Worker

T = TypeVar("T")

LOOK_INTERVAL = 2.0
"""Seconds between looks at the machine: soon enough for somebody who starts a game, and hardly any work."""

RETURN_INTERVAL = 30.0
"""Seconds between two tries to bring the model back to a device that has no room for it: each may move a part
of it there and back."""

ASKED = "asked for"
"""Why a node pauses that was told to."""

ROOM = "room"
"""What the reason is called that is no limit: the model was put aside, and its place is taken."""


class Machine(Protocol):
    """The sensors (`runtime.senses.Sensors`)."""

    @property
    def cores(self) -> float: ...
    def check(self, limits: Limits) -> None: ...
    def look(self, limits: Limits) -> Seen: ...
    def joules(self) -> float: ...


class Guest:
    """`run` until cancelled. Everything is called on the event loop."""

    def __init__(
        self,
        limits: Limits,
        *,
        machine: Machine,
        throttle: Throttle,
        ledger: Ledger,
        away: Callable[[bool], None],
        fail: Callable[[BaseException], None],
        clock: Callable[[], float],
    ) -> None:
        """`away(True)`: there may be no links; `fail` takes what the engine cannot do when it is told to.

        Raises UserError LIMIT_UNAVAILABLE.
        """
        machine.check(limits)
        self.limits = limits
        self.reasons: tuple[Pause, ...] = ()
        """Why the node does not compute now; none if it does, or only rests between two steps."""
        self._machine = machine
        self._throttle = throttle
        self._ledger = ledger
        self._away = away
        self._fail = fail
        self._clock = clock
        self._training: Training | None = None
        self._worker: Worker | None = None
        self._seen: Seen | None = None
        self._spare: int | None = None
        """Cores on which threads of the engine find room; None until the machine was looked at."""
        self.finishing = False
        """Nothing more is begun, and the node leaves when what was begun is done."""
        self._asked_until = -math.inf
        self._pauses = 0
        """That have begun."""
        self._beside = 0
        """Bytes that went over the network and over no link."""
        self._is_away = False
        self._parked = False
        """The engine was told to put the model aside, and has not brought it back."""
        self._returning = False
        """The engine was told to bring it back, and has not answered yet."""
        self._no_room = ""
        """Why the last try to bring it back failed, and that there will be others."""
        self._return_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._looking = asyncio.Lock()
        self._apply(limits)
        throttle.on_spent = self._settle

    def serve(self, training: Training, worker: Worker) -> None:
        """This node computes; nothing is ordered before the machine has been looked at."""
        self._training, self._worker = training, worker
        training.held = True
        training.ahead = self._orders_ahead()
        self._use_threads()

    # -- what its owner says -----------------------------------------------------------------------

    def pause(self, seconds: float | None) -> None:
        """Compute nothing for so long, or until `resume`. Raises UserError BAD_OPTION."""
        if self._training is None:
            raise UserError(
                Code.BAD_OPTION, "a relay computes nothing that could pause", "End it with `sfnode leave`."
            )
        self._asked_until = math.inf if seconds is None else self._clock() + seconds
        self._settle()

    def resume(self) -> None:
        """End a pause that was asked for; limits stay in force."""
        self._asked_until, self._no_room = -math.inf, ""
        self._settle()

    def finish(self) -> None:
        """Begin nothing more, for good."""
        self.finishing = True
        self._settle()

    async def limit(self, changes: Mapping[str, Any]) -> None:
        """Replace some limits, all or none; they are in force when this returns.

        Raises pydantic's ValidationError, and UserError LIMIT_UNAVAILABLE.
        """
        limits = self.limits.changed(changes)
        self._machine.check(limits)
        threads = limits.threads != self.limits.threads
        self.limits = limits
        log.info("limits: %s", limits.in_force() or "none")
        self._apply(limits)
        if threads:
            self._use_threads()
        await self._look()

    @property
    def paused(self) -> bool:
        """Whether a step may not begin for longer than a rest."""
        return bool(self.reasons)

    def told(self) -> list[str]:
        """Why the node pauses, for people."""
        return [reason.why for reason in self.reasons]

    def until_a_pause(self) -> Callable[[], bool]:
        """True until the next pause begins; may be asked from any thread."""
        begun = self._pauses
        return lambda: self._pauses == begun

    def asking(self, question: Callable[[Engine], T]) -> Callable[[Engine], T]:
        """`question`, after which a model that was put aside for a pause is put aside again."""

        def ask(engine: Engine) -> T:
            try:
                return question(engine)
            finally:
                if self._parked:
                    engine.park()

        return ask

    # -- what it does ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at the machine regularly."""
        try:
            while True:
                await self._look()
                await self._ledger.keep(self._carried())
                await asyncio.sleep(LOOK_INTERVAL)
        finally:
            self._cancel_timer()
            self._throttle.on_spent = lambda: None
            self._ledger.close(self._carried())

    def step_done(self) -> None:
        """The engine has completed a step, or its model is loaded."""
        if self._pace.limited:
            self._settle()

    def begin_pace(self) -> None:
        """What was spent until now, as by loading the model, is not to be made up for."""
        self._pace = Pace(self.limits, self._machine.cores, self._spent(), self._clock())
        self._settle()

    def _apply(self, limits: Limits) -> None:
        self._throttle.upload.limit(limits.upload_rate)
        self._throttle.download.limit(limits.download_rate)
        self._pace = Pace(limits, self._machine.cores, self._spent(), self._clock())
        if self._training:
            self._training.ahead = self._orders_ahead()

    def _orders_ahead(self) -> int:
        """A rest comes after every step, and not after two."""
        return 1 if self._pace.limited else ORDERS_AHEAD

    def _use_threads(self) -> None:
        """As many as the owner says; or as the engine likes, but none that would wait for a core."""
        count, most = self.limits.threads, self._spare
        self._tell(lambda engine: engine.use_threads(count, most))

    def _tell(self, job: Callable[[Engine], None]) -> None:
        """Have the engine do it between two steps."""
        if self._worker:
            self._worker.call(job).add_done_callback(self._told)

    def _told(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and (error := outcome.exception()):
            self._fail(error)

    async def _look(self) -> None:
        async with self._looking:
            loop, aside = asyncio.get_running_loop(), self._parked
            seen = await loop.run_in_executor(None, self._machine.look, self.limits)
            # A GPU's model that was put aside is in this process, and would keep itself from coming back
            self._seen = seen._replace(resident=0) if aside or self._parked else seen
        spare = spare_cores(self._seen.free, self._spare)
        if spare != self._spare:
            self._spare = spare
            self._use_threads()
        self._settle()

    def _settle(self) -> None:
        """Open or close the gates."""
        self._cancel_timer()
        before = self.reasons
        self.reasons = self._why_not()
        if bool(before) != self.paused:
            self._pauses += self.paused
            log.info("paused: %s", "; ".join(self.told())) if self.paused else log.info("resumed")
        self._ration()
        now = self._clock()
        rest = 0.0 if self.paused else self._pace.rest(self._spent(), now)
        if self.finishing or self._seen is None or rest > 0 or not self._may_open(now):
            self._close()
        else:
            self._open()
        self._wake_after(rest or self._asked_until - now)

    def _may_open(self, now: float) -> bool:
        """Nothing keeps the node from computing; or nothing but room, and it is time to look for it again."""
        lacks_room = [reason.limit for reason in self.reasons] == [ROOM]
        return not self.paused or (lacks_room and now >= self._return_at)

    def _why_not(self) -> tuple[Pause, ...]:
        """Want of room is a reason only where there is no other: it is not known as long as nobody tries."""
        reasons = self._why_not_now()
        return reasons or ((Pause(ROOM, self._no_room),) if self._no_room else ())

    def _why_not_now(self) -> tuple[Pause, ...]:
        found: tuple[Pause, ...] = ()
        if self._seen is not None:
            seen = self._seen._replace(day_bytes=self._today())
            found = pauses(self.limits, seen, {reason.limit for reason in self.reasons})
        if self._training is None:
            return tuple(reason for reason in found if reason.limit == "mb_per_day")
        left = self._asked_until - self._clock()
        return (Pause("", until_text(left)), *found) if left > 0 else found

    def _ration(self) -> None:
        """The bytes that are left of the day, and no links when there are none."""
        limit = self.limits.mb_per_day
        left = math.inf if limit is None else max(0.0, limit * MEGABYTE - self._today())
        self._throttle.leave(left)
        away = any(reason.limit == "mb_per_day" for reason in self.reasons)
        if away != self._is_away:
            self._is_away = away
            self._away(away)

    def _today(self) -> int:
        """Bytes of the day."""
        return self._ledger.today(self._carried())

    def _carried(self) -> int:
        """Bytes since the start: those of the links, and what else the network daemon has moved. What links
        carry it moves twice, between here and there."""
        links = self._throttle.total
        if self._seen is not None:
            self._beside = max(self._beside, self._seen.moved - 2 * links)
        return links + self._beside

    def _close(self) -> None:
        if self._training is None or self._worker is None:
            return
        self._training.held = True
        self._training.take_back(self._worker.withdraw())
        # A process that is too large would only grow by it
        if any(reason.limit != "memory" for reason in self.reasons) and not self._parked:
            self._parked = True
            self._tell(lambda engine: engine.park())

    def _open(self) -> None:
        if self._training is None or self._worker is None:
            return
        if self._parked:
            self._bring_back(self._worker)
            return
        self._training.held = False
        self._training.advance()

    def _bring_back(self, worker: Worker) -> None:
        """Have the model where it computes, and then go on."""

        def bring_back(engine: Engine) -> None:
            engine.unpark()
            self._parked = False  # before the engine is asked anything else: `asking` looks at it there

        if not self._returning:
            self._returning = True
            worker.call(bring_back).add_done_callback(self._returned)

    def _returned(self, outcome: asyncio.Future[None]) -> None:
        self._returning, self._no_room = False, ""
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, UserError) and error.code is Code.OUT_OF_MEMORY:
            self._no_room = f"room: {error.what}; tried again every {RETURN_INTERVAL:g} s"
            self._return_at = self._clock() + RETURN_INTERVAL
        elif error:
            self._fail(error)
        self._settle()

    def _spent(self) -> Spent:
        joules = self._machine.joules() if self.limits.watts is not None else 0.0
        return Spent(time.process_time(), self._worker.busy if self._worker else 0.0, joules)

    def _wake_after(self, seconds: float) -> None:
        if 0 < seconds < math.inf:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._settle)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def until_text(seconds: float) -> str:
    """A pause that was asked for and lasts so much longer, in words: until when."""
    if math.isinf(seconds):
        return ASKED
    end = datetime.now() + timedelta(seconds=seconds)
    return f"{ASKED}, until {end:%H:%M}" if seconds < 12 * 3600 else f"{ASKED}, until {end:%Y-%m-%d %H:%M}"
