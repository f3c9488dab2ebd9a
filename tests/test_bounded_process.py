"""Tests of a bounded process: it answers every request, even after the process before it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfnode.bounded_process import BoundedProcess

PROGRAM = "sfnode.tasks.template_process"
MEMORY = 1 << 28
PATIENCE = 60.0


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a constructor of processes that end with the test."""
    processes: list[BoundedProcess] = []

    def make(program: str = PROGRAM, seconds: float = 5.0, **options: Any) -> BoundedProcess:
        processes.append(BoundedProcess(program, seconds, MEMORY, **options))
        return processes[-1]

    yield make
    for process in processes:
        process.close()


def number(process: BoundedProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_a_process_that_nobody_asks_ends_and_another_answers_later(made: Any) -> None:
    process = made(idle=0.2)
    assert process.ask(["{{ 1 }}", {}]) == {"text": "1"}
    first, running = number(process), process._process
    assert running.wait(PATIENCE) < 0
    assert process.ask(["{{ 2 }}", {}]) == {"text": "2"}
    assert number(process) != first


def test_a_process_that_was_killed_meanwhile_is_nobodys_fault(made: Any) -> None:
    process = made()
    process.ask(["", {}])
    process._process.kill()
    process._process.wait(PATIENCE)
    assert process.ask(["{{ 2 }}", {}]) == {"text": "2"}


def test_every_process_gets_the_opening_before_anything_else(made: Any) -> None:
    openings = iter([["{{ 9 ** (9 ** 9) }}", {}], ["{{ 1 }}", {}], ["{{ 1 }}", {}]])
    process = made(seconds=1.0, opening=lambda: next(openings))
    assert process.ask(["{{ 2 }}", {}]) == {"broke": "it takes more time than it may"}
    assert process.ask(["{{ 2 }}", {}]) == {"text": "2"}
    process.close()
    assert process.ask(["{{ 3 }}", {}]) == {"text": "3"}
    assert next(openings, None) is None


def test_an_opening_that_is_refused_is_the_answer_and_is_made_again(made: Any) -> None:
    openings = iter([["{% for %}", {}], ["", {}]])
    process = made(opening=lambda: next(openings))
    assert "refused" in process.ask(["{{ 2 }}", {}])
    assert process.ask(["{{ 2 }}", {}]) == {"text": "2"}


def test_a_program_is_found_where_this_one_finds_it(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echo.py").write_text(
        "from sfnode.bounded_process import serve\nserve(lambda request: {'said': request})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert made("echo").ask("hello") == {"said": "hello"}


def test_a_program_that_cannot_be_run_is_an_answer_too(made: Any) -> None:
    assert "brings down" in made("sfnode.no_such_program").ask([])["broke"]
