"""The run that a table and its owner's answers describe, with proposals in place of missing answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import BUILTIN, HUB, is_file, run_name
from sfnode.manifest.task import Task
from sfnode.models import model_files
from sfnode.preparing.proposals import NOTHING, Proposal, estimator, propose
from sfnode.preparing.table_contents import DataTable, read_table
from sfnode.tasks import dataset, prompts
from sfnode.tasks.dataset import Bad, Row
from sfnode.tasks.row_files import Placed, malformed

RECOMMENDED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Default base model for users who have not used another one before. It is small enough for a laptop, and
docs/benchmarks.md has its measurements."""

LAST_MODEL = "last-model"
"""File in the cache that names the last base model."""

LEAST_ROWS = 10
"""Minimum number of rows of a table. Fewer rows are too few to learn or to measure anything."""

MOST_EMPTY = 1 / 5
"""Maximum share of rows that are left out without asking because they have no label, or no text."""

HELD_OUT, MOST_HELD_OUT = 1 / 5, 1000
"""Share of the rows that is held out to measure the result, and maximum number of such rows. MeZO tests on
1,000 rows, too."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the user. Proposals replace empty answers."""

    out: Path
    right: str = ""
    texts: tuple[str, ...] = ()
    way: str = ""
    estimator: str = ""
    held_out: int | None = None
    test: str = ""
    skip: bool = False
    """Whether rows that do not fit the task are left out."""
    model: str = ""
    organised: bool = True
    share: bool = True
    """Whether everybody who joins receives the rows."""
    join: bool = True
    """Whether labels that look like another label with a typing error are replaced with that label."""
    name: str = ""
    also: tuple[str, ...] = ()
    """Other options, as pairs KEY=VALUE."""


class Plan(NamedTuple):
    """Run that follows from a table and answers."""

    proposal: Proposal
    task: Task
    estimator: str
    placed: Sequence[Placed]
    """Rows as the task reads them."""
    rows: list[Row]
    """Rows that fit the task."""
    bad: Bad
    held_out: int
    test: list[Row]
    """Rows of the test file, if they are written to a new file because nodes would read the test file
    differently; else empty."""
    anew: bool
    """Whether the rows are written to a new file because nodes would read the original file differently."""


def plan(table: DataTable, answers: Answers, said: Mapping[str, Any]) -> Plan:
    """Return the run for a table and answers. Options in `said`, keyed by parameter name, take precedence
    over proposals. Raises UserError DATA_MALFORMED."""
    _require_rows(table, len(table.placed))
    fields = {key: value for key, value in said.items() if key in Task.model_fields}
    proposal = propose(table, answers.right, answers.texts, answers.way)
    task = proposal.task.model_copy(update=fields)
    joined = proposal.joined if answers.join and "verbalizer" not in fields else {}
    if proposal.joined and not joined and "verbalizer" not in fields:
        every = {label: label for label in table.columns[task.label_field].values}
        task = task.model_copy(update={"verbalizer": every})
    placed = _joined(table, task, joined)
    rows, bad = dataset.sift(table.source, placed, task)
    _require_rows(table, len(rows), f": {bad}" if bad else "")
    local = not table.source.startswith((HUB, BUILTIN))
    usual = min(int(HELD_OUT * len(rows)), MOST_HELD_OUT) if local and not answers.test else 0
    held_out = usual if answers.held_out is None else answers.held_out
    anew = bool(table.dress or joined) or (local and not is_file(table.source))
    by = answers.estimator or estimator(task, table.source, answers.organised, said)
    return Plan(proposal, task, by, placed, rows, bad, held_out, _tests(answers, task, joined), anew)


def _joined(table: DataTable, task: Task, joined: Mapping[str, str]) -> Sequence[Placed]:
    """Return the rows of a table with joined labels replaced."""
    if not joined:
        return table.placed
    name, found = task.label_field, []
    for one in table.placed:
        label = joined.get(prompts.label(one.row.get(name)))
        found.append(one._replace(row={**one.row, name: label}) if label and not one.wrong else one)
    return found


def _tests(answers: Answers, task: Task, joined: Mapping[str, str]) -> list[Row]:
    """Return the rows of the test file if they must be written anew; otherwise none."""
    if not answers.test or answers.test.startswith((HUB, BUILTIN)) or not Path(answers.test).is_file():
        return []
    table = read_table(answers.test)
    placed = _joined(table, task, joined)
    if is_file(answers.test) and not table.dress and placed == table.placed:
        return []
    rows, bad = dataset.sift(answers.test, placed, task)
    if bad and not answers.skip:
        raise malformed(str(bad), "Correct these rows, or leave them out: --skip-bad-rows.")
    return rows


def require_plain(table: DataTable, found: Plan, answers: Answers) -> None:
    """Raise UserError if a run that is made without questions needs its owner's decision: if its task is
    doubtful, or rows are bad. A few rows that merely lack something need no decision."""
    if found.proposal.doubt and not answers.right:
        raise UserError(
            Code.BAD_OPTION,
            f"what is to be learnt from {table.source} is not plain: {found.proposal.doubt}",
            f"Say which column is right: --label COLUMN; or --label {NOTHING} to learn the texts themselves.",
        )
    if found.bad and not answers.skip and not few_lack(found.bad):
        raise malformed(str(found.bad), "Correct these rows, or leave them out: --skip-bad-rows.")


def few_lack(bad: Bad) -> bool:
    """Return whether the bad rows are few, and each merely lacks something, such as its label."""
    return bad.count == bad.empty <= MOST_EMPTY * bad.rows


def _require_rows(table: DataTable, count: int, why: str = "") -> None:
    if count < LEAST_ROWS:
        raise malformed(
            f"{table.source} has {count} rows to learn from, and {LEAST_ROWS} are the least{why}",
            "Add rows. A few hundred for each class are a good beginning.",
        )


def last_model() -> str:
    """Return the last base model, or the recommended one."""
    try:
        found = (model_files.cache() / LAST_MODEL).read_text("utf-8").strip()
    except (OSError, ValueError):
        found = ""
    if found and (not Path(found).is_absolute() or Path(found).is_dir()):
        return found
    here = model_files.cache() / Path(RECOMMENDED).name
    return str(here) if (here / model_files.SINGLE).is_file() else RECOMMENDED


def remember_model(source: str) -> None:
    """Store this base model as the proposal for the next run."""
    try:
        model_files.cache().mkdir(parents=True, exist_ok=True)
        (model_files.cache() / LAST_MODEL).write_text(f"{source}\n", "utf-8")
    except OSError:  # only a proposal is lost
        return


def name_of(source: str) -> str:
    """Return a name for a run on the data of this source."""
    return run_name(Path(source.rpartition(":")[2]).stem, "run")
