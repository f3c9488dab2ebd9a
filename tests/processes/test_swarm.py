"""`sfnode swarm` with real processes: equal digests at the end, and no process left, however the swarm
ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import psutil
import pytest

from sfnode.preparing.manifest import build
from sfnode.schema.results import SwarmResult
from sfnode.store.data_folder import Layout
from sfnode.store.run_keys import RunKeys
from tests.processes.helpers import Command, printed_json, sfnode, until
from tests.publish.test_words import check

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

LONG = 1_000_000
"""Update budget that no swarm of these tests reaches."""

SHORT = 40

TWINS = "left", "right"


class RunningSwarm:
    """A swarm that runs until a signal or an error ends it."""

    def __init__(self, home: Path, name: str, nodes: int) -> None:
        self.folder = home / name
        self._command = Command(home, "swarm", "--nodes", nodes, "--run", "long.toml", "--out", name)
        self.process = self._command.process
        until(f"{name} is up", lambda: self._lock(nodes).exists() and self._socket(nodes).exists())
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def _lock(self, node: int) -> Path:
        return Layout(self.folder / f"node-{node}").lock

    def _socket(self, node: int) -> Path:
        return Layout(self.folder / f"node-{node}").control_socket

    def pid(self, node: int) -> int:
        return int(self._lock(node).read_text())

    def ended(self) -> tuple[int, str]:
        """Wait until the swarm and all its processes have ended. Return its exit status and its standard
        error."""
        ended = self._command.ended()
        until("no process is left", lambda: not any(alive(process) for process in self.family))
        return ended.returncode, ended.stderr


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swarm")
    (folder / "long.toml").write_text(build({"update_budget": LONG}).to_toml())
    keys = RunKeys.generate()
    short = build({"update_budget": SHORT, "epoch_updates": SHORT // 2} | keys.options())
    for name in TWINS:  # each uses the keys that it finds, so that both have the same run
        keys.write(short.run_id, folder / name / "keys")
        (folder / name / "run.toml").write_text(short.to_toml())
    (folder / "bad.tsv").write_text("text\tlabel\nfine soup\t1\nrude staff\t7\n")
    manifest = build({"update_budget": SHORT})
    bad = manifest.data.model_copy(update={"train": str(folder / "bad.tsv")})
    (folder / "bad.toml").write_text(manifest.model_copy(update={"data": bad}).to_toml())
    return folder


@pytest.fixture(scope="module")
def twins(home: Path) -> list[subprocess.CompletedProcess[str]]:
    """Two swarms of the same organised run, which ran at the same time in an environment with options for
    other commands."""
    misleading = {"SFNODE_ROLE": "relay", "SFNODE_STEPS": "1", "SFNODE_PEERS": "/ip4/192.0.2.1/tcp/1/p2p/QmA"}
    command = ["swarm", "--nodes", "2", "--run", "left/run.toml", "--json", "--out"]
    running = [Command(home, *command, name, **misleading) for name in TWINS]
    return [one.ended() for one in running]


def test_two_swarms_at_once_each_end_with_equal_digests(
    twins: list[subprocess.CompletedProcess[str]],
) -> None:
    for process in twins:
        result = SwarmResult.model_validate(printed_json(process))
        assert result.equal
        assert len({(node.digest, node.core_digest) for node in result.nodes}) == 1
        assert result.updates == sum(node.own_updates for node in result.nodes)
        assert result.counted is not None
        assert SHORT <= result.counted <= result.updates
        assert result.sealed
        assert result.before is not None
        assert result.after is not None
        assert result.before.count == result.after.count == 1000
        assert result.bytes_per_update > 0


def test_swarms_do_not_mix(twins: list[subprocess.CompletedProcess[str]]) -> None:
    left, right = (SwarmResult.model_validate(printed_json(process)) for process in twins)
    assert left.run_id == right.run_id
    assert left.nodes[0].digest != right.nodes[0].digest


def test_progress_and_verdict_are_separate_from_the_json(
    twins: list[subprocess.CompletedProcess[str]],
) -> None:
    said = twins[0].stderr
    assert "starting 2 nodes of run reviews" in said
    assert "base model: accuracy" in said
    assert "OK: the nodes have the same model, to the last bit." in said
    assert "The data are made up" in said
    check(said)
    assert max(len(line) for line in said.splitlines() if "  sfnode " not in line) <= 100


def test_the_commands_that_come_next_work_as_they_are_printed(
    home: Path, twins: list[subprocess.CompletedProcess[str]]
) -> None:
    lines = re.findall(r"  (sfnode .*)", twins[0].stderr)
    said = [sfnode(home, *shlex.split(line)[1:]).stdout for line in lines]
    assert [line.split()[1] for line in lines] == ["use", "export", "verify"]
    assert re.fullmatch(r"( *\d+\.\d %  (good|bad)\n){2}", said[0])
    assert said[1].startswith("wrote model ")
    assert (home / "model" / "README.md").exists()
    assert " updates of " in said[2]


def test_the_folders_are_kept_where_the_user_wants_them(
    home: Path, twins: list[subprocess.CompletedProcess[str]]
) -> None:
    result = SwarmResult.model_validate(printed_json(twins[0]))
    audit = printed_json(sfnode(home, "verify", "--json", "--data-dir", home / "left" / "node-2"))
    assert audit["digest"] == result.nodes[1].digest


@pytest.mark.parametrize(("number", "status"), [(SIGINT, 130), (SIGTERM, 130), (SIGKILL, -SIGKILL)])
def test_no_process_is_left_however_it_is_ended(number: Signals, status: int, home: Path) -> None:
    swarm = RunningSwarm(home, f"ended-{number.name}", nodes=1)
    assert len(swarm.family) >= 2  # a node and its p2pd
    swarm.process.send_signal(number)
    ended, said = swarm.ended()
    assert ended == status
    assert "Traceback" not in said


def test_a_node_that_dies_ends_the_swarm_with_its_name_and_the_reason(home: Path) -> None:
    swarm = RunningSwarm(home, "killed", nodes=2)
    os.kill(swarm.pid(2), SIGKILL)
    status, said = swarm.ended()
    assert status == 1
    assert "sfnode: SF061: node 2 was killed by SIGKILL" in said
    assert f"{swarm.folder.name}/node-2/node.log" in said


def test_a_node_that_fails_late_ends_the_swarm_with_the_nodes_own_message(home: Path) -> None:
    ended = sfnode(home, "swarm", "--nodes", 1, "--run", "bad.toml", "--out", "bad")
    assert ended.returncode == 1
    assert "sfnode: SF061: node 1 ended with status 1" in ended.stderr
    assert "sfnode: SF031: " in ended.stderr
    assert "bad.tsv, line 3" in ended.stderr
    assert "Traceback" not in ended.stderr
