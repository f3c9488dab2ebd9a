"""Tests of presets, with those of MeZO's words in `test_mezo_tasks`: prompts to the character, and whole runs
of the embedded ones."""

from __future__ import annotations

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import Task
from sfnode.models import loader
from sfnode.tasks.presets import PRESETS, of_model, preset, task_of
from sfnode.tasks.prompts import LabelledTexts, Prompt, problem, render_row
from sfnode.tasks.templates import join
from sfnode.tasks.verifying import score_of
from tests.tasks.test_mezo_tasks import EXAMPLES

PASSAGE = {
    "premise": "It rains.",
    "hypothesis": "It is wet.",
    "paragraph": "It rains.",
    "passage": "It rains.",
}
SENTENCES = {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "sentence": "a fine film "}
LABELLED = {
    **PASSAGE,
    **SENTENCES,
    "question": "is it wet",
    "answer": "Yes, wet",
    "label": 1,
    "text": "fine .",
}

WORDED = {
    "reviews": ["fine . it was bad", "fine . it was good"],
    "agnews": [f"fine . It was {answer}" for answer in ("world", "game", "company", "computer")],
}


REWARDED = {
    "countdown": ({"nums": [44, 19, 35], "target": 98}, "using the numbers [44, 19, 35]", "<think>x</think>"),
    "gsm8k": (
        {"question": "How many?", "answer": "48 + 24\n#### 72"},
        "how many?\nsolution:",
        "It is\n#### 72",
    ),
    "extract": (
        {"text": "Two vases for Nora", "json": '{"name": "Nora", "count": 2}'},
        '"thursday"}\n\ntwo vases for nora\n',
        '{"name": "Nora", "count": 2}',
    ),
    "sums": ({"sum": "23+48", "answer": "71"}, "23+48=", "71"),
    "json": (
        {"text": "Ann, 7", "json": '{"name": "Ann", "age": 7}'},
        "ann, 7\n\n",
        '{"name": "Ann", "age": 7}',
    ),
}
"""For each preset a row, a part of its prompt in lower case, and an answer with a reward."""


@pytest.mark.parametrize("name", REWARDED)
def test_a_preset_with_rewards_asks_for_what_its_verifier_looks_for(name: str) -> None:
    task = preset(name).task
    row, asked, answer = REWARDED[name]
    assert problem(task, row) is None
    words = render_row(task, row)
    assert isinstance(words, Prompt)
    assert (asked in words.prompt.lower(), words.answers) == (True, ())
    score = score_of(task)
    right = f"{answer} <answer>44 + 19 + 35</answer>" if name == "countdown" else answer
    assert (score(right, row), score("no idea", row)) == (pytest.approx(1.0), 0.0)
    assert not any(stop in right for stop in task.stop)


@pytest.mark.parametrize("name", REWARDED)
def test_a_preset_with_rewards_is_a_task_as_it_is(name: str) -> None:
    """The task was made without validation."""
    task = preset(name).task
    assert Task(**task.model_dump()) == task


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - REWARDED.keys() - EXAMPLES.keys()))
def test_a_preset_words_a_row_as_published(name: str) -> None:
    task = preset(name).task
    assert problem(task, LABELLED) is None
    words = render_row(task, LABELLED)
    assert isinstance(words, Prompt)
    assert [join(words.prompt, answer) for answer in words.answers] == WORDED[name]
    assert words.right == (1,)


BARE = {
    "reviews": ("fine .",),
    "sst2": ("a fine film",),
    "rte": ("It rains.", "It is wet."),
    "boolq": ("Is it wet?", "It rains."),
    "wic": ("bank: A bank.", "The bank."),
    "multirc": ("is it wet Yes, wet", "It rains."),
    "agnews": ("fine .",),
}


@pytest.mark.parametrize("name", BARE)
def test_a_model_with_a_classification_head_reads_the_bare_texts(name: str) -> None:
    found = preset(name)
    task = task_of(found, headed=True)
    assert problem(task, LABELLED) is None
    assert render_row(task, LABELLED) == LabelledTexts(BARE[name], len(found.task.verbalizer), 1)
    assert (task.verbalizer, task.max_tokens) == (found.task.verbalizer, found.task.max_tokens)
    assert task_of(found, headed=False) == found.task


def test_a_task_without_classes_is_none_for_such_a_model() -> None:
    with pytest.raises(UserError, match="answers are no fixed classes") as caught:
        task_of(preset("record"), headed=True)
    assert caught.value.fix.endswith(f"one of {', '.join(BARE)}.")


def test_a_preset_is_found_whatever_the_case_and_missed_with_a_list() -> None:
    assert preset("SST2") == preset("sst2")
    known = "reviews, sums, extract, sst2, rte, boolq, wic, multirc, record, ag"
    with pytest.raises(UserError, match=known) as caught:
        preset("imdb")
    assert caught.value.code == Code.BAD_OPTION


@pytest.mark.parametrize("name", ["reviews", "sums"])
def test_an_embedded_model_and_its_task_are_a_whole_run(name: str) -> None:
    found = preset(name)
    training = found.training
    assert training is not None
    assert of_model(found.model) == name
    run = Manifest(
        model=loader.describe(found.model, ""), task=found.task, data=found.data, training=training
    )
    assert Manifest.from_canonical(run.canonical(), "itself") == run
    assert of_model("opt-125m") is None
