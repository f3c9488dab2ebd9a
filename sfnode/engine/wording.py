"""What a row says: a prompt and the answers that may follow it, a text to be classed, or a conversation.

The one place that reads the fields of a row by the manifest's task; everything is text. It knows nothing of
tokens, tensors or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sfnode.config import Task
from sfnode.engine import template

Row = Mapping[str, Any]

ASSISTANT = "assistant"
"""The role whose messages a model learns to write, as chat templates name it."""


class Wording(NamedTuple):
    """One row, put into words."""

    prompt: str
    answers: tuple[str, ...]
    """What may follow the prompt; a single one unless the task has candidates."""
    right: tuple[int, ...]
    """Indices of the right answers, the one to train on first."""


class Labelled(NamedTuple):
    """One row of a sequence classification."""

    texts: tuple[str, ...]
    """One text, or the two that the template parts."""
    classes: int
    right: int
    """Index of the row's class."""


class Message(NamedTuple):
    """What somebody says in a conversation."""

    role: str
    content: str


class Conversation(NamedTuple):
    """One row of a chat task."""

    messages: tuple[Message, ...]


Words = Wording | Labelled | Conversation


def wording(task: Task, row: Row) -> Words:
    """The words of a row that `complaint` finds nothing wrong with."""
    if task.kind == "chat":
        said = row[task.messages_field]
        return Conversation(tuple(Message(one["role"], one["content"]) for one in said))
    if task.kind == "sequence-classification":
        return Labelled(template.texts(task.template, row), len(task.verbalizer), _class(task, row))
    prompt = template.render(task.template, row)
    if task.kind == "classification":
        return Wording(prompt, tuple(task.verbalizer.values()), (_class(task, row),))
    if task.kind == "choice":
        candidates = row[task.candidates_field]
        return Wording(prompt, tuple(_answer(task, row, c) for c in candidates), _right(task, row))
    if task.kind == "completion":
        return Wording(prompt, (template.render(task.completion, row),), (0,))
    return Wording("", (prompt,), (0,))


def fields(task: Task) -> tuple[str, ...]:
    """The fields that a row must have, those of the template first."""
    if task.kind == "chat":
        return (task.messages_field,)
    names = template.fields(task.template)
    if task.kind == "sequence-classification":
        names = tuple(name for name in names if name != template.SEPARATOR)
    if task.completion:
        names += template.fields(task.completion)
    if task.labelled or task.kind == "choice":
        names += (task.label_field,)
    if task.kind == "choice":
        names += (task.candidates_field,)
    return tuple(dict.fromkeys(names))


def length(words: Words) -> int:
    """In characters, of the longest sequence that comes of a row."""
    if isinstance(words, Conversation):
        return sum(len(message.content) for message in words.messages)
    if isinstance(words, Labelled):
        return sum(map(len, words.texts))
    return len(words.prompt) + max(map(len, words.answers))


def counted(task: Task, row: Row) -> int:
    """How many words a row has: in the first field of the template, or in the whole conversation."""
    if task.kind == "chat":
        return sum(len(message["content"].split()) for message in row[task.messages_field])
    return len(str(row[fields(task)[0]]).split())


def complaint(task: Task, row: Row) -> str:
    """Why a row cannot serve the task; an empty string if it can."""
    lacking = [repr(name) for name in fields(task) if row.get(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}; the row has {', '.join(repr(name) for name in row) or 'nothing'}"
    if task.labelled and label(row[task.label_field]) not in task.verbalizer:
        known = ", ".join(task.verbalizer)
        return f"the label {label(row[task.label_field])!r} is none of the task's labels ({known})"
    if task.kind == "choice":
        return _choice_complaint(task, row)
    wrong = _chat_complaint(row[task.messages_field]) if task.kind == "chat" else ""
    if wrong:
        return f"{task.messages_field!r} {wrong}"
    return "" if all(text.strip() for text in _learnt(wording(task, row))) else "there is no text to learn"


def label(value: object) -> str:
    """A label as the verbalizer writes it; booleans as JSON does."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _learnt(words: Words) -> tuple[str, ...]:
    """The texts without which there is nothing to learn."""
    if isinstance(words, Conversation):
        return tuple(message.content for message in words.messages if message.role == ASSISTANT)
    return ("".join(words.texts),) if isinstance(words, Labelled) else words.answers


def _class(task: Task, row: Row) -> int:
    return list(task.verbalizer).index(label(row[task.label_field]))


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


def _chat_complaint(messages: object) -> str:
    """The assistant must answer somebody: what opens a conversation has no prompt to be learnt from."""
    if not isinstance(messages, list):
        return "is not a list of messages"
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            return f"has a message {number} that is no object with a role and a content"
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                return f"has a message {number} without a text as its {key}"
    if not any(message["role"] == ASSISTANT for message in messages[1:]):
        return "has no answer of the assistant's"
    return ""
