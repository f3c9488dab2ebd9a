"""Tests of the statistics on a log: counts, cuts, and the work of computing them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode import stats
from sfnode.schema.views import Origins
from sfnode.stats import MAX_TEAMS, LogIndex
from sfnode.store.log import CutRecord, UpdateLog
from sfprotocol import signing
from sfprotocol.checkpoints import Base
from sfprotocol.fields import NAMELESS, Names
from tests.node.helpers import Node, Swarm, eventually, feed_of, manifest, record

RUN = manifest()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "log", RUN.run_id) as opened:
        yield opened


def cut(name: str, at: int) -> CutRecord:
    return CutRecord(feed_of(name), at, signing.genesis(RUN.run_id, feed_of(name)), b"proof")


def origins(index: LogIndex, find: str = "") -> Origins:
    return index.origins(b"", 0, 100, find)


def updates(index: LogIndex) -> dict[str, int]:
    return {origin.origin: origin.updates for origin in origins(index).origins}


def key(name: str) -> str:
    return feed_of(name).origin.hex()


def test_a_feed_counts_as_far_as_its_cut(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1, 2, 3]), record(RUN, "b", [4])])
    index = LogIndex(log, dict, RUN.parameters())
    assert updates(index) == {key("a"): 3, key("b"): 1}
    log.append([], [cut("a", 2), cut("b", 0)])
    assert updates(index) == {key("a"): 2}
    assert origins(index).origins[0].cut
    assert index.history(10).indexed == 2
    assert [leader.origin for leader in index.history(10).leaders] == [key("a")]


def test_what_a_checkpoint_stands_for_is_counted_too(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1, 2, 3, 4])])
    bases = [Base(feed_of(name), 3, log.past(feed_of("a"), 3)[0], 0, 2) for name in "ac"]
    index = LogIndex(log, dict, RUN.parameters())
    log.rebase(bases)
    assert updates(index) == {key("a"): 4, key("c"): 3}
    assert index.history(10).indexed == 5, "of the others, nobody knows the epochs"


def test_a_log_too_long_for_one_question_is_counted_over_several(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([record(RUN, "a", [1]), record(RUN, "b", [2]), record(RUN, "c", [3])])
    monkeypatch.setattr(stats, "PATIENCE", -1.0)
    index = LogIndex(log, dict, RUN.parameters())
    assert origins(index).indexed == 0
    assert origins(index).origins == []
    monkeypatch.setattr(stats, "PATIENCE", 2.0)
    assert origins(index).indexed == 3


def test_a_question_asked_again_at_once_has_the_same_answer(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "MIN_AGE", 3600.0)
    log.append([record(RUN, "a", [1])])
    index = LogIndex(log, dict, RUN.parameters())
    first, course = origins(index), index.history(5)
    log.append([record(RUN, "b", [1])])
    assert origins(index) == first
    assert index.history(5) is course
    assert index.history(3).indexed == 1


def test_a_closed_index_reads_no_more(log: UpdateLog) -> None:
    log.append([record(RUN, "a", [1])])
    index = LogIndex(log, dict, RUN.parameters())
    assert origins(index).indexed == 1
    log.append([record(RUN, "b", [1])])
    index.close()
    assert origins(index).indexed == 1


def test_an_empty_log_has_neither_origins_nor_history(log: UpdateLog) -> None:
    index = LogIndex(log, dict, RUN.parameters())
    assert (origins(index).total, origins(index).updates, origins(index, "ab").origins) == (0, 0, [])
    assert index.history(7).points == []


async def test_every_node_shows_the_names_of_origins_also_after_a_restart(swarm_of: object) -> None:
    swarm: Swarm = swarm_of(manifest(update_budget=5000))  # type: ignore[operator]
    a: Node = await swarm.first(display_name="Ann", team="The Owls")
    b = await swarm.join("b", team="The Owls")
    relay = await swarm.join("relay", role="relay")
    await eventually(lambda: len(list(relay.machine.cards)) == 2)
    own = a.machine.own.origin.hex(), b.machine.own.origin.hex()

    async def shown() -> Origins:
        page = await relay.client.origins()
        assert {origin.origin: (origin.name, origin.team) for origin in page.origins} == {
            own[0]: ("Ann", "The Owls"),
            own[1]: (None, "The Owls"),
        }
        return page

    page = await shown()
    assert [(team.team, team.origins, team.updates) for team in page.teams] == [("The Owls", 2, page.updates)]
    for node in (a, b, relay):
        await node.stop()
    await relay.start(role="relay")
    await shown()


def test_teams_are_summed_over_all_origins_and_not_over_one_page(tmp_path: Path) -> None:
    run = manifest()
    with UpdateLog.open(tmp_path / "log", run.run_id) as log:
        log.append([record(run, "a", [1, 2, 3]), record(run, "b", [4]), record(run, "c", [5, 6])])
        owls, crows = Names("", "Owls"), Names("", "Crows")
        names = {feed_of("a").origin: owls, feed_of("b").origin: owls, feed_of("c").origin: crows}
        page = LogIndex(log, lambda: names, run.parameters()).origins(b"", 0, 1, "")
        nobody = LogIndex(log, lambda: {feed_of("a").origin: NAMELESS}, run.parameters()).origins(
            b"", 0, 100, ""
        )
        many = LogIndex(log, lambda: {feed_of("a").origin: Names("", "x")}, run.parameters()).origins(
            b"", 0, 1, "ff"
        )
    assert [(team.team, team.updates, team.origins) for team in page.teams] == [
        ("Owls", 4, 2),
        ("Crows", 2, 1),
    ]
    assert [team.share for team in page.teams] == [pytest.approx(4 / 6), pytest.approx(2 / 6)]
    assert nobody.teams == []
    assert [team.team for team in many.teams] == ["x"]
    assert MAX_TEAMS >= 10
