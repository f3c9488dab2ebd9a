"""The step scheduler with a real machine and without links: its orders, and the times of its posts."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.training.engine_thread import Order
from sfnode.node.training.step_scheduler import (
    FAILURES,
    LONG_STEP,
    LOSS_MEMORY,
    ORDERS_AHEAD,
    StepScheduler,
)
from sfnode.store.log import Tail
from sfprotocol import seeds
from sfprotocol.events import Admit, OwnUpdates
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, Segment
from sfprotocol.own_feed import MIN_INTERVAL
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from tests.node.helpers import Result, eventually, machine, manifest, scalar_of
from tests.refusals import refused

OTHER = Feed(bytes(31) + b"\x09", 0)

GROUPS = manifest(group=8, epoch_updates=1_000_000, update_budget=1_000_000)

LONG = manifest(epoch_updates=1_000_000, update_budget=1_000_000)
"""A run so long that a few steps do not matter."""


class Desk:
    """A scheduler with a clock and a machine of its own. It records orders and posts."""

    def __init__(
        self, run: Manifest, *, queries: int = 1, steps: int = 0, known: Sequence[Tail] = ()
    ) -> None:
        self.now = 100.0
        self.machine = machine(run, known, "me")
        self.orders: list[Order] = []
        self.posted: list[OwnUpdates] = []
        self.segments: list[Segment] = []
        self.scheduler = StepScheduler(
            self.machine,
            order=self.orders.append,
            post=self.posted.append,
            clock=lambda: self.now,
            queries=queries,
            steps=steps,
            together=run.training.batch_updates,
        )

    def begin(self) -> Desk:
        self.scheduler.ready = True
        self.scheduler.advance()
        return self

    def finish(self, seconds: float = 0.0, loss: float = 1.0, failed: int = 0) -> Order:
        """Return the result of the oldest order to the scheduler, after `seconds`. Its first `failed` scalars
        failed."""
        order = self.orders.pop(0)
        self.now += seconds
        scalars = (0,) * failed + tuple(map(scalar_of, order.seeds[failed:]))
        self.scheduler.on_result(order, Result(scalars, loss, failed))
        return order

    def round(self) -> None:
        """Hand the posted events to the machine, as the driver does."""
        for event in self.posted:
            actions = self.machine.handle(event, self.now)
            self.segments += [action.segment for action in actions if isinstance(action, Admit)]
        self.posted.clear()
        self.scheduler.advance()

    def flush(self) -> None:
        """Post the finished updates, and hand them to the machine."""
        self.scheduler.flush()
        self.round()

    def hear(self, updates: int) -> None:
        """Let updates of another node arrive."""
        frontier = self.machine.frontier
        frontier.advance(OTHER, frontier.next(OTHER) + updates, bytes(32), 0)
        self.scheduler.advance()

    def renew(self) -> None:
        """Start a new incarnation, as after a peer has shown more of our feed than we have."""
        self.machine._own.renew()

    @property
    def feed(self) -> Feed:
        assert self.machine.own is not None
        return self.machine.own

    @property
    def own(self) -> int:
        return self.machine.frontier.next(self.feed)

    @property
    def waiting(self) -> int:
        """Number of finished updates that are not posted."""
        return self.scheduler._coalescing.count if self.scheduler._coalescing else 0

    @property
    def finished(self) -> int:
        return self.scheduler._coalescing.stop if self.scheduler._coalescing else 0

    @property
    def under_way(self) -> int:
        return self.scheduler._ordered - self.own


# -- what is ordered -----------------------------------------------------------------------------------


async def test_nothing_is_ordered_before_the_node_has_caught_up() -> None:
    desk = Desk(manifest())
    desk.scheduler.advance()
    assert desk.orders == []
    assert len(desk.begin().orders) == ORDERS_AHEAD


async def test_no_step_is_ordered_ahead_while_they_take_long() -> None:
    desk = Desk(LONG).begin()
    desk.finish(LONG_STEP)
    assert len(desk.orders) == 1
    desk.finish(LONG_STEP)
    assert len(desk.orders) == 1
    desk.finish(LONG_STEP / 2)
    assert len(desk.orders) == ORDERS_AHEAD


async def test_nothing_is_ordered_while_peers_are_asked() -> None:
    desk = Desk(manifest())
    desk.machine._own.proven = False
    assert desk.begin().orders == []
    desk.machine._own.proven = True
    desk.scheduler.advance()
    assert len(desk.orders) == ORDERS_AHEAD


async def test_nothing_is_ordered_while_something_is_lacking_which_is_looked_for_at_every_order() -> None:
    desk, lacking = Desk(manifest()).begin(), True
    desk.scheduler.hindered = lambda: lacking
    while desk.orders:
        desk.finish()
    lacking = False
    desk.round()
    assert len(desk.orders) == ORDERS_AHEAD


async def test_steps_follow_each_other_at_the_pace_of_the_run_however_fast_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Machine, "pace", 8.0)
    desk = Desk(manifest(), queries=4).begin()
    made: list[float] = []
    for _ in range(200):
        desk.now += 0.05
        desk.scheduler.advance()
        while desk.orders:
            desk.finish()
            made.append(desk.now)
        desk.round()
    assert len(made) * 4 == pytest.approx(8.0 * 10.0, abs=3 * 4)
    assert max(after - before for before, after in itertools.pairwise(made)) < 0.6


async def test_nothing_is_ordered_once_the_run_is_complete() -> None:
    desk = Desk(manifest(update_budget=50))
    desk.hear(50)
    assert desk.begin().orders == []


async def test_orders_are_the_next_steps_of_the_feed_with_their_seeds() -> None:
    desk = Desk(manifest(), queries=3).begin()
    assert [order.first for order in desk.orders] == [0, 3]
    key = desk.machine.frontier.state(desk.feed).key
    assert desk.orders[1].seeds == tuple(seeds.update_seeds(key, 3, 3).tolist())
    desk.finish()
    assert [order.first for order in desk.orders] == [3, 6]


async def test_a_step_belongs_to_the_epoch_of_all_that_was_known_when_it_was_ordered() -> None:
    desk = Desk(manifest(epoch_updates=40)).begin()
    desk.hear(39)
    assert [desk.finish().epoch for _ in range(2)] == [0, 0]
    desk.hear(1)
    assert [desk.finish().epoch for _ in range(3)] == [0, 0, 1]
    desk.flush()
    assert [(part.epoch, len(part.scalars)) for part in desk.segments[-1].parts] == [(0, 3), (1, 1)]


async def test_epochs_do_not_go_back_when_less_is_known_than_before() -> None:
    desk = Desk(manifest(epoch_updates=40))
    desk.machine.frontier.advance(desk.feed, 3, bytes(32), 7)
    desk.begin()
    assert (desk.orders[0].first, desk.orders[0].epoch) == (3, 7)


# -- how much is ordered -------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 4, 7, 64])
async def test_a_node_makes_the_steps_it_was_asked_for_and_not_one_more(queries: int) -> None:
    desk = Desk(manifest(), queries=queries, steps=30).begin()
    while desk.orders:
        assert not desk.scheduler.exhausted
        desk.finish(0.05)
        desk.round()
    desk.flush()
    assert desk.own == desk.scheduler.made == 30
    assert desk.scheduler.exhausted
    assert not desk.scheduler.busy


async def test_the_steps_of_an_incarnation_that_ended_are_made_up_for() -> None:
    desk = Desk(manifest(), queries=4, steps=30).begin()
    for _ in range(3):
        desk.finish(1.0)
        desk.round()
    desk.finish(1.0)  # posted, and not admitted any more
    desk.renew()
    desk.round()
    assert desk.scheduler.made == 12
    while desk.orders:
        desk.finish(0.05)
        desk.round()
    desk.flush()
    assert desk.own == 18
    assert desk.scheduler.made == 30


async def test_what_peers_bring_of_our_old_feed_does_not_count_as_made() -> None:
    desk = Desk(manifest(), steps=30).begin()
    old = desk.feed
    desk.renew()
    desk.machine.frontier.advance(old, 25, bytes(32), 0)
    desk.scheduler.advance()
    assert desk.scheduler.made == 0


async def test_a_run_that_is_complete_ends_the_wait_for_more_steps() -> None:
    desk = Desk(manifest(update_budget=20), steps=30).begin()
    assert desk.scheduler.busy
    desk.hear(20)
    assert desk.scheduler.exhausted
    assert not desk.scheduler.busy


async def test_what_was_finished_when_the_run_was_complete_counts_and_what_is_later_does_not() -> None:
    """A step may take a minute. By then other nodes may have left the complete run."""
    desk = Desk(manifest(update_budget=20)).begin()
    desk.finish(1.0)
    desk.round()
    desk.finish(0.001)
    desk.hear(20)
    assert desk.scheduler.busy
    desk.finish(1.0)
    desk.flush()
    assert desk.own == 2
    assert not desk.scheduler.busy
    assert desk.finish(1.0).first == 3
    assert desk.scheduler._ordered == 2  # should the run go on after all, nothing is left out
    assert desk.posted == []


@pytest.mark.parametrize("queries", [1, 5, 64])
async def test_a_node_alone_makes_exactly_the_budget_however_late_the_disk_is(queries: int) -> None:
    desk = Desk(manifest(update_budget=333), queries=queries).begin()
    while desk.orders:
        desk.finish(0.001)
    desk.flush()
    assert desk.own == 333
    assert desk.machine.complete
    assert not desk.scheduler.busy


async def test_what_is_not_yet_on_disk_fits_one_segment() -> None:
    desk = Desk(manifest(update_budget=1_000_000), queries=64).begin()
    while desk.orders:
        desk.finish()
    assert desk.under_way == MAX_SEGMENT_UPDATES
    desk.flush()
    assert desk.own == MAX_SEGMENT_UPDATES
    assert len(desk.orders) == ORDERS_AHEAD


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 200))
def test_no_feed_outgrows_the_budget_and_a_run_overshoots_by_what_was_just_finished(
    chance: int, queries: int, budget: int
) -> None:
    asyncio.run(_play(Random(chance), queries, budget))


async def _play(chance: Random, queries: int, budget: int) -> None:
    desk = Desk(manifest(update_budget=budget, epoch_updates=17), queries=queries).begin()
    while not desk.machine.complete:
        match chance.randrange(4):
            case 0 if desk.orders:
                desk.finish(chance.random() / 10)
            case 1:
                desk.flush()
            case 2:
                desk.round()
            case 3:
                desk.hear(chance.randrange(1, 5))
    finished = desk.finished - desk.own
    while desk.orders:
        desk.finish()
    known = desk.machine.frontier.known
    desk.flush()
    assert desk.machine.frontier.known == known + finished
    assert desk.own <= budget
    epochs = [part.epoch for segment in desk.segments for part in segment.parts]
    assert epochs == sorted(epochs)


# -- groups --------------------------------------------------------------------------------------------


def measured(order: Order) -> range:
    """Return the steps that an order measures, and check its seeds."""
    key = seeds.feed_key(GROUPS.run_id, *order.feed)
    first = order.first - order.before
    steps = range(first, first + len(order.seeds))
    assert list(order.seeds) == seeds.update_seeds(key, first, len(steps)).tolist()
    return steps


def said(desk: Desk) -> list[int]:
    return [scalar for one in desk.segments for part in one.parts for scalar in part.scalars]


def seeds_say(desk: Desk, count: int) -> list[int]:
    key = seeds.feed_key(GROUPS.run_id, *desk.feed)
    return [scalar_of(seed) for seed in seeds.update_seeds(key, 0, count).tolist()]


async def test_groups_are_ordered_whole_as_many_as_a_step_has_mini_batches() -> None:
    desk = Desk(GROUPS, queries=2).begin()
    assert [measured(order) for order in desk.orders] == [range(16), range(16, 32)]
    desk.finish(1.0)
    desk.flush()
    assert said(desk) == seeds_say(desk, 16)


async def test_who_starts_again_within_a_group_measures_it_anew_and_says_what_is_missing() -> None:
    before = Desk(GROUPS, steps=13).begin()
    while before.orders:
        before.finish(1.0)
    before.flush()
    assert before.own == 13
    kept = before.machine.frontier.state(before.feed)
    desk = Desk(GROUPS, known=[Tail(kept.feed, kept.next, kept.chain, kept.epoch)]).begin()
    assert (desk.orders[0].first, measured(desk.orders[0])) == (13, range(8, 16))
    assert (desk.orders[1].first, measured(desk.orders[1])) == (16, range(16, 24))
    desk.finish(1.0)
    desk.flush()
    assert desk.own == 16
    assert said(before) + said(desk) == seeds_say(desk, 16)


async def test_what_is_allowed_of_a_group_is_said_and_the_rest_with_the_next_label_anew() -> None:
    """An epoch ends in the middle of a step's groups, and the number of updates that are asked for."""
    desk = Desk(GROUPS, queries=3, steps=21).begin()
    (order,) = desk.orders
    assert (order.first, measured(order), order.after) == (0, range(24), 3)
    assert order.asked(tuple(order.seeds)) == order.seeds[:21]
    desk = Desk(GROUPS, queries=3, steps=5).begin()
    assert measured(desk.orders[0]) == range(8)  # not of groups of which nothing is asked
    desk.finish(1.0)
    desk.flush()
    assert said(desk) == seeds_say(desk, 5)


async def test_a_group_that_fails_is_one_measurement() -> None:
    desk = Desk(GROUPS).begin()
    for _ in range(FAILURES - 1):
        desk.finish(1.0, math.nan, failed=8)
    with pytest.raises(UserError, match=f"{FAILURES} measurements in a row"):
        desk.finish(1.0, math.nan, failed=8)


# -- when results become updates -----------------------------------------------------------------------


async def test_a_fast_engine_says_many_steps_in_one_segment() -> None:
    desk = Desk(manifest()).begin()
    for _ in range(1000):
        desk.finish(0.001)
        desk.round()
    assert len(desk.segments) <= 1.0 / MIN_INTERVAL + 1
    desk.flush()
    assert sum(segment.count for segment in desk.segments) == 1000


async def test_what_waits_is_posted_in_time_although_no_round_comes() -> None:
    desk = Desk(LONG).begin()
    for _ in range(3):
        desk.finish(0.001)
    assert desk.waiting == 2
    assert desk.scheduler.busy
    desk.posted.clear()
    desk.now += MIN_INTERVAL
    await eventually(lambda: desk.posted)
    assert desk.waiting == 0


async def test_a_pause_posts_what_waits_and_what_the_step_in_progress_brings() -> None:
    desk = waiting_desk()
    desk.scheduler.held = desk.scheduler.paused = True
    desk.scheduler.advance()
    desk.round()
    assert desk.own == 4
    desk.finish(1.0)
    desk.round()
    assert desk.own == 5


async def test_what_waits_goes_on_waiting_while_the_engine_rests_between_two_steps() -> None:
    desk = waiting_desk()
    desk.scheduler.held = True
    desk.scheduler.forget(desk.orders)
    desk.scheduler.advance()
    assert desk.waiting == 1
    desk.scheduler.held = False
    desk.scheduler.advance()
    assert desk.waiting == 1


async def test_what_waits_is_posted_soon_when_the_run_is_complete() -> None:
    desk = waiting_desk(manifest(epoch_updates=1000, update_budget=1000))
    desk.machine.frontier.advance(OTHER, 1000, bytes(32), 0)
    desk.now += MIN_INTERVAL
    desk.scheduler.advance()
    assert desk.waiting == 0
    desk.round()
    assert desk.own == 4


async def test_the_last_results_are_posted_at_once_as_no_more_come() -> None:
    desk = Desk(LONG, steps=3).begin()
    for _ in range(3):
        desk.finish(0.001)
    desk.round()
    assert desk.own == 3
    assert not desk.scheduler.busy


def waiting_desk(run: Manifest | None = None) -> Desk:
    """Return a scheduler with three posted steps, one finished step that waits, and orders under way."""
    desk = Desk(run or LONG).begin()
    for _ in range(4):
        desk.finish(1.0)
        desk.round()
    assert (desk.own, desk.waiting) == (3, 1)
    return desk


async def test_results_for_an_incarnation_that_has_ended_are_dropped() -> None:
    desk = Desk(manifest(), queries=2).begin()
    desk.finish(1.0)
    desk.round()
    desk.finish(0.001)  # finished and not posted
    old = desk.feed
    desk.renew()
    desk.finish(0.001)  # of the old feed, before the scheduler was told
    assert desk.waiting == 0
    desk.finish(0.001)
    assert desk.machine.frontier.next(old) == 2
    assert {order.feed for order in desk.orders} == {desk.feed}
    assert [order.first for order in desk.orders] == [0, 2]
    desk.finish(1.0)
    desk.round()
    assert desk.own == 2


# -- what is measured ------------------------------------------------------------------------------------


async def test_the_rate_is_that_of_the_last_seconds() -> None:
    desk = Desk(manifest(), queries=2).begin()
    assert desk.scheduler.rate() == 0
    for _ in range(100):
        desk.finish(0.5)
    assert desk.scheduler.rate() == pytest.approx(4, rel=0.1)
    desk.now += 60
    assert desk.scheduler.rate() == 0


async def test_the_rate_of_steps_that_take_minutes_is_that_of_the_last_ones() -> None:
    desk = Desk(GROUPS).begin()
    for _ in range(6):
        desk.finish(160.0)
        assert desk.scheduler.rate() == 8 / 160
    desk.now += 160
    assert desk.scheduler.rate() == 8 / 160
    desk.now += 160
    assert desk.scheduler.rate() == 8 / 200
    desk.now += 600
    assert desk.scheduler.rate() == 0


async def test_a_loss_that_is_no_number_does_not_stick() -> None:
    desk = Desk(manifest()).begin()
    for loss in (2.0, float("nan"), 3.0, 4.0):
        desk.finish(1.0, loss)
    assert desk.scheduler.loss == pytest.approx(LOSS_MEMORY * 3 + (1 - LOSS_MEMORY) * 4)


# -- what fails ------------------------------------------------------------------------------------------


async def test_a_measurement_that_fails_is_an_update_of_nothing_and_leaves_no_gap() -> None:
    desk = Desk(manifest()).begin()
    desk.finish(1.0)
    desk.finish(1.0, math.nan, failed=1)
    desk.finish(1.0)
    desk.flush()
    scalars = [scalar for segment in desk.segments for part in segment.parts for scalar in part.scalars]
    assert len(scalars) == 3
    assert scalars[1] == 0
    assert 0 not in (scalars[0], scalars[2])


@pytest.mark.parametrize("queries", [1, 4])
async def test_measurements_that_go_on_failing_end_the_node_with_a_number_and_the_last_are_not_sent(
    queries: int,
) -> None:
    desk = Desk(manifest(), queries=queries).begin()
    desk.finish(1.0)
    for _ in range(-(-FAILURES // queries) - 1):
        desk.finish(1.0, math.nan, failed=queries)
    made = desk.scheduler._coalescing.stop
    with refused(Code.LOSS_NOT_FINITE, "in a row"):
        desk.finish(1.0, math.nan, failed=queries)
    assert desk.scheduler._coalescing.stop == made


async def test_failures_between_measurements_that_succeed_are_counted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(manifest(), queries=2).begin()
    for _ in range(4 * FAILURES):
        desk.finish(1.0, failed=1)
        desk.finish(1.0, math.nan, failed=2)
    counts = [record.args[0] for record in caplog.records if "not a number" in record.message]
    assert counts[:3] == [1, 3, 4]
    assert len(counts) == 7  # up to 120 failures
