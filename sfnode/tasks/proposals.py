"""Tasks that the columns of a file suggest, for a user who has named none.

Only proposes: a run never changes, so its owner says what it is about. What is proposed fits every row that
was looked at, and what it leaves unread is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product, takewhile
from string import ascii_uppercase

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.printable import command
from sfnode.tasks import prompts
from sfnode.tasks.dataset import Row, rows_of
from sfnode.tasks.presets import PRESETS

MOST_LABELS = 20
"""Different values of a column that may be its rows' classes; in a column with more is something else."""

SAMPLE = 1000
"""Rows that are looked at."""

LABELS = ("label", "answer")
"""Names of columns that are looked at first for what is right."""

Columns = Mapping[str, Sequence[object]]


def task_needed(source: str) -> UserError:
    """Return the error for training data without a task, with the columns and what would fit them.

    Raises UserError as `dataset.load_rows` for a file that cannot be read.
    """
    if source.startswith("hf:"):
        return _needed(source, "Say it: --task PRESET, or --kind and --template (docs/tasks.md).")
    rows = rows_of(source, SAMPLE)
    columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
    names = ", ".join(columns) or "no columns"
    parts = {*_lists(columns), *_options(columns)}
    ready = [name for name, one in PRESETS.items() if _fits(one.task, rows, parts)]
    said = f"Ready-made tasks that fit: {', '.join(ready)} (--task NAME). " if ready else ""
    own = next((one for one in _tasks(columns) if _fits(one, rows) and _command(one).isprintable()), None)
    example = f", for instance: {_command(own)}" if own else " with --kind and --template"
    unread = _unread(own, columns) if own else ""
    return _needed(
        f"{source}, which has the columns {names}", f"{said}Describe one (docs/tasks.md){example}{unread}"
    )


def _needed(what: str, fix: str) -> UserError:
    return UserError(Code.BAD_OPTION, f"no task says what is to be learnt from {what}", fix)


def _fits(task: Task, rows: Sequence[Row], parts: Collection[str] = ()) -> bool:
    """Return whether all rows fit a task, and it reads the columns `parts`: a task that leaves the answers to
    choose from unread is another one than that of the file."""
    try:
        wrong = not rows or any(prompts.problem(task, row) for row in rows)
        return not wrong and set(parts) <= set(prompts.fields(task))
    except UserError:
        return False  # no template can name such a column


def _lists(columns: Columns) -> list[str]:
    return [name for name, values in columns.items() if isinstance(values[0], list)]


def _options(columns: Columns) -> list[str]:
    """Return the columns A, B, ... if there are two or more: answers of which one is right."""
    found = list(takewhile(lambda name: name in columns, ascii_uppercase))
    return found if len(found) > 1 else []


def _tasks(columns: Columns) -> Iterator[Task]:
    """Yield what may be meant by these columns, the most particular first."""
    whole = {name: values for name, values in columns.items() if name and not _has_gaps(values)}
    lists, options = _lists(whole), _options(whole)
    yield from (Task(kind="chat", messages_field=name) for name in lists)
    texts = [name for name, values in whole.items() if name not in options and _are_texts(values)]
    if not texts:
        return
    text = max(texts, key=lambda name: _mean_length(whole[name]))
    others = {name: whole[name] for name in sorted(whole, key=_is_no_label) if name != text}
    for candidates, name in product(lists, others):
        if name != candidates:
            yield _choice(text, candidates, name)
    yield from _classes(text, others, options)
    yield Task(kind="text", template=f"{{{text}}}")


def _choice(text: str, candidates: str, label: str) -> Task:
    return Task(
        kind="choice",
        template=f"{{{text}}}",
        completion="{candidate}",
        candidates_field=candidates,
        label_field=label,
    )


def _classes(text: str, columns: Columns, options: Sequence[str]) -> Iterator[Task]:
    """Yield the classifications by each column that may hold classes, the fewest first; where these name the
    columns A, B, ... (`options`), which of them is right."""
    found = {name: sorted({prompts.label(value) for value in values}) for name, values in columns.items()}
    for name in sorted(found, key=lambda one: (_is_no_label(one), len(found[one]))):
        labels = found[name]
        if not 1 < len(labels) <= MOST_LABELS or any(mark in label for label in labels for mark in ",="):
            continue
        words = _lettered(labels, options)
        listed = " ".join(f"{one}. {{{one}}}" for one in options)
        template = f"{{{text}}} {listed} Answer:" if words else f"{{{text}}} It was"
        words = words or {one: f"WORD{one}" if one.lstrip("-").isdigit() else one for one in labels}
        yield Task(kind="classification", template=template, label_field=name, verbalizer=words)


def _lettered(labels: Sequence[str], options: Sequence[str]) -> dict[str, str]:
    """Return the letter for each label, if labels are those of `options` or number them from 0 or 1."""
    if options and set(labels) <= set(options):
        return {one: one for one in options}
    numbered = [[str(first + place) for place in range(len(options))] for first in (0, 1)]
    return dict(zip(labels, options, strict=True)) if options and list(labels) in numbered else {}


def _is_no_label(name: str) -> bool:
    return name.lower() not in LABELS


def _has_gaps(values: Sequence[object]) -> bool:
    return any(value is None or not str(value).strip() for value in values)


def _mean_length(values: Sequence[object]) -> float:
    return sum(len(str(value)) for value in values) / len(values)


def _command(task: Task) -> str:
    """Return the options that describe a task."""
    described = ["--kind", task.kind]
    if task.kind == "chat":
        return command(*described, "--messages-field", task.messages_field)
    described += ["--template", task.template]
    if task.kind == "choice":
        described += ["--completion", task.completion, "--candidates-field", task.candidates_field]
    if task.kind in ("choice", "classification"):
        described += ["--label-field", task.label_field]
    if task.verbalizer:
        described += ["--verbalizer", ",".join(f"{label}={word}" for label, word in task.verbalizer.items())]
    return command(*described)


def _unread(task: Task, columns: Columns) -> str:
    """Return which columns a task does not read, and what would have to be done to learn from them."""
    unread = {name: values for name, values in columns.items() if name and name not in prompts.fields(task)}
    if not unread:
        return ""
    said = f". It reads nothing of {', '.join(unread)}"
    if _lists(unread):
        said += "; lists are candidates of a choice where a label is the right one's text or number from 0"
    if task.kind == "text" and any(map(_are_numbers, unread.values())):
        said += "; numbers are learnt where they are few classes, such as low and high"
    return said


def _are_texts(values: Sequence[object]) -> bool:
    return isinstance(values[0], str) and not _are_numbers(values)


def _are_numbers(values: Sequence[object]) -> bool:
    try:
        return all(isinstance(float(str(value)), float) for value in values)
    except ValueError:
        return False
