"""Tests of plug-ins, which run only where the owner permits the very file that a manifest names."""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks import verifying
from sfnode.tasks.verifying import load
from sfnode.verifiers import plugins
from sfnode.verifiers.plugins import Name, allow, is_plugin, require
from sfnode.verifiers.scoring import score, texts
from sfnode.verifiers.specs import read
from tests.refusals import refused
from tests.verifiers.test_specs import summed

SOURCE = """
from asyncio import CancelledError
from dataclasses import dataclass
from pathlib import Path

Path("ran").touch()

@dataclass
class Kept:
    word: str

def polite(answer, row):
    return 0.5 * ("please" in answer) + 0.5 * (answer == row["answer"])

def strange(answer, row):
    found = {"none": None, "more": 1.5, "nan": float("nan"), "text": "1", "yes": True}
    return found.get(answer) or {}[answer]

def leaves(answer, row):
    raise SystemExit(3)

def interrupts(answer, row):
    raise KeyboardInterrupt

def cancels(answer, row):
    raise CancelledError

class Unsaid(Exception):
    def __str__(self):
        raise ValueError(self)

def unsaid(answer, row):
    raise Unsaid

word = "no function"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a module in the current folder, with all permissions of the process removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_allowed", {})
    monkeypatch.setattr(plugins, "_said", set())
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def named(file: Path, function: str = "polite") -> Name:
    return Name(hashlib.sha256(file.read_bytes()).hexdigest(), function)


def task_of(name: Name) -> Task:
    verifier = {"kind": "plugin", **name._asdict()}
    return Task(kind="reward", template="{q}", answer_tokens=8, verifier=verifier)


def test_a_manifest_names_the_digest_of_the_file_and_the_function(file: Path) -> None:
    assert load("mine:polite") == {"kind": "plugin", **named(file)._asdict()}
    assert read(load("mine:polite")).model_dump() == load("mine:polite")


def test_it_scores_answers_by_all_of_their_row(file: Path) -> None:
    task = task_of(allow("mine:polite"))
    marked = verifying.score_of(task)
    assert [marked(answer, {"q": 1, "answer": 7}) for answer in ("7", "please", "no")] == [0.5, 0.5, 0.0]
    halves = read(summed(task.verifier, {"kind": "length"}))
    assert score(halves, "7", texts(halves, {"answer": 7})) == 0.75


def test_without_a_yes_nothing_is_run(file: Path) -> None:
    task = task_of(named(file))
    for action in (lambda: verifying.permit(task), lambda: verifying.score_of(task)("x", {})):
        with refused(Code.VERIFIER_NOT_ALLOWED, named(file).digest):
            action()
    assert not Path("ran").exists()
    verifying.permit(task, ["mine:polite"])
    assert Path("ran").exists()


def test_another_file_or_another_function_is_not_run(file: Path) -> None:
    task = task_of(named(file))
    file.write_text(SOURCE + "\n")
    with refused(Code.VERIFIER_NOT_ALLOWED, "and the run's is polite of a file with"):
        verifying.permit(task, ["mine:polite"])
    file.write_text(SOURCE)
    with pytest.raises(UserError, match="the run's is polite"):
        verifying.permit(task, ["mine:strange"])
    assert not Path("ran").exists()


def test_a_yes_where_there_is_no_plug_in_is_a_mistake() -> None:
    for task in (Task(kind="text", template="{q}"), task_of(Name("0" * 64, "f"))):
        other = task.kind == "text"
        with pytest.raises(UserError) as caught:
            verifying.permit(task, ["mine:polite"])
        assert caught.value.code is (Code.BAD_OPTION if other else Code.VERIFIER_NOT_ALLOWED)
    verifying.permit(Task(kind="text", template="{q}"))


@pytest.mark.parametrize("answer", ["none", "more", "nan", "text", "missing"])
def test_what_is_no_reward_is_0_and_said_once(answer: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sfnode")
    name = allow("mine:strange")
    assert [plugins.score(name, answer, {}) for _ in range(3)] == [0.0] * 3
    assert plugins.score(name, "yes", {}) == 1.0
    assert caplog.text.count("the plug-in strange failed") == 1


@pytest.mark.parametrize("function", ["leaves", "unsaid", "interrupts", "cancels"])
def test_one_that_ends_the_process_or_whose_error_cannot_be_said_scores_0(function: str) -> None:
    name = allow(f"mine:{function}")
    with ThreadPoolExecutor(1) as trainer:
        assert trainer.submit(plugins.score, name, "x", {}).result() == 0.0


def test_ctrl_c_ends_a_command_that_is_scoring() -> None:
    """Python raises it in the main thread, in which commands score."""
    with pytest.raises(KeyboardInterrupt):
        plugins.score(allow("mine:interrupts"), "x", {})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere:polite", "there is no module nowhere"),
        ("mine.deeper:polite", "there is no module mine.deeper"),
        ("sys:exit", "there is no module sys"),
        ("mine:missing", "has no function missing"),
        ("mine:word", "has no function word"),
        ("broken:f", "cannot be run: ZeroDivisionError"),
        ("wrong:f", "cannot be run: SyntaxError"),
        ("cancelled:f", r"cannot be run: asyncio\S*CancelledError"),
    ],
)
def test_one_that_cannot_be_had_is_an_error(source: str, says: str) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("wrong.py").write_text("def\n")
    Path("cancelled.py").write_text("import asyncio\nraise asyncio.CancelledError\n")
    with pytest.raises(UserError, match=says) as caught:
        allow(source)
    assert caught.value.code is Code.BAD_OPTION


def test_a_module_may_be_in_a_package_which_is_not_run(tmp_path: Path) -> None:
    package = tmp_path / "deep"
    package.mkdir()
    (package / "__init__.py").write_text("1 / 0\n")
    (package / "mine.py").write_text("def f(answer, row):\n    return 1\n")
    assert plugins.score(allow("deep.mine:f"), "x", {}) == 1.0


def test_what_a_plug_in_is_called() -> None:
    assert [
        source
        for source in ("a:b", "a.b:c", "a", "a:", ":b", "a/b:c", "v.toml", "C:\\v.toml")
        if is_plugin(source)
    ] == ["a:b", "a.b:c"]


def test_those_that_a_run_needs_are_all_asked_for(file: Path) -> None:
    first = allow("mine:polite")
    require([first])
    with pytest.raises(UserError, match="the function strange"):
        require([first, named(file, "strange")])
