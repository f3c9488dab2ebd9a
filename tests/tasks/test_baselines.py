"""Tests of the baselines of a table without a model."""

from __future__ import annotations

import math

import pytest

from sfnode.dashboard.formatting import baselines_in_words
from sfnode.manifest.task import Task
from sfnode.tasks import baselines

TASK = Task(kind="sequence-classification", template="{text}", verbalizer={"a": "A", "b": "B", "c": "C"})


def rows(*counts: tuple[str, str, int]) -> list[dict[str, str]]:
    return [
        {"text": f"{word} no. {n}", "label": label} for word, label, count in counts for n in range(count)
    ]


TRAIN = rows(("parcel", "a", 30), ("invoice", "b", 20))
TEST = rows(("a parcel", "a", 6), ("an invoice", "b", 4))


def test_the_commonest_label_is_right_as_often_as_it_comes() -> None:
    commonest = baselines.measured(TASK, TRAIN, TEST)[0]
    assert (commonest.name, commonest.rows) == ("the commonest label", 50)
    assert (commonest.value, commonest.count) == (0.6, 10)
    shares = {"a": 31 / 53, "b": 21 / 53}
    assert commonest.loss == pytest.approx(-(6 * math.log(shares["a"]) + 4 * math.log(shares["b"])) / 10)


def test_words_tell_the_classes_apart_where_scikit_learn_is_installed() -> None:
    pytest.importorskip("sklearn")
    _, words = baselines.measured(TASK, TRAIN, TEST)
    assert words.value == 1.0
    assert words.loss < 0.3
    assert baselines_in_words((words, words))[0].startswith("TF-IDF with logistic regression of 50 training")


def test_without_it_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "is_installed", lambda: False)
    found = baselines.measured(TASK, TRAIN, TEST)
    assert len(found) == 1
    assert "pip install 'sfnode[compare]'" in baselines_in_words(found)[1]


@pytest.mark.parametrize("words", ["...", ""], ids=["no word", "none at all"])
def test_texts_without_a_word_are_no_trouble(words: str) -> None:
    pytest.importorskip("sklearn")
    train = [{"text": words, "label": "ab"[n % 2]} for n in range(10)]
    assert [one.value for one in baselines.measured(TASK, train, train)] == [0.5, 0.5]


def test_rows_of_one_class_have_no_words_that_tell_classes_apart() -> None:
    assert len(baselines.measured(TASK, TRAIN[:30], TEST)) == 1


def test_the_metric_is_the_tasks() -> None:
    found = baselines.measured(TASK.model_copy(update={"metric": "f1"}), TRAIN, TEST)
    assert {one.metric for one in found} == {"f1"}


def test_a_task_without_labels_has_none() -> None:
    text = Task(kind="text", template="{text}")
    assert baselines.measured(text, TRAIN, TEST) == ()
    assert baselines.measured(TASK, [], TEST) == ()
