"""A node that adds noise to its scalars accounts for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import privacy
from sfnode.settings import Settings
from tests.node.helpers import Swarm, manifest


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "mine"}\n')
    return path


@pytest.mark.parametrize("options", [{}, {"role": "relay"}])
async def test_who_trains_on_public_rows_protects_nothing(swarm: Swarm, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="rows of one's own") as refused:
        await swarm.first(noise=1.0, **options)
    assert refused.value.code is Code.BAD_OPTION


async def test_without_the_library_a_node_with_noise_does_not_start(
    swarm: Swarm, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    with pytest.raises(UserError) as missing:
        await swarm.first(noise=1.0, data=rows)
    assert missing.value.code is Code.EXTRA_MISSING


async def test_the_status_says_what_the_noise_is_worth_for_all_updates_so_far(
    swarm: Swarm, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(privacy, "library", lambda: None)
    asked: list[tuple[float, ...]] = []
    monkeypatch.setattr(privacy, "epsilon", lambda *of, together: asked.append((*of, together)) or 2.5)
    a = await swarm.first(noise=0.5, data=rows)
    await a.until(lambda: (said := a.node.status().privacy) and said.epsilon)
    said = a.node.status().privacy
    assert said
    assert (said.noise, said.clip, said.epsilon, said.delta) == (0.5, 32_767 / 64, 2.5, privacy.DELTA)
    assert (0.5, 4, 1024, said.updates, 1) in asked
    assert said.updates > 0


def test_unless_a_clip_is_given_it_is_the_runs() -> None:
    run = manifest(scalar_limit=400)
    assert privacy.clip_of(Settings(), run) == 400 / 64
    assert privacy.clip_of(Settings(noise_clip=2.5), run) == 2.5
