"""JSON and TOML that others have written: whatever is wrong with it is a ValueError with a reason.

Python's readers call themselves for every array within another, and end with RecursionError; TOML's raises
plain ValueError for a number of 5,000 digits, where it otherwise says what is wrong and where.
"""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any

_DEEP = "it is nested too deeply"


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
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is no number of JSON that binary64 has")
    return number
