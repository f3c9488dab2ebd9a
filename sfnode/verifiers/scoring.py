"""The score of an answer: a pure function of the verifier, the answer and the row (docs/verifiers.md)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, assert_never

from sfnode.verifiers import arithmetic, plugins, schemas, specs
from sfnode.verifiers.schemas import MAX_ANSWER, WHITE_SPACE

Row = Mapping[str, str]
"""Values of a row as text, keyed by column."""

_BRACES = re.compile(r"(\\boxed\{)|(\{)|(\})|\\.", re.DOTALL)
"""Pattern for the opening of a LaTeX box, for other braces, and for escaped characters, among them braces
that are text."""


def score(verifier: specs.Verifier, answer: str, row: Row) -> float:
    """Return the score of an answer, from 0 to 1. No answer and no values of a row cause an error. Raises
    UserError VERIFIER_NOT_ALLOWED only for a plug-in that was not permitted in this process.

    Only the first MAX_ANSWER characters of the answer and of each value of the row are read. A missing column
    is read as an empty text.
    """
    text = answer[:MAX_ANSWER]
    match verifier:
        case specs.Exact():
            return float(_plain(text, verifier) == _plain(_value(row, verifier.column), verifier))
        case specs.Numeric():
            return float(_close(text, _value(row, verifier.column), verifier))
        case specs.Regex():
            return float(specs.matches(verifier.pattern, text, whole=verifier.whole))
        case specs.Json():
            return _json(text, row, verifier)
        case specs.Countdown():
            return _countdown(text, row, verifier)
        case specs.CodeVerifier():
            return float(_defines(text, verifier))
        case specs.Length():
            return float(verifier.least <= len(text) <= verifier.most)
        case specs.Format():
            return float(_formatted(text.strip(WHITE_SPACE), verifier))
        case specs.Boxed() | specs.Extract():
            part = boxed(text) if isinstance(verifier, specs.Boxed) else _between(text, verifier)
            return 0.0 if part is None else score(verifier.then, part, row)
        case specs.Plugin():
            return plugins.score(verifier.name, text, {name: _value(row, name) for name in row})
        case specs.SumVerifier():
            total = math.fsum(term.weight * score(term.verifier, text, row) for term in verifier.terms)
            return min(total, 1.0)
    assert_never(verifier)


def remark(verifier: specs.Verifier, answer: str, row: Row) -> str:
    """Return the fault in an answer's form, in words; an empty text if there is nothing to add to the
    score."""
    text = answer[:MAX_ANSWER]
    match verifier:
        case specs.Json():
            return _json_remark(text, row, verifier)
        case specs.Boxed() | specs.Extract():
            part = boxed(text) if isinstance(verifier, specs.Boxed) else _between(text, verifier)
            return "nothing is marked as the answer" if part is None else remark(verifier.then, part, row)
        case specs.SumVerifier():
            return next(filter(None, (remark(term.verifier, text, row) for term in verifier.terms)), "")
    return ""


def columns(verifier: specs.Verifier) -> tuple[str, ...]:
    """Return the columns of a row that a verifier reads, in order and without repetition. Columns that only a
    plug-in reads are not included."""
    names: list[str] = []
    for leaf in specs.leaves(verifier):
        match leaf:
            case specs.Exact() | specs.Numeric() | specs.Json():
                names.append(leaf.column)
            case specs.Countdown():
                names += leaf.numbers, leaf.target
    return tuple(dict.fromkeys(name for name in names if name))


def texts(verifier: specs.Verifier, row: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a row that a verifier reads, as text, keyed by column. Lists, objects and booleans
    become JSON. Columns without a value are left out. For a verifier with a plug-in, all columns are
    returned."""
    every = any(isinstance(leaf, specs.Plugin) for leaf in specs.leaves(verifier))
    names = row.keys() if every else columns(verifier)
    found = {name: row[name] for name in names if row.get(name) is not None}
    return {name: _text(value) for name, value in found.items()}


def problem(verifier: specs.Verifier, row: Row) -> str | None:
    """Return the reason why no answer to a row can get the full score; None if an answer can."""
    lacking = [repr(name) for name in columns(verifier) if name not in row]
    if lacking:
        return f"no {', '.join(lacking)}; the row has {', '.join(map(repr, row)) or 'nothing'}"
    for leaf in specs.leaves(verifier):
        match leaf:
            case specs.Numeric() if arithmetic.number(_value(row, leaf.column), "last") is None:
                return f"{leaf.column!r} has no number"
            case specs.Json() if leaf.column and _parsed(_value(row, leaf.column)) is NOT_JSON:
                return f"{leaf.column!r} is not JSON"
            case specs.Countdown() if arithmetic.numbers(_value(row, leaf.numbers)) is None:
                return f"{leaf.numbers!r} does not have 1 to {arithmetic.MAX_NUMBERS} short numbers"
            case specs.Countdown() if arithmetic.number(_value(row, leaf.target), "only") is None:
                return f"{leaf.target!r} is not one number"
    return None


def boxed(text: str) -> str | None:
    """Return the content of the LaTeX box that begins last, of those that have a closing brace. Return None
    if there is no such box. The time is linear in the length of the text."""
    opened: list[int | None] = []
    start, end = -1, -1
    for found in _BRACES.finditer(text):
        if found[1] or found[2]:
            opened.append(found.end() if found[1] else None)
        elif found[3] and opened:
            began = opened.pop()
            if began is not None and began > start:
                start, end = began, found.start()
    return text[start:end] if end >= 0 else None


def _text(value: Any) -> str:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _value(row: Row, column: str) -> str:
    return row.get(column, "")[:MAX_ANSWER]


def _plain(text: str, spec: specs.Exact) -> str:
    text = text.strip(WHITE_SPACE) if spec.strip else text
    return text.casefold() if spec.ignore_case else text


def _close(text: str, reference: str, spec: specs.Numeric) -> bool:
    given, right = arithmetic.number(text, spec.which), arithmetic.number(reference, "last")
    if given is None or right is None:
        return False
    allowed = max(arithmetic.decimal(spec.absolute), arithmetic.decimal(spec.relative) * abs(right))
    return abs(given - right) <= allowed


NOT_JSON = object()
"""Result of parsing a text that is no JSON. None would be ambiguous, as it is the result of parsing
`null`."""


def _parsed(text: str) -> Any:
    try:
        return schemas.parse(text)
    except ValueError:
        return NOT_JSON


def _json(text: str, row: Row, spec: specs.Json) -> float:
    read = _parsed(text)
    if read is NOT_JSON or not schemas.conforms(read, spec.satisfies):
        return 0.0
    if not spec.column:
        return 1.0
    right = _parsed(_value(row, spec.column))
    return 0.0 if right is NOT_JSON else schemas.agreement(read, right)


def _json_remark(text: str, row: Row, spec: specs.Json) -> str:
    read, right = _parsed(text), _parsed(_value(row, spec.column))
    if read is NOT_JSON:
        return "no JSON"
    if not schemas.conforms(read, spec.satisfies):
        return "JSON of another form"
    if not (isinstance(read, dict) and isinstance(right, dict)):
        return ""
    wrong = schemas.differing(read, right)
    return f"wrong: {', '.join(wrong)}" if wrong else ""


def _countdown(text: str, row: Row, spec: specs.Countdown) -> float:
    try:
        value, numbers = arithmetic.parse(text)
    except ValueError:
        return 0.0
    given = arithmetic.numbers(_value(row, spec.numbers))
    target = arithmetic.number(_value(row, spec.target), "only")
    if given is None or value is None or value != target:
        return spec.well_formed
    used, available = Counter(numbers), Counter(given)
    right = used == available if spec.uses == "exactly-once" else used <= available
    return 1.0 if right else spec.well_formed


def _defines(text: str, spec: specs.CodeVerifier) -> bool:
    found = plugins.parse(text)
    if found is None or not found.modules <= set(spec.imports):
        return False
    return all(found.functions.get(name) == names for name, names in spec.functions.items())


def _formatted(text: str, spec: specs.Format) -> bool:
    if not text.startswith(spec.begins):
        return False
    place = len(spec.begins)
    for marker in spec.contains:
        found = text.find(marker, place)
        if found < 0:
            return False
        place = found + len(marker)
    return text.endswith(spec.ends) and len(text) - len(spec.ends) >= place


def _between(text: str, spec: specs.Extract) -> str | None:
    """Return the text between an opening marker and the next closing marker; None if one of the two is
    missing. `spec.which` selects the opening marker: the first one, or the last one with a closing marker
    after it."""
    if spec.which == "first":
        start = text.find(spec.begin)
    else:
        latest = text.rfind(spec.end) if spec.end else len(text)
        start = text.rfind(spec.begin, 0, latest) if latest >= 0 else -1
    if start < 0:
        return None
    start += len(spec.begin)
    end = text.find(spec.end, start) if spec.end else len(text)
    return text[start:end] if end >= 0 else None
