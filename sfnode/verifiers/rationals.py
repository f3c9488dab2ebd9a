"""Numbers as people write them, read exactly: signs, thousands separators, decimals, fractions, exponents."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 64
"""Characters of a number that can be read: arithmetic on longer ones is slow, and no answer needs it."""

_NUMBER = re.compile(
    r"""
    (?: (?<![0-9A-Za-z)\]]) [+\-−] )?                       # a sign, unless it stands between two operands
    (?: (?: [0-9]{1,3} (?:,[0-9]{3})+ (?![0-9]) | [0-9]+ )  # digits, those before the point maybe in threes
        (?: \.[0-9]+ )?
    |   \.[0-9]+ )
    (?: /[0-9]+ | [eE][+-]?[0-9]{1,3}(?![0-9A-Za-z]) )?     # a denominator or an exponent
    """,
    re.VERBOSE,
)


def last(text: str) -> Fraction | None:
    """Return the last number of a text; None if there is none, or it is too long or divided by zero."""
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def only(text: str) -> Fraction | None:
    """Return the number of a text that has exactly one; else None, as where `last` has None."""
    found = _NUMBER.findall(text)
    return _value(found[0]) if len(found) == 1 else None


def decimal(value: float) -> Fraction:
    """Return the number that the shortest decimal notation of a binary64 denotes: 1/10 for 0.1."""
    return Fraction(repr(value))


def _value(written: str) -> Fraction | None:
    if len(written) > MAX_LENGTH:
        return None
    numerator, _, denominator = written.replace(",", "").replace("−", "-").partition("/")
    if not denominator:
        return Fraction(numerator)
    return Fraction(numerator) / int(denominator) if int(denominator) else None
