"""Answers of a model to a few rows: chosen as in evaluations, or written, and never more than is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfnode.engine import samples
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks.templates import ASKING
from tests.engine.helpers import ROWS, data_file, manifest, trainer, updates


def with_task(task: Task, file: Path, rows: list[dict[str, Any]]) -> Manifest:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return manifest("opt").model_copy(update={"task": task, "data": Data(test=str(file))})


def test_rows_of_classes_come_by_turns_and_are_answered_as_evaluations_answer_them(tmp_path: Path) -> None:
    run = trainer(manifest("opt", str(data_file(tmp_path)), learning_rate=1e-3))
    base = run.answer(5, base=True)
    assert {one.right for one in base[:2]} == {"terrible", "great ."}
    assert {one.said for one in base} <= {"terrible", "great ."}
    assert {one.text for one in base} == {f"{row['sentence']} It was" for row in ROWS}
    hits = sum(one.said == one.right for one in base)
    assert hits / len(ROWS) == pytest.approx(run.evaluate_base().value)
    run.apply(updates(40, (0,)))
    now = run.answer(5, base=False)
    assert [one.text for one in now] == [one.text for one in base]
    assert sum(one.said == one.right for one in now) / len(ROWS) == pytest.approx(run.evaluate().value)
    assert run.answer(5, base=True) == base


def test_the_base_model_of_a_centred_run_answers_less_the_manifest_s_prior_which_nobody_measures_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(data_file(tmp_path))
    plain = manifest("opt", file)
    data = Data(train=file, test=file)
    answers = []
    for prior in [(), (0, -(1 << 22)), (-(1 << 22), 0)]:
        task = plain.task.model_copy(update={"loss": "centred", "prior": prior})
        run = trainer(plain.model_copy(update={"task": task, "data": data}))
        if prior:
            monkeypatch.setattr(run.priors, "measured", None)
        answers.append({one.said for one in run.answer(5, base=True)})
    assert answers == [{"terrible", "great ."}, {"great ."}, {"terrible"}]


def test_what_a_model_writes_is_cut_to_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "WRITTEN", 4)
    rows = [{"question": "a " * 300 + "story", "answer": "good " * 100}]
    task = Task(kind="completion", template="{question}", completion="{answer}", max_tokens=2048)
    (one,) = trainer(with_task(task, tmp_path / "rows.jsonl", rows)).answer(4, base=True)
    assert (len(one.text), one.text[0], one.text[-5:]) == (samples.SHOWN, "…", "story")
    assert len(one.right) == samples.SHOWN_ANSWER


def test_a_remark_stands_behind_an_answer_however_long_that_is() -> None:
    one = samples.shown("a prompt", "right", "x" * 1000, 0.5, "wrong: town")
    assert one.said == "x" * (samples.SHOWN_ANSWER - 1) + "… (wrong: town)"
    assert samples.shown("a prompt", "right", "short", 0.5).said == "short"


def test_a_plain_text_is_to_be_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "WRITTEN", 4)
    task = Task(kind="text", template="{text}")
    (one,) = trainer(with_task(task, tmp_path / "rows.jsonl", [{"text": "the film was bright"}])).answer(
        1, base=True
    )
    assert (one.text, one.right) == ("the film", "was bright")


def test_rows_that_were_read_before_are_answered_without_their_file(tmp_path: Path) -> None:
    run = trainer(manifest("opt", str(file := data_file(tmp_path))))
    run.read_test_rows()
    file.unlink()
    assert len(run.answer(2, base=True)) == 2


def test_a_run_without_test_rows_has_nothing_to_answer() -> None:
    with pytest.raises(UserError, match="no test data"):
        trainer(manifest("opt")).read_test_rows()
    with pytest.raises(UserError, match="no test data"):
        trainer(manifest("opt")).answer(4, base=True)


def test_the_ending_that_asks_for_one_word_is_not_shown() -> None:
    assert samples.shown("It never came." + ASKING, "mail", "mail").text == "It never came."
