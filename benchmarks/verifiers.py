"""Measures, for each kind of verifier, the longest time that a hostile answer of 4,096 characters takes.

    python -m benchmarks.verifiers [--answers COUNT]

Answers are known traps, and COUNT answers of random fragments, repeated and mixed. Verifiers are the
costliest ones that can be read. Prints the CPU time of the slowest answer: the least of five measurements.
Results: docs/benchmarks.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from heapq import nlargest
from typing import Any, NamedTuple

import click

from sfnode.errors import UserError
from sfnode.verifiers.schemas import MAX_ANSWER
from sfnode.verifiers.scoring import score
from sfnode.verifiers.specs import MAX_MARKER, Verifier, read


class Subject(NamedTuple):
    """A costly verifier, and the fragments of its hostile answers."""

    spec: dict[str, Any]
    row: dict[str, str]
    fragments: tuple[str, ...]


NUMBER = {"kind": "numeric", "column": "right", "which": "only", "relative": 0.1}
WIDE = {"type": "object", "properties": {f"{n}": {"enum": list(range(64))} for n in range(64)}}
DEEP = {"items": {"items": {"items": {"items": WIDE, "maxItems": 4096}, "maxItems": 4096}}}
CODE = {"kind": "code", "functions": {f"f{n}": [f"a{m}" for m in range(64)] for n in range(64)}}
PATTERNS = (
    "(.{0,6}a){2}b",
    "[ab]*a[ab]{118}c",
    "(a?){40}a{40}b",
    ".*a.{13}b",
    ".*(((?s:.)?)?){0,10}z",
    "(a|.)*[^a].{13}b",
    "(.*a.*b.*){4}z",
    "(a?b?c?){20}z",
)
"""Patterns whose automata have many states, near the bound on instructions."""

MARKER = "a" * (MAX_MARKER // 2 - 1) + "b" + "a" * (MAX_MARKER // 2)
EXTRACT = {"kind": "extract", "begin": MARKER, "end": MARKER, "then": {"kind": "length"}}
TEXT = ("éé😀a", "a", "b", "ab", "a" * 62, "ba", "é", "😀", " ", "\n", MARKER, "\ud800")
PYTHON = (
    "(", "[", "{", ")", "]", "}", "a", "1", "0x", "a.", "a(", "a[", "f(", "a,", "a;", ":", "=", "-", "~",
    "**", "*", "a+", "a**", "a<", "a:=", "(a:=", "*(", "**(", "(*a,", "{**(", "{a:(", "((a,", "a[b:a(",
    "lambda:", "'", "'''", "f'{", "''", "'a'", "@(", "!", "$", "{a: [", "(a, ", "[a, ", "not ",
    "lambda a=(", "a if a else ", "a and ", "a in ", "a is ", "await ", "yield ", "a for a in ",
    "(a for a in ", "with (", "with a as ", "del (", "for (", "import a,", "from .", "class A(", "def f(",
    "def f(a=(", "while (", "if (", "match a:\n case ", "case (", "case [", "case a|", "except (",
    "except* ", "try:\n a\n", "if a:\n ", "elif a:a\n", '"', '"""', "\\", "\n", "a\n", "\\\n", " ", "# ",
    "é", "\x00", "1if ", "1e 0",
)  # fmt: skip


def subjects() -> dict[str, Subject]:
    """Return the verifiers to measure, keyed by name."""
    row = {"right": "7", "json": '{"a": 1}', "nums": "999999999 " * 32, "target": "1"}
    digits = ("1", "9" * 64, "1,111", ",111", ".", "/", "1/1", "e9", "-", "1e999", " ", "a", "1.1.1")
    signs = ("[", "]", "{", "}", '"', "\\", " ", ",", "[1],", '"a":', '"b":')
    values = (*signs, "1", "1e9", "9" * 40, "\\u0041", "null")
    tex = (r"\boxed{", "{", "}", "\\", r"\boxed{1}", "1", "\\\\", r"\{")
    sums = ("(", ")", "+", "/", "999999999", "1", "*", "(1)", "(999999999/", "-", " ", "×")
    found = {
        "exact": Subject(
            {"kind": "exact", "column": "right", "ignore_case": True}, {"right": "ß" * 4096}, TEXT
        ),
        "numeric": Subject(NUMBER, row, digits),
        "boxed": Subject({"kind": "boxed", "then": NUMBER}, row, tex),
        "json": Subject({"kind": "json", "satisfies": DEEP}, row, values),
        "json of a row": Subject({"kind": "json", "column": "json"}, row, values),
        "countdown": Subject({"kind": "countdown", "numbers": "nums", "target": "target"}, row, sums),
        "code": Subject(CODE, {}, PYTHON),
        "length": Subject({"kind": "length"}, {}, TEXT),
        "format": Subject({"kind": "format", "contains": [MARKER] * 64, "ends": MARKER}, {}, TEXT),
        "extract": Subject(EXTRACT, {}, TEXT),
    }
    for number, pattern in enumerate(PATTERNS):
        found[f"regex {number}"] = Subject({"kind": "regex", "pattern": pattern}, {}, TEXT)
    json = {"kind": "json", "satisfies": DEEP}
    found["sum of code"] = Subject(_sum([CODE] * 3), row, PYTHON)
    found["sum of JSON"] = Subject(_sum([json] * 5), row, values)
    found["sum of numbers"] = Subject(_sum([NUMBER] * 10), row, digits)
    found["sum of patterns"] = Subject(
        _sum([{"kind": "regex", "pattern": PATTERNS[1]}] * 2 + [NUMBER] * 2), row, TEXT
    )
    return found


def answers(subject: Subject, count: int, rng: random.Random) -> Iterator[str]:
    """Yield hostile answers: every fragment repeated, JSON arrays of values, then random mixtures of
    fragments."""
    for fragment in subject.fragments:
        for end in ("", ")", ":", "\n", '"', "1"):
            yield _filled(fragment)[: MAX_ANSWER - len(end)] + end
    for item in ("1", "[]", "{}", '{"1":1}', '"a"', "1e9", "[[1]]"):
        yield f"[{_filled(item + ',')[: MAX_ANSWER - 20].rpartition(',')[0]}]"
    yield "{" + ",".join(f'"{n}":1' for n in range(500)) + "}"
    yield from ("1+" * 31 + "1", "(" * 16 + "1" + ")" * 16, "/".join(["999999999"] * 32))
    for _ in range(count // 10):
        few = rng.sample(subject.fragments, k=rng.randrange(2, 6))
        yield "".join(rng.choices(few, k=MAX_ANSWER))[:MAX_ANSWER]
    for _ in range(count):
        chosen = "".join(rng.choices(subject.fragments, k=rng.choice((1, 2, 2, 3, 4, 8, 64))))
        times = rng.choice((1, 4, 8, 16, 16, MAX_ANSWER))
        head, end = ("".join(rng.choices(subject.fragments, k=rng.randrange(3))) for _ in range(2))
        line = (head + chosen * times)[: rng.choice((200, MAX_ANSWER))] + end
        yield _filled(line + rng.choice(("", "\n", ","))) if rng.random() < 0.5 else line[:MAX_ANSWER]


def _filled(fragment: str) -> str:
    return (fragment * (MAX_ANSWER // len(fragment) + 1))[:MAX_ANSWER]


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "sum", "terms": [{"weight": 1 / len(parts), "verifier": part} for part in parts]}


def seconds(verifier: Verifier, answer: str, row: dict[str, str]) -> float:
    """Return the CPU seconds of scoring one answer."""
    start = time.thread_time()
    score(verifier, answer, row)
    return time.thread_time() - start


@click.command(help=__doc__)
@click.option("--answers", "count", default=2000, help="Random answers for each verifier.")
@click.option("--seed", default=0, help="Seed of the random answers.")
@click.option("--only", default="", help="Beginning of the names of verifiers that are measured.")
def main(count: int, seed: int, only: str) -> None:
    for name, subject in subjects().items():
        if not name.startswith(only):
            continue
        try:
            verifier = read(subject.spec)
        except UserError as error:
            click.echo(f"{name:20} {error}")
            continue
        rng = random.Random(seed)
        first = [(seconds(verifier, one, subject.row), one) for one in answers(subject, count, rng)]
        slow = [one for _, one in nlargest(20, first)]
        least, slowest = max(
            (min(seconds(verifier, one, subject.row) for _ in range(5)), one) for one in slow
        )
        click.echo(f"{name:20} {least * 1e3:6.2f} ms   {slowest[:60]!r}")


if __name__ == "__main__":
    main()
