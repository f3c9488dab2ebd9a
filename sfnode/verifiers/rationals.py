"""Numbers as people write them, read exactly: signs, thousands separators, decimals, fractions, exponents."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

Which = Literal["first", "last", "only"]

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


def number(text: str, which: Which) -> Fraction | None:
    """Return the first or last number of a text, or the only one if there are no others.

    None if there is no such number, or if it is too long or divided by zero.
    """
    found = _NUMBER.findall(text)
    if not found or (which == "only" and len(found) > 1):
        return None
    return _value(found[-1] if which == "last" else found[0])


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
