"""What a row says: the prompt, the answers that may follow it, and which of them are right.

The one place that reads the fields of a row by the manifest's task; everything is text. It knows nothing of
tokens, tensors or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sfnode.config import Task
from sfnode.engine import template

Row = Mapping[str, Any]


class Wording(NamedTuple):
    """One row, put into words."""

    prompt: str
    answers: tuple[str, ...]
    """What may follow the prompt; a single one unless the task has candidates."""
    right: tuple[int, ...]
    """Indices of the right answers, the one to train on first."""


def wording(task: Task, row: Row) -> Wording:
    """The words of a row that `complaint` finds nothing wrong with."""
    prompt = template.render(task.template, row)
    if task.kind == "classification":
        labels = list(task.verbalizer)
        return Wording(prompt, tuple(task.verbalizer.values()), (labels.index(label(row[task.label_field])),))
    if task.kind == "choice":
        candidates = row[task.candidates_field]
        return Wording(prompt, tuple(_answer(task, row, c) for c in candidates), _right(task, row))
    if task.kind == "completion":
        return Wording(prompt, (template.render(task.completion, row),), (0,))
    return Wording("", (prompt,), (0,))


def fields(task: Task) -> tuple[str, ...]:
    """The fields that a row must have, those of the template first."""
    names = template.fields(task.template)
    if task.completion:
        names += template.fields(task.completion)
    if task.kind in ("classification", "choice"):
        names += (task.label_field,)
    if task.kind == "choice":
        names += (task.candidates_field,)
    return tuple(dict.fromkeys(names))


def complaint(task: Task, row: Row) -> str:
    """Why a row cannot serve the task; an empty string if it can."""
    lacking = [repr(name) for name in fields(task) if row.get(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}; the row has {', '.join(repr(name) for name in row) or 'nothing'}"
    if task.kind == "classification" and label(row[task.label_field]) not in task.verbalizer:
        known = ", ".join(task.verbalizer)
        return f"the label {label(row[task.label_field])!r} is none of the task's labels ({known})"
    if task.kind == "choice":
        return _choice_complaint(task, row)
    if not all(answer.strip() for answer in wording(task, row).answers):
        return "there is no text to learn"
    return ""


def label(value: object) -> str:
    """A label as the verbalizer writes it; booleans as JSON does."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _answer(task: Task, row: Row, candidate: str) -> str:
    return template.render(task.completion, {**row, template.CANDIDATE: candidate})


def _right(task: Task, row: Row) -> tuple[int, ...]:
    """Positions of the right candidates: the label is one's index, its text, or a list of texts."""
    candidates, given = row[task.candidates_field], row[task.label_field]
    if isinstance(given, int):
        return (given,) if 0 <= given < len(candidates) else ()
    texts = [given] if isinstance(given, str) else given
    return tuple(candidates.index(text) for text in texts if text in candidates)


def _choice_complaint(task: Task, row: Row) -> str:
    candidates, given = row[task.candidates_field], row[task.label_field]
    if not isinstance(candidates, list) or not all(isinstance(c, str) and c.strip() for c in candidates):
        return f"{task.candidates_field!r} is not a list of texts"
    if not isinstance(given, int | str | list):
        return f"{task.label_field!r} is neither a text, nor a list of texts, nor a number"
    return "" if _right(task, row) else f"{task.label_field!r} names none of the candidates"
