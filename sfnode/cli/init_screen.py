"""The screen of `sfnode init FILE`: what the file has, what is proposed, and lines that can be changed.

Whatever is typed stays: an answer that cannot be is asked for again, and an error later on comes back here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple
from unicodedata import east_asian_width

import click

from sfnode.cli.exit import DONE, warn
from sfnode.cli.output import ask, echo
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import is_file
from sfnode.manifest.task import Task
from sfnode.models import files
from sfnode.printable import printable
from sfnode.tasks import dataset, prompts
from sfnode.tasks.columns import DataTable
from sfnode.tasks.dataset import Bad, Row
from sfnode.tasks.presets import EVALUATED_ROWS
from sfnode.tasks.proposals import NOTHING, Proposal, propose
from sfnode.tasks.row_files import malformed

RECOMMENDED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Base model for whoever has not used another: small enough for a laptop, and what is measured with it stands
in docs/benchmarks.md."""

LAST_MODEL = "last-model"
"""File in the cache with the base model that was used last."""

LEAST_ROWS = 10
"""Rows that a table has at least: of fewer nothing is learnt, and nothing can be measured."""

HELD_OUT = 1 / 5
"""Share of the rows that is held out to measure what was learnt, up to EVALUATED_ROWS."""

SHOWN, WIDEST, NARROWEST = 5, 100, 6
"""Rows that are shown; characters of a line, and of a column of theirs at least."""

CLASSES_SHOWN = 8

WAYS = {
    "sequence-classification": "a class for each text, by a head: the model stays as it is (fast)",
    "classification": "a class for each text, in words: the model is trained to write it",
    "choice": "the right one of the choices in a row",
    "completion": "an answer in free words",
    "text": "the texts themselves",
    "chat": "what the assistant says in a conversation",
}
"""Words for a task, by its kind."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the user; what is empty is proposed."""

    out: Path
    right: str = ""
    texts: tuple[str, ...] = ()
    way: str = ""
    held_out: int | None = None
    test: str = ""
    skip: bool = False
    """Leave out rows that do not fit."""
    model: str = ""
    organised: bool = True
    name: str = ""
    also: tuple[str, ...] = ()
    """Pairs KEY=VALUE that have been set besides."""


class Plan(NamedTuple):
    """The run that follows from a table and answers."""

    proposal: Proposal
    task: Task
    rows: list[Row]
    """Those that fit."""
    bad: Bad
    held_out: int


def plan(table: DataTable, answers: Answers, fields: dict[str, Any]) -> Plan:
    """Return what follows; `fields` of the task are as its owner says. Raises UserError DATA_MALFORMED."""
    _require_rows(table, len(table.placed))
    proposal = propose(table, answers.right, answers.texts, answers.way)
    task = proposal.task.model_copy(update=fields)
    rows, bad = dataset.sift(table.source, table.placed, task)
    _require_rows(table, len(rows), f": {bad}" if bad else "")
    usual = 0 if answers.test or not is_file(table.source) else min(int(HELD_OUT * len(rows)), EVALUATED_ROWS)
    return Plan(proposal, task, rows, bad, usual if answers.held_out is None else answers.held_out)


def _require_rows(table: DataTable, count: int, why: str = "") -> None:
    if count < LEAST_ROWS:
        raise malformed(
            f"{table.source} has {count} rows to learn from, and {LEAST_ROWS} are the least{why}",
            "Add rows. A few hundred for each class are a good beginning.",
        )


def last_model() -> str:
    """Return the base model that was used last, or the recommended one."""
    try:
        found = (files.cache() / LAST_MODEL).read_text("utf-8").strip()
    except (OSError, ValueError):
        found = ""
    if found and (not Path(found).is_absolute() or Path(found).is_dir()):
        return found
    here = files.cache() / Path(RECOMMENDED).name
    return str(here) if (here / files.SINGLE).is_file() else RECOMMENDED


def remember_model(source: str) -> None:
    """Propose this base model the next time."""
    try:
        files.cache().mkdir(parents=True, exist_ok=True)
        (files.cache() / LAST_MODEL).write_text(f"{source}\n", "utf-8")
    except OSError:  # nothing but a proposal
        return


# -- what is shown -------------------------------------------------------------------------------------


def show_table(table: DataTable) -> None:
    """Print how large a table is, its columns, and its first rows."""
    echo(f"{table.source}: {len(table.placed):,} rows, {len(table.columns)} columns\n")
    rows = [one.row for one in table.placed if not one.wrong][:SHOWN]
    width = _width()
    names = list(table.columns)[: max(1, width // (NARROWEST + 2))]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(_columns(line[place]) for line in cells) for place in range(len(names))]
    while sum(widths) + 2 * len(widths) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for line in cells:
        echo("  ".join(_fitted(cell, size) for cell, size in zip(line, widths, strict=True)).rstrip())
    if more := list(table.columns)[len(names) :]:
        echo(f"and the columns {', '.join(more)}")


def show_plan(table: DataTable, answers: Answers, found: Plan) -> None:
    """Print the lines of the screen."""
    echo("")
    for number, line in enumerate(_lines(table, answers, found), start=1):
        parts = wrap(line.value, max(_width() - 38, 30)) or [""]
        echo(f"{number:2} {line.title:<34} {parts[0]}")
        for part in parts[1:]:
            echo(f"{'':37} {part}")
    for pair in answers.also:
        echo(f"   Besides                            {pair}")
    echo("")


def _width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)


def _cell(value: Any) -> str:
    return " ".join(printable("" if value is None else str(value)[: 4 * WIDEST]).split())


def _columns(text: str) -> int:
    """Return how many places of a terminal a text takes: an emoji takes two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text[: 2 * WIDEST])


def _fitted(text: str, width: int) -> str:
    """Return a text in so many places of a terminal."""
    if _columns(text) > width:
        while _columns(text) >= width:
            text = text[: min(len(text) - 1, width)]
        text += "…"
    return text + " " * (width - _columns(text))


class ScreenLine(NamedTuple):
    """A line of the screen, and what changes it."""

    title: str
    value: str
    question: str
    take: Callable[[str], Answers]
    """Return the answers with another one in this line. Raises UserError for one that cannot be."""


def _lines(table: DataTable, answers: Answers, found: Plan) -> Iterator[ScreenLine]:
    task, names = found.task, ", ".join(table.columns)

    def taken(**change: Any) -> Answers:
        changed = replace(answers, **change)
        plan(table, changed, {})
        return changed

    yield ScreenLine(
        "Which column says what is right?",
        _right(found),
        f"Which column says what is right? ({names}; {NOTHING})",
        lambda said: taken(right=said, texts=(), way=""),
    )
    fields = prompts.questions(task)
    read = ", ".join(fields)
    options = [name for name in fields if name not in found.proposal.texts]
    chosen = options and task.kind == "classification"
    yield ScreenLine(
        "Which columns are read?",
        read if task.template == found.proposal.task.template else f"as the template says: {task.template}",
        f"Which columns are read? ({names}; several with commas)",
        lambda said: taken(right=found.proposal.right, texts=_listed(said)),
    )
    yield ScreenLine(
        "What is learnt?",
        f"which of {', '.join(options)} is right, by its letter" if chosen else WAYS[task.kind],
        "Learn classes by a head, or in words?",
        lambda said: taken(right=found.proposal.right, way=_one_of(said, "head", "words")),
    )
    yield ScreenLine(
        "Which rows measure it?",
        answers.test or f"{found.held_out:,} of the {len(found.rows):,} rows, on which nobody trains",
        "How many rows are held out to measure the model? (or a file with other rows)",
        lambda said: replace(answers, **_measuring(said, found, answers.skip)),
    )
    if found.bad:
        yield ScreenLine(
            f"{found.bad.count:,} rows do not fit",
            f"{'they are left out' if answers.skip else 'refused'}: {_bad(table, found.bad)}",
            "Leave these rows out? (yes, no)",
            lambda said: replace(answers, skip=_one_of(said, "yes", "no") == "yes"),
        )
    yield ScreenLine(
        "Which base model?",
        f"{answers.model}{' (used last)' if answers.model == last_model() != RECOMMENDED else ''}",
        "Which base model? (a folder, or a name on the Hugging Face hub)",
        lambda said: replace(answers, model=_model(said)),
    )
    yield ScreenLine(
        "Who says what counts?",
        "your node, by a key that is made now" if answers.organised else "nobody: an open run, among friends",
        "Who says what counts? (you, nobody)",
        lambda said: replace(answers, organised=_one_of(said, "you", "nobody") == "you"),
    )
    yield ScreenLine(
        "Name of the run", answers.name, "Name of the run", lambda said: replace(answers, name=said)
    )
    yield ScreenLine(
        "Which file is written?",
        str(answers.out),
        "Which file is written?",
        lambda said: replace(answers, out=free(Path(said))),
    )


def _right(found: Plan) -> str:
    """Return which column says what is right, with the classes, and which others could."""
    right, classes = found.proposal.right, found.task.verbalizer
    if right == NOTHING:
        return "none: the model learns to write such texts"
    said = right
    if found.task.labelled:
        counts = dict.fromkeys(classes, 0)
        for row in found.rows:
            counts[prompts.label(row[found.task.label_field])] += 1
        listed = sorted(counts, key=lambda one: -counts[one])
        some = ", ".join(f"{one} {counts[one]:,}" for one in listed[:CLASSES_SHOWN])
        more = ", ..." if len(listed) > CLASSES_SHOWN else ""
        said = f"{right}, with {len(classes)} classes: {some}{more}{_twins(listed)}"
    others = ", ".join(found.proposal.others)
    return f"{said}. It might be {others} instead" if others else said


def _bad(table: DataTable, bad: Bad) -> str:
    """Return the places of the first bad rows, and what is wrong there."""
    first = "; ".join(one.removeprefix(f"{table.source}, ") for one in bad.first)
    return f"{first}; ..." if bad.count > len(bad.first) else first


def _twins(classes: Sequence[str]) -> str:
    """Return which classes differ in capital letters alone: they are probably meant to be one."""
    folded: dict[str, list[str]] = {}
    for one in classes:
        folded.setdefault(one.casefold(), []).append(one)
    twins = [" and ".join(same) for same in folded.values() if len(same) > 1]
    return f" (two classes, though alike: {', '.join(twins)})" if twins else ""


# -- what is asked -------------------------------------------------------------------------------------


def ask_source(read: Callable[[str], DataTable]) -> DataTable:
    """Ask for the file with the data until there is one that can be read."""
    while True:
        try:
            return read(ask("Which file has your data? (.csv, .tsv, .jsonl, .parquet)"))
        except UserError as error:
            warn(error)


def confirm(
    table: DataTable, answers: Answers, fields: Callable[[], dict[str, Any]], set_key: Callable[[str], None]
) -> Answers:
    """Show the proposals until the user takes them; return the answers.

    `fields` gives those of the task that have been set by their keys, and `set_key` sets one by KEY=VALUE.
    """
    while True:
        found = plan(table, answers, fields())
        show_plan(table, answers, found)
        lines = list(_lines(table, answers, found))
        said = ask(
            f"Enter: go on. 1 to {len(lines)}: change that line. KEY=VALUE: anything else. q: leave",
            default="",
            show_default=False,
        ).strip()
        if not said:
            return answers
        if said.lower() in ("q", "quit"):
            echo("Nothing was written.")
            raise click.exceptions.Exit(DONE)
        if said.isdecimal() and 1 <= int(said) <= len(lines):
            answers = _changed(lines[int(said) - 1], answers)
            continue
        try:
            if "=" not in said:
                raise UserError(
                    Code.BAD_OPTION,
                    f"{said!r} is neither the number of a line nor KEY=VALUE",
                    f"Type 1 to {len(lines)} to change that line, Enter to go on, or q to leave.",
                )
            set_key(said)
            plan(table, answers, fields())
            answers = replace(answers, also=(*answers.also, said))
        except UserError as error:
            warn(error)
        except click.UsageError as error:
            echo(f"sfnode: {error.format_message()}", err=True)


def _changed(line: ScreenLine, answers: Answers) -> Answers:
    """Ask for one answer until it can be; Enter keeps the one that is there."""
    while said := ask(line.question, default="", show_default=False).strip():
        try:
            return line.take(said)
        except UserError as error:
            warn(error)
    return answers


def _listed(said: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in said.split(",") if one.strip())


def _one_of(said: str, *choices: str) -> str:
    found = [one for one in choices if one.startswith(said.lower())]
    if len(found) != 1:
        raise UserError(Code.BAD_OPTION, f"{said!r} is not an answer", f"Say {' or '.join(choices)}.")
    return found[0]


def _model(said: str) -> str:
    """Return a base model. Raises UserError MODEL_NOT_FOUND for a folder that is not there."""
    if said.startswith(("/", ".", "~")) and not Path(said).expanduser().is_dir():
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"there is no folder {said}",
            "Name one, or a model on the Hugging Face hub.",
        )
    return said


def _measuring(said: str, found: Plan, skip: bool) -> dict[str, Any]:
    """Return how many rows are held out, or the file with other ones."""
    if not said.isdecimal():
        rows, bad = dataset.sifted(said, found.task)
        if (bad and not skip) or not rows:
            raise malformed(str(bad) if bad else f"{said} has no rows")
        return {"test": said, "held_out": None}
    if int(said) > len(found.rows) // 2:
        raise UserError(
            Code.BAD_OPTION,
            f"{said} of {len(found.rows):,} rows are too many to hold out",
            f"Leave at least half of them to learn from: {len(found.rows) // 2:,} at most.",
        )
    return {"test": "", "held_out": int(said)}


def free(out: Path) -> Path:
    """Return the path of a file that is to be written. Raises UserError BAD_OPTION if there is one."""
    if out.exists():
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file, or add --force.")
    return out
