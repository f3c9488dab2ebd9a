"""Tests of `sfnode use`: the same answers from a node's folder, from an export, and with transformers
alone."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from sfnode.cli.use import in_words
from sfnode.engine.model_card import ASKED
from sfnode.engine.trainer import Trainer
from sfnode.engine.using import ModelInUse, of_trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.models import loader
from sfnode.models.targets import DEFAULT, Selection
from sfnode.preparing.manifest import build
from sfnode.tasks.prompts import questions
from tests.cli.helpers import Run
from tests.engine.helpers import HEADED_TASK, TASK, data_file, manifest, model_folder, trainer, updates
from tests.publish.test_words import check
from tests.store.folders import Folder, joined, organised

CENTRED = {"loss": "centred"}
TASKS: dict[str, tuple[str, Task]] = {
    "words": ("opt", TASK.model_copy(update=CENTRED)),
    "plain words": ("gpt2", TASK.model_copy(update={"template": "{sentence|strip} . It was "})),
    "head": ("opt", HEADED_TASK.model_copy(update=CENTRED)),
    "encoder": ("bert", HEADED_TASK),
    "pair": ("bert", HEADED_TASK.model_copy(update={"template": "{sentence}{separator}It is {sentence}"})),
    "choice": (
        "opt",
        Task(kind="choice", template="{text|question}", completion="{candidate} .", candidates_field="many"),
    ),
    "text": ("opt", Task(kind="text", template="the {text}")),
    "chat": ("opt", Task(kind="chat")),
    "reward": (
        "opt",
        Task(
            kind="reward", template="{text}`", verifier={"kind": "format", "contains": ["good"]},
            answer_tokens=9, stop=("film",),
        ),
    ),
}  # fmt: skip
"""Runs with every kind of answer, on tiny random models."""


CHAT = (
    "{{ bos_token }}{% for one in messages %}{{ one.content }} . {% endfor %}"
    "{% if add_generation_prompt %}It was{% endif %}"
)


@cache
def model_of(name: str) -> Path:
    """Return the model of a run; for a chat one with a chat template."""
    family, task = TASKS[name]
    if task.kind != "chat":
        return model_folder(family)
    folder = Path(shutil.copytree(model_folder(family), model_folder(family).parent / "chat"))
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


def run_of(name: str) -> Manifest:
    family, task = TASKS[name]
    labels = 2 if task.kind == "sequence-classification" else 0
    chosen = Selection(("score",)) if name == "head" else DEFAULT
    described = loader.describe(str(model_of(name)), "", chosen, labels)
    run = manifest("opt", learning_rate=1e-3)
    model = described.model_copy(update={"source": f"tiny/{family}"})
    return run.model_copy(update={"model": model, "task": task})


def said_of(model: Trainer) -> str:
    """Return the model's answer to the text in the lines of its card."""
    task = model.manifest.task
    row = dict.fromkeys(questions(task), ASKED) | {"many": ["an answer", "another"]}
    row |= {"messages": [{"role": "user", "content": ASKED}]}
    (answer,) = of_trainer(model).answers([row])
    return answer if isinstance(answer, str) else in_words(answer)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with an export of each run after some updates, and with the model's answer in a file.

    No path enters a run, so that its random directions are always the same. With some others both labels
    would move alike.
    """
    folder = tmp_path_factory.mktemp("exports")
    rows = data_file(folder)
    for name in TASKS:
        run = run_of(name)
        data = Data(train=rows.name) if run.task.loss == "centred" else Data()
        model, run = model_of(name), run.model_copy(update={"data": data})
        with contextlib.chdir(folder), trainer(run, model_override=model) as made:
            made.apply(updates(40))
            made.export(folder / name)
            (folder / name / "said").write_text(said_of(made))
    return folder


ALONE = """
import contextlib, io, json, os, re, sys
sys.modules["sfnode"] = sys.modules["sfprotocol"] = None  # not even by accident
said = {}
for folder in sys.argv[1:]:
    os.chdir(folder)
    lines = re.search("```python\\n(.*?)```", open("README.md").read(), re.DOTALL)[1]
    assert len(lines.splitlines()) <= 10, lines
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(lines, {})
    said[os.path.basename(folder)] = out.getvalue()
print(json.dumps(said))
"""


def test_the_ten_lines_of_a_card_say_without_sfnode_what_sfnode_use_says(exports: Path, sfnode: Run) -> None:
    folders = [str(exports / name) for name in TASKS]
    command = [sys.executable, "-I", "-c", ALONE, *folders]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said == {name: f"{(exports / name / 'said').read_text()}\n" for name in TASKS}
    for name in ("head", "words", "chat"):
        assert sfnode("use", "--from", exports / name, ASKED).out == said[name]
    for name, answers in (("head", {"negative", "positive"}), ("choice", {"an answer .", "another ."})):
        assert {line.split(" %  ")[1] for line in said[name].splitlines()} == answers


def test_what_a_model_says_depends_on_the_text(exports: Path, sfnode: Run) -> None:
    said = {sfnode("use", "--from", exports / "head", text).out for text in ("bad film", "good", "bright")}
    assert len(said) > 1
    shares = [float(share) for share in re.findall(r"([\d.]+) %", said.pop())]
    assert sum(shares) == pytest.approx(100)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a node of an organised run with updates that count."""
    with Folder(tmp_path / "node", organised(build({})), "ann", organises=True) as folder:
        folder.admit("ann")
        folder.make(30, iter([9, -7] * 15).__next__)
        folder.close()
        folder.seal()
        yield folder.path


def test_a_nodes_model_says_what_its_export_says(node: Path, sfnode: Run, tmp_path: Path) -> None:
    used = sfnode("use", "--data-dir", node, "the room was nice .")
    assert re.fullmatch(r"( *\d+\.\d %  (good|bad)\n){2}", used.out)
    check(f"{used.out} {used.err}")
    assert sfnode("export", "--out", tmp_path / "out", "--data-dir", node).status == 0
    assert sfnode("use", "--from", tmp_path / "out", "the room was nice .").out == used.out
    by_run = sfnode("use", "--run", node / "run.toml", "the room was nice .")
    assert "SF043: no folder of this machine has the run" in by_run.err


def test_rows_of_a_table_keep_their_columns(exports: Path, sfnode: Run, tmp_path: Path) -> None:
    """Labels in the table are kept. They need not be labels of the task."""
    rows = [("1", "good film", "?"), ("2", 'a "dull" story,\nslow', ""), ("3", "", "1")]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sentence", "label"), *rows])
    asked = ("use", "--from", exports / "words", "--file", "in.csv", "--out")
    sfnode(*asked, "out.csv").failed("SF031: in.csv, line 5: 'sentence' is empty")
    assert not Path("out.csv").exists()
    skipping = sfnode(*asked, "out.csv", "--skip-bad-rows")
    assert skipping.out == "wrote out.csv: 3 rows, 1 of them without an answer\n"
    with Path("out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [tuple(row.values())[:3] for row in found] == rows
    assert list(found[0]) == ["id", "sentence", "label", "predicted_label", "probability"]
    assert [row["predicted_label"] in ("terrible", "great .") for row in found] == [True, True, False]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found[:2])
    alone = sfnode("use", "--from", exports / "words", rows[0][1]).out.splitlines()[0].split(" %  ")
    assert alone[1] == found[0]["predicted_label"]
    assert float(alone[0]) == pytest.approx(100 * float(found[0]["probability"]), abs=0.06)


def test_texts_that_are_written_go_into_a_table_too(exports: Path, sfnode: Run) -> None:
    Path("in.jsonl").write_text('{"text": "film", "more": ["x"]}\n{"text": "story"}\n')
    asked = ("use", "--from", exports / "text", "--tokens", 3, "--file", "in.jsonl", "--out")
    assert [sfnode(*asked, out).status for out in ("out.jsonl", "out.csv")] == [0, 0]
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["answer"] + "\n" for row in found] == [
        sfnode("use", "--from", exports / "text", "--tokens", 3, text).out for text in ("film", "story")
    ]
    assert Path("out.csv").read_text().splitlines()[0] == "text,more,answer"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_is_written_as_the_one_that_was_read(
    mark: str, encoding: str, exports: Path, sfnode: Run
) -> None:
    """A spreadsheet program opens both tables in the same way."""
    with Path("in.csv").open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=mark).writerows([("id", "sentence"), ("1", f"good{mark} film")])
    assert sfnode("use", "--from", exports / "words", "--file", "in.csv", "--out", "out.csv").status == 0
    assert Path("out.csv").read_bytes().startswith(b"\xef\xbb\xbf") == (encoding == "utf-8-sig")
    with Path("out.csv").open(encoding=encoding, newline="") as file:
        header, row = csv.reader(file, delimiter=mark)
    assert header == ["id", "sentence", "label", "probability"]
    assert row[:2] == ["1", f"good{mark} film"]


def test_an_answer_is_no_formula_and_the_owners_columns_stay(
    exports: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [
        '=HYPERLINK("https://x.example")',
        *("+cmd", "-2+3", "@SUM(1)", "\t=1", "\r=1", "＝1", "-2.5", "a=1"),
    ]
    own = [f"{text}!" for text in said]
    monkeypatch.setattr(ModelInUse, "answers", lambda *_: iter(said))
    with Path("in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["=own", "text"], *([text, "film"] for text in own)])
    asked = ("use", "--from", exports / "text", "--file", "in.csv", "--out")
    assert [sfnode(*asked, out).status for out in ("out.csv", "out.jsonl")] == [0, 0]
    with Path("out.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["=own", "text", "answer"]
    assert [row[0] for row in rows] == own
    assert [row[2] for row in rows] == [*(f"'{text}" for text in said[:7]), "-2.5", "a=1"]
    in_json = [json.loads(line)["answer"] for line in Path("out.jsonl").read_text().splitlines()]
    assert in_json == said


def test_a_model_that_answers_nothing_is_no_riddle(
    exports: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelInUse, "answers", lambda *_: iter([""]))
    ended = sfnode("use", "--from", exports / "text", "film")
    assert (ended.status, ended.out) == (0, "\n")
    assert ended.err.endswith("(the model answered nothing: it ended at once, or wrote only blanks)\n")


def test_it_asks_at_a_terminal_until_the_end_and_reads_lines_elsewhere(
    exports: Path, sfnode: Run, answers: Callable[..., None]
) -> None:
    answers("good film", "bad", "\x04")
    typed = sfnode("use", "--from", exports / "head")
    assert (typed.status, len(typed.out.splitlines())) == (0, 4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--data-dir", "nowhere", "a text"), "SF043: nowhere holds no run"),
        (("--from", "nowhere", "a text"), "SF020: nowhere is no folder with a whole model"),
        (("--from", "{words}", "one", "two"), "SF010: the model wants 1 text (sentence), and there are 2"),
        (("--from", "{words}", " "), "SF031: 'sentence' is empty"),
        (
            ("--from", "{words}", "--file", "a.csv", "--out", "b.csv"),
            "SF031: a.csv has no column sentence; it",
        ),
        (("--from", "{words}", "--file", "none.csv", "--out", "b.csv"), "SF030: there is no file none.csv"),
        (("--from", "{words}", "--file", "c.csv", "--out", "a.csv"), "SF010: a.csv exists already"),
        (("--file", "a.csv"), "give either TEXT, or --file together with --out"),
    ],
)
def test_what_cannot_be_answered_is_said_before_anything_is_loaded(
    words: tuple[str, ...], says: str, exports: Path, sfnode: Run
) -> None:
    Path("a.csv").write_text("txt,label\nhello,1\n")
    Path("c.csv").write_text("sentence\nhello\n")
    ended = sfnode("use", *(word.format(words=exports / "words") for word in words))
    assert ended.status
    assert says in ended.err
    assert "loading" not in ended.err
    check(ended.err)


def test_a_model_that_has_learnt_nothing_yet_says_so(sfnode: Run, tmp_path: Path) -> None:
    for name, run in (("open", build({})), ("organised", organised(build({})))):
        ended = sfnode("use", "--data-dir", joined(tmp_path / name, run), "a text").failed(
            f"SF074: the model in {tmp_path / name} has learnt nothing:"
        )
        check(ended.err)
