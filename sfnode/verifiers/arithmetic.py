"""Numbers in texts, and the arithmetic expressions of the game Countdown (numbers, four operations,
parentheses). Both are computed exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from sfnode.verifiers.schemas import WHITE_SPACE

Which = Literal["first", "last", "only"]

MAX_LENGTH = 64
"""Maximum length of a number, in characters. Arithmetic on longer numbers is slow, and no answer needs
them."""

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


# -- numbers as people write them ----------------------------------------------------------------------


def number(text: str, which: Which) -> Fraction | None:
    """Return the first, last or only number of a text, as `which` says.

    Return None if there is no such number, if it is too long, or if its denominator is zero. With `only`,
    return None for a text with several numbers.
    """
    found = _NUMBER.findall(text)
    if not found or (which == "only" and len(found) > 1):
        return None
    return _value(found[-1] if which == "last" else found[0])


def decimal(value: float) -> Fraction:
    """Return the exact value of the shortest decimal notation of a binary64 number, such as 1/10 for 0.1."""
    return Fraction(repr(value))


def _value(written: str) -> Fraction | None:
    if len(written) > MAX_LENGTH:
        return None
    numerator, _, denominator = written.replace(",", "").replace("−", "-").partition("/")
    if not denominator:
        return Fraction(numerator)
    return Fraction(numerator) / int(denominator) if int(denominator) else None


MAX_NUMBERS = 32
"""Maximum count of numbers in an expression, and in the row that lists the allowed numbers. The game
Countdown has six."""

MAX_DIGITS = 9
"""Maximum number of digits of a number in an expression. The value of an expression of MAX_NUMBERS numbers
then has at most about 300 digits."""

MAX_NESTING = 16
"""Maximum depth of parentheses."""

_TOKEN = re.compile(rf"[{WHITE_SPACE}]*([0-9]+|[-+*/()]|\Z)")
_OPERATORS = str.maketrans("×÷−", "*/-")


def numbers(text: str) -> tuple[int, ...] | None:
    """Return the integers in a text, that is, its maximal sequences of digits. Return None if there is no
    integer, if there are more than MAX_NUMBERS, or if one has more than MAX_DIGITS digits."""
    runs = re.findall("[0-9]+", text)
    if not 0 < len(runs) <= MAX_NUMBERS or max(map(len, runs)) > MAX_DIGITS:
        return None
    return tuple(map(int, runs))


def parse(text: str) -> tuple[Fraction | None, tuple[int, ...]]:
    """Parse and compute an expression. Return its value (None if it divides by zero), and its numbers in
    order. Raises ValueError for a text that is no expression, and for an expression that exceeds a bound."""
    parser = _Parser(_tokens(text.translate(_OPERATORS)))
    value = parser.sum(0)
    if parser.token:
        raise ValueError("no expression")
    return value, tuple(parser.used)


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens of an expression, then empty texts without end. Raises ValueError at other text."""
    place = 0
    while found := _TOKEN.match(text, place):
        yield found[1]
        place = found.end()
    raise ValueError("no expression")


class _Parser:
    """Recursive-descent parser of expressions, with one token of lookahead."""

    def __init__(self, tokens: Iterator[str]) -> None:
        self._tokens = tokens
        self.token = next(tokens)
        self.used: list[int] = []

    def _take(self) -> str:
        taken, self.token = self.token, next(self._tokens)
        return taken

    def sum(self, depth: int) -> Fraction | None:
        value = self._product(depth)
        while self.token and self.token in "+-":
            value = _computed(value, self._take(), self._product(depth))
        return value

    def _product(self, depth: int) -> Fraction | None:
        value = self._operand(depth)
        while self.token and self.token in "*/":
            value = _computed(value, self._take(), self._operand(depth))
        return value

    def _operand(self, depth: int) -> Fraction | None:
        token = self._take()
        if token == "(" and depth < MAX_NESTING:
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ValueError("no expression")
            return value
        if not token.isdigit() or len(token) > MAX_DIGITS or len(self.used) == MAX_NUMBERS:
            raise ValueError("no expression")
        self.used.append(int(token))
        return Fraction(int(token))


def _computed(left: Fraction | None, operator: str, right: Fraction | None) -> Fraction | None:
    if left is None or right is None or (operator == "/" and not right):
        return None
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right
