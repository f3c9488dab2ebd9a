"""Regular expressions by RE2, whose time is linear in the text: a backtracking engine can be made to hang.

RE2 comes with an extra and not with sfnode: wheels for a new release of Python come months after it, and
without one an installation needs a compiler, RE2 and Abseil. Only this module imports it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sfnode.errors import Code, UserError

MAX_PATTERN = 512
"""Characters of a pattern."""

MAX_PROGRAM = 128
"""Instructions of the program that RE2 makes of a pattern: each byte of a text costs up to that many steps.
Repeats are written out, and a class of Unicode such as \\pL takes over a thousand."""

_MEMORY = 256 * 1024
"""Bytes for RE2's cache of states. With more a hostile text, which fills it again and again, takes longer."""


def library() -> Any:
    """Return re2. Raises UserError EXTRA_MISSING."""
    try:
        import re2
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "regular expressions of verifiers are matched by google-re2, which is not installed",
            "Install it beside sfnode: `pip install 'sfnode[re2]'`, or so with `uv tool install --force` or "
            "`pipx install --force`.",
        ) from error
    return re2


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """Compile a pattern. Raises ValueError where RE2 refuses it or its program is too long, and UserError
    EXTRA_MISSING."""
    re2 = library()
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MEMORY, True, False
    try:
        found = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"the pattern {pattern!r} cannot be read: {text}") from error
    size = max(found.programsize, found.reverseprogramsize)
    if size > MAX_PROGRAM:
        raise ValueError(
            f"the pattern {pattern!r} takes {size} instructions, and {MAX_PROGRAM} are allowed: shorten "
            "repeats such as {100}, and write [A-Za-z] instead of \\pL"
        )
    return found


def matches(pattern: str, text: str, *, whole: bool) -> bool:
    """Return whether a text matches, or has a part that does. Raises as `compiled` does."""
    program, encoded = compiled(pattern), text.encode(errors="replace")
    return (program.fullmatch(encoded) if whole else program.search(encoded)) is not None
