"""Text of others, made fit to be shown on a terminal and in a log, and to be copied into a shell; and read.

A peer, a model's files, a data set or a library's message may hold any character: some erase the screen, set
its title, reverse the direction of writing or forge a line. What leaves this program as text goes through
here at the few places where it leaves: errors, the log, standard output, `top`. A command that people copy,
wherever it is shown or published, is written by `command`.

Numbers of bytes, parts of wholes, times and rates are written here as well, as people read them. JSON and
TOML of others are read here: whatever is wrong with them is a ValueError with a reason. Imports nothing but
the standard library, for commands that must start at once.
"""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

LONGEST = 4_000
"""Characters of an error or of a line of the log, two screens: what is longer is a stranger's text, or a list
that nobody reads to its end."""

INDENT = "\n    "

SHORT_KEY = 8
"""Hex digits of a key beside a name: two may have the same name."""


def printable(text: str) -> str:
    """Return a text with everything but visible characters and line breaks escaped, as JSON escapes them.

    Control characters, those without a width, those that turn the direction of writing, lone surrogates and
    private ones are left out of what Python calls printable. JSON text means the same afterwards.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def paragraph(text: str) -> str:
    """Return a printable text of bounded length whose further lines are indented: none can pass for a message
    of its own."""
    return printable(_cut(text)).replace("\n", INDENT)


def lines(text: str) -> str:
    """Return a printable text whose lines are of bounded length."""
    return printable("\n".join(map(_cut, text.split("\n"))))


def first_line(error: Exception) -> str:
    """Return the first line of what an error of a library says, or what it is called."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def called(key: str, name: str | None) -> str:
    """Return an origin by the name that it gives itself, which proves nothing (SPEC K1), and by the beginning
    of its key, by which commands know it: `Ada (5e6f7a8b)`."""
    return f"{name} ({key[:SHORT_KEY]})" if name else key


def command(*words: object) -> str:
    """Return a command line of these words: a shell takes each, whoever chose it, for just itself."""
    return shlex.join(map(str, words))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def size_text(count: float) -> str:
    """Format a number of bytes: 87 B, 1.2 kB, 3.4 GB."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(count) >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"


def part_of(part: int, whole: int) -> str:
    """Format how much there is of what was asked for: `454 of 1,000`; what exceeds it is told as such: `1,000
    and 46 more`."""
    return f"{part:,} of {whole:,}" if part <= whole else f"{whole:,} and {part - whole:,} more"


def span(seconds: float | None) -> str:
    """Format a duration, which nobody takes for a time of day: `41 s`, `3 min 05 s`, `12 min`, `2 h 05 min`,
    `4 d 7 h`; `?` if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{rest} s" if not minutes else f"{minutes} min" + (f" {rest:02} s" if minutes < 10 else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def rate(number: float | None) -> str:
    """Format a rate per second; `?` if it is unknown."""
    if number is None:
        return "?"
    return f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"


def pace(number: float | None) -> str:
    """Format a rate of updates: `123/s`, `1.5/s`, `10/min` below one a second; `?` if it is unknown."""
    if number is None or number >= 1:
        return "?" if number is None else f"{rate(number)}/s"
    return f"{60 * number:.{0 if 60 * number >= 0.95 or not number else 1}f}/min"


_DEEP = "it is nested too deeply"
"""Python's readers call themselves for every array within another, and end with RecursionError."""


def read_json(data: bytes | str) -> Any:
    """Return the value in a JSON text (RFC 8259, UTF-8), where a number is none but a finite one. Raises
    ValueError."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(_DEEP) from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML text. Raises ValueError, of which tomllib.TOMLDecodeError is one."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is no number of JSON that binary64 has")
    return number
