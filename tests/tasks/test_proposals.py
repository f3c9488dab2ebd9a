"""Training data without a task: the error says what the file has, and what could be learnt from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.errors import Code
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
            "--template '{sentence} It was' --label-field label --verbalizer 0=WORD,1=WORD",
        ),
        (
            [{"id": str(n), "kind": "ab"[n % 2], "body": "some text"} for n in range(MOST_LABELS + 1)],
            "id, kind, body",
            "--template '{body} It was' --label-field kind --verbalizer a=a,b=b",
        ),
        ([{"text": "once"}, {"text": "upon"}], "text", "--kind text --template '{text}'"),
        ([{"$(id)'": "once"}], "$(id)'", """--kind text --template '{$(id)'"'"'}'"""),
        ([CHAT], "talk", "--kind chat --messages-field talk"),
        ([{"number": 1}], "number", "Describe one (docs/tasks.md) with --kind and --template"),
    ],
    ids=["sst2", "classes", "text", "a command", "chat", "nothing"],
)
def test_what_the_columns_suggest_is_proposed(
    rows: list[dict[str, object]], columns: str, proposed: str, tmp_path: Path
) -> None:
    error = task_needed(write(rows, tmp_path))
    assert error.code is Code.BAD_OPTION
    assert error.what.endswith(f", which has the columns {columns}")
    assert error.fix.endswith(proposed)


def test_data_on_the_hub_are_not_fetched_for_it() -> None:
    assert task_needed("hf:nobody/set:train").what.endswith("learnt from hf:nobody/set:train")
