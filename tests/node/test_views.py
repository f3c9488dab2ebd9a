"""Views of a node over its control socket, compared with counts from the log."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from sfnode import stats
from sfnode.errors import Code
from sfnode.node import views
from sfnode.peers import latency
from sfnode.schema.views import SwarmNode
from sfnode.stats import MAX_SAMPLES, Rate, SeriesSample, TimeSeries
from sfnode.store.log import UpdateLog
from tests.control.test_control import ask
from tests.node.helpers import (
    Node,
    SmallEngine,
    Swarm,
    eventually,
    feed_of,
    let_train,
    manifest,
    record,
)
from tests.refusals import fails_with


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SAMPLE_INTERVAL", 0.05)
    monkeypatch.setattr(latency, "INTERVAL", 0.05)


def counted(swarm: Swarm, name: str) -> Counter[tuple[str, int]]:
    """Updates by origin and epoch, one by one from the signed segments on disk."""
    found: Counter[tuple[str, int]] = Counter()
    with swarm.log(name) as log:
        for record in log.records():
            for epoch, scalars in record.segment.parts:
                found[record.feed.origin.hex(), epoch] += len(scalars)
    return found


async def complete(swarm: Swarm, *nodes: Node) -> None:
    await let_train(*nodes)
    for node in nodes:
        await node.until(lambda node=node: node.machine.complete and not node.node.model.scheduler.busy)
    await eventually(lambda: len({node.digest for node in nodes}) == 1)
    await eventually(lambda: all(node.node.log.updates() == node.known for node in nodes))  # on disk, too


@pytest.fixture
def short(swarm_of: object) -> Swarm:
    """A run of fifteen epochs, whose nodes train only after `let_train`."""
    swarm: Swarm = swarm_of(manifest(update_budget=600))  # type: ignore[operator]
    for name in "ab":
        swarm.node(name, make_engine=SmallEngine)
    return swarm


# -- from the log ------------------------------------------------------------------------------------


async def test_origins_are_what_the_log_says_and_not_what_anybody_says_of_himself(short: Swarm) -> None:
    a, b = await short.first(), await short.join("b")
    await complete(short, a, b)
    truth = Counter[str]()
    for (origin, _), updates in counted(short, "b").items():
        truth[origin] += updates
    page = await b.client.origins()
    assert {origin.origin: origin.updates for origin in page.origins} == truth
    assert page.updates == page.indexed == b.known
    assert [origin.rank for origin in page.origins] == [1, 2]
    assert page.origins[0].updates >= page.origins[1].updates
    assert math.isclose(sum(origin.share for origin in page.origins), 1.0)
    (own,) = [origin for origin in page.origins if origin.own]
    assert own.origin == (await b.client.status()).origin
    assert (own.first_step, own.last_step, own.feeds) == (0, own.updates - 1, 1)
    epochs = [epoch for origin, epoch in counted(short, "b") if origin == own.origin]
    assert (own.first_epoch, own.last_epoch) == (min(epochs), max(epochs))


async def test_origins_come_in_pages_and_can_be_searched(short: Swarm) -> None:
    a, b = await short.first(), await short.join("b")
    await complete(short, a, b)
    first, second = await a.client.origins(limit=1), await a.client.origins(offset=1, limit=1)
    assert (first.total, len(first.origins), len(second.origins)) == (2, 1, 1)
    assert first.origins != second.origins
    wanted = second.origins[0].origin
    found = await a.client.origins(find=wanted[:10])
    assert [(origin.origin, origin.rank) for origin in found.origins] == [(wanted, 2)]
    assert (await a.client.origins(offset=7)).origins == []


async def test_the_history_is_the_log_summed_up_by_epochs(short: Swarm) -> None:
    a, b = await short.first(), await short.join("b")
    await complete(short, a, b)
    truth = counted(short, "a")
    for points in (1, 4, 1000):
        course = await a.client.history(points=points)
        assert len(course.points) == min(points, 1 + max(epoch for _, epoch in truth))
        for number, point in enumerate(course.points):
            within = {key: n for key, n in truth.items() if point.first_epoch <= key[1] <= point.last_epoch}
            until = {key: n for key, n in truth.items() if key[1] <= point.last_epoch}
            assert (point.updates, point.known) == (sum(within.values()), sum(until.values()))
            assert point.origins == len({origin for origin, _ in within})
            for leader in course.leaders:
                own = sum(n for (origin, _), n in until.items() if origin == leader.origin)
                assert leader.known[number] == own
        assert course.points[-1].known == course.indexed == a.known
        assert course.points[0].first_epoch == 0
        assert all(later.first_epoch == point.last_epoch + 1 for point, later in pairwise(course.points))
        assert set(course.others) == {0}


async def test_the_index_follows_a_log_that_grows(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 50)
    before = (await a.client.history()).indexed
    assert before > 50
    await a.until(lambda: a.known > before + 100)
    assert (await a.client.origins()).updates > before


async def test_feeds_come_in_pages_and_the_status_is_as_small_with_many_as_with_few(swarm: Swarm) -> None:
    swarm.node("a").folder.mkdir(mode=0o700)
    few, many = [record(swarm.run, f"n{n}", [n]) for n in range(3)], range(3, 300)
    with UpdateLog.open(swarm.nodes["a"].layout.log, swarm.run.run_id) as log:
        log.append([*few, *(record(swarm.run, f"n{n}", [n, n]) for n in many)])
    a = await swarm.first(role="relay")
    status, listed = await a.client.status(), await a.client.every_feed()
    assert status.feed_count == len(listed) == 300
    assert sum(feed.updates for feed in listed) == status.known == 3 + 2 * 297
    assert [(feed.origin, feed.incarnation) for feed in listed] == sorted(
        (feed_of(f"n{n}").origin.hex(), 0) for n in range(300)
    )
    page = await a.client.feeds(offset=298, limit=10)
    assert (page.total, page.offset, page.feeds) == (300, 298, listed[298:])
    assert len(status.model_dump_json()) < 2_000


# -- curves ------------------------------------------------------------------------------------------


async def test_curves_and_progress_of_a_run_under_way(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await swarm.first(), await swarm.join("b")
    await eventually(lambda: len(a.node.views.curves().seconds) > 5)
    await b.until(lambda: a.machine.own in b.machine.frontier and b.known > 100)
    curve = await a.client.curves()
    columns = (curve.seconds, curve.known, curve.own_rate, curve.swarm_rate, curve.loss)
    assert len({len(column) for column in columns}) == 1
    assert curve.seconds == sorted(curve.seconds)
    assert curve.known == sorted(curve.known)
    assert curve.loss[-1] == 1.0
    await eventually(lambda: (b.node.views.progress().updates_per_second or 0) > 0)
    progress = await b.client.progress()
    assert progress.epoch * 40 + progress.epoch_known == progress.known
    assert progress.epoch_updates == 40
    assert progress.updates_per_second is not None
    assert progress.seconds_left == pytest.approx(
        (progress.update_budget - progress.known) / progress.updates_per_second
    )


async def test_an_evaluation_is_remembered_where_it_was_made(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 10)
    await a.client.evaluate(base=True, limit=5)
    now = await a.client.evaluate(limit=5)
    base, after = (await a.client.curves()).measurements
    assert (base.base, base.known, base.value, base.metric) == (True, 0, 0.0, "accuracy")
    assert (after.base, after.known, after.value) == (False, int(now.value), now.value)
    assert (base.drift, after.drift) == (None, now.drift)
    assert after.drift.tokens == 9


def test_a_time_series_stays_bounded_and_covers_all_of_the_time() -> None:
    series = TimeSeries(1.0)
    for second in range(10_000):
        series.add(SeriesSample(float(second), second, 1.0, None, float("nan") if second % 2 else 0.5))
    assert len(series.samples) <= MAX_SAMPLES
    assert len(series.samples) > MAX_SAMPLES // 3
    assert series.samples[0].seconds == 0
    assert series.samples[-1].seconds > 10_000 - 2 * series.interval
    gaps = {later.seconds - earlier.seconds for earlier, later in pairwise(series.samples)}
    assert gaps == {series.interval}
    assert {sample.loss for sample in series.samples} <= {None, 0.5}


def test_a_rate_is_that_of_the_last_seconds_and_starts_anew_when_the_count_falls() -> None:
    rate = Rate()
    assert rate.update(0.0, 1000) == 0.0
    assert rate.update(2.0, 1010) == 5.0
    for second in range(3, 40):
        latest = rate.update(float(second), 1010 + 20 * (second - 2))
    assert latest == 20.0
    assert rate.update(40.0, 900) == 0.0
    assert rate.update(40.0 + stats.RATE_WINDOW, 900) == 0.0


# -- the swarm ---------------------------------------------------------------------------------------


async def test_the_swarm_is_this_node_its_neighbours_and_who_else_is_in_the_roster(swarm: Swarm) -> None:
    await swarm.first(role="relay")
    b = await swarm.join("b")
    await swarm.join("c")
    await eventually(lambda: len(b.node.views.swarm().edges) == 2)
    view = await b.client.swarm()
    kinds = {node.peer: (node.kind, node.role) for node in view.nodes}
    assert kinds == {"b": ("self", "trainer"), "a": ("neighbour", "relay"), "c": ("neighbour", "trainer")}
    assert view.nodes[0].peer == "b"
    assert {frozenset((edge.source, edge.target)) for edge in view.edges} == {
        frozenset("ba"),
        frozenset("bc"),
    }
    status = await b.client.status()
    assert {link.peer for link in status.links} == {"a", "c"}
    for node in view.nodes[1:]:
        assert node.bytes_received > 0
        assert node.lag <= view.nodes[0].known


async def test_neighbours_agree_when_the_run_is_complete(short: Swarm) -> None:
    a, b = await short.first(), await short.join("b")
    await complete(short, a, b)

    def neighbour() -> SwarmNode:
        return b.node.views.swarm().nodes[1]

    await eventually(lambda: neighbour().agrees and neighbour().lag == 0)
    assert neighbour().differs_for is None
    assert (await b.client.progress()).seconds_left == 0.0


async def test_the_latency_of_a_neighbour_is_measured_once_somebody_looks(swarm: Swarm) -> None:
    a, b = await swarm.first(), await swarm.join("b")
    await eventually(lambda: b.node.views.swarm().edges)
    await eventually(lambda: b.node.views.swarm().nodes[1].latency is not None)
    assert 0 <= (await b.client.swarm()).nodes[1].latency < 1  # type: ignore[operator]
    assert a.known >= 0


async def test_a_neighbour_with_a_name_shows_its_origin_and_others_do_not(swarm: Swarm) -> None:
    a, b = await swarm.first(display_name="Ada"), await swarm.join("b")
    await eventually(lambda: b.node.views.swarm().edges)
    await eventually(lambda: b.node.views.swarm().nodes[1].name)
    (neighbour,) = (await b.client.swarm()).nodes[1:]
    assert (neighbour.name, neighbour.origin) == ("Ada", a.machine.own.origin.hex())
    await eventually(lambda: a.node.views.swarm().nodes[1].latency is not None)
    (nameless,) = (await a.client.swarm()).nodes[1:]
    assert (nameless.name, nameless.origin) == (None, None)


async def test_who_looks_is_told_what_the_run_is_for_and_what_it_takes_of_the_machine(swarm: Swarm) -> None:
    a = await swarm.first()
    about = await a.client.about()
    assert (about.run_id, about.task) == (swarm.run.run_id.hex(), "text")
    await eventually(lambda: a.node.views.machine)
    machine = (await a.client.status()).machine
    assert 0 < machine.memory < machine.memory_total
    assert (machine.device, machine.gpus) == ("cpu", [])


# -- writing -----------------------------------------------------------------------------------------


async def test_generate_answers_with_both_models(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 10)
    answer = await a.client.generate("It was", tokens=64)
    assert (answer.base, answer.now) == ("It was", f"It was and {answer.known} more")
    assert len(answer.digest) == 64


async def test_a_relay_shows_the_same_views_and_writes_nothing(short: Swarm) -> None:
    a, b = await short.first(role="relay"), await short.join("b")
    await let_train(b)
    await b.until(lambda: b.machine.complete)
    await eventually(lambda: a.known == b.known == a.node.log.updates())
    assert (await a.client.origins()).updates == a.known
    assert (await a.client.history()).indexed == a.known
    assert (await a.client.progress()).known == a.known
    assert (await a.client.curves()).known
    assert [node.kind for node in (await a.client.swarm()).nodes] == ["self", "neighbour"]
    with fails_with(Code.BAD_OPTION) as refusal:
        await a.client.generate("It was")
    assert "a relay holds no model" in refusal.value.what


NONSENSE = [
    ("GET", "/views/origins?limit=0", None, "limit"),
    ("GET", "/views/origins?limit=1001", None, "limit"),
    ("GET", "/views/origins?find=XYZ", None, "find"),
    ("GET", "/views/origins?colour=red", None, "colour"),
    ("GET", "/views/feeds?limit=1001", None, "limit"),
    ("GET", "/views/feeds?offset=-1", None, "offset"),
    ("GET", "/views/history?points=many", None, "points"),
    ("POST", "/generate", b"{}", "prompt"),
    ("POST", "/generate", b'{"prompt": ""}', "prompt"),
    ("POST", "/generate", b'{"prompt": "a", "tokens": 65}', "tokens"),
]


async def test_nonsense_is_refused_by_name(swarm: Swarm) -> None:
    a = await swarm.first(role="relay")
    for method, route, body, word in NONSENSE:
        status, answer = await ask(a.layout.control_socket, method, route, body)
        assert (status, word in answer["error"]) == (400, True), (route, body, answer)
