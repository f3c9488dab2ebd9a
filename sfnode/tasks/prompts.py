"""Turns a row of data into text: a prompt with its candidate answers, a text to classify, or a conversation.

Only this module interprets the fields of a row according to the manifest's task. It knows nothing of tokens,
tensors or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sfnode.manifest.task import Task, composed
from sfnode.tasks import row_files, templates, verifying

Row = Mapping[str, Any]

ASSISTANT = "assistant"
"""Role, in chat templates, of the messages that a model learns to write."""


STAND_IN = {"role": ASSISTANT, "content": "…"}
"""Placeholder for the answer that a model will write."""


class Prompt(NamedTuple):
    """A row with a prompt."""

    prompt: str
    answers: tuple[str, ...]
    """Candidates for the text after the prompt: several for a task with candidates, none for a reward run, in
    which the model writes its own answer, and otherwise one."""
    right: tuple[int, ...]
    """Indices of the correct answers. Training uses the first correct answer."""


class LabelledTexts(NamedTuple):
    """A row of a sequence classification task."""

    texts: tuple[str, ...]
    """One text, or the two texts on either side of the template's separator."""
    classes: int
    right: int
    """Index of the row's class."""


class Message(NamedTuple):
    """A message of a conversation."""

    role: str
    content: str


class Conversation(NamedTuple):
    """A row of a chat task."""

    messages: tuple[Message, ...]


RowText = Prompt | LabelledTexts | Conversation
"""A row as text."""


def render_row(task: Task, row: Row) -> RowText:
    """Return the text of a row for which `problem` returns None."""
    if task.kind == "chat":
        said = row[task.messages_field]
        return Conversation(tuple(Message(one["role"], one["content"]) for one in said))
    if task.kind == "sequence-classification":
        return LabelledTexts(templates.texts(task.template, row), len(task.verbalizer), class_of(task, row))
    prompt = templates.render(task.template, row)
    if task.kind == "classification":
        return Prompt(prompt, tuple(task.verbalizer.values()), (class_of(task, row),))
    if task.kind == "choice":
        candidates = row[task.candidates_field]
        return Prompt(prompt, tuple(_answer(task, row, c) for c in candidates), _right(task, row))
    if task.kind == "completion":
        return Prompt(prompt, (templates.render(task.completion, row),), (0,))
    return Prompt(prompt, (), ()) if task.kind == "reward" else Prompt("", (prompt,), (0,))


def fields(task: Task) -> tuple[str, ...]:
    """Return the names of the fields that a row must have, those of the template first.

    Raises UserError BAD_MANIFEST for a template that has no fields or cannot be parsed.
    """
    if task.kind == "chat":
        return (task.messages_field,)
    names = _worded(task) + _answered(task)
    if task.labelled or task.kind == "choice":
        names += (task.label_field,)
    if task.kind == "choice":
        names += (task.candidates_field,)
    if task.kind == "reward":
        names += verifying.columns(task)
    return tuple(dict.fromkeys(names))


def _worded(task: Task) -> tuple[str, ...]:
    """Return the names of the fields of a row that the template reads."""
    names = templates.fields(task.template)
    if task.kind == "sequence-classification":
        names = tuple(name for name in names if name != templates.SEPARATOR)
    if not names:
        raise templates.unusable(task.template, templates.NO_FIELD)
    return names


def _answered(task: Task) -> tuple[str, ...]:
    """Return the names of the fields of a row that the task's template `completion` reads; empty if the task
    has none. In a `choice` task this template must also read `candidate`, which is no field of a row."""
    names = templates.fields(task.completion) if task.completion else ()
    if task.kind != "choice":
        return names
    if templates.CANDIDATE not in names:
        raise templates.unusable(task.completion, "it names no {candidate}: all would be the same text")
    return tuple(name for name in names if name != templates.CANDIDATE)


def example(task: Task) -> dict[str, Any]:
    """Return an example of a row for error messages. Its values, such as `some text` in a field `text`, show
    what each field must contain."""
    row: dict[str, Any] = {name: f"some {name}" for name in fields(task)}
    if task.kind == "chat":
        said = [{"role": "user", "content": "a question"}, {"role": ASSISTANT, "content": "an answer"}]
        return {task.messages_field: said}
    if task.labelled:
        row[task.label_field] = next(iter(task.verbalizer))
    if task.kind == "choice":
        row |= {task.candidates_field: ["an answer", "another"], task.label_field: 0}
    if task.kind == "reward":
        row |= dict.fromkeys(verifying.columns(task), verifying.EXAMPLE)
    return row


def questions(task: Task) -> tuple[str, ...]:
    """Return the names of the fields of a row that a model needs to answer it: the messages of a
    conversation, or the fields of the template and the field of the candidates."""
    if task.kind == "chat":
        return (task.messages_field,)
    candidates = (*_answered(task), task.candidates_field) if task.kind == "choice" else ()
    return tuple(dict.fromkeys((*_worded(task), *candidates)))


def unanswered(task: Task, row: Row) -> Row:
    """Return a copy of a row with a placeholder in place of the right answer. The row need not have an
    answer."""
    if task.labelled:
        return {**row, task.label_field: next(iter(task.verbalizer))}
    if task.kind == "choice":
        return {**row, task.label_field: 0}
    said = row.get(task.messages_field)
    if task.kind != "chat" or not isinstance(said, list):
        return row
    answered = bool(said) and isinstance(said[-1], dict) and said[-1].get("role") == ASSISTANT
    return {**row, task.messages_field: [*(said[:-1] if answered else said), STAND_IN]}


def length(words: RowText) -> int:
    """Return the number of characters of a row, including only its longest answer."""
    if isinstance(words, Conversation):
        return sum(len(message.content) for message in words.messages)
    if isinstance(words, LabelledTexts):
        return sum(map(len, words.texts))
    return len(words.prompt) + max(map(len, words.answers), default=0)


def text_of(task: Task, row: Row) -> tuple[str, ...]:
    """Return those texts of a row that a model reads, in a form for comparing rows: in lower case, and with
    single spaces."""
    words = render_row(task, unanswered(task, row))
    if isinstance(words, Conversation):
        texts: Iterable[str] = (message.content for message in words.messages)
    elif isinstance(words, LabelledTexts):
        texts = words.texts
    else:
        texts = (words.prompt, *(words.answers if task.kind in ("choice", "text") else ()))
    return tuple(" ".join(composed(text).split()).casefold() for text in texts)


def class_name(task: Task, row: Row) -> str:
    """Return the label of a row in the form of `label`; an empty text if the task has no labels."""
    return label(row[task.label_field]) if task.labelled else ""


def word_count(task: Task, row: Row) -> int:
    """Return the number of words in the first field that the template reads, or in a whole conversation."""
    if task.kind == "chat":
        return sum(len(message["content"].split()) for message in row[task.messages_field])
    return len(str(row[fields(task)[0]]).split())


def problem(task: Task, row: Row) -> str | None:
    """Return the reason why a row does not fit the task; None if it fits."""
    lacking = [repr(name) for name in fields(task) if row.get(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}; the row has {', '.join(repr(name) for name in row) or 'nothing'}"
    wrong = _value_problem(task, row) or _emptiness(task, row)
    if wrong:
        return wrong
    if task.labelled and _class(task, row) is None:
        known = ", ".join(task.verbalizer)
        return f"the label {label(row[task.label_field])!r} is none of the task's labels ({known})"
    if task.kind == "choice":
        return _choice_problem(task, row)
    if task.kind == "reward":
        return verifying.problem(task, row)
    return None


_WHOLE = re.compile(r"([+-]?[0-9]+)\.0+")
"""Pattern for an integer with a zero fraction, such as `3.0`. pandas writes integers in this form if some
cells of the column are empty."""


def label(value: object) -> str:
    """Return a label as text in a normal form, in which labels of rows are compared with those of the
    verbalizer (SPEC T2). Booleans are written as in JSON, and integers without a fraction."""
    text = str(value).lower() if isinstance(value, bool) else composed(str(value).strip())
    return whole[1] if (whole := _WHOLE.fullmatch(text)) else text


def class_of(task: Task, row: Row) -> int:
    """Return the class of a row, as an index into the verbalizer. The task must be one with labels."""
    found = _class(task, row)
    assert found is not None, "`problem` has not looked at this row"
    return found


def _class(task: Task, row: Row) -> int | None:
    return _places_of(tuple(task.verbalizer)).get(label(row[task.label_field]))


@lru_cache(maxsize=8)
def _places_of(labels: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each label of a verbalizer, keyed by label. If several labels are equal, the index
    is that of the first one."""
    return {label(one): number for number, one in reversed([*enumerate(labels)])}


def _value_problem(task: Task, row: Row) -> str | None:
    """Return, in words, the field of a row whose value is wrong, and the fault; None if no value is wrong."""
    if task.kind == "chat":
        wrong = _chat_problem(row[task.messages_field])
        return f"{task.messages_field!r} {wrong}" if wrong else None
    plain = (*_worded(task), *_answered(task), *((task.label_field,) if task.labelled else ()))
    for name in fields(task):
        wrong = row_files.problem(row[name], nested=name not in plain)
        if wrong:
            return f"{name!r} {wrong}"
    return None


def lacks(task: Task, row: Row) -> bool:
    """Return whether a row does not fit the task because it has no text for the model to read, no text to
    learn, or no label."""
    if task.kind == "chat":
        return not row.get(task.messages_field)
    there = {name: value for name, value in row.items() if value is not None and value == value}
    return bool(_emptiness(task, dict.fromkeys(fields(task), "") | there))


def _emptiness(task: Task, row: Row) -> str | None:
    """Return, in words, which part of a row is empty: all text that the model reads, all text that the model
    learns, or the label. Return None if none of these is empty."""
    if task.kind == "chat":
        return _silence(row[task.messages_field])
    whole = [_worded(task)]
    whole += [_answered(task)] if task.kind == "completion" else []
    whole += [(task.label_field,)] if task.labelled else []
    for names in whole:
        if not any(str(row[name]).strip() for name in names):
            return f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} empty"
    return None


def _silence(messages: list[dict[str, str]]) -> str | None:
    """Return, in words, which part of a conversation is empty: a message of the assistant, or all messages
    that the assistant answers. Return None if neither is empty."""
    if not all(message["content"].strip() for message in messages if message["role"] == ASSISTANT):
        return "there is no text to learn"
    answered = [message for n, message in enumerate(messages) if n == 0 or message["role"] != ASSISTANT]
    return None if any(message["content"].strip() for message in answered) else "there is no text to answer"


def _answer(task: Task, row: Row, candidate: str) -> str:
    return templates.render(task.completion, {**row, templates.CANDIDATE: candidate})


def _right(task: Task, row: Row) -> tuple[int, ...]:
    """Return the indices of the correct candidates. The label of the row is an index, a text, or a list of
    texts."""
    candidates, given = row[task.candidates_field], row[task.label_field]
    if isinstance(given, int):
        return (given,) if 0 <= given < len(candidates) else ()
    texts = [given] if isinstance(given, str) else given
    return _places(texts, candidates) or _places(map(composed, texts), list(map(composed, candidates)))


def _places(texts: Iterable[str], candidates: list[str]) -> tuple[int, ...]:
    return tuple(candidates.index(text) for text in texts if text in candidates)


def _choice_problem(task: Task, row: Row) -> str | None:
    candidates, given = row[task.candidates_field], row[task.label_field]
    if not _are_texts(candidates) or not all(text.strip() for text in candidates):
        return f"{task.candidates_field!r} is not a list of texts"
    if isinstance(given, bool) or not (isinstance(given, int | str) or _are_texts(given)):
        return f"{task.label_field!r} is neither a text, nor a list of texts, nor a number"
    return None if _right(task, row) else f"{task.label_field!r} names none of the candidates"


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _chat_problem(messages: object) -> str | None:
    """Return the fault in the messages of a conversation; None if there is none. The assistant must answer at
    least one message. A message of the assistant that opens the conversation is no answer."""
    if not isinstance(messages, list):
        return "is not a list of messages"
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            return f"has a message {number} that is no object with a role and a content"
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                return f"has a message {number} without a text as its {key}"
            if wrong := row_files.problem(message[key]):
                return f"has a message {number} whose {key} {wrong}"
    if not any(message["role"] == ASSISTANT for message in messages[1:]):
        return "has no answer of the assistant's"
    return None
