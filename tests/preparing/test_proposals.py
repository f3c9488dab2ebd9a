"""What a table suggests is to be learnt from it, by rules that anybody can follow: a table of cases."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.preparing.proposals import FITTING, NOTHING, estimator, joins, propose
from sfnode.preparing.table_contents import DataTable, read_table
from sfnode.tasks import dataset
from sfnode.tasks.templates import ASKING
from tests.refusals import refused

Rows = list[dict[str, Any]]

BODIES = [f"My parcel number {n} has not arrived so far" for n in range(40)]
"""Texts that are all different."""

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def table(rows: Rows) -> DataTable:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        return read_table(str(file))


def rows(**columns: Any) -> Rows:
    """Forty rows; the values of a column come by turns."""
    return [{name: values[n % len(values)] for name, values in columns.items()} for n in range(40)]


CASES: dict[str, tuple[Rows, str, str, str, tuple[str, ...]]] = {
    "text and label": (
        rows(text=BODIES, label=["1", "0"]),
        *("sequence-classification", "label", "{text}", ("0", "1")),
    ),
    "numbers of classes": (
        rows(text=BODIES, label=[1, 0]),
        *("sequence-classification", "label", "{text}", ("0", "1")),
    ),
    "stars": (
        rows(review=BODIES, rating=[1, 2, 3, 4, 5]),
        *("sequence-classification", "rating", "{review}", tuple("12345")),
    ),
    "true or false": (
        rows(text=BODIES, spam=[True, False]),
        *("sequence-classification", "spam", "{text}", ("false", "true")),
    ),
    "words, and another column like a label": (
        rows(id=list(range(40)), category=["b", "a"], text=BODIES, channel=["mail", "phone"]),
        *("sequence-classification", "category", "{text}", ("a", "b")),
    ),
    "no name: the last one": (
        rows(shop=["x", "y"], text=BODIES, mood=["sad", "glad"], when=BODIES),
        *("sequence-classification", "mood", "{text}\n{when}", ("glad", "sad")),
    ),
    "German": (
        rows(Betreff=BODIES, Nachricht=BODIES[::-1], Kategorie=["Technik", "Rechnung"], Kanal=["A", "B"]),
        *("sequence-classification", "Kategorie", "{Betreff}\n{Nachricht}", ("Rechnung", "Technik")),
    ),
    "French": (
        rows(texte=BODIES, Catégorie=["livré", "perdu"], ville=["Lyon", "Metz"]),
        *("sequence-classification", "Catégorie", "{texte}", ("livré", "perdu")),
    ),
    "a name of several words": (
        rows(ticketText=BODIES, ticket_category=["a", "b"], queue=["q", "r", "s"]),
        *("sequence-classification", "ticket_category", "{ticketText}", ("a", "b")),
    ),
    "gaps": (
        rows(text=BODIES, note=["", "seen"], label=["a", "b", "a", "b", "a", "b", "a", ""]),
        *("sequence-classification", "label", "{text}", ("a", "b")),
    ),
    "a text of one word": (
        rows(word=[f"w{n}" for n in range(40)], label=["a", "b"]),
        *("sequence-classification", "label", "{word}", ("a", "b")),
    ),
    **{
        f"choices, by {labels}": (
            rows(question=BODIES, A=BODIES, B=BODIES[1:], C=BODIES[2:], answer=list(labels)),
            *("classification", "answer", "{question}\nA. {A}\nB. {B}\nC. {C}\nAnswer:", tuple(naming)),
        )
        for labels, naming in (("ABC", "ABC"), ("ab", "abc"), ("012", "012"), ("123", "123"))
    },
    "choices with longer names": (
        rows(question=BODIES, option_a=BODIES, option_b=BODIES[1:], correct=["option_a", "option_b"]),
        *("classification", "correct", "{question}\nA. {option_a}\nB. {option_b}\nAnswer:"),
        ("option_a", "option_b"),
    ),
    "choices in a list": (
        rows(question=BODIES, choices=[["3", "4"]], answer=["3", "4"]),
        *("choice", "answer", "{question}", ()),
    ),
    "free answers": (
        rows(question=BODIES, answer=BODIES[::-1]),
        *("completion", "answer", "{question}\nAnswer:", ()),
    ),
    "instructions": (
        rows(instruction=BODIES, input=BODIES[5:], output=BODIES[::-1]),
        *("completion", "output", "{instruction}\n{input}\nAnswer:", ()),
    ),
    "German answers": (
        rows(Frage=BODIES, Antwort=BODIES[::-1], Punkte=list(range(7, 40))),
        *("completion", "Antwort", "{Frage}\nAnswer:", ()),
    ),
    "chat": (rows(id=[1, 2], talk=[CHAT]), *("chat", "talk", "", ())),
    "preferences": (
        rows(prompt=BODIES, chosen=BODIES[::-1], rejected=BODIES[1:]),
        *("completion", "chosen", "{prompt}\nAnswer:", ()),
    ),
    "equal values in different dress": (
        rows(text=BODIES, label=[1, "1", 1.0, "1.0", 0, "0", " 0 ", 0.0]),
        *("sequence-classification", "label", "{text}", ("0", "1")),
    ),
    "numbers of twenty classes": (
        [{"text": f"{BODIES[n % 40]} {n}", "label": n % 20} for n in range(400)],
        *("sequence-classification", "label", "{text}", tuple(sorted(map(str, range(20))))),
    ),
    "more free answers than a look can count": (
        [{"question": f"What is item {n}?", "answer": f"The reply {n}"} for n in range(2_100)],
        *("completion", "answer", "{question}\nAnswer:", ()),
    ),
    "addresses beside short texts": (
        rows(url=[f"https://example.org/a/very/long/{n}" for n in range(40)], word=["so", "no"], label="ab"),
        *("sequence-classification", "label", "{word}", ("a", "b")),
    ),
    "text alone": (rows(text=BODIES), *("text", NOTHING, "{text}", ())),
    "text and numbers of rows": (rows(id=list(range(40)), text=BODIES), *("text", NOTHING, "{text}", ())),
}


@pytest.mark.parametrize("name", CASES)
def test_a_table_suggests_a_task(name: str) -> None:
    given, kind, right, template, labels = CASES[name]
    found = propose(table(given))
    template += ASKING if kind == "sequence-classification" else ""
    assert (found.task.kind, found.right, found.task.template) == (kind, right, template)
    assert tuple(found.task.verbalizer) == labels
    assert found.doubt == ""


def test_letters_stand_for_choices_whatever_the_labels_are_called() -> None:
    given = rows(question=BODIES, A=BODIES, B=BODIES[1:], answer=["0", "1"])
    assert propose(table(given)).task.verbalizer == {"0": "A", "1": "B"}


def test_pairs_of_sentences_are_no_choices() -> None:
    given = rows(sentence1=BODIES, sentence2=BODIES[1:], label=["0", "1"])
    assert propose(table(given)).task.template == "{sentence1}\n{sentence2}" + ASKING


REFUSED: dict[str, tuple[Rows, str, str]] = {
    "a score": (
        rows(text=BODIES, score=[n / 7 for n in range(30)]),
        *("", "'score' of {} cannot say what is right: it holds 30 different numbers, and sfnode learns "),
    ),
    "a score with commas": (
        rows(text=BODIES, Note=["1,3", "2,7", "3,0"]),
        *("", "it holds 3 different numbers, and sfnode learns classes, not numbers (no regression)"),
    ),
    "a score that is named": (
        rows(text=BODIES, shop=["x", "y"], rating=list(range(11))),
        *("rating", "it holds 11 different numbers"),
    ),
    "one class": (rows(text=BODIES, label=["ham"]), *("", "it is the same in all rows: 'ham'")),
    "too many classes": (
        [{"text": f"{BODIES[n % 40]} {n}", "label": f"c{n % 500}"} for n in range(2_000)],
        *("", "it has 500 different values, and a run has 100 classes at most: join rare ones"),
    ),
    "classes that are texts": (
        rows(text=BODIES, topic=BODIES[::-1]),
        *("", "40 of its 40 values are different, so they are no classes"),
    ),
    "several labels a row": (
        rows(text=BODIES, labels=[["a", "b"], ["b"]], lang=["de", "en"]),
        *("", "lists"),
    ),
    "several labels in a text": (
        rows(text=BODIES, label=["a", "b", "a;b"]),
        *("", "it has several labels in a row, such as 'a;b'"),
    ),
    "true and 1": (rows(text=BODIES, label=[True, 1, False, 0]), *("", "holds both 'true' and '1'")),
    "a list that is called so": (
        rows(ctx=BODIES, endings=[["x", "y"]], label=["7", "8"]),
        *("", "it names nothing in the lists of 'endings'"),
    ),
    "objects": (rows(question=BODIES, answers=[{"text": ["x"]}]), *("", "it holds objects")),
    "no such column": (rows(text=BODIES, label=["a", "b"]), *("labels", "has no column 'labels'")),
    "numbers alone": (rows(a=[1, 2, 3], b=[0, 1]), *("", "has no column with texts to read")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_reason(name: str) -> None:
    given, right, says = REFUSED[name]
    found = table(given)
    with refused(Code.DATA_MALFORMED, says.format(found.source)):
        propose(found, right)


def test_an_owner_may_know_better() -> None:
    given = table(rows(subject=BODIES[::-1], body=BODIES, category=["a", "b"], channel=["mail", "phone"]))
    assert propose(given).others == ("channel",)
    found = propose(given, "channel", ("body",), "words")
    assert (found.task.kind, found.task.template) == ("classification", "{body}\nchannel:")
    assert (found.task.label_field, found.others) == ("channel", ("category",))
    assert propose(given, NOTHING).task.kind == "text"


DOUBTFUL: dict[str, tuple[Rows, str]] = {
    "two names": (
        rows(text=BODIES, sentiment=["p", "n"], topic=["x", "y", "z"]),
        "topic and sentiment may say",
    ),
    "no name for two": (rows(text=BODIES, joy=[0, 1], fear=[0, 0, 1]), "fear and joy may say"),
    "a language": (rows(text=BODIES, lang=["de", "en"]), "nothing but lang could say"),
    "something unread": (rows(source_text=BODIES, other=BODIES[1:]), "other would be left unread"),
    "an unknown form of conversation": (
        rows(id=["a1"], talk=[[{"who": "me", "says": "hi"}]]),
        "unread: talk",
    ),
    "choices in objects": (
        rows(question=BODIES, choices=[{"text": ["x", "y"]}], answerKey=["A", "B"]),
        "unread: choices",
    ),
    "words": (rows(word=[f"w{n}x" for n in range(40)]), "has no sentences to learn"),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_nobody_would_confirm_at_a_glance_has_a_doubt(name: str) -> None:
    given, says = DOUBTFUL[name]
    assert says in propose(table(given)).doubt


def test_two_columns_that_say_the_same_are_no_doubt() -> None:
    assert propose(table(rows(text=BODIES, label=[0, 1], label_text=["bad", "good"]))).doubt == ""


@pytest.mark.parametrize(
    ("values", "joined"),
    [
        ({"Billing": 80, "billing": 3, "BILLING ": 1}, {"billing": "Billing", "BILLING ": "Billing"}),
        ({"Billing": 80, "Biling": 1, "Bililng": 2}, {"Biling": "Billing", "Bililng": "Billing"}),
        ({"Class A": 80, "Class B": 1}, {}),
        ({"typical": 80, "atypical": 2}, {}),
        ({"Billing": 80, "Biling": 40}, {}),
        ({"Model 10": 80, "Model 11": 1}, {}),
        ({"male": 80, "mael": 1}, {}),
    ],
)
def test_labels_are_joined_that_differ_in_dress_or_by_a_typing_error(
    values: dict[str, int], joined: dict[str, str]
) -> None:
    assert joins(Counter(values)) == joined


CELL = st.one_of(st.sampled_from(["", "high", "low", "a=b", "a,b", "A", "B", " "]), st.text(max_size=9))

VALUE = st.one_of(CELL, st.integers(-2, 3), st.booleans(), st.floats(), st.none(), st.lists(CELL, max_size=3))

TABLE = st.lists(
    st.sampled_from(["label", "text", "A", "B", "choices", "{", "messages", ""]), unique=True, min_size=1
).flatmap(lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUE)), min_size=1, max_size=5))


@given(TABLE)
def test_whatever_a_table_holds_there_is_a_task_that_rows_fit_or_a_numbered_error(given: Rows) -> None:
    found = table(given)
    try:
        task = propose(found).task
    except UserError:
        return
    fitting, bad = dataset.sift(found.source, found.placed, task)
    assert len(fitting) + bad.count == len(given)
    assert task.kind != "choice" or len(fitting) >= FITTING * len(given)


LABELS = Task(kind="classification", template="{text}", verbalizer={"a": "A", "b": "B"})
REWARDS = Task(
    kind="reward",
    template="{text}",
    verifier={"kind": "exact", "column": "answer"},
    answer_tokens=8,
    max_tokens=64,
    temperature=1.0,
)


HEADED = LABELS.model_copy(update={"kind": "sequence-classification"})


@pytest.mark.parametrize(
    "task",
    [
        HEADED,
        LABELS,
        Task(kind="text", template="{text}"),
        Task(kind="completion", template="{text}", completion="{answer}"),
        Task(kind="chat"),
    ],
    ids=["head", "words", "text", "completion", "chat"],
)
def test_tasks_with_right_answers_are_learnt_by_gradients(task: Task) -> None:
    assert estimator(task, "rows.csv", True, {"measure": True, "dtype": "int8"}) == "first-order"
    assert estimator(task, "hf:owner/name:train", True, {}) == "first-order"


@pytest.mark.parametrize(
    ("train", "organised", "said"),
    [
        ("rows.csv", False, {}),
        ("", True, {}),
        ("builtin:reviews:train", True, {}),
        ("rows.csv", True, {"measure": False}),
        ("rows.csv", True, {"epsilon": 1e-3}),
        ("rows.csv", True, {"group": 8}),
        ("rows.csv", True, {"made_of": "errors"}),
        ("rows.csv", True, {"loss": "centred"}),
    ],
    ids=["open", "no rows", "demo", "unmeasured", "epsilon", "groups", "errors", "centred"],
)
def test_what_cannot_be_or_asks_for_forward_passes_is_learnt_by_these(
    train: str, organised: bool, said: dict[str, Any]
) -> None:
    assert estimator(HEADED, train, organised, said) == "zeroth-order"


def test_rewards_are_learnt_by_gradients_of_the_answers_also_in_demonstrations() -> None:
    for train in ("rows.csv", "builtin:sums:train"):
        assert estimator(REWARDS, train, True, {}) == "first-order"
    assert estimator(REWARDS, "rows.csv", False, {}) == "zeroth-order"
