"""`sfnode use`: answers of the trained model, to one text, to one text after the other, or to the rows of a
table."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli import options
from sfnode.cli.data_folder import runs_here
from sfnode.cli.exit import warn
from sfnode.cli.output import ask, echo
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.printable import command

if TYPE_CHECKING:
    from sfnode.engine.samples import Preference
    from sfnode.engine.using import ModelInUse
    from sfnode.manifest.task import Task

Row = Mapping[str, Any]

MOST_TOKENS = 4096
"""Maximum length of an answer, in tokens: more than a model generates in an hour on a CPU."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of texts that spreadsheet programs take for a formula (OWASP, CSV injection)."""

_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?([eE][+-]?[0-9]+)?")

BETWEEN = "|"
"""Separator that a user types between the answers to choose from."""


@click.command
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@options.data_dir_option
@options.run_option("Use the model of this run, in whichever folder of this machine it is.")
@options.option(
    "--from",
    "exported",
    type=click.Path(path_type=Path),
    help="Use the model in a folder that `sfnode export --out FOLDER` has written.",
)
@options.option("--file", metavar="FILE", help="Answer all rows of a table (.tsv .csv .jsonl .parquet).")
@options.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --file: the new table (.csv or .jsonl), with the answers beside the columns that there were.",
)
@options.setting("--skip-bad-rows", help="With --file: leave rows without an answer that cannot have one.")
@options.option(
    "--tokens",
    type=click.IntRange(1, MOST_TOKENS),
    default=64,
    help="Most tokens of an answer that the model writes.",
)
@options.device_option
@options.dtype_option
def use(
    texts: tuple[str, ...],
    data_dir: Path,
    run: Path | None,
    exported: Path | None,
    file: str | None,
    out: Path | None,
    skip_bad_rows: bool,
    tokens: int,
    device: str,
    dtype: str,
) -> None:
    """Ask the trained model.

    \b
    sfnode use "the waiting was worth it"          one TEXT
    sfnode use                                     one text after the other, until Ctrl-D
    sfnode use --file in.csv --out out.csv         the rows of a table

    A model that learnt to choose shows the probability of each answer. Any other model continues the text. If
    the run's template has several columns, give one TEXT for each, in their order. If each row has its own
    answers to choose from, give them after the columns.
    """
    if (file is None) != (out is None) or (file and texts):
        raise click.UsageError("give either TEXT, or --file together with --out, or nothing of these")
    folder = _folder_of(run) if run else data_dir
    task = _task(folder, exported, device)
    rows = _table(task, file, skip_bad_rows) if file else [(_row(task, texts), "")] if texts else []
    if out:
        options.require_new_file(out, ".csv", ".jsonl")
    model = _load(folder, exported, device, dtype)
    if out:
        _write(model, rows, str(file), out, tokens)
        return
    for row in [rows[0][0]] if rows else _typed(task):
        (answer,) = model.answers([row], tokens)
        if isinstance(answer, str):
            echo(answer, whole=True)
        else:
            echo(in_words(answer))
        if not answer:
            echo("(the model answered nothing: it ended at once, or wrote only blanks)", err=True)


def in_words(found: Preference) -> str:
    """Format candidates, the likeliest first: ` 93.2 %  good`."""
    ordered = sorted(zip(found.shares, found.names, strict=True), reverse=True)
    return "\n".join(f"{100 * share:5.1f} %  {name}" for share, name in ordered)


# -- the model -----------------------------------------------------------------------------------------


def _folder_of(run: Path) -> Path:
    """Return the folder on this machine that has a run. Raises UserError DATA_DIR_UNUSABLE, BAD_MANIFEST."""
    from sfnode.manifest import Manifest

    wanted = Manifest.from_toml(run).run_id.hex()
    if (found := runs_here().get(wanted)) is None:
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"no folder of this machine has the run of {run}",
            "`sfnode list` shows the runs that are here; take part in this one with `sfnode join`.",
        )
    return found[1]


def _task(folder: Path, exported: Path | None, device: str) -> Task:
    """Return the task of the model, without loading anything slow."""
    if exported is None:
        from sfnode.cli.trained_model import check

        return check(folder, device).task
    from sfnode.engine.using import task_in

    return task_in(exported)


def _load(folder: Path, exported: Path | None, device: str, dtype: str) -> ModelInUse:
    from sfnode.cli import trained_model
    from sfnode.engine import using

    with waiting("loading the model"):
        if exported is not None:
            return using.of_export(exported, device, dtype)
    try:
        trained = trained_model.load(folder, None, device, dtype)
    except UserError as error:
        if error.code is Code.UPDATES_LACKING:
            raise _untrained(folder) from error
        raise
    if not trained.updates:
        raise _untrained(folder)
    with waiting("preparing the model"):
        return using.of_trainer(trained.trainer)


def _untrained(folder: Path) -> UserError:
    return UserError(
        Code.UPDATES_LACKING,
        f"the model in {folder} has learnt nothing: no work of anybody's counts, or it is not all here",
        "`sfnode status` says how far the run is: let the node run while it goes on. `sfnode log` tells what "
        "its organiser has taken back.",
    )


# -- what is asked -------------------------------------------------------------------------------------


def _row(task: Task, texts: Sequence[str]) -> Row:
    """Return the row of `texts`: first the fields of the template, then the candidates of a choice."""
    from sfnode.tasks.prompts import questions

    fields = [name for name in questions(task) if name != task.candidates_field]
    row: dict[str, Any] = dict(zip(fields, texts, strict=False))
    rest = [*texts[len(fields) :]]
    if task.kind == "choice":
        row[task.candidates_field], rest = rest, []
    if task.kind == "chat":
        row = {task.messages_field: [{"role": "user", "content": texts[0]}]}
    if len(texts) < len(fields) or rest:
        raise UserError(
            Code.BAD_OPTION,
            f"the model wants {len(fields)} text{'s' * (len(fields) > 1)} ({', '.join(fields)}), "
            f"and there are {len(texts)}",
            f"Put each in quotes: {command('sfnode', 'use', *example(task))}",
        )
    if wrong := _problem(task, row):
        raise UserError(Code.DATA_MALFORMED, wrong, "Give a text that the model can read.")
    return row


def example(task: Task) -> tuple[str, ...]:
    """Return example texts for a model of this task."""
    from sfnode.tasks.prompts import questions

    if task.kind == "chat":
        return ("a question of yours",)
    names = [name for name in questions(task) if name != task.candidates_field]
    texts = ("a text of yours",) if len(names) == 1 else tuple(f"some {name}" for name in names)
    return (*texts, "one answer", "another") if task.kind == "choice" else texts


def _problem(task: Task, row: Row) -> str | None:
    from sfnode.engine.using import asked
    from sfnode.tasks.prompts import problem, unanswered

    return problem(asked(task), unanswered(task, row))


def _typed(task: Task) -> Iterator[Row]:
    """Yield rows of the texts that a user types at a terminal until the end of input. Without a terminal each
    line is a text."""
    from sfnode.tasks.prompts import questions

    names = questions(task)
    if not sys.stdin.isatty() and len(names) > 1:
        raise click.UsageError(f"a line holds one text, and the model wants {', '.join(names)}: take --file")
    while True:
        try:
            texts = [_line(name) for name in names]
        except click.Abort:
            return
        if task.kind == "choice":
            texts += [one.strip() for one in texts.pop().split(BETWEEN)]
        try:
            yield _row(task, texts)
        except UserError as error:
            warn(error)


def _line(name: str) -> str:
    """Return the next text: what the user types or, without a terminal, the next line that is not empty.
    Raises click.Abort at the end of the input."""
    if sys.stdin.isatty():
        return ask(name, prompt_suffix="> ", err=True)
    for line in sys.stdin:
        if text := line.strip():
            return text
    raise click.Abort


def _table(task: Task, file: str, skip_bad: bool) -> list[tuple[Row, str]]:
    """Return the rows of a file, each with the reason why the model cannot answer it. The reason is empty if
    the model can.

    Raises UserError DATA_* if a column is missing, and for a bad row unless `skip_bad` is set.
    """
    from sfnode.tasks import dataset
    from sfnode.tasks.prompts import questions
    from sfnode.tasks.row_files import layout, malformed

    rows, bad = list[tuple[Row, str]](), dataset.Bad(file)
    for place, row, wrong in dataset.read(file, layout(file)):
        if not wrong and not rows:
            dataset.require_columns(file, questions(task), row)
        wrong = wrong or _problem(task, row) or ""
        bad.note(place, wrong)
        rows.append((row, wrong))
    if not rows:
        raise malformed(f"{file} has no rows")
    if bad and not skip_bad:
        raise malformed(str(bad), "Correct them, or leave them without an answer: --skip-bad-rows.")
    if bad:
        echo(f"without an answer: {bad}", err=True)
    return rows


# -- what is answered ----------------------------------------------------------------------------------


def _write(model: ModelInUse, rows: Sequence[tuple[Row, str]], file: str, out: Path, tokens: int) -> None:
    """Write the rows of a file with their answers, once all rows have been answered."""
    from sfnode.engine.samples import chooses
    from sfnode.store.disk_errors import disk_faults
    from sfnode.tasks.row_files import dialect

    answers = model.answers([row for row, wrong in rows if not wrong], tokens)
    columns = dict.fromkeys(name for row, _ in rows for name in row)
    names = [
        name if name not in columns else f"predicted_{name}"
        for name in (("label", "probability") if chooses(model.task) else ("answer",))
    ]
    written = []
    with waiting("asking the model") as advance:
        for number, (row, wrong) in enumerate(rows, 1):
            values = () if wrong else _values(next(answers))
            written.append({**row, **dict(zip(names, values or [""] * len(names), strict=True))})
            advance(number, len(rows))
    separator, encoding = dialect(file) if out.suffix == ".csv" else ("", "utf-8")
    with disk_faults(out), out.open("w", encoding=encoding, newline="") as table:
        if out.suffix == ".jsonl":
            table.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in written)
        else:
            writer = csv.DictWriter(table, [*columns, *names], restval="", delimiter=separator)
            writer.writeheader()
            cell = dict.fromkeys(columns, _cell) | dict.fromkeys(names, _no_formula)
            writer.writerows({name: cell[name](value) for name, value in row.items()} for row in written)
    lacking = sum(bool(wrong) for _, wrong in rows)
    echo(f"wrote {out}: {len(written):,} rows{f', {lacking:,} of them without an answer' if lacking else ''}")


def _values(answer: Preference | str) -> tuple[object, ...]:
    return (answer,) if isinstance(answer, str) else (answer.best, round(max(answer.shares), 4))


def _cell(value: object) -> object:
    """Return a value as a cell of a table: lists and objects as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _no_formula(value: object) -> object:
    """Return an answer as a cell of a table. A quote is put before an answer that spreadsheet programs would
    take for a formula. (The owner's own columns stay unchanged.)"""
    if isinstance(value, str) and value.startswith(FORMULAS) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
