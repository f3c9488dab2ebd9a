"""Schedules the steps of the engine, and turns finished ones into updates.

The protocol machine decides whether to compute, and at which step and epoch. The engine thread evaluates. The
scheduler stands between the two. It knows neither links nor files.

The scheduler uses five positions in our feed: the position at which this process began, and the ends of the
admitted (the machine's frontier), posted, computed and ordered steps. Each limit is a distance between two of
these positions. Computed steps are posted together, and signed together: `sfprotocol.own_feed` says how long
they wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.node.training.engine_thread import Order
from sfnode.stats import Rate
from sfprotocol import seeds
from sfprotocol.events import OwnUpdates
from sfprotocol.machine import Machine
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.own_feed import Coalescing

if TYPE_CHECKING:
    from sfnode.engine.trainable_model import StepResult

ORDERS_AHEAD = 2
"""Default number of steps ordered at a time: one that runs and the next one."""

BATCHES_A_DEVICE = 4
"""Number of batches in a step for each device, if there are several devices. With fewer batches, most devices
would wait for the slowest device or the longest mini-batch. With more, a pause would wait longer for the end
of a step."""

LONG_STEP = 2.0
"""Minimum duration, in seconds, of a long step. After a long step, the next step is ordered only when none is
in progress. The engine is then idle for a turn of the event loop after each step. In return a question to the
engine, such as an organiser's about the rate, waits for one step and not for two."""

LOSS_MEMORY = 0.95
"""Weight of the previous value in the moving average of the loss."""

FAILURES = 10
"""Number of consecutive measurements without a finite result after which the node ends. A single such
measurement may come from a mini-batch that overflows half precision. This many come from a fault of the model
or the machine, and further updates would waste the run's budget."""


def batches_of(devices: int) -> int:
    """Return the number of batches of a step on `devices` devices. Each batch is measured in one forward
    pass. A single device gets one batch."""
    return devices * BATCHES_A_DEVICE if devices > 1 else 1


class StepScheduler:
    """Orders steps and posts updates. Call `advance` whenever anything may have changed."""

    def __init__(
        self,
        machine: Machine,
        *,
        order: Callable[[Order], None],
        post: Callable[[OwnUpdates], None],
        clock: Callable[[], float],
        queries: int,
        steps: int,
        together: int = 1,
        left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """A step has `queries` mini-batches, with `together` updates each. At most `steps` updates are made
        (0: no limit). `left` returns how many more updates may be made at present."""
        self.ready = False
        """Whether the engine is loaded and the node has caught up."""
        self.loss: float | None = None
        self.held = False
        """Whether the ordering of steps is suspended."""
        self.hindered: Callable[[], bool] = lambda: False
        """Function that returns whether something that the next step needs is missing."""
        self.paused = False
        """Whether there is a pause that is longer than a rest between steps. During such a pause finished
        updates are posted at once."""
        self.ahead = ORDERS_AHEAD
        """Number of steps ordered at a time."""
        self._machine = machine
        self._order = order
        self._post = post
        self._clock = clock
        self._queries = queries
        self._together = together
        self._steps = steps
        self._left = left
        self._coalescing: Coalescing | None = None
        """Finished updates of our feed, not yet posted; None before the machine has a feed."""
        self._made_before = 0
        """Number of updates that this process made in earlier incarnations."""
        self._started = self._ordered = 0
        """Positions in the feed: at the start of this process (`_started`), and at the end of the ordered
        steps (`_ordered`)."""
        self._epoch = 0
        self._at_work = 0
        """Number of orders without a result."""
        self._rests_until = float("-inf")
        """Time before which the run's pace allows no further step to be ordered."""
        self._timer: asyncio.TimerHandle | None = None
        self._failed = self._failed_in_a_row = 0
        """Numbers of measurements without a finite result: in this process (`_failed`), and since the last
        step with a finite result (`_failed_in_a_row`)."""
        self.begun = 0.0
        """Time at which the step under way was ordered, or at which the previous step ended, if that was
        later."""
        self._long = False
        """Whether the last step took LONG_STEP or longer."""
        self._finished, self._rate = 0, Rate()

    @property
    def made(self) -> int:
        """Number of updates made by this process that the machine has admitted."""
        if self._coalescing is None:
            return 0
        # Posted updates are not admitted if the incarnation ended before. Those of a peer may be, instead.
        admitted = min(self._coalescing.first, self._machine.frontier.next(self._coalescing.feed))
        return self._made_before + admitted - self._started

    @property
    def exhausted(self) -> bool:
        """Whether the settings limit the number of this node's updates, and the node has reached that limit
        or can make no more updates."""
        return bool(self._steps) and (self.made >= self._steps or self._machine.complete)

    @property
    def busy(self) -> bool:
        """Whether own updates are under way."""
        if self._coalescing is None:
            return False
        at_work = self._at_work > 0 and not self._machine.complete
        return at_work or self._coalescing.stop > self._machine.frontier.next(self._coalescing.feed)

    def rate(self) -> float:
        """Return the recent rate of own updates per second."""
        return self._rate.update(self._clock(), self._finished)

    def advance(self) -> None:
        """Order as many steps as are allowed, and post the finished updates that have waited long enough."""
        coalescing = self._follow_feed()
        if coalescing is None:
            return
        held = self.held or self.hindered()
        ahead = 1 if self._long else self.ahead
        while self.ready and not held and self._machine.may_compute and self._at_work < ahead:
            allowed = self._allowed(coalescing.feed)
            if allowed <= 0 or self._clock() < self._rests_until:
                break
            if self._at_work == 0:
                self.begun = self._clock()
                self._rate.update(self.begun, self._finished)
            before = self._ordered
            self._order(self._next(coalescing.feed, allowed))
            rest = (self._ordered - before) / self._machine.pace
            self._rests_until = max(self._rests_until, self._clock() - rest) + rest
        self._post_when_due(coalescing)

    def on_result(self, order: Order, result: StepResult) -> None:
        """Add a finished step.

        The step is dropped if its feed or the run has ended meanwhile. Otherwise the updates of a long step
        could be sent when other nodes have already left the complete run (SPEC U6). Raises UserError
        LOSS_NOT_FINITE after FAILURES in a row.
        """
        self._at_work -= 1
        self._long, self.begun = self._clock() - self.begun >= LONG_STEP, self._clock()
        coalescing = self._coalescing
        assert coalescing is not None  # there was an order
        self._count_failures(result)
        if not self._machine.complete and (order.feed, order.first) == (coalescing.feed, coalescing.stop):
            scalars = order.asked(result.scalars)
            coalescing.add((EpochScalars(order.epoch, scalars),))
            self._finished += len(scalars)
            self._rate.update(self.begun, self._finished)
            self._smooth(result.loss)
        if self._at_work == 0:
            self._ordered = coalescing.stop  # what was dropped is ordered again if it is still needed
        self.advance()

    def forget(self, orders: Sequence[Order]) -> None:
        """Forget the withdrawn `orders`, which must be the last ones that were given."""
        self._at_work -= len(orders)
        feed = self._coalescing.feed if self._coalescing else None
        if first := [order.first for order in orders if order.feed == feed]:
            self._ordered = first[0]

    def flush(self) -> None:
        """Post all finished updates to the machine."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._coalescing and (updates := self._coalescing.take(self._clock())):
            self._post(updates)

    def _post_when_due(self, coalescing: Coalescing) -> None:
        """Post finished steps at once if no step follows soon, else at the deadline (SPEC I4). Set a timer
        for the deadline or the next order."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        resting = self._rests_until > now
        idle = self._at_work == 0 and not self.held and not resting
        wait = 0.0 if self.paused or idle else coalescing.deadline() - now
        if wait <= 0:
            self.flush()
            wait = math.inf
        wait = min(wait, self._rests_until - now if resting else math.inf)
        if wait < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait, self.advance)

    def _count_failures(self, result: StepResult) -> None:
        failed = result.failed // self._together
        if not failed:
            self._failed_in_a_row = 0
            return
        all_failed = result.failed == len(result.scalars)
        self._failed_in_a_row = self._failed_in_a_row + failed if all_failed else 0
        if self._failed_in_a_row >= FAILURES:
            raise UserError(
                Code.LOSS_NOT_FINITE,
                f"the loss was infinite or not a number in {self._failed_in_a_row} measurements in a row",
                "Use --dtype bfloat16 or float32 if it was float16. If that does not help, ask whether other "
                "trainers of the run end like this: then its model has diverged.",
            )
        before, self._failed = self._failed, self._failed + failed
        if before.bit_length() < self._failed.bit_length():  # the first, and whenever the number has doubled
            log.warning(
                "the loss was infinite or not a number in %d measurements so far; their updates are 0",
                self._failed,
            )

    def _smooth(self, loss: float) -> None:
        past = self.loss
        if past is None or not math.isfinite(past):
            self.loss = loss
        else:
            self.loss = LOSS_MEMORY * past + (1 - LOSS_MEMORY) * loss

    def _follow_feed(self) -> Coalescing | None:
        """Begin at the machine's position in its own feed, if that feed is new: at the start, or with a new
        incarnation."""
        own, frontier = self._machine.own, self._machine.frontier
        if own is not None and (self._coalescing is None or own != self._coalescing.feed):
            self._made_before = self.made
            self._coalescing = Coalescing(frontier, own)
            self._started = self._ordered = self._coalescing.first
            self._epoch = frontier.state(own).epoch
        return self._coalescing

    def _allowed(self, feed: Feed) -> int:
        """Return how many more updates may be ordered.

        Updates under way are counted, so that our feed stays within the budget (SPEC U6) or quota (SPEC O6).
        The updates not yet admitted must fit one segment (SPEC S4), however slow the disk is.
        """
        under_way = self._ordered - self._machine.frontier.next(feed)
        room = min(self._machine.room, self._machine.run.form.segment_updates, self._left())
        allowed = int(room) - under_way
        if not self._steps:
            return allowed
        return min(allowed, self._steps - self._made_before - (self._ordered - self._started))

    def _next(self, feed: Feed, allowed: int) -> Order:
        """Return an order for the next steps: up to the end of a group, but at most `allowed`.

        Groups are measured whole (SPEC U2). A quota or the end of a process may divide a group. Then the rest
        of the group is ordered later, and the whole group is measured again.
        """
        self._epoch = max(self._epoch, self._machine.epoch)
        key = self._machine.frontier.state(feed).key
        before = self._ordered % self._together
        whole = self._queries * self._together
        count = min(whole - before, allowed)
        whole -= (whole - before - count) // self._together * self._together  # groups without an ordered step
        step_seeds = seeds.update_seeds(key, self._ordered - before, whole)
        after = whole - before - count
        organised = self._machine.organised
        rate = organised.run_state.rate_from(self._epoch) if organised else None
        order = Order(feed, self._ordered, self._epoch, tuple(step_seeds.tolist()), before, after, rate)
        self._ordered += count
        self._at_work += 1
        return order
