"""Makes strangers' text safe for terminals, logs and shells, and reads strangers' JSON and TOML safely.

A peer, a model's files, a data set or a library's message may hold any character. Some characters erase the
screen, set its title, reverse the direction of writing or forge a line. Text passes through this module
wherever it leaves the program: in errors, the log, standard output and `top`. Commands that people may copy
are written by `command`.

Numbers of bytes, parts of wholes, times and rates are formatted here for people. Malformed JSON and TOML
raises a ValueError with a reason. Imports only the standard library, for commands that must start at once.
"""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

LONGEST = 4_000
"""Maximum length of an error or of a log line, in characters: two screens. A longer text is a stranger's, or
a list that nobody reads to its end."""

INDENT = "\n    "

SHORT_KEY = 8
"""Number of hex digits of a key that are shown beside a name, because two members may have the same name."""


def printable(text: str) -> str:
    """Return `text` with all characters other than visible ones and line breaks escaped, as in JSON.

    Characters that Python does not call printable are escaped: control characters, characters without a
    width, characters that change the direction of writing, lone surrogates and private-use characters. JSON
    text keeps its meaning.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def paragraph(text: str) -> str:
    """Return a printable text of bounded length with its further lines indented, so that no line looks like a
    separate message."""
    return printable(_cut(text)).replace("\n", INDENT)


def lines(text: str) -> str:
    """Return a printable text with lines of bounded length."""
    return printable("\n".join(map(_cut, text.split("\n"))))


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, or the name of the error's class if the message is
    empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def called(key: str, name: str | None) -> str:
    """Format an origin as its display name, which proves nothing (SPEC K1), and the beginning of its key,
    which commands accept: `Ada (5e6f7a8b)`."""
    return f"{name} ({key[:SHORT_KEY]})" if name else key


def command(*words: object) -> str:
    """Return a command line in which a shell reads each word literally, whoever chose it."""
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
    """Format a part of a whole: `454 of 1,000`. A part that exceeds the whole is `1,000 and 46 more`."""
    return f"{part:,} of {whole:,}" if part <= whole else f"{whole:,} and {part - whole:,} more"


def span(seconds: float | None) -> str:
    """Format a duration so that it does not look like a time of day: `41 s`, `3 min 05 s`, `12 min`, `2 h 05
    min`, `4 d 7 h`; `?` if it is unknown."""
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
"""Reason for refusing deeply nested text, for which Python's recursive parsers raise RecursionError."""


def read_json(data: bytes | str) -> Any:
    """Return the value of a JSON text (RFC 8259, UTF-8) in which all numbers are finite. Raises
    ValueError."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(_DEEP) from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML text. Raises ValueError, of which tomllib.TOMLDecodeError is a subclass."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is no number of JSON that binary64 has")
    return number
