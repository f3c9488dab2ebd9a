"""`sfnode lm-eval`: the harness on the model of a run and on a checkpoint, without any hub."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfnode.cli import lm_eval
from sfnode.models.manifest_builder import build
from sfnode.tasks.dataset import held_out_rows
from tests.cli.helpers import Ended
from tests.cli.test_evaluate import folder

__all__ = ["folder"]

Run = Callable[..., Ended]

Calls = list[list[str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Command lines that are run, in place of running them; the model's folder must be there then."""
    seen: Calls = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        checkpoint = json.loads(command[command.index("--model_args") + 1])["pretrained"]
        return subprocess.CompletedProcess(command, 3 if checkpoint == "bad" else 0)

    monkeypatch.setattr(lm_eval, "find_spec", lambda name: name)
    monkeypatch.setattr(lm_eval.subprocess, "run", run)
    return seen


def checkpoint_of(command: list[str]) -> str:
    found: str = json.loads(command[command.index("--model_args") + 1])["pretrained"]
    return found


def test_a_run_is_exported_for_the_harness_and_not_kept(
    folder: Path, sfnode: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, held = lm_eval.subprocess.run, []
    monkeypatch.setattr(
        lm_eval.subprocess,
        "run",
        lambda command: (held.append(Path(checkpoint_of(command), "config.json").is_file()), run(command))[1],
    )
    ended = sfnode("lm-eval", folder, "--tasks", "sst2", "--", "--limit", "8", "--batch_size", "4")
    assert (ended.status, held) == (0, [True]), ended.err
    (command,) = calls
    assert command[-6:] == ["--device", "cpu", "--limit", "8", "--batch_size", "4"]
    assert command[command.index("--tasks") + 1] == "sst2"
    assert not Path(checkpoint_of(command)).exists()


def test_a_checkpoint_is_named_as_it_is(sfnode: Run, calls: Calls, tmp_path: Path) -> None:
    odd = tmp_path / "a,b={c}"  # means something to the harness unless it comes as JSON
    odd.mkdir()
    (odd / "config.json").touch()
    for checkpoint in (odd, "somebody/model", "builtin:tiny"):
        assert sfnode("lm-eval", checkpoint, "--tasks", "sst2").status == 0
    named = [checkpoint_of(command) for command in calls]
    assert named[:2] == [str(odd), "somebody/model"]
    assert Path(named[2], "config.json").is_file()
    assert all("-P" in command for command in calls)  # nothing in the current folder is imported


def test_what_is_no_checkpoint_is_an_error(sfnode: Run, calls: Calls, tmp_path: Path) -> None:
    for nothing in (tmp_path, tmp_path / "nowhere", "./nowhere"):
        ended = sfnode("lm-eval", nothing, "--tasks", "sst2")
        assert ended.status == 1
        assert "SF020" in ended.err
    assert calls == []


def test_a_harness_that_fails_is_an_error(sfnode: Run, calls: Calls) -> None:
    ended = sfnode("lm-eval", "bad", "--tasks", "sst2")
    assert (ended.status, "SF080" in ended.err) == (1, True)


def test_without_the_harness_its_extra_is_named(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval, "find_spec", lambda name: None)
    ended = sfnode("lm-eval", "builtin:tiny", "--tasks", "sst2")
    assert ended.status == 1
    assert "SF078" in ended.err
    assert "pip install 'sfnode[lm-eval]'" in ended.err


def test_the_harness_agrees_with_eval_on_the_same_rows(
    folder: Path, sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with torch, transformers and the harness: 10 s. CI does not install the harness."""
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    run = build({"loss": "plain"})  # the harness knows no prior
    rows = held_out_rows(run.data, run.task, "test", 8)
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    answers = run.task.verbalizer
    task = {
        "task": "reviews",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{text}} it was",
        "doc_to_target": "label",
        "doc_to_choice": [answers[str(label)] for label in range(len(answers))],
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "reviews.yaml").write_text(json.dumps(task))  # JSON is YAML
    out = ("--output_path", tmp_path / "out")
    ended = sfnode("lm-eval", folder, "--tasks", tmp_path / "reviews.yaml", "--", "--limit", "8", *out)
    assert ended.status == 0, ended.err
    (results,) = (tmp_path / "out").rglob("results_*.json")
    measured = json.loads(results.read_text())["results"]["reviews"]["acc,none"]
    ours = json.loads(sfnode("eval", "--data-dir", folder, "--limit", "8", "--json").out)
    assert measured == ours["after"]["value"]


def test_without_tasks_there_is_nothing_to_do(sfnode: Run) -> None:
    ended = sfnode("lm-eval", "builtin:tiny")
    assert (ended.status, "--tasks" in ended.err) == (2, True)
