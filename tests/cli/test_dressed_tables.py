"""Tests of `sfnode init --yes` on random tables. The result is the task of which a table was made, or an
error that names the problem, but never another task. No model is loaded."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.errors import UserError
from sfnode.preparing.plan import Answers, Plan, plan, require_plain
from sfnode.preparing.table_contents import read_table
from sfnode.tasks import prompts

TABLES = 200
ENOUGH = 0.95
"""Minimum share of unambiguous tables for which the right task is found."""

SAID = """
Die Rechnung stimmt leider nicht mein Paket ist verspätet Größe Gerät hängt Übergabe wäre möglich
the parcel has not arrived my account is locked please refund we waited café où livré très tard
señor mañana, (urgent); “quoted” it's 5,5 or 6 – maybe
"""
WORDS = SAID.split()

NAMES = {
    "text": ["text", "Text", "body", "Nachricht", "message", "review", "Ticket Text", "content", "Anfrage"],
    "right": ["label", "Label", "category", "Kategorie", "sentiment", "class", "topic", "ticket_category"],
    "question": ["question", "prompt", "instruction", "Frage", "input"],
    "answer": ["answer", "response", "output", "Antwort", "completion", "chosen"],
    "chat": ["messages", "conversations", "dialog", "conversation"],
}

CLASSES = [
    ["Billing", "Login", "Delivery"],
    ["positive", "negative"],
    ["Rechnung", "Störung", "Rückgabe", "Größe"],
    ["0", "1"],
    ["1", "2", "3", "4", "5"],
    ["true", "false"],
]

Rows = list[dict[str, Any]]


class Made(NamedTuple):
    """A table, and the task of which it was made."""

    kind: str
    texts: tuple[str, ...]
    right: str
    rows: Rows
    truth: list[tuple[str, Any]]
    """Text and right answer of each row."""


def sentence(draw: random.Random, number: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(4, 14))) + f" no. {number}"


def said(draw: random.Random, number: int) -> list[dict[str, str]]:
    role, content = draw.choice([("role", "content"), ("from", "value")])
    names = ("user", "assistant") if role == "role" else ("human", draw.choice(["gpt", "assistant"]))
    return [{role: name, content: sentence(draw, number)} for name in names * draw.randint(1, 2)]


def made(draw: random.Random) -> Made:
    kind = draw.choice(["classes"] * 4 + ["answers", "chat", "letters", "list", "texts"])
    count = draw.choice([30, 60, 1_500]) if kind == "answers" else draw.choice([30, 60, 200])
    texts = [sentence(draw, number) for number in range(count)]
    if kind == "classes":
        names, text, right = draw.choice(CLASSES), draw.choice(NAMES["text"]), draw.choice(NAMES["right"])
        labels = [draw.choice(names) for _ in texts]
        rows: Rows = [{text: a, right: b} for a, b in zip(texts, labels, strict=True)]
        return Made("sequence-classification", (text,), right, rows, list(zip(texts, labels, strict=True)))
    if kind == "answers":
        text, right = draw.choice(NAMES["question"]), draw.choice(NAMES["answer"])
        answers = [sentence(draw, number) for number in range(count)]
        rows = [{text: a, right: b} for a, b in zip(texts, answers, strict=True)]
        if right == "chosen":
            rows = [{**row, "rejected": sentence(draw, number)} for number, row in enumerate(rows)]
        return Made("completion", (text,), right, rows, list(zip(texts, answers, strict=True)))
    if kind == "chat":
        right = draw.choice(NAMES["chat"])
        talks = [said(draw, number) for number in range(count)]
        truth = [
            ("", [next(v for k, v in one.items() if k in ("content", "value")) for one in talk])
            for talk in talks
        ]
        return Made("chat", (), right, [{right: talk} for talk in talks], truth)
    if kind == "letters":
        rows = [
            {"question": text, "A": f"a {n}", "B": f"b {n}", "C": f"c {n}", "answer": draw.choice("ABC")}
            for n, text in enumerate(texts)
        ]
        truth = [(row["question"], row["answer"]) for row in rows]
        return Made("classification", ("question", "A", "B", "C"), "answer", rows, truth)
    if kind == "list":
        rows = [
            {"question": text, "choices": [f"a {n}", f"b {n}"], "answer": draw.choice([f"a {n}", f"b {n}"])}
            for n, text in enumerate(texts)
        ]
        truth = [(row["question"], row["answer"]) for row in rows]
        return Made("choice", ("question",), "answer", rows, truth)
    text = draw.choice(NAMES["text"])
    return Made("text", (text,), "none", [{text: one} for one in texts], [(one, "") for one in texts])


EXTRA: dict[str, Callable[[random.Random, int], Any]] = {
    "id": lambda draw, n: 9000 + n,
    "ticket_id": lambda draw, n: f"T-{n:05}",
    "created": lambda draw, n: f"2026-0{1 + n % 9}-11 09:{n % 60:02}",
    "Datum": lambda draw, n: f"{1 + n % 28:02}.0{1 + n % 9}.2026",
    "url": lambda draw, n: f"https://example.org/tickets/{n}?from=mail",
    "Unnamed: 0": lambda draw, n: n,
    "email": lambda draw, n: f"somebody{n}@example.org",
    "empty": lambda draw, n: "",
}


def extended(draw: random.Random, rows: Rows) -> Rows:
    names = draw.sample([*EXTRA], draw.randint(0, 3))
    wide = [{**{name: EXTRA[name](draw, n) for name in names}, **row} for n, row in enumerate(rows)]
    order = draw.sample([*wide[0]], len(wide[0]))
    return [{name: row[name] for name in order} for row in wide]


def label_in_dress(draw: random.Random, dress: str, label: str) -> Any:
    """Return a label as another program would write it."""
    if dress == "typed":
        return {"true": True, "false": False}.get(label, int(label) if label.isdecimal() else label)
    if dress == "floats" and label.isdecimal():
        return draw.choice([float(label), f"{label}.0", int(label), label])
    if dress == "blanks":
        return draw.choice([label, f" {label}", f"{label} ", f"{label}\u00a0"])
    if dress == "letters" and not label.isdecimal():
        return draw.choice([label, label, label.upper()])
    return label


def written(draw: random.Random, folder: Path, rows: Rows) -> Path:
    """Write a table in a random format."""
    form = draw.choice(["csv"] * 5 + ["tsv", "txt", "jsonl", "json"])
    if form in ("jsonl", "json"):
        lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in rows]
        text = (
            "[" + ",\n".join(lines) + "]" if form == "json" else "\n".join(lines) + draw.choice(["", "\n\n"])
        )
        name, encodings = f"rows.{form}", ["utf-8", "utf-8-sig", "utf-16"]
    else:
        mark = "\t" if form != "csv" else draw.choice(",;\t|")
        text = table(draw, rows, mark, sep=form == "csv")
        name, encodings = f"rows.{form}", ["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"]
    file = folder / name
    file.write_bytes(text.encode(draw.choice(encodings)))
    return file


def table(draw: random.Random, rows: Rows, mark: str, *, sep: bool) -> str:
    out = io.StringIO(newline="")
    header = [draw.choice([name, name, f" {name}", f"{name}\u00a0"]) for name in rows[0]]
    index, empty = draw.random() < 0.2, draw.randint(1, 3) if draw.random() < 0.3 else 0
    writer = csv.writer(
        out,
        delimiter=mark,
        lineterminator=draw.choice(["\n", "\r\n"]),
        quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]) if mark != "\t" else csv.QUOTE_MINIMAL,
    )
    writer.writerow([""] * index + header + [""] * empty)
    for number, row in enumerate(rows):
        cells = [json.dumps(one) if isinstance(one, list) else one for one in row.values()]
        writer.writerow([number] * index + cells + [""] * empty)
        if draw.random() < 0.03:
            writer.writerow([""] * (len(cells) + index + empty))
    text = out.getvalue() + draw.choice(["", "\n", "\r\n\r\n"])
    return f"sep={mark}\r\n{text}" if sep and draw.random() < 0.2 else text


def same(found: Plan, of: Made) -> bool:
    """Return whether a plan is the task that a table was made from, with all of its rows."""
    task = found.task
    if (task.kind, found.proposal.right) != (of.kind, of.right) or len(found.rows) != len(of.truth):
        return False
    if task.kind != "chat" and set(prompts.questions(task)) - {"choices"} != set(of.texts):
        return False
    pairs = set()
    for row, (read, right) in zip(found.rows, of.truth, strict=True):
        if task.kind == "chat":
            roles = [one["role"] for one in row[of.right]]
            pairs.add(
                ([one["content"] for one in row[of.right]] == right, roles[:2] == ["user", "assistant"])
            )
        elif task.labelled:
            pairs.add((prompts.class_of(task, row), right, row[of.texts[0]].strip() == read.strip()))
        elif task.kind != "text":
            pairs.add((str(row[of.right]).strip() == right.strip(), row[of.texts[0]].strip() == read.strip()))
        else:
            pairs.add((row[of.texts[0]].strip() == read.strip(),))
    if not task.labelled:
        return all(all(pair) for pair in pairs)
    classes = {right for _, right in of.truth}
    return len(pairs) == len(classes) == len({number for number, *_ in pairs}) and all(p[2] for p in pairs)


def test_a_table_in_any_dress_is_the_task_that_it_was_made_from(tmp_path: Path) -> None:
    ends = Counter[str]()
    for seed in range(TABLES):
        draw = random.Random(seed)
        known = made(draw)
        rows = extended(draw, known.rows)
        if known.kind == "sequence-classification":
            dress = draw.choice(["", "typed", "floats", "blanks", "letters"])
            rows = [
                {**row, known.right: label_in_dress(draw, dress, right)}
                for row, (_, right) in zip(rows, known.truth, strict=True)
            ]
        file = written(draw, tmp_path, rows)
        ends[outcome(file, known)] += 1
    assert ends["right"] >= ENOUGH * TABLES, ends


def outcome(file: Path, known: Made) -> str:
    """Return whether `--yes` refuses a table. If it does not, require the task of which the table was
    made."""
    try:
        read, answers = read_table(str(file)), Answers(Path("run.toml"))
        found = plan(read, answers, {})
        require_plain(read, found, answers)
    except UserError:
        return "refused"
    assert same(found, known), (file.read_bytes()[:500], found.proposal, known.kind, known.right)
    return "right"
