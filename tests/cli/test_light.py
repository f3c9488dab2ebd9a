"""Tests of short commands: their output, and that they load no slow library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sfnode.peers import contacts
from sfnode.schema.results import InviteResult, StatusResult
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from tests.cli.fake_node import ANSWERS, INVITATION, STATUS, fake_node
from tests.cli.helpers import Run

HEAVY = {
    *("torch", "numpy", "transformers", "aiohttp", "hivemind"),
    *("pydantic", "asyncio", "rich", "uvloop", "msgpack", "cryptography", "sfprotocol", "sfnode.node"),
}


SCRIPT = f"""
import contextlib, io, json, sys
from sfnode.cli.main import main
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(line.split())
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), sorted({HEAVY} & set(sys.modules))]))
"""


class Loaded(NamedTuple):
    status: int
    out: str
    heavy: list[str]
    """Slow libraries that the process has loaded for it, or for an earlier command line."""


def loaded(*lines: str) -> list[Loaded]:
    """Run command lines one after the other in a process of their own."""
    command = [sys.executable, "-c", SCRIPT, *lines]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Loaded(*json.loads(line)) for line in ended.stdout.splitlines()]


QUESTIONS = {
    "status": "state    idle as relay",
    "status --json": '"state": "idle"',
    "status --feeds": "feed     cd/0 3",
    "limit": "cpu           50",
    "limit cpu=25": "cpu           25",
    "limit --json": '"cpu": 50',
    "pause 2h": "paused: asked for",
    "resume": "still paused: asked for",
    "leave": "left",
    "leave --finish": "finished",
    "invite": "sfnode join sfnode:x",
    "invite --json": '"reach": "internet"',
}


def test_a_question_to_a_running_node_loads_no_library(tmp_path: Path) -> None:
    with fake_node(tmp_path / "node"):
        found = loaded(*(f"{line} --data-dir {tmp_path / 'node'}" for line in QUESTIONS))
    for (line, says), one in zip(QUESTIONS.items(), found, strict=True):
        assert (one.status, says in one.out, one.heavy) == (0, True, []), line


def test_without_a_running_node_nothing_more_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    Layout(folder).manifest.touch()
    contacts.write(Layout(folder).contacts, INVITATION.model_dump())
    lines = ("status", "limit", "pause", "leave", "invite")
    *failed, invited = loaded(*(f"{line} --data-dir {folder}" for line in lines))
    assert failed == [Loaded(3, "", [])] * 4
    assert (invited.status, bool(invited.out), invited.heavy) == (0, True, [])


def test_help_and_the_completion_of_commands_load_no_library(tmp_path: Path) -> None:
    assert loaded("--help")[0].heavy == []
    words = {"_SFNODE_COMPLETE": "bash_complete", "COMP_WORDS": "sfnode st", "COMP_CWORD": "1"}
    script = "import sys\nfrom sfnode.cli.main import cli\ncli.main([], prog_name='sfnode')\n"
    command = [sys.executable, "-X", "importtime", "-c", script]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**words, "PYTHONPATH": ":".join(sys.path)}
    )
    assert ended.stdout == "plain,status\n"
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert imported & HEAVY == set()


LATER = {
    "sfnode.dashboard.top": "pydantic aiohttp numpy",  # a frame is drawn of what was not validated
    "sfnode.cli.join": "sfnode.schema.results sfnode.node numpy aiohttp torch transformers hivemind uvloop",
    "sfnode.schema.node_state": "pydantic numpy torch",
    "sfnode.control.client": "aiohttp asyncio pydantic numpy torch sfnode.node sfprotocol",
    "sfnode.loggers": "tensorboard wandb",
}


@pytest.mark.parametrize("module", LATER)
def test_a_module_does_not_wait_for_a_library_that_is_needed_later(module: str) -> None:
    """Importing pydantic takes as long as a short command. Importing torch takes seconds."""
    script = f"import sys, {module}; print(*set({LATER[module].split()}) & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "\n"


def test_help_and_refusals_load_nothing_that_takes_seconds() -> None:
    found = loaded("join --help", "verify", "export --out here")
    assert [one.status for one in found] == [0, 1, 1]
    assert not {"torch", "transformers", "hivemind", "uvloop"} & set(found[-1].heavy)


def test_what_is_printed_as_json_is_what_the_node_said(tmp_path: Path, sfnode: Run) -> None:
    with fake_node(tmp_path / "node"):
        said = {
            name: sfnode(*name.split(), "--json", "--data-dir", tmp_path / "node").out
            for name in ("status", "status --feeds", "invite")
        }
    assert json.loads(said["status"]) == json.loads(STATUS.model_dump_json())
    assert Status.model_validate_json(said["status"]).run_name == "NaN"
    assert StatusResult.model_validate_json(said["status --feeds"]).feeds[0].updates == 3
    assert InviteResult.model_validate_json(said["invite"]) == INVITATION


def test_a_node_of_another_version_is_said_to_be_one(tmp_path: Path, sfnode: Run) -> None:
    older = json.loads(STATUS.model_dump_json())
    del older["epochs"]
    with fake_node(tmp_path / "node", {**ANSWERS, "GET /status": json.dumps(older)}):
        ended = sfnode("status", "--data-dir", tmp_path / "node")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("sfnode: SF057: the node's answer has no field epochs")


def test_a_configuration_file_with_keys_of_the_command_alone_loads_no_other(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'data-dir = "{tmp_path}/node"\n')
    with fake_node(tmp_path / "node"):
        assert loaded(f"--config {file} status")[0].heavy == []
