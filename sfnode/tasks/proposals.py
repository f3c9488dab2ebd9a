"""Tasks that the columns of a table suggest, for an owner who then says yes or no.

The rules, in their order; all follow from the table alone:

1. A column of conversations is a chat.
2. What is right says a column whose name says so (RIGHT, in four languages), the last one of several: columns
   A, B, ... or a list beside it are choices; few values that repeat are classes; a column for answers whose
   values are all different is free answers.
3. Without such a name it is the last column that few values share.
4. Else there is only text to learn, of the longest column. But a column that was meant, as its name says, or
   numbers that are a score, are refused with the reason: nobody wants them to be left unread.

What is read are the columns with sentences, or the longest one. A class is learnt by a head, the faster way;
a choice in words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple
from unicodedata import normalize

from sfnode.errors import UserError
from sfnode.manifest.task import Task
from sfnode.tasks import prompts, templates
from sfnode.tasks.columns import COUNTED, DataTable, TableColumn
from sfnode.tasks.row_files import malformed

ANSWERS = frozenset(
    [
        "answer",
        "answers",
        "antwort",
        "completion",
        "output",
        "reply",
        "reponse",
        "respuesta",
        "response",
        "target",
    ]
)
"""Names, or last words of names, of columns with answers, without accents."""

RIGHT = ANSWERS | frozenset(
    [
        *("label", "labels", "class", "category", "topic", "sentiment", "intent", "gold", "truth", "correct"),
        *("right", "rating", "klasse", "kategorie", "thema", "stimmung", "richtig", "bewertung", "classe"),
        *("categorie", "etiquette", "sujet", "clase", "categoria", "etiqueta"),
    ]
)
"""The same of columns that say what is right."""

CHOICES = ("", "option", "choice", "answer", "wahl", "antwort", "choix", "opcion")
"""Beginnings of the names of columns with choices, before a letter or a number."""

MOST_CLASSES = 100
"""Classes that a run can have: mini-batches are to show each."""

MOST_GUESSED = 20
"""Classes of a column of which nobody has said that it holds classes."""

MOST_NUMBERS = 10
"""Different numbers that may be classes, such as stars; more are a score."""

LONGEST_CLASS = 48
"""Characters of the name of a class, on average; longer values are texts."""

SENTENCE = 3.0
"""Words of a cell, on average, of a column that is read beside the longest one."""

FITTING = 4 / 5
"""Share of the rows that a proposed task fits at least."""

MOST_OTHERS = 3
"""Other columns that are named, of which the owner may have meant one."""

NOTHING = "none"
"""Name in place of the column that says what is right: there is none, and the texts themselves are learnt."""


class Proposal(NamedTuple):
    """A task for a table."""

    task: Task
    right: str
    """The column that says what is right; NOTHING if none does."""
    texts: tuple[str, ...]
    """The columns that are read."""
    others: tuple[str, ...]
    """Columns that could say what is right as well."""


def propose(table: DataTable, right: str = "", texts: Sequence[str] = (), way: str = "") -> Proposal:
    """Return a task for a table in which a column says what is `right` and others are read, and where classes
    are learnt by a "head" or in "words"; what is not given is guessed.

    Raises UserError DATA_MALFORMED with the reason why a column cannot be what it is to be.
    """
    for name in (*texts, right):
        if name not in ("", NOTHING, *table.columns):
            raise malformed(f"{table.source} has no column {name!r}", f"It has {', '.join(table.columns)}.")
    found = _task(table, right, texts, way) if right else _guess(table, texts, way)
    others = [name for name in _candidates(table) if name != found.right and name not in found.texts]
    others = [name for name in others if not _no_classes(table.columns[name])]
    return found._replace(others=tuple(others[:MOST_OTHERS]))


def _guess(table: DataTable, texts: Sequence[str], way: str) -> Proposal:
    refused = None
    for name in _candidates(table):
        try:
            return _task(table, name, texts, way)
        except UserError as error:
            refused = refused or error
    for column in table.columns.values():
        if not refused and _is_score(column):
            refused = _refused(table, column, _no_classes(column))
    if refused:
        raise refused
    return _task(table, NOTHING, texts, way)


def _candidates(table: DataTable) -> Iterator[str]:
    """Yield the columns that may say what is right, the likeliest first."""
    columns = list(table.columns.values())
    yield from (column.name for column in columns if column.holds == "messages")
    last_first = [column for column in reversed(columns) if column.holds in ("texts", "numbers", "others")]
    yield from (one.name for one in sorted(last_first, key=_rank) if _rank(one) < 2)
    yield from (
        one.name
        for one in last_first
        if _rank(one) == 2 and len(one.values) <= MOST_GUESSED and not _no_classes(one)
    )


def _rank(column: TableColumn) -> int:
    """Return 0 for a column whose name says that it is right, 1 if only its last word does, else 2."""
    words = _plain(column.name).split()
    return 2 if not words or words[-1] not in RIGHT else int(len(words) > 1)


def _plain(name: str) -> str:
    """Return the words of a name in small letters without accents: `Réponse_finale` is `reponse finale`."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", normalize("NFKD", name)).casefold()
    return " ".join(re.findall(r"[a-z]+|[0-9]+", "".join(one for one in name if one.isascii() or one == " ")))


def _task(table: DataTable, right: str, texts: Sequence[str], way: str) -> Proposal:
    """Return the task in which a column says what is right. Raises UserError DATA_MALFORMED."""
    if right == NOTHING:
        texts = texts or _longest(table, ())
        return Proposal(Task(kind="text", template=_lines(texts)), right, tuple(texts), ())
    column = table.columns[right]
    if column.holds == "messages":
        return Proposal(Task(kind="chat", messages_field=right), right, (right,), ())
    options = [name for name in _options(table.columns) if name != right]
    texts = tuple(texts) or _texts(table, {right, *options})
    task = _chosen(table, right, texts, options) or _free(column, texts)
    if task is None and (reason := _no_classes(column)):
        raise _refused(table, column, reason)
    return Proposal(task or _classes(column, texts, way), right, texts, ())


def _refused(table: DataTable, column: TableColumn, reason: str) -> UserError:
    return malformed(
        f"the column {column.name!r} of {table.source} cannot say what is right: {reason}",
        "Name another column (--label), or `none` to learn the texts themselves.",
    )


def _no_classes(column: TableColumn) -> str:
    """Return why a column cannot hold the classes of its rows; nothing if it can."""
    count = len(column.values)
    many = f"more than {COUNTED:,}" if count > COUNTED else str(count)
    if column.holds not in ("texts", "numbers", "others"):
        return f"it holds {column.holds}"
    if column.holds == "numbers" and (count > MOST_NUMBERS or not column.whole):
        return (
            f"it holds {many} different numbers, and sfnode learns classes, not numbers (no regression). "
            "Make a column with a few classes of them, such as low, middle and high"
        )
    if count < 2:
        return f"it is the same in all rows: {next(iter(column.values), '')!r}"
    if count > column.filled / 2 or sum(map(len, column.values)) > LONGEST_CLASS * count:
        return f"{many} of its {column.filled:,} values are different, so they are no classes"
    if count > MOST_CLASSES:
        return f"it has {many} different values, and a run has {MOST_CLASSES} classes at most: join rare ones"
    return ""


def _is_score(column: TableColumn) -> bool:
    """Return whether numbers say how much of something there is: neither classes nor those of rows."""
    counted = column.whole and max(column.values.values(), default=0) < 2
    return column.holds == "numbers" and not counted and bool(_no_classes(column)) and len(column.values) > 1


def _texts(table: DataTable, others: Collection[str]) -> tuple[str, ...]:
    """Return the columns that are read: those with sentences, or the longest one."""
    found = [one for one in _readable(table, others) if one.words >= SENTENCE and not _repeats(one)]
    return tuple(one.name for one in found) or _longest(table, others)


def _repeats(column: TableColumn) -> bool:
    return len(column.values) <= MOST_GUESSED and not _no_classes(column)


def _longest(table: DataTable, others: Collection[str]) -> tuple[str, ...]:
    found = _readable(table, others)
    if not found:
        raise malformed(
            f"{table.source} has no column with texts to read: its columns are {', '.join(table.columns)}",
            "Name a file that has one. Columns with braces in their names, and numbers alone, are not read.",
        )
    return (max(found, key=lambda one: one.length).name,)


def _readable(table: DataTable, others: Collection[str]) -> list[TableColumn]:
    """Return the columns of texts that a template can name."""
    columns = [one for name, one in table.columns.items() if name not in others and one.holds == "texts"]
    return [one for one in columns if _is_name(one.name)]


def _is_name(name: str) -> bool:
    try:
        return templates.fields(f"{{{name}}}") == (name,)
    except UserError:
        return False


def _options(names: Collection[str]) -> list[str]:
    """Return the columns with the choices of a row: A, B, ... or such as `option_a`, `choice 1`."""
    called = {"".join(_plain(name).split()): name for name in names}
    for before in CHOICES:
        for series in (ascii_lowercase, "123456789", "012345678") if before else (ascii_lowercase,):
            found = [called[one] for one in takewhile(called.__contains__, (before + one for one in series))]
            if len(found) > 1:
                return found
    return []


def _chosen(table: DataTable, right: str, texts: Sequence[str], options: Sequence[str]) -> Task | None:
    """Return the task of choosing among a row's columns or its list, where the column `right` says which."""
    if options and (words := _lettered(table.columns[right].values, options)):
        listed = "".join(f"\n{letter}. {{{name}}}" for letter, name in _letters(options))
        template = f"{_lines(texts)}{listed}\nAnswer:"
        return Task(kind="classification", template=template, label_field=right, verbalizer=words)
    for column in table.columns.values():
        if column.holds == "lists" and column.name != right:
            task = Task(
                kind="choice",
                template=_lines(texts),
                completion="{candidate}",
                candidates_field=column.name,
                label_field=right,
            )
            rows = [one.row for one in table.placed if not one.wrong][:COUNTED]
            if sum(not prompts.problem(task, row) for row in rows) >= FITTING * len(rows):
                return task
    return None


def _letters(options: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(ascii_uppercase, options, strict=False))


def _lettered(labels: Collection[str], options: Sequence[str]) -> dict[str, str]:
    """Return the letter for each label, if labels are letters of `options`, their names, or their numbers
    from 0 or from 1; nothing if they are none, or may be numbers of either kind."""
    letters = [letter for letter, _ in _letters(options)]
    count = len(options)
    namings = [letters, [one.lower() for one in letters], [prompts.label(name) for name in options]]
    namings += [[str(place) for place in range(count)]] if "0" in labels else []
    namings += [[str(place + 1) for place in range(count)]] if str(count) in labels else []
    for naming in namings:
        if labels and set(labels) <= set(naming):
            return dict(zip(naming, letters, strict=True))
    return {}


def _free(column: TableColumn, texts: Sequence[str]) -> Task | None:
    """Return the task of writing an answer, for a column of answers that do not repeat."""
    words = _plain(column.name).split()
    if column.holds != "texts" or not words or words[-1] not in ANSWERS or not _is_name(column.name):
        return None
    if len(column.values) <= column.filled / 2:
        return None
    return Task(kind="completion", template=f"{_lines(texts)}\nAnswer:", completion=f"{{{column.name}}}")


def _classes(column: TableColumn, texts: Sequence[str], way: str) -> Task:
    """Return the task of telling a row's class."""
    names = {label: label for label in column.values}
    if way == "words":
        asked = column.name.replace("{", "{{").replace("}", "}}")
        return Task(
            kind="classification",
            template=f"{_lines(texts)}\n{asked}:",
            label_field=column.name,
            verbalizer=names,
        )
    return Task(
        kind="sequence-classification",
        template=_lines(texts),
        label_field=column.name,
        verbalizer=names,
    )


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(f"{{{name}}}" for name in texts)
