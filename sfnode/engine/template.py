"""Templates: text with the fields of a row in braces, `{field}` or `{field|filter}`; `{{` is a brace.

A template is all a manifest can say about wording, so that every node writes the same prompt from the same
row and a manifest never carries code. This module knows nothing of tokens, labels or tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from string import Formatter
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError

CANDIDATE = "candidate"
"""The field that a `choice` task adds to a row: the candidate being written."""

Row = Mapping[str, Any]


def _question(text: str, _: Row) -> str:
    """A capital letter first and a question mark last, as MeZO words BoolQ."""
    text = text if text.endswith("?") else f"{text}?"
    return text[0].upper() + text[1:]


FILTERS: Mapping[str, Callable[[str, Row], str]] = {
    "strip": lambda text, _: text.strip(),
    "question": _question,
    "bullets": lambda text, _: text.replace("@highlight\n", "- "),
    "cloze": lambda text, row: text.replace("@placeholder", str(row[CANDIDATE])),
}
"""What may follow the bar. `bullets` and `cloze` read ReCoRD's two markers."""


class Part(NamedTuple):
    """A stretch of literal text, then a field (none at the very end)."""

    literal: str
    field: str
    filter: str


@lru_cache(maxsize=64)
def parse(template: str) -> tuple[Part, ...]:
    """The parts of a template. Raises UserError BAD_MANIFEST where braces or filters are wrong."""
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise _bad(template, str(error)) from error
    parts = []
    for literal, field, spec, conversion in pieces:
        name, _, filter_name = (field or "").partition("|")
        if spec or conversion or (field is not None and not name):
            raise _bad(template, f"{{{field}}} is no field name")
        if filter_name and filter_name not in FILTERS:
            raise _bad(template, f"there is no filter {filter_name!r}; there are {', '.join(FILTERS)}")
        parts.append(Part(literal, name, filter_name))
    if not any(part.field for part in parts):
        raise _bad(template, "it names no field")
    return tuple(parts)


def fields(template: str) -> tuple[str, ...]:
    """The fields of a row that a template reads, in order, each once."""
    names = (part.field for part in parse(template) if part.field not in ("", CANDIDATE))
    return tuple(dict.fromkeys(names))


def render(template: str, row: Row) -> str:
    """The text of a row. The row has every field of the template (`tasks.complaint` saw to that)."""
    text = []
    for literal, field, filter_name in parse(template):
        text.append(literal)
        if field:
            value = str(row[field])
            text.append(FILTERS[filter_name](value, row) if filter_name else value)
    return "".join(text)


def join(prompt: str, answer: str) -> str:
    """Prompt and answer, with a space between them unless one of the two brings its own white space there."""
    apart = not prompt or prompt[-1].isspace() or not answer or answer[0].isspace()
    return prompt + answer if apart else f"{prompt} {answer}"


def _bad(template: str, why: str) -> UserError:
    return UserError(
        Code.BAD_MANIFEST,
        f"the template {template!r} cannot be read: {why}",
        "Name the fields of a row in braces, as in '{sentence} It was'; write {{ for a brace.",
    )
