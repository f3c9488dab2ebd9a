"""Privacy accounting of a node with local noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code
from sfnode.node import accounting, privacy
from sfnode.schema.node_state import NodeState, Wait
from sfnode.settings import Settings
from tests.node.helpers import Swarm, manifest
from tests.refusals import fails_with, refused


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "mine"}\n')
    return path


@pytest.mark.parametrize("options", [{}, {"role": "relay"}])
async def test_who_trains_on_public_rows_protects_nothing(swarm: Swarm, options: dict[str, Any]) -> None:
    with refused(Code.BAD_OPTION, "rows of one's own"):
        await swarm.first(noise=1.0, **options)


async def test_without_the_library_a_node_with_noise_does_not_start(
    swarm: Swarm, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    with fails_with(Code.EXTRA_MISSING):
        await swarm.first(noise=1.0, data=rows)


async def test_the_status_says_what_the_noise_is_worth_for_all_updates_so_far(
    swarm: Swarm, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(accounting, "library", lambda: None)
    asked: list[tuple[float, ...]] = []
    monkeypatch.setattr(accounting, "epsilon", lambda *of, together: asked.append((*of, together)) or 2.5)
    a = await swarm.first(noise=0.5, data=rows)
    await a.until(lambda: (said := a.node.status().privacy) and said.epsilon)
    said = a.node.status().privacy
    assert (said.noise, said.clip, said.epsilon, said.delta) == (0.5, 32_767 / 64, 2.5, accounting.DELTA)
    assert (0.5, 4, 1024, said.updates, 1) in asked
    assert said.updates > 0


async def test_a_node_that_keeps_to_an_epsilon_stops_telling_when_it_is_spent_and_says_so(
    swarm: Swarm, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(accounting, "library", lambda: None)
    monkeypatch.setattr(accounting, "epsilon", lambda noise, *of, together: of[2] / noise)
    monkeypatch.setattr(accounting, "most_updates", lambda manifest: 21)
    a = await swarm.first(noise_epsilon=4.0, data=rows)
    await a.until(lambda: (said := a.node.status().privacy) and said.updates == 21)
    status = a.node.status()
    assert status.contributed == 21
    assert status.privacy.epsilon == pytest.approx(4.0, rel=accounting.EXACTNESS)
    assert status.privacy.epsilon <= 4.0
    assert (status.state, status.wait and status.wait.reason) == (NodeState.WAITING, Wait.EPSILON)


async def test_noise_is_given_by_its_size_or_by_what_it_is_to_be_worth(swarm: Swarm, rows: Path) -> None:
    with refused(Code.BAD_OPTION, "you give both"):
        await swarm.first(noise=1.0, noise_epsilon=4.0, data=rows)


def test_unless_a_clip_is_given_it_is_the_runs() -> None:
    run = manifest(scalar_limit=400)
    assert privacy.clip_of(Settings(), run) == 400 / 64
    assert privacy.clip_of(Settings(noise_clip=2.5), run) == 2.5
