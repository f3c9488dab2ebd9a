"""Loads rows of data from files, from the Hugging Face hub or from the package. Checks, filters, selects and
splits the rows.

All nodes get the same rows in the same order from the same source. This is necessary because a mini-batch is
a list of row numbers drawn from a seed. Errors in a row name the file and the line. This module does not know
the meaning of a row (`prompts` does). Code that comes with data is never run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from sfnode.descriptors import patiently
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.printable import paragraph
from sfnode.tasks import hub_rows, prompts, public_files, row_files
from sfnode.tasks.public_files import NOWHERE, Places
from sfnode.tasks.row_files import Placed, TextForm, malformed
from sfprotocol.seeds import derive_key, stream

Row = row_files.Row

HeldOut = Literal["test", "validation"]
"""Kind of rows on which nobody trains: `test` rows measure the model, and an organiser judges with
`validation` rows."""

SHIPPED = Path(__file__).parent.parent / "embedded" / "rows"
"""Folder of the package with the rows of `builtin:NAME:SPLIT` (SPEC T1). scripts/builtin_rows.py writes its
files."""

LEAST_OF_A_CLASS = 5
"""Minimum number of rows of a class for a meaningful result. With 5 rows, each row changes the accuracy of
the class by 20 percentage points."""

SHOWN = 3
"""Maximum number of bad rows that an error shows."""


Examine = Callable[[Row, int, int], str]
"""Function of (row, number of the row, number of all rows). It returns a fault of the row that this module
does not check for, in words; an empty text if the row has none."""


def unexamined(row: Row, number: int, total: int) -> str:
    """Return an empty text. Used as an `Examine` function that finds no faults."""
    return ""


def load_rows(
    source: str,
    task: Task,
    *,
    limit: int = 0,
    min_words: int = 0,
    skip_bad: bool = False,
    examine: Examine = unexamined,
    layout: TextForm = row_files.PLAIN,
) -> list[Row]:
    """Load the rows of a file, of `hf:OWNER/NAME[@COMMIT][:CONFIG]:SPLIT` or of `builtin:NAME:SPLIT`.

    Rows with fewer than `min_words` words (`prompts.word_count`) are left out. From the other rows, `limit`
    rows (0: all) are selected, the same ones on every node. With `skip_bad`, rows that do not fit the task
    are left out, and a message is logged. Raises UserError DATA_NOT_FOUND, DATA_TOO_LARGE or DISK_FULL,
    EXTRA_MISSING if a necessary library is missing, or DATA_MALFORMED with the number and the first places of
    rows that do not fit.
    """
    rows, bad = sift(source, patiently(lambda: list(read(source, layout))), task, examine)
    if not skip_bad:
        bad.refuse()
    if bad:
        _tell(f"left out with --skip-bad-rows: {bad}")
    if min_words:
        rows = [row for row in rows if prompts.word_count(task, row) >= min_words]
    if not rows:
        raise malformed(f"{source} has no rows" + (f" of at least {min_words} words" if min_words else ""))
    return select(rows, limit)


def own_rows(source: str, task: Task, *, min_words: int = 0, skip_bad: bool = False) -> list[Row]:
    """Load rows as `load_rows` does, from a file that no other node needs. So its layout may be guessed
    (`row_files.layout`)."""
    layout = row_files.layout(source)
    return load_rows(source, task, min_words=min_words, skip_bad=skip_bad, layout=layout)


@dataclass(slots=True)
class Bad:
    """The rows of a source that do not fit a task."""

    source: str
    rows: int = 0
    """Number of all rows of the source, good or bad."""
    count: int = 0
    empty: int = 0
    """Number of bad rows that have no text or no label."""
    first: list[str] = field(default_factory=list)
    """Places and faults of the first bad rows."""

    def note(self, place: str, wrong: str, *, empty: bool = False) -> None:
        """Count a row. If `wrong` is not empty, count the row as bad, with `wrong` as its fault."""
        self.rows += 1
        self.count += bool(wrong)
        self.empty += empty
        if wrong and len(self.first) < SHOWN:
            self.first.append(f"{place}: {wrong}")

    def refuse(self) -> None:
        """Raise UserError DATA_MALFORMED if there are bad rows."""
        if self:
            raise malformed(
                str(self),
                "Correct the data, name another source, or leave out such rows: --skip-bad-rows of `sfnode "
                "init`, and of `sfnode join` for rows of your own.",
            )

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        said = "; ".join(self.first)
        if self.count == 1:
            return said
        return f"{self.count:,} of the {self.rows:,} rows of {self.source} are bad, the first ones: {said}"


def sifted(source: str, task: Task, examine: Examine = unexamined) -> tuple[list[Row], Bad]:
    """Return the rows of a source that fit a task, and a summary of the rows that do not. Raises UserError as
    `load_rows`."""
    return sift(source, list(read(source)), task, examine)


def sift(
    source: str, placed: Sequence[Placed], task: Task, examine: Examine = unexamined
) -> tuple[list[Row], Bad]:
    """Return those rows of `placed` that fit a task, and a summary of the rows that do not. Raises UserError
    DATA_MALFORMED for a table without the task's columns."""
    rows, bad, names = [], Bad(source), dict[str, None]()
    for number, (place, row, wrong) in enumerate(placed):
        found = "" if wrong else prompts.problem(task, row) or ""
        lacks = bool(found) and prompts.lacks(task, row)
        found = found or ("" if wrong else examine(row, number + 1, len(placed)))
        bad.note(place, wrong or found, empty=lacks)
        if not wrong and not found:
            rows.append(row)
        elif not rows:
            names.update(dict.fromkeys(row))
    if bad.count > 1 and not rows and names:
        require_columns(source, prompts.fields(task), names)
    return rows, bad


def require_columns(source: str, wanted: Iterable[str], names: Iterable[str]) -> None:
    """Raise UserError DATA_MALFORMED if one of the `wanted` columns is not among the `names` of a source's
    columns."""
    if lacking := [name for name in wanted if name not in names]:
        raise malformed(
            f"{source} has no column {', '.join(lacking)}; it has {', '.join(names) or 'none'}",
            f"Name the columns as in the data of the run: {', '.join(wanted)}.",
        )


@cache
def _tell(what: str) -> None:
    """Log a message about rows, each message only once, because the same rows are read again and again."""
    log.warning("%s", paragraph(what))  # escapes the text, as only `set_up_logging` would otherwise


def rows_of(source: str, most: int) -> list[Row]:
    """Return the first `most` rows of a source, whether or not they fit a task. Raises UserError as
    `load_rows`."""
    found = list(islice(read(source), most))
    if wrong := next((f"{one.place}: {one.wrong}" for one in found if one.wrong), None):
        raise malformed(wrong)
    return [one.row for one in found]


def training_rows(
    data: Data, task: Task, places: Places = NOWHERE, examine: Examine = unexamined
) -> list[Row]:
    """Load the public training rows of a run, from which mini-batches are drawn (SPEC R8, R9).

    `places` are the places where the run's files may be. Raises UserError as `load_rows` and
    `public_files.local`, DATA_NEEDED if the run has no public training data, and DATA_MALFORMED if all rows
    are held out for validation.
    """
    if not data.train:
        raise needed(task)
    return _split(data, task, places, examine)[0]


def needed(task: Task) -> UserError:
    """Return the error for a run in which trainers must bring their own rows. The error describes the
    required rows."""
    example = prompts.example(task)
    names = ", ".join(example)
    labels = f" `{task.label_field}` is one of {', '.join(task.verbalizer)}." if task.labelled else ""
    return UserError(
        Code.DATA_NEEDED,
        "this run wants your own data: it has no public training data",
        f"Give them with --data FILE: a .tsv, .csv, .jsonl or .parquet file with the columns {names}."
        f"{labels} A row, as a line of a .jsonl file: {json.dumps(example, ensure_ascii=False)}",
    )


def held_out_rows(
    data: Data, task: Task, which: HeldOut, limit: int = 0, places: Places = NOWHERE
) -> list[Row]:
    """Load held-out rows, on which every node can measure the model: the `test` or the `validation` rows. Of
    these, `limit` rows are selected (0: as many as the manifest says).

    `places` are the places where the run's files may be. Raises UserError as `load_rows` and
    `public_files.local`, and DATA_NEEDED if the run has no such rows.
    """
    source, usual = (
        (data.test, data.test_limit) if which == "test" else (data.validation, data.validation_limit)
    )
    if source:
        return load_rows(public_files.local(data, which, places), task, limit=limit or usual)
    if which == "validation" and data.withheld:
        return select(_split(data, task, places)[1], limit)
    raise UserError(
        Code.DATA_NEEDED,
        f"the run names no {which} data, so the model cannot be evaluated on them",
        "Export the model with `sfnode export --out FOLDER` and evaluate it on data of your own.",
    )


def _split(
    data: Data, task: Task, places: Places, examine: Examine = unexamined
) -> tuple[list[Row], list[Row]]:
    """Split the public training data. Return the rows for training and the rows for validation."""
    source = public_files.local(data, "train", places)
    least = data.train_min_words
    rows = load_rows(source, task, limit=data.train_limit, min_words=least, examine=examine)
    if data.withheld >= len(rows):
        raise malformed(
            f"{data.train} has {len(rows)} rows to train on, and all of them would be validation rows"
        )
    validating = set(_smallest(b"sfnode validation rows", len(rows), data.withheld))
    training = [row for index, row in enumerate(rows) if index not in validating]
    return training, [rows[index] for index in sorted(validating)]


def hold_out(task: Task, rows: Sequence[Row], count: int) -> tuple[list[Row], list[Row]]:
    """Hold out about `count` rows, the same rows in every call. Return the other rows and the held-out rows.

    Each class has the same share of the held-out rows as of all rows. Rows of equal text are all held out or
    all kept. If this rule would hold out less than half of `count` rows, because many texts are equal, it is
    dropped.
    """
    texts = [prompts.text_of(task, row) for row in rows]
    held = _held(task, rows, count, texts)
    if len(held) < count / 2:
        held = _held(task, rows, count, range(len(rows)))
    kept = [row for index, row in enumerate(rows) if index not in held]
    return kept, [rows[index] for index in sorted(held)]


def _held(task: Task, rows: Sequence[Row], count: int, keys: Iterable[Hashable]) -> set[int]:
    """Return the indices of up to `count` rows to hold out, from each class in proportion to its size. Rows
    with the same key are all held out or all kept."""
    alike: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        alike.setdefault(key, []).append(index)
    groups = list(alike.values())
    order = [groups[index] for index in _smallest(b"sfnode held-out rows", len(groups), len(groups))]
    room = _shares(
        Counter(prompts.class_name(task, rows[group[0]]) for group in groups for _ in group), count
    )
    held: set[int] = set()
    for group in order:
        name = prompts.class_name(task, rows[group[0]])
        if len(group) <= room[name]:
            room[name] -= len(group)
            held.update(group)
    return held


def _shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Divide `count` rows among classes in proportion to their sizes, by the method of largest remainders.
    Return the number of rows of each class. A class of several rows gets at least one."""
    total = sum(sizes.values())
    found = {name: count * size // total for name, size in sizes.items()}
    rest = sorted(sizes, key=lambda name: (-(count * sizes[name] % total), name))
    for name in rest[: count - sum(found.values())]:
        found[name] += 1
    return {name: max(share, min(1, count, sizes[name] // 2)) for name, share in found.items()}


def shared(task: Task, rows: Sequence[Row], held: Sequence[Row]) -> int:
    """Return the number of `held` rows whose text is among `rows`."""
    texts = {prompts.text_of(task, row) for row in rows}
    return sum(prompts.text_of(task, row) in texts for row in held)


def rare(task: Task, rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of rows of each class that has fewer than LEAST_OF_A_CLASS rows, keyed by class."""
    found = Counter(prompts.class_name(task, row) for row in rows)
    counts = {name: found[prompts.label(name)] for name in task.verbalizer if task.labelled}
    return {name: one for name, one in counts.items() if one < LEAST_OF_A_CLASS}


def shard(rows: Sequence[Row], index: int, of: int) -> list[Row]:
    """Split the rows into `of` parts, and return part `index`, counted from 0. A part has every `of`-th row,
    so even if a file is sorted by label, each part has all labels."""
    if not 0 <= index < of:
        raise UserError(
            Code.BAD_OPTION,
            f"there is no shard {index} of {of}",
            "Number the shards from 0 to one less than their count.",
        )
    if len(rows) < of:
        raise malformed(f"{len(rows)} rows cannot be split over {of} nodes")
    return list(rows[index::of])


def select(rows: list[Row], limit: int) -> list[Row]:
    """Select `limit` of the rows (0: all), the same ones on every node (SPEC R9). Return them in their old
    order."""
    if not limit or limit >= len(rows):
        return rows
    return [rows[index] for index in sorted(_smallest(b"sfnode row selection", len(rows), limit))]


def _smallest(purpose: bytes, rows: int, count: int) -> list[int]:
    """Return the indices of `count` rows: those whose values in the random stream for `purpose` are
    smallest."""
    values = stream(derive_key(purpose), 0, rows)  # no two values are equal
    found: list[int] = np.argsort(values)[:count].tolist()
    return found


def read(source: str, layout: TextForm = row_files.PLAIN) -> Iterator[Placed]:
    """Yield every row of a source with its place. Raises UserError as `load_rows`."""
    kind, _, rest = source.partition(":")
    if kind == "builtin":
        return _shipped(source, rest)
    return hub_rows.read(source) if kind == "hf" else row_files.read(source, layout)


def _shipped(source: str, rest: str) -> Iterator[Placed]:
    file = SHIPPED / f"{rest.replace(':', '-')}.jsonl"
    if file not in SHIPPED.iterdir():  # the name comes from other people
        raise UserError(Code.DATA_NOT_FOUND, f"no data called {source} come with sfnode", row_files.FORMS)
    return row_files.numbered(source, (one.row for one in row_files.read(str(file))))
