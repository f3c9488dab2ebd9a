"""Tests of a local swarm: order of starts, end, comparison of nodes, and cleanup."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from sfnode import swarm as local_swarm
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.schema.results import SwarmResult
from sfnode.schema.status import CoreStatus
from sfnode.swarm import MOST_NODES, LocalSwarm, SwarmProgress
from tests.node.helpers import eventually
from tests.refusals import refused
from tests.swarm import helpers
from tests.swarm.helpers import Script

UNEQUAL = [(("d", "e"), ("c", "c")), (("d", "d"), ("c", "b"))]
"""State digests and core digests of two nodes that do not agree."""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the temporary folder of a swarm without a given folder."""
    folder = tmp_path / "scratch"

    def make(prefix: str) -> str:
        folder.mkdir()
        return str(folder)

    monkeypatch.setattr(local_swarm.tempfile, "mkdtemp", make)
    return folder


async def ended(swarm: LocalSwarm) -> SwarmResult:
    async with swarm:
        async for _ in swarm:
            pass
        return await swarm.compare()


def left(folder: Path) -> bool:
    """Return whether the folder still exists."""
    return folder.exists()


def test_making_one_starts_and_writes_nothing(script: Script, scratch: Path, tmp_path: Path) -> None:
    LocalSwarm(helpers.MANIFEST, folder=tmp_path / "kept")
    LocalSwarm(helpers.MANIFEST)
    assert script.events == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", [0, MOST_NODES + 1])
def test_a_swarm_of_no_nodes_or_of_too_many_is_refused(nodes: int) -> None:
    with pytest.raises(ValueError, match="1 to 64 nodes"):
        LocalSwarm(helpers.MANIFEST, nodes=nodes)


async def test_the_others_join_through_the_first_once_it_answers(script: Script, tmp_path: Path) -> None:
    async with LocalSwarm(helpers.MANIFEST, nodes=2, folder=tmp_path, dtype="bfloat16") as swarm:
        assert script.events == ["start 1", "answer 1", "start 2"]
        assert [node.folder for node in swarm.nodes] == [tmp_path / "node-1", tmp_path / "node-2"]
    first, second = script.arguments[1], script.arguments[2]
    assert first[-2:] == ["--run", str(tmp_path / "run.toml")]
    assert second[-2:] == ["--peers", helpers.FIRST_ADDRESS]
    for number, arguments in script.arguments.items():
        pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert pairs["--set"] == f"data.shard={number}/2"
        assert pairs["--dtype"] == "bfloat16"
        assert pairs["--host-maddrs"] == "/ip4/127.0.0.1/tcp/0"
        assert int(pairs["--threads"]) >= 1
        assert "--device" not in pairs
    assert Manifest.from_toml(tmp_path / "run.toml") == helpers.MANIFEST
    assert sorted(script.events[-2:]) == ["stop 1", "stop 2"]


async def test_nodes_take_turns_at_several_devices(script: Script, tmp_path: Path) -> None:
    async with LocalSwarm(helpers.MANIFEST, nodes=3, folder=tmp_path, device=("cpu", "cuda")):
        pass
    devices = {n: said[said.index("--device") + 1] for n, said in script.arguments.items()}
    assert devices == {1: "cpu", 2: "cuda", 3: "cpu"}


async def test_the_first_node_organises_with_keys_of_the_swarms_own_and_invites_the_others(
    script: Script, tmp_path: Path
) -> None:
    theirs = helpers.organised_run()
    async with LocalSwarm(theirs, nodes=3, folder=tmp_path) as swarm:
        run = swarm.manifest
        assert script.events[:3] == ["start 1", "answer 1", "invite 2"]
    keys = tmp_path / "keys"
    assert sorted(keys.iterdir()) == [keys / run.run_id.hex(), keys / f"{run.run_id.hex()}.recovery"]
    assert Manifest.from_toml(tmp_path / "run.toml") == run
    assert run.organised.organiser != theirs.organised.organiser
    assert run.organised.quota == theirs.organised.quota
    first, *others = script.arguments.values()
    organises = ["--organise", "--set", "organise.alone=yes", "--keys-dir", str(keys)]
    assert first[-7:] == [*organises, "--run", str(tmp_path / "run.toml")]
    assert script.invitations[1] == ""
    for number, arguments in enumerate(others, 2):
        assert "--organise" not in arguments
        assert re.fullmatch("7:[0-9a-f]{32}", script.invitations[number])
        assert not any(script.invitations[number] in argument for argument in arguments)


async def test_a_second_start_in_the_same_folder_goes_on_with_the_same_keys(
    script: Script, tmp_path: Path
) -> None:
    ids = set()
    for run in (helpers.organised_run(), helpers.organised_run()):
        async with LocalSwarm(run, nodes=2, folder=tmp_path) as swarm:
            ids.add(swarm.manifest.run_id)
    assert len(ids) == 1
    other = helpers.organised_run().model_copy(update={"name": "another"})
    async with LocalSwarm(other, nodes=2, folder=tmp_path) as swarm:
        assert (swarm.manifest.name, swarm.manifest.run_id in ids) == ("another", False)


async def test_what_counts_is_told_of_an_organised_run(script: Script, tmp_path: Path) -> None:
    async with LocalSwarm(helpers.organised_run(), nodes=2, folder=tmp_path) as swarm:
        *_, last = [progress async for progress in swarm]
        result = await swarm.compare()
    assert last.organised is not None
    assert (result.counted, result.sealed) == (last.organised.counted, last.organised.sealed) == (40, 3)
    assert (result.update_budget, result.announced) == (50, "The run ends.")


@pytest.mark.parametrize("given", [{"nodes": 1}, {"nodes": 2, "split_data": False}])
async def test_all_rows_go_to_all_where_there_is_nothing_to_split(
    given: dict[str, int], script: Script, tmp_path: Path
) -> None:
    async with LocalSwarm(helpers.MANIFEST, folder=tmp_path, **given):  # type: ignore[arg-type]
        assert "--set" not in script.arguments[1]


async def test_it_yields_progress_until_all_are_complete_and_agree(script: Script, tmp_path: Path) -> None:
    async with LocalSwarm(helpers.MANIFEST, nodes=2, folder=tmp_path) as swarm:
        seen = [progress async for progress in swarm]
        assert swarm.before is not None
        result = await swarm.compare()
    assert [progress.known for progress in seen] == [0, 50, 50, 50]
    assert [progress.complete for progress in seen] == [False, False, False, True]
    assert seen[0].statuses == (None, None)
    assert [progress.seconds for progress in seen] == sorted(progress.seconds for progress in seen)
    assert result.equal
    assert (result.before, result.after) == (swarm.before, result.after)
    assert [node.own_updates for node in result.nodes] == [50, 50]
    assert (result.updates, result.run_id) == (50, helpers.MANIFEST.run_id.hex())


async def test_where_there_are_classes_the_base_model_is_measured_calibrated_too(
    script: Script, tmp_path: Path
) -> None:
    task = Task(kind="classification", template="{text}", verbalizer={"0": "bad", "1": "good"})
    run = helpers.MANIFEST.model_copy(update={"task": task, "data": Data(train="nowhere", test="nowhere")})
    result = await ended(LocalSwarm(run, nodes=2, folder=tmp_path))
    assert (result.before, result.calibrated) == (helpers.evaluation(0.5), helpers.evaluation(0.6))
    assert result.after == helpers.evaluation(0.75).model_copy(
        update={"probe": helpers.PROBE, "baselines": (helpers.COMMONEST,)}
    )
    assert (result.probe, result.baselines) == (helpers.PROBE, (helpers.COMMONEST,))


async def test_a_run_without_test_data_is_not_evaluated(script: Script, tmp_path: Path) -> None:
    run = helpers.MANIFEST.model_copy(update={"data": Data(train="nowhere")})
    result = await ended(LocalSwarm(run, nodes=2, folder=tmp_path))
    assert (result.before, result.after) == (None, None)


async def test_complete_nodes_that_do_not_agree_are_given_some_time(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.digests = ("d", "e")
    monkeypatch.setattr(local_swarm, "AGREE_DEADLINE", 0.05)
    async with LocalSwarm(helpers.MANIFEST, nodes=2, folder=tmp_path) as swarm:
        seen = [progress async for progress in swarm]
        result = await swarm.compare()
    assert sum(progress.complete for progress in seen) > 1
    assert not result.equal


@pytest.mark.parametrize(("digests", "cores"), [(("d", "d"), ("c", "c")), *UNEQUAL])
async def test_the_temporary_folder_is_kept_only_if_the_nodes_do_not_agree(
    digests: tuple[str, str],
    cores: tuple[str, str],
    script: Script,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_swarm, "AGREE_DEADLINE", 0.0)
    script.digests, script.cores = digests, cores
    result = await ended(LocalSwarm(helpers.MANIFEST, nodes=2))
    assert result.equal == (digests == ("d", "d") and cores == ("c", "c"))
    assert left(scratch) != result.equal


async def test_a_node_that_ends_ends_the_swarm_and_its_folder_is_kept(script: Script, scratch: Path) -> None:
    script.dies = 2
    with refused(Code.SWARM_FAILED):
        await ended(LocalSwarm(helpers.MANIFEST, nodes=2))
    assert sorted(script.events[-2:]) == ["stop 1", "stop 2"]
    assert left(scratch)


async def test_logs_are_kept_after_a_failed_start_without_a_context_manager(
    script: Script, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(_: object) -> None:
        raise UserError(Code.SWARM_FAILED, "node 1 ended with status 1", "See node.log.")

    monkeypatch.setattr("tests.swarm.helpers.ScriptedProcess.answering", ended)
    swarm = LocalSwarm(helpers.MANIFEST, nodes=2)
    with pytest.raises(UserError):
        await swarm.start()
    await swarm.stop()
    assert left(scratch)


@pytest.mark.parametrize("call", ["look", "ask"])
async def test_logs_are_kept_though_the_failure_is_caught_within_the_context(
    call: str, script: Script, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(_: object, *calls: Coroutine[Any, Any, CoreStatus]) -> None:
        for one in calls:
            one.close()
        raise UserError(Code.SWARM_FAILED, "node 1 ended with status 1", "See node.log.")

    run = helpers.MANIFEST.model_copy(update={"data": Data(train="nowhere")})
    async with LocalSwarm(run, nodes=2) as swarm:
        await swarm.look()
        with monkeypatch.context() as failing:
            failing.setattr(f"tests.swarm.helpers.ScriptedProcess.{call}", ended)
            with pytest.raises(UserError):
                await (swarm.look() if call == "look" else swarm.compare())
        assert (await swarm.compare()).equal  # which does not make up for the failure
    assert left(scratch)


async def test_logs_are_kept_when_the_nodes_have_not_agreed_in_time_and_nobody_compares(
    script: Script, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_swarm, "AGREE_DEADLINE", 0.0)
    script.digests = ("d", "e")
    async with LocalSwarm(helpers.MANIFEST, nodes=2) as swarm:
        async for _ in swarm:
            pass
    assert left(scratch)


async def test_an_interrupted_start_stops_what_has_started_and_leaves_nothing(
    script: Script, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("tests.swarm.helpers.ScriptedProcess.answering", never)

    task = asyncio.create_task(ended(LocalSwarm(helpers.MANIFEST, nodes=2)))
    await eventually(lambda: "start 1" in script.events)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "stop 1" in script.events
    assert not left(scratch)


def test_progress_is_that_of_the_slowest() -> None:
    assert SwarmProgress(1.0, (helpers.status(known=7), helpers.status(known=9))).known == 7
    assert SwarmProgress(1.0, (helpers.status(known=7), None)).known == 0
    assert not SwarmProgress(1.0, (helpers.status(digest="a"), helpers.status(digest="b"))).agree
    assert not SwarmProgress(1.0, (helpers.status(digest="a"), None)).agree
