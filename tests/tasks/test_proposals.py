"""Training data without a task: the error says what the file has, and what could be learnt from it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfnode.cli.init import init
from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.tasks import prompts
from sfnode.tasks.proposals import MOST_LABELS, task_needed

CHAT = {"talk": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


def write(rows: list[dict[str, object]], folder: Path) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.mark.parametrize(
    ("rows", "columns", "proposed"),
    [
        (
            [{"sentence": "a fine film", "label": n} for n in (1, 0)],
            "sentence, label",
            "Ready-made tasks that fit: sst2 (--task NAME). Describe one (docs/tasks.md), for instance: "
            "--kind classification "
            "--template '{sentence} It was' --label-field label --verbalizer 0=WORD0,1=WORD1",
        ),
        (
            [{"id": str(n), "kind": "ab"[n % 2], "body": "some text"} for n in range(MOST_LABELS + 1)],
            "id, kind, body",
            "--template '{body} It was' --label-field kind --verbalizer a=a,b=b. It reads nothing of id",
        ),
        (
            [{"text": "a fine film", "flag": ["", "high"][n % 2], "rating": "xyz"[n % 3]} for n in range(6)],
            "text, flag, rating",
            "--label-field rating --verbalizer x=x,y=y,z=z. It reads nothing of flag",
        ),
        (
            [{"text": "a fine film", "flag": ["", "high"][n % 2]} for n in range(6)],
            "text, flag",
            "--kind text --template '{text}'. It reads nothing of flag",
        ),
        (
            [{"text": "a fine film", "score": str(n / 7)} for n in range(MOST_LABELS + 1)],
            "text, score",
            "--kind text --template '{text}'. It reads nothing of score; numbers are learnt where they are "
            "few classes, such as low and high",
        ),
        (
            [{"question": "What is 2+2?", "choices": ["3", "4"], "answer": right} for right in (1, 0)],
            "question, choices, answer",
            "which has the columns question, choices, answer. Describe one (docs/tasks.md), for instance: "
            "--kind choice --template '{question}' --completion '{candidate}' --candidates-field choices "
            "--label-field answer",
        ),
        (
            [{"question": "What is 2+2?", "choices": ["3", "4"], "answer": right} for right in "AB"],
            "question, choices, answer",
            "--label-field answer --verbalizer A=A,B=B. It reads nothing of choices; lists are candidates of "
            "a choice where a label is the right one's text or number from 0",
        ),
        *(
            (
                [{"question": "Which?", "A": "3", "B": "a long answer", "answer": right} for right in labels],
                "question, A, B, answer",
                "which has the columns question, A, B, answer. Describe one (docs/tasks.md), for instance: "
                "--kind classification --template '{question} A. {A} B. {B} Answer:' --label-field answer "
                f"--verbalizer {labels[0]}=A,{labels[1]}=B",
            )
            for labels in ("AB", "01", "12")
        ),
        ([{"text": "once"}, {"text": "upon"}], "text", "--kind text --template '{text}'"),
        ([{"$(id)'": "once"}], "$(id)'", """--kind text --template '{$(id)'"'"'}'"""),
        ([CHAT], "talk", "--kind chat --messages-field talk"),
        ([{"number": 1}], "number", "Describe one (docs/tasks.md) with --kind and --template"),
    ],
    ids=[
        *("sst2", "classes", "gaps", "gaps alone", "scores", "choice", "choice by letters"),
        *("letters", "numbers of letters", "numbers from 1", "text", "a command", "chat", "nothing"),
    ],
)
def test_what_the_columns_suggest_is_proposed(
    rows: list[dict[str, object]], columns: str, proposed: str, tmp_path: Path
) -> None:
    error = task_needed(write(rows, tmp_path))
    assert error.code is Code.BAD_OPTION
    assert error.what.endswith(f", which has the columns {columns}")
    assert f"{error.what}. {error.fix}".endswith(proposed)


CELL = st.one_of(st.sampled_from(["", "high", "low", "a=b", "a,b", "A", "B", " "]), st.text(max_size=9))

VALUE = st.one_of(CELL, st.integers(-2, 3), st.booleans(), st.floats(), st.none(), st.lists(CELL, max_size=3))

TABLE = st.lists(
    st.sampled_from(["label", "text", "A", "B", "choices", "{", "messages", ""]), unique=True, min_size=1
).flatmap(lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUE)), min_size=1, max_size=5))


@given(TABLE)
@example([{"text": "a fine film", "label": label} for label in ("", "high")])
@example([{"text": "a fine film", "label": label} for label in (0, 1)])
def test_init_takes_every_proposal_as_it_is_and_every_row_fits_it(rows: list[dict[str, object]]) -> None:
    with TemporaryDirectory() as folder:
        error = task_needed(write(rows, Path(folder)))
    _, found, options = error.fix.partition("for instance: ")
    if not found:
        return
    words = shlex.split(options.partition(". It reads nothing of ")[0])
    context = init.make_context("init", words)
    given = {name: value for name, value in context.params.items() if value is not None}
    task = Task(**{name: value for name, value in given.items() if name in Task.model_fields})
    assert [prompts.problem(task, row) for row in rows] == [None] * len(rows)


def test_data_on_the_hub_are_not_fetched_for_it() -> None:
    assert task_needed("hf:nobody/set:train").what.endswith("learnt from hf:nobody/set:train")
