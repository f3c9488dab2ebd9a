"""How commands end: the status tells what kind of end it is, and with --json the error is JSON, too."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from sfnode.cli import exit as ends
from tests.cli.fake_node import ANSWERS, fake_node
from tests.cli.helpers import Run

DOCS = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_documentation_has_every_exit_status() -> None:
    told = re.findall(r"^\| (\d+) \| .* \|$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    returned = (ends.DONE, ends.FAILED, ends.USAGE, ends.NOT_RUNNING, ends.INTERRUPTED)
    assert [int(status) for status in told] == [*returned, 128 + signal.SIGTERM]


def test_a_node_that_is_broken_is_told_from_one_that_does_not_run(tmp_path: Path, sfnode: Run) -> None:
    with fake_node(tmp_path / "node", {**ANSWERS, "GET /status": "no JSON"}):
        assert sfnode("status", "--data-dir", tmp_path / "node").status == ends.FAILED


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        ("status --data-dir nobody", 3, "SF060"),
        ("limit --data-dir nobody", 3, "SF060"),
        ("verify --data-dir nobody", 1, "SF043"),
        ("invite --data-dir nobody", 1, "SF043"),
        ("status --fly", 2, "usage"),
        ("limit colour=red", 2, "usage"),
    ],
)
def test_with_json_an_error_is_one_object_and_without_it_a_text(
    arguments: str, status: int, code: str, sfnode: Run
) -> None:
    ended = sfnode(*arguments.split(), "--json")
    said = json.loads(ended.out)["error"]
    assert (ended.status, ended.err) == (status, "")
    assert (said["status"], said["code"]) == (status, code)
    assert said["what"]
    assert said["fix"]
    ended = sfnode(*arguments.split())
    assert (ended.status, ended.out) == (status, "")
    assert said["what"] in ended.err


def test_json_that_the_configuration_asks_for_is_for_errors_too(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFNODE_JSON", "1")
    assert json.loads(sfnode("status", "--data-dir", "nobody").out)["error"]["name"] == "NODE_NOT_RUNNING"
