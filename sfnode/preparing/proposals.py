"""Proposals of tasks for the columns of a table, which its owner then confirms or changes.

`KINDS` lists the kinds of tasks: each checks the columns and returns a task for them. `NAMES` has the
meanings of column names, in four languages. The rules follow from the table alone, in this order:

    1. A column of conversations is a chat.
    2. The column with the right answer is the last one whose name says so. With columns A, B, ... or a list
       beside it the task is a choice. Few values that repeat are classes. Other values in a column for
       answers are free answers. If no such column fits, the error says why, because the owner surely does
       not want the column to be left unread.
    3. If no name says so, the column with the right answer is the last one with few different values.
    4. Otherwise there is only text to learn: that of the longest column. A column of numbers that are a
       score raises an error instead.

A proposal that nobody would confirm at a glance has a `doubt`: two columns may have the right answer, or a
column that the owner may have meant is left unread. All columns with sentences are read; if there are none,
the longest column is. Classes are learnt by a head, which is faster, and choices in words. Both are learnt
from gradients where possible (`estimator`), because a run then learns most in a given time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from sfnode.errors import UserError
from sfnode.manifest.sections import BUILTIN
from sfnode.manifest.task import Task
from sfnode.preparing.table_contents import DataTable, TableColumn
from sfnode.tasks import prompts, templates
from sfnode.tasks.row_files import malformed

NAMES: dict[str, frozenset[str]] = {
    role: frozenset(names.split())
    for role, names in {
        "answers": "answer answers antwort chosen completion output reply reponse respuesta response summary "
        "target translation ubersetzung zusammenfassung",
        "classes": "label labels class category topic sentiment intent emotion stance gold truth correct "
        "right rating y klasse kategorie thema stimmung absicht richtig bewertung classe categorie "
        "etiquette sujet clase categoria etiqueta polarity verdict stars outcome",
        "choices": "choices options candidates endings alternatives",
        "rest": "name address adresse street city stadt customer kunde company firma id ids idx index uuid "
        "guid key nr no number nummer row unnamed url uri link date datum time zeit timestamp created "
        "updated author autor user username source quelle file filename path split fold lang language "
        "sprache locale country land email mail version year jahr",
        "never": "rejected",
    }.items()
}
"""Last words of columns' names, without accents, keyed by the contents of such columns: right answers, right
classes, the choices of a row, the rest (read and learnt only if there is nothing else), and columns that are
never read or learnt."""

RIGHT = NAMES["answers"] | NAMES["classes"]

WRITTEN = NAMES["answers"] - {"output", "target"}
"""Last words of the names of columns whose values are written as answers, even if they are numbers."""

COUNTED = NAMES["classes"] - {"rating", "stars", "bewertung", "y"}
"""Last words of the names of columns whose numbers are classes and not a score, however many different
numbers there are."""

FORMS = frozenset(["text", "name", "str", "id", "idx", "code"])
"""Last words of names such as `label_text`, in which the word before the last one tells the contents."""

CHOICES = ("", "option", "choice", "answer", "wahl", "antwort", "choix", "opcion")
"""Prefixes of the names of columns with choices, before a letter or a number."""

MOST_CLASSES = 100
"""Maximum number of classes of a run, because mini-batches should contain rows of each class."""

MOST_GUESSED = 20
"""Maximum number of classes of a column whose name does not say that it holds classes."""

MOST_NUMBERS = 10
"""Maximum number of different numbers that may be classes, such as stars. A column with more different
numbers is taken to hold a score, unless its numbers count classes from 0 or 1."""

RARE, LEAST_TYPED = 1 / 20, 5
"""Maximum number of rows with a mistyped label, as a share of the rows with the right label; and minimum
number of letters of a word that may be mistyped."""

MOST_JOINED = 2 * MOST_CLASSES
"""Maximum number of different values among which mistyped ones are looked for, because each value is compared
with every other value."""

LONGEST_CLASS = 48
"""Maximum mean length of a class's name, in characters; longer values are texts."""

SENTENCE = 3.0
"""Minimum mean number of words in a cell of a column that is read. If no column has so many, the longest
column is read."""

FITTING = 4 / 5
"""Minimum share of the rows that fit a proposed task."""

MOST_OTHERS = 3
"""Maximum number of other columns that a proposal names, because the owner may have meant one of them."""

SURE = (["label"], ["labels"], ["gold", "label"])
"""Names, as lists of words, that only a column with the right answer has."""

UNNAMED = 3
"""Rank of a column whose name does not say that it has the right answer."""

MEANT = ("answers", "classes", "choices")
"""Roles of columns that somebody has prepared for learning."""

PLAIN = ("codes", "numbers", "booleans", "others", "nothing")
"""Contents of columns that are left unread without a message."""

NOTHING = "none"
"""Value of `Proposal.right` if no column says what is right, so that the texts themselves are learnt."""


TWO_POINT = frozenset(["epsilon", "group", "schedule"])
"""Parameter names of options that only zeroth-order runs have."""


class Proposal(NamedTuple):
    """A task for a table."""

    task: Task
    right: str
    """Column that says what is right; NOTHING if none does."""
    texts: tuple[str, ...]
    """Columns that are read."""
    others: tuple[str, ...] = ()
    """Other columns that could say what is right."""
    doubt: str = ""
    """Reason why the owner should look at this proposal first; empty without a doubt."""
    joined: Mapping[str, str] = {}
    """Labels that replace others, keyed by the replaced label. The two differ only in capital letters, blanks
    or a typing error."""


def estimator(
    task: Task, train: str, organised: bool, said: Mapping[str, Any]
) -> Literal["first-order", "zeroth-order"]:
    """Return the estimator with which a run with these training data learns most in a given time. It is
    first-order, unless gradients are impossible, options in `said` ask for forward passes, or the run is a
    built-in demonstration of forward passes.

    Gradients are impossible in an open run, where nobody signs rates. They are also impossible without rows
    or measurements, from which the coordinates follow.
    """
    unable = not (organised and train and said.get("measure", True))
    asked = TWO_POINT & said.keys() or said.get("made_of", "gradients") != "gradients"
    demonstration = train.startswith(BUILTIN) and not task.is_rewarded
    forward = unable or asked or said.get("loss") == "centred" or demonstration
    return "zeroth-order" if forward else "first-order"


def propose(table: DataTable, right: str = "", texts: Sequence[str] = (), way: str = "") -> Proposal:
    """Return a task for a table. `right` names the column with the right answer, `texts` the columns to read,
    and `way` how classes are learnt, by a "head" or in "words". Empty arguments are guessed.

    Raises UserError DATA_MALFORMED with the reason why a column does not fit.
    """
    for name in (*texts, right):
        if name not in ("", NOTHING, *table.columns):
            raise malformed(f"{table.source} has no column {name!r}", f"It has {', '.join(table.columns)}.")
    found = _task(table, right, texts, way) if right else _guess(table, texts, way)
    others = [name for name in _candidates(table) if name != found.right and name not in found.texts]
    others = [name for name in others if not _no_classes(table.columns[name])]
    return found._replace(others=tuple(others[:MOST_OTHERS]))


def _guess(table: DataTable, texts: Sequence[str], way: str) -> Proposal:
    """Return the likeliest task, with a doubt if other tasks are equally likely."""
    tried = [(name, _tried(table, name, texts, way)) for name in _candidates(table)]
    good = [one for _, one in tried if isinstance(one, Proposal)]
    named = [_rank(table.columns[name]) < UNNAMED for name, _ in tried]
    if good and (not any(named) or _rank(table.columns[good[0].right]) < UNNAMED):
        return good[0]._replace(doubt=_doubt(table, good))
    refused = next((one for _, one in tried if isinstance(one, UserError)), None)
    for column in table.columns.values():
        if not refused and _is_score(column):
            refused = _refused(table, column, _no_classes(column))
    if refused:
        raise refused
    found = _task(table, NOTHING, texts, way)
    return found._replace(doubt=_doubt(table, [found]))


def _tried(table: DataTable, name: str, texts: Sequence[str], way: str) -> Proposal | UserError:
    try:
        return _task(table, name, texts, way)
    except UserError as error:
        return error


def _doubt(table: DataTable, good: Sequence[Proposal]) -> str:
    """Return why the first of these proposals is doubtful; empty if it is not."""
    found, columns = good[0], table.columns
    rank = _rank(columns[found.right]) if found.right in columns else UNNAMED
    rivals = [one.right for one in good if one.right in columns and _rank(columns[one.right]) == rank]
    if not all(_says_same(table, name, found.right) for name in rivals):
        return f"{' and '.join(rivals)} may say what is right"
    read = {found.right, *found.texts, *prompts.fields(found.task)}
    unread = [one for name, one in columns.items() if name not in read and one.holds not in PLAIN]
    lists = [one.name for one in unread if one.holds != "texts" and (rank == UNNAMED or _role(one) in MEANT)]
    if lists:
        return f"lists or objects would be left unread: {', '.join(lists)}"
    if found.right != NOTHING:
        rest = rank == UNNAMED and _role(columns[found.right]) == "rest"
        return f"nothing but {found.right} could say what is right, and its name does not" if rest else ""
    texts = [one.name for one in unread if _role(one) != "rest"]
    if texts:
        return f"no column says what is right, and {', '.join(texts)} would be left unread"
    (text,) = found.texts[:1]
    few = columns[text].words < SENTENCE
    return f"no column says what is right, and {text} has no sentences to learn" if few else ""


def _says_same(table: DataTable, one: str, other: str) -> bool:
    """Return whether the values of two columns correspond one to one, such as numbers of classes and their
    names."""
    rows = [placed.row for placed in table.placed if not placed.wrong]
    pairs = {(prompts.label(row.get(one)), prompts.label(row.get(other))) for row in rows}
    return one == other or len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def _candidates(table: DataTable) -> Iterator[str]:
    """Yield the columns that may hold the right answer, the likeliest first."""
    columns = [one for one in table.columns.values() if _role(one) != "never"]
    yield from (column.name for column in columns if column.holds == "messages")
    last_first = [column for column in reversed(columns) if column.holds != "messages"]
    yield from (one.name for one in sorted(last_first, key=_rank) if _rank(one) < UNNAMED)
    few = [one for one in last_first if _rank(one) == UNNAMED and len(classes(one)) <= MOST_GUESSED]
    yield from (one.name for one in sorted(few, key=lambda one: _role(one) == "rest") if not _no_classes(one))


def _rank(column: TableColumn) -> int:
    """Return the rank of a column, the surest first, according to what its name says about the right answer:
    0 for `label` and conversations, 1 for other names, 2 if only the last word says it, else UNNAMED."""
    words = _words(column.name)
    if column.holds == "messages" or words in SURE:
        return 0
    return min(len(words), 2) if _role(column) in ("answers", "classes") else UNNAMED


def _role(column: TableColumn) -> str:
    """Return the contents of a column according to its name, as in NAMES; empty if the name does not tell."""
    words = _words(column.name)
    return next((role for role, names in NAMES.items() if words and words[-1] in names), "")


def _words(name: str) -> list[str]:
    """Return the words of a name, without a last word that tells only the form."""
    words = _plain(name).split()
    if words[:1] == ["unnamed"]:
        return words[:1]
    if len(words) > 1 and words[-1].isdecimal():
        words.pop()
    return words[:-1] if len(words) > 1 and words[-1] in FORMS and words[-2] in RIGHT else words


def _plain(name: str) -> str:
    """Return the words of a name in small letters without accents: `Réponse_finale` is `reponse finale`."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", normalize("NFKD", name)).casefold()
    return " ".join(re.findall(r"[a-z]+|[0-9]+", "".join(one for one in name if one.isascii() or one == " ")))


def _task(table: DataTable, right: str, texts: Sequence[str], way: str) -> Proposal:
    """Return the proposal whose right answer is in the column `right`. Raises UserError DATA_MALFORMED."""
    if right == NOTHING:
        texts = texts or _longest(table, ())
        return Proposal(Task(kind="text", template=_lines(texts)), right, tuple(texts))
    column, options = table.columns[right], [name for name in _options(table.columns) if name != right]
    if column.holds in ("objects", "others", "nothing"):
        raise _refused(table, column, _no_classes(column))
    if column.holds != "messages":
        texts = tuple(texts) or _texts(table, {right, *options})
    read = (right,) if column.holds == "messages" else tuple(texts)
    reason = ""
    for kind in KINDS:
        found = kind(ColumnCandidate(table, column, read, tuple(options), way))
        if isinstance(found, Task):
            lettered = found.kind == "classification" and options
            joined = joins(column.values) if found.labelled and not lettered else {}
            return Proposal(found, right, read, joined=joined)
        reason = reason or found
    raise _refused(table, column, reason)


def _refused(table: DataTable, column: TableColumn, reason: str) -> UserError:
    return malformed(
        f"the column {column.name!r} of {table.source} cannot say what is right: {reason}",
        "Name another column (--label), or `none` to learn the texts themselves.",
    )


def classes(column: TableColumn) -> Counter[str]:
    """Return the number of rows of each class of a column. Joined labels count as one class."""
    joined, found = joins(column.values), Counter[str]()
    for label, count in column.values.items():
        found[joined.get(label, label)] += count
    return found


def joins(values: Counter[str]) -> dict[str, str]:
    """Return the label that replaces each label that differs from it only in capital letters, blanks or a
    typing error, keyed by the replaced label."""
    if len(values) > MOST_JOINED:
        return {}
    alike: dict[str, list[str]] = {}
    for label in sorted(values, key=lambda one: (-values[one], one)):
        alike.setdefault(" ".join(label.casefold().split()).strip(".,;:!"), []).append(label)
    first = [labels[0] for labels in alike.values()]
    joined = {label: labels[0] for labels in alike.values() for label in labels[1:]}
    counts = Counter({labels[0]: sum(values[one] for one in labels) for labels in alike.values()})
    common = [one for one in first if RARE * counts[one] >= 1]  # of most columns none
    for rare in first:
        meant = [one for one in common if counts[rare] <= RARE * counts[one] and _is_typo(rare, one)]
        if len(meant) == 1:
            same = [rare, *(one for one in joined if joined[one] == rare)]
            joined |= dict.fromkeys(same, joined.get(meant[0], meant[0]))
    return joined


def _is_typo(rare: str, common: str) -> bool:
    """Return whether two labels differ only in one word, and there only in one letter that is replaced, added
    or missing, or in two swapped letters. The first letters must be the same, and both words must consist of
    letters."""
    pairs = zip(rare.casefold().split(), common.casefold().split(), strict=False)
    different = [(a, b) for a, b in pairs if a != b]
    if len(different) != 1 or len(rare.split()) != len(common.split()):
        return False
    ((a, b),) = different
    if min(len(a), len(b)) < LEAST_TYPED or a[0] != b[0] or not (a + b).isalpha():
        return False
    begin = templates.common_prefix(a, b)
    end = templates.common_prefix(a[begin:][::-1], b[begin:][::-1])
    a, b = a[begin : len(a) - end], b[begin : len(b) - end]
    return max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])


def _no_classes(column: TableColumn) -> str:
    """Return why a column cannot hold the classes of its rows; empty if it can."""
    if column.holds == "lists" and _role(column) in MEANT:
        return "it holds lists, several of them a row, and sfnode learns one"
    if column.holds not in ("texts", "codes", "numbers", "booleans"):
        return f"it holds {column.holds}" if column.holds != "nothing" else "it is empty in all rows"
    found = classes(column)
    count = len(found)
    if column.holds == "numbers" and not _counts(column) and (count > MOST_NUMBERS or not column.whole):
        return (
            f"it holds {count:,} different numbers, and sfnode learns classes, not numbers (no regression). "
            "Make a column with a few classes of them, such as low, middle and high"
        )
    if count < 2:
        return f"it is the same in all rows: {next(iter(found), '')!r}"
    if count > column.filled / 2 or sum(map(len, found)) > LONGEST_CLASS * count:
        return f"{count:,} of its {column.filled:,} values are different, so they are no classes"
    if count > MOST_CLASSES:
        return (
            f"it has {count:,} different values, and a run has {MOST_CLASSES} classes at most: join rare ones"
        )
    if several := next((one for one in found if _parts(one) and _parts(one) <= found.keys()), ""):
        return f"it has several labels in a row, such as {several!r}, and sfnode learns one"
    if mixed := {"true", "false"} & found.keys() and {"0", "1"} & found.keys():
        same = sorted({"true", "false"} & found.keys())[-1]
        return f"it holds both {same!r} and {sorted(mixed)[-1]!r}, which may be the same: write one of them"
    return ""


def _parts(label: str) -> set[str]:
    """Return the labels within one label, if there are several."""
    found = {prompts.label(one) for one in re.split(r"[;|,]", label)}
    return found if len(found) > 1 else set()


def _counts(column: TableColumn) -> bool:
    """Return whether a column has whole numbers that count classes from 0 or 1. Its name must say that it
    holds classes."""
    if (
        _words(column.name)[-1:] not in [[one] for one in COUNTED]
        or not column.whole
        or len(column.values) > MOST_CLASSES
    ):
        return False
    numbers = {int(one) for one in column.values if one.isdecimal()}
    whole = set(range(min(numbers, default=0), max(numbers, default=0) + 1))
    return len(numbers) == len(column.values) and numbers == whole and min(numbers) in (0, 1)


def _is_score(column: TableColumn) -> bool:
    """Return whether a column's numbers are amounts, and count neither classes nor rows."""
    counted = (column.whole and max(column.values.values(), default=0) < 2) or _role(column) == "rest"
    return column.holds == "numbers" and not counted and bool(_no_classes(column)) and len(column.values) > 1


def _texts(table: DataTable, others: Collection[str]) -> tuple[str, ...]:
    """Return the columns that are read: those with sentences, or the longest one."""
    found = [one for one in _readable(table, others) if one.holds == "texts" and one.words >= SENTENCE]
    found = [one for one in found if len(one.values) > MOST_GUESSED or _no_classes(one)]  # else it repeats
    return tuple(one.name for one in found if _role(one) != "rest") or _longest(table, others)


def _longest(table: DataTable, others: Collection[str]) -> tuple[str, ...]:
    found = _readable(table, others)
    if not found:
        raise malformed(
            f"{table.source} has no column with texts to read: it has "
            + ", ".join(f"{one.name} ({one.holds})" for one in table.columns.values()),
            "Name a file that has one. Columns with braces in their names, and numbers alone, are not read.",
        )
    return (max(found, key=lambda one: (one.holds == "texts", _role(one) != "rest", one.length)).name,)


def _readable(table: DataTable, others: Collection[str]) -> list[TableColumn]:
    """Return the columns of texts that a template can name."""
    columns = [one for name, one in table.columns.items() if name not in others and _role(one) != "never"]
    return [one for one in columns if one.holds in ("texts", "codes") and _is_name(one.name)]


def _is_name(name: str) -> bool:
    try:
        return templates.fields(f"{{{name}}}") == (name,)
    except UserError:
        return False


def _options(names: Collection[str]) -> list[str]:
    """Return the columns with the choices of a row, with names such as A, B, ... or `option_a`, `choice 1`;
    empty if there are none."""
    called = {"".join(_plain(name).split()): name for name in names}
    for before in CHOICES:
        for series in (ascii_lowercase, "123456789", "012345678") if before else (ascii_lowercase,):
            found = [called[one] for one in takewhile(called.__contains__, (before + one for one in series))]
            if len(found) > 1:
                return found
    return []


class ColumnCandidate(NamedTuple):
    """Columns of a table from which a task may follow."""

    table: DataTable
    right: TableColumn
    texts: tuple[str, ...]
    options: tuple[str, ...]
    """Columns with the choices of a row."""
    way: str


Kind = Callable[[ColumnCandidate], Task | str]
"""Function that returns the task of a kind, or why the columns do not suit the kind; "" if another kind gives
the reason."""


def _chat(asked: ColumnCandidate) -> Task | str:
    return Task(kind="chat", messages_field=asked.right.name) if asked.right.holds == "messages" else ""


def _letter(asked: ColumnCandidate) -> Task | str:
    """Return a task of choosing among a row's columns by their letters."""
    words = _lettered(asked.right.values, asked.options) if asked.options else {}
    listed = "".join(f"\n{letter}. {{{name}}}" for letter, name in _letters(asked.options))
    template = f"{_lines(asked.texts)}{listed}\nAnswer:"
    name = asked.right.name
    return Task(kind="classification", template=template, label_field=name, verbalizer=words) if words else ""


def _choice(asked: ColumnCandidate) -> Task | str:
    """Return a task of choosing from a row's list. Raises UserError DATA_MALFORMED if a column is named like
    a list of choices and does not fit."""
    rows, doubted = [one.row for one in asked.table.placed if not one.wrong], ""
    for column in asked.table.columns.values():
        if column.holds == "lists" and column.name != asked.right.name:
            task = Task(
                kind="choice",
                template=_lines(asked.texts),
                completion="{candidate}",
                candidates_field=column.name,
                label_field=asked.right.name,
            )
            if sum(not prompts.problem(task, row) for row in rows) >= FITTING * len(rows):
                return task
            doubted = column.name if _role(column) == "choices" else doubted
    if doubted:
        reason = f"it names nothing in the lists of {doubted!r}, neither by its text nor by a number from 0"
        raise _refused(asked.table, asked.right, reason)
    return ""


def _letters(options: Collection[str]) -> list[tuple[str, str]]:
    return list(zip(ascii_uppercase, options, strict=False))


def _lettered(labels: Collection[str], options: Collection[str]) -> dict[str, str]:
    """Return the letter for each label, if labels are letters of `options`, their names, or their numbers
    from 0 or from 1; empty if they are none of these, or could be numbers from 0 as well as from 1."""
    letters = [letter for letter, _ in _letters(options)]
    count = len(options)
    namings = [letters, [one.lower() for one in letters], [prompts.label(name) for name in options]]
    namings += [[str(place) for place in range(count)]] if "0" in labels else []
    namings += [[str(place + 1) for place in range(count)]] if str(count) in labels else []
    for naming in namings:
        if labels and set(labels) <= set(naming):
            return dict(zip(naming, letters, strict=True))
    return {}


def _class(asked: ColumnCandidate) -> Task | str:
    """Return a task of classifying rows."""
    if reason := _no_classes(asked.right):
        return reason
    names = {label: label for label in classes(asked.right)}
    name = asked.right.name
    if asked.way == "words":
        braced = name.replace("{", "{{").replace("}", "}}")
        template = f"{_lines(asked.texts)}\n{braced}:"
        return Task(kind="classification", template=template, label_field=name, verbalizer=names)
    template = _lines(asked.texts) + templates.ASKING
    return Task(kind="sequence-classification", template=template, label_field=name, verbalizer=names)


def _free(asked: ColumnCandidate) -> Task | str:
    """Return a task of writing the answer in a column, if its name says that it holds answers; else an empty
    text."""
    column, words = asked.right, _words(asked.right.name)
    said = column.holds in ("texts", "codes") or (column.holds == "numbers" and words[-1:][0] in WRITTEN)
    if _role(column) != "answers" or not said or not _is_name(column.name) or len(column.values) < 2:
        return ""
    template = f"{_lines(asked.texts)}\nAnswer:"
    return Task(kind="completion", template=template, completion=f"{{{column.name}}}")


KINDS: tuple[Kind, ...] = (_chat, _letter, _choice, _class, _free)
"""Kinds of tasks, in the order in which they are tried."""


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(f"{{{name}}}" for name in texts)
