"""Values of a row that can be read: text, numbers and booleans.

A file may hold more than a prompt can say: lists, dates, numbers that are none, bytes, halves of characters.
"""

from __future__ import annotations

import math
from decimal import Decimal

KINDS: dict[type, str] = {
    bytes: "bytes that are no text in UTF-8",
    dict: "an object",
    list: "a list",
}
"""Names of what is no value of a prompt, for people; others have the name of their type."""


def problem(value: object, *, nested: bool = False) -> str | None:
    """Return why a value is none that can be read, or None if it is one.

    One is text that has a UTF-8 encoding, as every tokenizer needs it, a boolean, a finite number, or a list
    of such numbers; if `nested`, also a list or an object of those, and nothing at all.
    """
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int | Decimal):  # those of Parquet are all finite
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is no number: {value}"
    if nested and value is None:
        return None
    if isinstance(value, list) and (nested or (value and all(map(_is_number, value)))):
        return next((wrong for one in value if (wrong := problem(one, nested=nested))), None)
    if nested and isinstance(value, dict):
        return next((wrong for one in value.values() if (wrong := problem(one, nested=True))), None)
    kind = next((KINDS[one] for one in KINDS if isinstance(value, one)), f"a {type(value).__name__}")
    return f"is {kind}, where a text, a number or a boolean is wanted"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_problem(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        return f"has one half of a surrogate pair ({half}), which no tokenizer can encode"
    return None
