"""A row becomes a prompt and its answers, or it is said what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.tasks import templates
from sfnode.tasks.prompts import (
    Conversation,
    LabelledTexts,
    Message,
    Prompt,
    class_of,
    example,
    fields,
    problem,
    render_row,
)
from sfnode.tasks.verifying import score_of
from tests.refusals import refused

LABELLED = Task(kind="classification", template="{a} or {b}?", verbalizer={"0": "no", "true": "yes"})
CLOZE = Task(
    kind="choice",
    template="{text}\n-",
    completion="{query|cloze}",
    candidates_field="who",
    label_field="answers",
)
CLOZE_ROW = {"text": "A story.", "query": "@placeholder won", "who": ["Ann", "Bo"], "answers": ["Bo", "Ann"]}
STORY = Task(kind="completion", template="Q: {q}\nA:", completion="{a}")
TEXT = Task(kind="text", template="{text}")
PAIR = Task(
    kind="sequence-classification",
    template="{a}: {{{separator}{b}",
    verbalizer={"no": "apart", "yes": "alike"},
)
CHAT = Task(kind="chat", messages_field="talk")
TALK = [{"role": "user", "content": "why", "name": "Ann"}, {"role": "assistant", "content": "so"}]


@given(st.text())
def test_what_a_row_says_is_never_read_as_a_template(words: str) -> None:
    assert templates.render("<{text}>", {"text": words}) == f"<{words}>"
    assert templates.render("{{{text}}}", {"text": words}) == f"{{{words}}}"


def test_filters_word_a_field_as_mezo_does() -> None:
    row = {
        "q": "is it so",
        "x": "  spaced ",
        "p": "a\n@highlight\nb",
        "candidate": "Ann",
        "c": "@placeholder!",
    }
    assert (
        templates.render("{q|question} {x|strip} {p|bullets} {c|cloze}", row)
        == "Is it so? spaced a\n- b Ann!"
    )
    assert templates.render("{q|question}", {"q": "Why?"}) == "Why?"
    assert templates.render("{q|question}", {"q": ""}) == "?"


@pytest.mark.parametrize("bad", ["{", "{}", "{a|shout}", "{a!r}", "{a:>9}", "}", "no field", "{|strip}"])
def test_a_template_that_cannot_be_read_is_a_bad_manifest(bad: str) -> None:
    with refused(Code.BAD_MANIFEST):
        templates.render(bad, {"a": "1"})


def test_a_space_sets_the_answer_off_unless_there_is_white_space_already() -> None:
    assert templates.join("It was", "great") == "It was great"
    assert templates.join("Yes or No?\n", "Yes") == "Yes or No?\nYes"
    assert templates.join("It was", " great") == "It was great"
    assert templates.join("", "great") == "great"


def test_each_kind_of_task_words_its_answers() -> None:
    assert render_row(LABELLED, {"a": "x", "b": "y", "label": True}) == Prompt("x or y?", ("no", "yes"), (1,))
    assert render_row(CLOZE, CLOZE_ROW) == Prompt("A story.\n-", ("Ann won", "Bo won"), (1, 0))
    assert render_row(STORY, {"q": "why", "a": "so"}) == Prompt("Q: why\nA:", ("so",), (0,))
    assert render_row(TEXT, {"text": "once"}) == Prompt("", ("once",), (0,))
    assert render_row(PAIR, {"a": "x", "b": "y", "label": "yes"}) == LabelledTexts(("x: {", "y"), 2, 1)
    found = render_row(CHAT, {"talk": TALK})
    assert found == Conversation((Message("user", "why"), Message("assistant", "so")))


@pytest.mark.parametrize(("given_label", "right"), [(1, (1,)), ("Ann", (0,)), (["Bo", "Cy"], (1,))])
def test_the_right_candidate_is_an_index_a_text_or_any_of_several(given_label: Any, right: Any) -> None:
    words = render_row(CLOZE, {**CLOZE_ROW, "answers": given_label})
    assert isinstance(words, Prompt)
    assert words.right == right


def test_a_task_needs_the_fields_that_it_names() -> None:
    assert fields(LABELLED) == ("a", "b", "label")
    assert fields(CLOZE) == ("text", "query", "answers", "who")
    assert fields(STORY) == ("q", "a")
    assert fields(TEXT) == ("text",)
    assert fields(PAIR) == ("a", "b", "label")
    assert fields(CHAT) == ("talk",)


@pytest.mark.parametrize(
    "task",
    [
        TEXT.model_copy(update={"template": "{{text}}"}),
        LABELLED.model_copy(update={"template": "yes or no?"}),
        PAIR.model_copy(update={"template": "this{separator}that"}),
        STORY.model_copy(update={"completion": "so"}),
        CLOZE.model_copy(update={"template": "A story."}),
        CLOZE.model_copy(update={"completion": "{text}"}),
    ],
    ids=lambda task: f"{task.kind}-{task.completion}",
)
def test_a_template_that_is_the_same_text_for_all_rows_is_refused(task: Task) -> None:
    with refused(Code.BAD_MANIFEST, "the same text"):
        fields(task)


@pytest.mark.parametrize("template", ["{candidate}", "{text|cloze}"])
def test_only_a_choice_adds_a_candidate_to_its_rows(template: str) -> None:
    task = TEXT.model_copy(update={"template": template})
    assert problem(task, {"text": "x"}) == "no 'candidate'; the row has 'text'"
    assert problem(task, {"text": "@placeholder", "candidate": "x"}) is None


SUM = {
    "kind": "sum",
    "terms": [
        {"weight": 0.5, "verifier": {"kind": "numeric", "column": "n"}},
        {"weight": 0.5, "verifier": {"kind": "exact", "column": "a"}},
    ],
}
REWARD = Task(kind="reward", template="{q}", verifier=SUM, answer_tokens=8)
COMPLAINTS = [
    (LABELLED, {"a": "x", "label": "0"}, "no 'b'; the row has 'a', 'label'"),
    (LABELLED, {"a": "x", "b": "y", "label": "2"}, "the label '2' is none of the task's labels (0, true)"),
    (CLOZE, {**CLOZE_ROW, "who": "Ann"}, "'who' is not a list of texts"),
    (CLOZE, {**CLOZE_ROW, "who": ["Ann", ""]}, "'who' is not a list of texts"),
    (CLOZE, {**CLOZE_ROW, "answers": ["Cy"]}, "'answers' names none of the candidates"),
    (CLOZE, {**CLOZE_ROW, "answers": 2}, "'answers' names none of the candidates"),
    (CLOZE, {**CLOZE_ROW, "answers": 0.5}, "'answers' is neither a text, nor a list of texts, nor a number"),
    (CLOZE, {**CLOZE_ROW, "answers": True}, "'answers' is neither a text, nor a list of texts, nor a number"),
    (CLOZE, {**CLOZE_ROW, "answers": [1]}, "'answers' is neither a text, nor a list of texts, nor a number"),
    (CLOZE, {**CLOZE_ROW, "answers": ""}, "'answers' names none of the candidates"),
    (CLOZE, {**CLOZE_ROW, "text": " "}, "'text' is empty"),
    (STORY, {"q": "why", "a": " "}, "'a' is empty"),
    (STORY, {"q": " ", "a": "so"}, "'q' is empty"),
    (TEXT, {"text": "\n"}, "'text' is empty"),
    (LABELLED, {"a": " ", "b": "", "label": "0"}, "'a', 'b' are empty"),
    (LABELLED, {"a": "x", "b": "y", "label": " "}, "'label' is empty"),
    (
        LABELLED,
        {"a": "x", "b": "y", "label": ["0"]},
        "'label' is a list, where a text, a number or a boolean is wanted",
    ),
    (PAIR, {"a": "", "b": " ", "label": "no"}, "'a', 'b' are empty"),
    (TEXT, {}, "no 'text'; the row has nothing"),
    (PAIR, {"a": "x", "b": "y", "label": 1}, "the label '1' is none of the task's labels (no, yes)"),
    (PAIR, {"a": "x", "label": "no"}, "no 'b'; the row has 'a', 'label'"),
    (REWARD, {"q": "why", "a": "x"}, "no 'n'; the row has 'q', 'a'"),
    (REWARD, {"q": "why", "a": "x", "n": "many"}, "'n' has no number"),
    (REWARD, {"q": " ", "a": "x", "n": 1}, "'q' is empty"),
    (CHAT, {"talk": [TALK[0] | {"content": " "}, TALK[1]]}, "there is no text to answer"),
    (CHAT, {"talk": "why"}, "'talk' is not a list of messages"),
]


@pytest.mark.parametrize(("task", "row", "said"), COMPLAINTS)
def test_a_row_that_cannot_serve_is_complained_about(task: Task, row: dict[str, Any], said: str) -> None:
    assert problem(task, row) == said


@pytest.mark.parametrize("task", [LABELLED, CLOZE, STORY, TEXT, CHAT, REWARD])
def test_a_row_that_can_serve_is_not(task: Task) -> None:
    row = {"a": "x", "b": "y", "label": 0, "q": "why", "talk": TALK, "n": "1 in 3", **CLOZE_ROW}
    assert problem(task, row) is None


def test_some_of_the_fields_of_a_prompt_may_be_empty() -> None:
    """As the inputs of most instructions are, and what the system says in many conversations."""
    assert problem(LABELLED, {"a": "x", "b": "", "label": 0}) is None
    assert problem(CHAT, {"talk": [{"role": "system", "content": ""}, *TALK]}) is None


ONE, TWO = "caf\u00e9", "cafe\u0301"
"""The same word in Unicode's two normalisation forms."""


@pytest.mark.parametrize(("known", "given_label"), [(ONE, TWO), (TWO, ONE)])
def test_a_label_is_the_same_in_either_normalisation_form(known: str, given_label: str) -> None:
    task = LABELLED.model_copy(update={"verbalizer": {"bar": "no", known: "yes"}})
    row = {"a": "x", "b": "y", "label": f" {given_label}\n"}
    assert problem(task, row) is None
    assert class_of(task, row) == 1
    choice = {**CLOZE_ROW, "who": ["bar", known], "answers": [given_label]}
    assert problem(CLOZE, choice) is None
    words = render_row(CLOZE, choice)
    assert isinstance(words, Prompt)
    assert words.right == (1,)


def test_a_candidate_that_is_equal_goes_before_one_in_another_form() -> None:
    words = render_row(CLOZE, {**CLOZE_ROW, "who": [ONE, TWO, "bar"], "answers": [TWO, "bar"]})
    assert isinstance(words, Prompt)
    assert words.right == (1, 2)


def test_a_row_whose_answers_are_rewarded_has_what_template_and_verifier_read() -> None:
    assert fields(REWARD) == ("q", "n", "a")
    assert problem(REWARD, example(REWARD)) is None
    assert render_row(REWARD, {"q": "why", "a": "x", "n": 1}) == Prompt("why", (), ())


def test_the_reward_of_an_answer_follows_from_verifier_and_row() -> None:
    score = score_of(REWARD)
    assert [score(answer, {"a": "7", "n": 7}) for answer in ("7", "I say 7", "8")] == [1.0, 0.5, 0.0]


def test_a_separator_parts_a_text_once_and_is_an_ordinary_field_elsewhere() -> None:
    assert templates.texts("{a}{separator}{b}", {"a": "{separator}", "b": "y"}) == ("{separator}", "y")
    assert templates.render("{a}{separator}", {"a": "x", "separator": "-"}) == "x-"
    with refused(Code.BAD_MANIFEST, "may occur in it once"):
        templates.texts("{a}{separator}{b}{separator}", {"a": "x", "b": "y"})


INCOMPLETE: list[dict[str, Any]] = [
    {"kind": "sequence-classification", "verbalizer": {"0": "no"}},
    {"kind": "text", "template": ""},
    {"kind": "text", "metric": "accuracy"},
    {"kind": "chat", "metric": "f1"},
    {"kind": "chat", "messages_field": ""},
    {"kind": "choice", "completion": "{candidate}", "candidates_field": "who", "metric": "f1"},
    {"kind": "classification", "verbalizer": {"0": "no"}},
    {"kind": "classification", "verbalizer": {"0": "no", "1": " no"}},
    {"kind": "classification", "verbalizer": {"caf\u00e9": "no", "cafe\u0301": "yes"}},
    {"kind": "classification", "verbalizer": {"0": "caf\u00e9", "1": "cafe\u0301"}},
    {"kind": "classification", "verbalizer": {"0": "no", "1": ""}},
    {"kind": "completion"},
    {"kind": "choice", "completion": "{candidate}"},
    {"kind": "choice", "candidates_field": "who"},
]


@pytest.mark.parametrize("task", INCOMPLETE)
def test_a_task_that_lacks_what_its_kind_needs_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Task(**{"template": "{a}"} | task)
