"""Names and teams: every node shows the names that origins give themselves, and what they contributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.schema.views import Origins
from sfnode.stats.history import MAX_TEAMS, LogIndex
from sfnode.store.log import UpdateLog
from sfprotocol.fields import NAMELESS, Names
from tests.node.helpers import Node, Swarm, eventually, feed_of, manifest, record


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
