"""`join --notify`: a command of the owner's is told once of each event, and cannot harm the node."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sfnode.node import notifying
from sfnode.node.notifying import OFFLINE_AFTER, notify
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import AlarmStatus
from tests.cli.fake_node import STATUS

WORSE = AlarmStatus(code="SF070", what="the run gets worse", fix="Void it.")
OTHER = AlarmStatus(code="SF073", what="the organiser is silent", fix="Wait.")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Run `notify` while a node goes through these states, one for each look. Return the words of each
    call."""
    monkeypatch.setattr(notifying, "LOOK", 0.0)
    out, script = tmp_path / "told", tmp_path / "tell.py"
    script.write_text(
        "import json, os, sys\n"
        f"words = [*sys.argv[1:], os.environ['SFNODE_EVENT'], os.environ['SFNODE_RUN_NAME']]\n"
        f"print(json.dumps(words), file=open({str(out)!r}, 'a'))\n"
    )

    def run(*states: dict[str, Any], command: str = f"{sys.executable} {script} 'two words'") -> list[Any]:
        left = [STATUS.model_copy(update={"alarms": []} | state) for state in states]
        clock = iter(range(0, 10**9, int(OFFLINE_AFTER) + 1))

        async def until_done() -> None:
            task = asyncio.create_task(notify(lambda: left.pop(0), lambda: next(clock), command))
            with suppress(IndexError):  # there is no state any more
                await task

        asyncio.run(until_done())
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    return run


LINKED: dict[str, Any] = {"links": STATUS.links or [object()]}
ALONE: dict[str, Any] = {"links": []}


def test_it_is_told_once_when_the_run_completes_the_model_gets_worse_or_all_others_are_gone(
    told: Callable[..., list[Any]],
) -> None:
    worse, complete = {"alarms": [OTHER, WORSE]}, {"state": NodeState.COMPLETE}
    found = told(LINKED, LINKED | worse, LINKED | worse, LINKED, ALONE, ALONE, LINKED | complete)
    assert [words[:2] for words in found] == [
        ["two words", "worse"],
        ["two words", "offline"],
        ["two words", "complete"],
    ]
    assert found[0][2:] == ["the run gets worse", "worse", STATUS.run_name]


def test_it_is_told_that_another_node_organises_the_run(told: Callable[..., list[Any]]) -> None:
    terms = ((3, None), (3, None), (4, "standing by"), (4, None), (5, "organising"))
    states = [{"organised": Mock(term=term, organiser=organiser)} for term, organiser in terms]
    found = told(*(LINKED | state for state in states))
    assert [(words[1], words[2].split()[0]) for words in found] == [
        ("organiser", "another"),
        ("organiser", "this"),
    ]


def test_a_node_that_never_had_a_neighbour_is_not_offline(told: Callable[..., list[Any]]) -> None:
    assert told(ALONE, ALONE, ALONE) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/nowhere/at-all", "did not start"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "ended with status 3"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "was killed after"),
    ],
)
def test_a_command_that_fails_or_hangs_is_logged_and_nothing_else(
    command: str,
    says: str,
    told: Callable[..., list[Any]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifying, "PATIENCE", 0.5)
    assert told({"state": NodeState.COMPLETE}, command=command) == []
    assert says in caplog.text


def test_what_it_is_told_is_printable(told: Callable[..., list[Any]]) -> None:
    """A script may show the text on a screen, and arguments of a program cannot contain zero bytes."""
    (words,) = told({"alarms": [WORSE.model_copy(update={"what": "worse\0\x1b[2J\u202e"})]})
    assert words[2] == "worse\\u0000\\u001b[2J\\u202e"
