"""Exports while a run goes on: every so many seals, the last ones kept, and never at the cost of the node."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import exports
from sfnode.store.checkout import last_seal
from tests.node.helpers import Node, Swarm
from tests.node.test_organising import little_work, options, organised  # noqa: F401


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(exports, "RETRY", 0.02)


def names(node: Node) -> list[str]:
    folder = node.node.data_dir.exports
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_the_model_of_every_second_seal_is_in_the_nodes_folder(
    organised: Swarm,  # noqa: F811
    tmp_path: Path,
) -> None:
    a = await organised.first(**options(tmp_path), export_every=2)
    await a.until(lambda: a.machine.complete and a.node.exports._due > a.machine.organised.run_state.sealed)
    epochs = [int(name.removeprefix("epoch-")) for name in names(a)]
    assert 1 <= len(epochs) <= exports.KEPT
    told = a.engine.told_of[-1]
    seal = last_seal(a.machine.run, a.node.log.control(), a.machine.frontier.next)
    assert told.seal == epochs[-1] <= seal.epoch
    written = (a.node.data_dir.exports / names(a)[-1] / "hf").read_text()
    assert int(written) == told.updates == sum(one.updates for one in told.contributors)
    assert told.contributors[0].origin == a.machine.own.origin.hex()


async def test_of_more_than_are_kept_the_oldest_go_and_so_does_what_was_left_unfinished(
    organised: Swarm,  # noqa: F811
    tmp_path: Path,
) -> None:
    a = await organised.first(**options(tmp_path), steps=1, export_every=1)
    folder = a.node.data_dir.exports
    for name in ("epoch-000001", "epoch-000002", "epoch-000010", "epoch-000011", ".epoch-000012.7.partial"):
        (folder / name).mkdir(parents=True)
    (folder / "mine").mkdir()
    exports._sweep(folder)
    assert names(a) == ["epoch-000002", "epoch-000010", "epoch-000011", "mine"]


async def test_a_full_disk_costs_a_line_in_the_log(
    organised: Swarm,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        a = await organised.first(**options(tmp_path), export_every=1)
        await a.until(lambda: a.engine)
        a.engine.no_room = True
        await a.until(lambda: a.machine.organised.run_state.sealed > 2)
    assert "no export: no space left for " in caplog.text
    known = a.known
    await a.until(lambda: a.known > known or a.machine.complete)
    assert names(a) == []


async def test_an_open_run_has_no_seals_to_export(swarm: Swarm) -> None:
    with pytest.raises(UserError, match="--export-every") as refused:
        await swarm.first(export_every=5)
    assert refused.value.code is Code.RUN_IS_OPEN


async def test_a_relay_has_no_model_to_export(swarm: Swarm) -> None:
    with pytest.raises(UserError, match="a relay holds no model") as refused:
        await swarm.first(role="relay", export_every=5)
    assert refused.value.code is Code.BAD_OPTION
