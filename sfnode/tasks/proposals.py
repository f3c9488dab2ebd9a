"""Tasks that the columns of a file suggest, for a user who has named none.

Only proposes: a run never changes, so its owner says what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.tasks import prompts
from sfnode.tasks.dataset import Row, rows_of
from sfnode.tasks.presets import PRESETS

MOST_LABELS = 20
"""Different values of a column that may be its rows' classes; in a column with more is something else."""

SAMPLE = 1000
"""Rows that are looked at."""


def task_needed(source: str) -> UserError:
    """Return the error for training data without a task, with the columns and what would fit them.

    Raises UserError as `dataset.load_rows` for a file that cannot be read.
    """
    if source.startswith("hf:"):
        return _needed(source, "Say it: --task PRESET, or --kind and --template (docs/tasks.md).")
    rows = rows_of(source, SAMPLE)
    names = ", ".join(rows[0]) if rows else "no columns"
    fitting = [name for name, one in PRESETS.items() if rows and not prompts.problem(one.task, rows[0])]
    ready = f"Ready-made tasks that fit: {', '.join(fitting)} (--task NAME). " if fitting else ""
    own = _own(rows)
    example = f", for instance: {own}" if own else " with --kind and --template"
    return _needed(
        f"{source}, which has the columns {names}", f"{ready}Describe one (docs/tasks.md){example}"
    )


def _needed(what: str, fix: str) -> UserError:
    return UserError(Code.BAD_OPTION, f"no task says what is to be learnt from {what}", fix)


def _own(rows: Sequence[Row]) -> str:
    """Return options for a classification, for conversations or for texts; "" if nothing suggests itself."""
    columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
    chats = [name for name, values in columns.items() if isinstance(values[0], list)]
    if chats:
        return command("--kind", "chat", "--messages-field", chats[0])
    texts = {name: _mean_length(values) for name, values in columns.items() if isinstance(values[0], str)}
    if not texts:
        return ""
    text = max(texts, key=lambda name: texts[name])
    labels = _labels({name: values for name, values in columns.items() if name != text})
    if labels is None:
        return command("--kind", "text", "--template", f"{{{text}}}")
    name, values = labels
    words = ",".join(f"{value}={'WORD' if value.lstrip('-').isdigit() else value}" for value in values)
    described = ("--kind", "classification", "--template", f"{{{text}}} It was")
    return command(*described, "--label-field", name, "--verbalizer", words)


def _mean_length(values: Sequence[object]) -> float:
    return sum(len(str(value)) for value in values) / len(values)


def _labels(columns: Mapping[str, Sequence[object]]) -> tuple[str, list[str]] | None:
    """Return the column with the fewest different values, of those that may be classes, and these values."""
    found = {name: sorted({prompts.label(value) for value in values}) for name, values in columns.items()}
    possible = {
        name: values
        for name, values in found.items()
        if 1 < len(values) <= MOST_LABELS and not any(mark in value for value in values for mark in ",=")
    }
    if not possible:
        return None
    name = min(possible, key=lambda one: len(possible[one]))
    return name, possible[name]
