"""The screen of `sfnode init FILE`: the file's contents, the proposal, and lines that can be changed.

The user's answers are kept. After an invalid answer the question is repeated, and after a later error this
screen is shown again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from rich.cells import cell_len
from rich.text import Text

from sfnode.cli.exit import DONE, warn
from sfnode.cli.output import ask, echo
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import BUILTIN, HUB, run_name
from sfnode.preparing.plan import RECOMMENDED, Answers, Plan, few_lack, last_model, plan
from sfnode.preparing.proposals import NOTHING
from sfnode.preparing.table_contents import DataTable, read_table
from sfnode.printable import printable
from sfnode.tasks import dataset, prompts
from sfnode.tasks.dataset import Bad
from sfnode.tasks.row_files import malformed

SHOWN, WIDEST, NARROWEST = 5, 100, 6
"""Number of rows that are shown, maximum width of a line, and minimum width of a column, in characters."""

CLASSES_SHOWN = 8

WAYS = {
    "sequence-classification": "a class for each text, by a head: the model stays as it is (fast)",
    "classification": "a class for each text, in words: the model is trained to write it",
    "choice": "the right one of the choices in a row",
    "completion": "an answer in free words",
    "text": "the texts themselves",
    "chat": "what the assistant says in a conversation",
}
"""Descriptions of what is learnt, for the screen, keyed by the kind of task."""

ESTIMATORS = {
    "first-order": "by gradients: it learns most for the time",
    "zeroth-order": "by forward passes alone: it learns far less",
}
"""Descriptions of how it is learnt, for the screen, keyed by the estimator."""

_ESTIMATED = {"gradients": "first-order", "forward": "zeroth-order"}


# -- what is shown -------------------------------------------------------------------------------------


def show_table(table: DataTable) -> None:
    """Print the size of a table, its columns, and its first rows."""
    count = len(table.columns)
    echo(f"{table.source}: {len(table.placed):,} rows, {count} column{'s' * (count != 1)}")
    for said in table.dress:
        echo(f"read {said}")
    echo("")
    rows = [one.row for one in table.placed if not one.wrong][:SHOWN]
    width = _width()
    names = list(table.columns)[: max(1, width // (NARROWEST + 2))]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(cell_len(line[place]) for line in cells) for place in range(len(names))]
    while sum(widths) + 2 * len(widths) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for line in cells:
        echo("  ".join(_fitted(cell, size) for cell, size in zip(line, widths, strict=True)).rstrip())
    if more := list(table.columns)[len(names) :]:
        echo(f"and the columns {', '.join(more)}")


def show_plan(table: DataTable, answers: Answers, found: Plan) -> None:
    """Print the proposal, as numbered lines that the user can change."""
    echo("")
    for number, (title, value, *_) in enumerate(_lines(table, answers, found), start=1):
        parts = wrap(value, max(_width() - 38, 30)) or [""]
        echo(f"{number:2} {title:<34} {parts[0]}")
        for part in parts[1:]:
            echo(f"{'':37} {part}")
    for pair in answers.also:
        echo(f"   Besides                            {pair}")
    echo("")


def _width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)


def _cell(value: Any) -> str:
    return printable(" ".join(("" if value is None else str(value)[: 4 * WIDEST]).split()))


def _fitted(cell: str, width: int) -> str:
    """Return a text cut to a width on a terminal, where an emoji takes two columns."""
    text = Text(cell)
    text.truncate(width, overflow="ellipsis", pad=True)
    return text.plain


ScreenLine = tuple[str, str, str, Callable[[str], Answers]]
"""Title and value of a line of the screen, the question for a change, and the function that applies the
reply. The function returns all answers, with this line's changed. It raises UserError for an invalid
reply."""


def _lines(table: DataTable, answers: Answers, found: Plan) -> Iterator[ScreenLine]:
    def either(name: str, yes: str, no: str) -> Callable[[str], Answers]:
        def take(said: str) -> Answers:
            change: dict[str, Any] = {name: _one_of(said, yes, no) == yes}
            return replace(answers, **change)

        return take

    yield from _lines_of_task(table, answers, found)
    measuring = f"{found.held_out:,} of the {len(found.rows):,} rows, on which nobody trains"
    question = "How many rows are held out to measure the model? (or a file with other rows)"
    yield (
        *("Which rows measure it?", answers.test or measuring, question),
        lambda said: replace(answers, **_measuring(said, found, answers.skip)),
    )
    if bad := found.bad:
        many = f"{bad.count:,} rows do not fit" if bad.count > 1 else "1 row does not fit"
        out = "left out" if answers.skip or few_lack(bad) else "refused"
        skip = either("skip", "yes", "no")
        yield many, f"{out}: {_bad(table, bad)}", "Leave these rows out? (yes, no)", skip
    model = f"{answers.model}{' (used last)' if answers.model == last_model() != RECOMMENDED else ''}"
    question = "Which base model? (a folder, or a name on the Hugging Face hub)"
    yield "Which base model?", model, question, lambda said: replace(answers, model=_model(said))
    yours, open_run = "your node, by a key that is made now", "nobody: an open run, among friends"
    who = "Who says what counts?"
    organised = either("organised", "you", "nobody")
    yield who, yours if answers.organised else open_run, f"{who} (you, nobody)", organised
    name = "Name of the run"
    yield name, answers.name, name, lambda said: replace(answers, name=run_name(said))
    file = "Which file is written?"
    yield file, str(answers.out), file, lambda said: replace(answers, out=free(Path(said)))
    if found.anew or not table.source.startswith((HUB, BUILTIN)):
        everybody = "everybody who joins: they go with the run"
        nobody = "nobody else: others train on rows of their own"
        who = "Who can read all rows?"
        share = either("share", "everybody", "nobody")
        yield who, everybody if answers.share else nobody, f"{who} (everybody, nobody)", share
    if joined := found.proposal.joined:
        many = f"{len(joined)} labels look like others" if len(joined) > 1 else "A label looks like another"
        same = f"{'joined' if answers.join else 'classes of their own'}: {_joined_words(joined)}"
        yield many, same, "Are they the same? (yes, no)", either("join", "yes", "no")


def _lines_of_task(table: DataTable, answers: Answers, found: Plan) -> Iterator[ScreenLine]:
    task, right, names = found.task, found.proposal.right, ", ".join(table.columns)

    def taken(**change: Any) -> Answers:
        changed = replace(answers, **change)
        plan(table, changed, {})
        return changed

    which = "Which column says what is right?"
    question = f"{which} ({names}; {NOTHING})"
    yield which, _right(found), question, lambda said: taken(right=said, texts=(), way="")
    fields = prompts.questions(task)
    own = task.template != found.proposal.task.template
    read = f"as the template says: {task.template}" if own else ", ".join(fields)
    which = "Which columns are read?"
    question = f"{which} ({names}; several with commas)"
    yield which, read, question, lambda said: taken(right=right, texts=_listed(said))
    options = [name for name in fields if name not in found.proposal.texts]
    lettered = options and task.kind == "classification"
    learnt = f"which of {', '.join(options)} is right, by its letter" if lettered else WAYS[task.kind]
    question = "Learn classes by a head, or in words?"
    yield (
        *("What is learnt?", learnt, question),
        lambda said: taken(right=right, way=_one_of(said, "head", "words")),
    )
    question = "Learn by gradients, or by forward passes alone? (gradients, forward)"
    yield (
        *("How is it learnt?", ESTIMATORS[found.estimator], question),
        lambda said: replace(answers, estimator=_ESTIMATED[_one_of(said, *_ESTIMATED)]),
    )


def _right(found: Plan) -> str:
    """Describe the label column with its classes, and other possible columns."""
    right, classes = found.proposal.right, found.task.verbalizer
    said = "none: the model learns to write such texts" if right == NOTHING else right
    if found.task.labelled:
        counts, names = dict.fromkeys(classes, 0), {prompts.label(one): one for one in classes}
        for row in found.rows:
            counts[names[prompts.label(row[found.task.label_field])]] += 1
        listed = sorted(counts, key=lambda one: -counts[one])
        some = ", ".join(f"{one} {counts[one]:,}" for one in listed[:CLASSES_SHOWN])
        more = ", ..." if len(listed) > CLASSES_SHOWN else ""
        said = f"{right}, with {len(classes)} classes: {some}{more}"
    others = ", ".join(found.proposal.others)
    if doubt := found.proposal.doubt:
        return f"{said}. But {doubt}"
    return f"{said}. It might be {others} instead" if others else said


def _joined_words(joined: Mapping[str, str]) -> str:
    some = [f"{label} is {other}" for label, other in islice(joined.items(), CLASSES_SHOWN)]
    return ", ".join(some) + (", ..." if len(joined) > CLASSES_SHOWN else "")


def _bad(table: DataTable, bad: Bad) -> str:
    """Describe the first bad rows: their position in the file, and their problem."""
    first = "; ".join(one.removeprefix(f"{table.source}, ") for one in bad.first)
    return f"{first}; ..." if bad.count > len(bad.first) else first


# -- what is asked -------------------------------------------------------------------------------------


def ask_source(read: Callable[[str], DataTable]) -> DataTable:
    """Ask for the data file until it can be read."""
    while True:
        try:
            return read(ask("Which file has your data? (.csv, .tsv, .jsonl, .parquet)"))
        except UserError as error:
            warn(error)


def confirm(
    table: DataTable,
    answers: Answers,
    told: dict[str, Any],
    set_key: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> Answers:
    """Show the proposals until the user accepts them, and return the answers.

    `told` has the options that were set with --set. `set_key` sets an option by KEY=VALUE. If that option is
    an answer on the screen, `set_key` returns the answer.
    """
    while True:
        found = plan(table, answers, told)
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
            changed = replace(answers, **set_key(said, told))
            plan(table, changed, told)
            answers = replace(changed, also=(*answers.also, said))
        except UserError as error:
            warn(error)
        except click.UsageError as error:
            echo(f"sfnode: {error.format_message()}", err=True)


def _changed(line: ScreenLine, answers: Answers) -> Answers:
    """Ask for one answer until it is valid. Enter keeps the current answer."""
    *_, question, take = line
    while said := ask(question, default="", show_default=False).strip():
        try:
            return take(said)
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
    """Return the source of a base model. Raises UserError MODEL_NOT_FOUND for a missing folder."""
    if said.startswith(("/", ".", "~")) and not Path(said).expanduser().is_dir():
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"there is no folder {said}",
            "Name one, or a model on the Hugging Face hub.",
        )
    return said


def _measuring(said: str, found: Plan, skip: bool) -> dict[str, Any]:
    """Return the answers about held-out rows: their number or, if `said` is no number, a file with other
    rows."""
    if not said.isdecimal():
        rows, bad = dataset.sift(said, read_table(said).placed, found.task)
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
    """Return `out`, the path of a new file. Raises UserError BAD_OPTION if it exists."""
    if out.exists():
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file, or add --force.")
    return out
