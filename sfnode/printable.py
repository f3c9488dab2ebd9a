"""Text of others, made fit to be shown on a terminal and in a log, and to be copied from there into a shell.

A peer, a model's files, a data set or a library's message may hold any character: some erase the screen, set
its title, reverse the direction of writing or forge a line. What leaves this program as text goes through
here at the few places where it leaves: errors, the log, standard output, `top`. A command that people copy,
wherever it is shown or published, is written by `command`.
"""

from __future__ import annotations

import json
import shlex

LONGEST = 4_000
"""Characters of an error or of a line of the log, two screens: what is longer is a stranger's text, or a list
that nobody reads to its end."""

INDENT = "\n    "


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
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
    return printable(text).replace("\n", INDENT)


def called(key: str, name: str | None) -> str:
    """Return an origin by digits of its key and by the name that it gives itself, which proves nothing (SPEC
    K1): `5e6f7a8b (Ada)`."""
    return f"{key} ({name})" if name else key


def command(*words: object) -> str:
    """Return a command line of these words: a shell takes each, whoever chose it, for just itself."""
    return shlex.join(map(str, words))


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]
