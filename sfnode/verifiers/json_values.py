"""JSON texts: how an answer is read, and how its value is compared with another."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_NESTING = 32
"""Arrays and objects within each other: Python's reader calls itself for each."""

_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A string, even one without an end, or a bracket."""


def parse(text: str) -> Any:
    """Read a JSON text (RFC 8259); numbers become floats. Raises ValueError.

    Refused are also a member named twice, a number beyond binary64, and deeper nesting than MAX_NESTING.
    """
    depth = 0
    for token in _NESTING.findall(text):
        depth += (token in "[{") - (token in "]}")
        if depth > MAX_NESTING:
            raise ValueError("nested too deeply")
    return json.loads(
        text, parse_int=_number, parse_float=_number, parse_constant=_number, object_pairs_hook=_object
    )


def agreement(value: Any, reference: Any) -> float:
    """Return the share of the members of two objects that are the same in both; 1 or 0 for other values."""
    if not (isinstance(value, dict) and isinstance(reference, dict)):
        return float(canonical(value) == canonical(reference))
    names = value.keys() | reference.keys()
    shared = value.keys() & reference.keys()
    same = sum(canonical(value[name]) == canonical(reference[name]) for name in shared)
    return same / len(names) if names else 1.0


def canonical(value: Any) -> str:
    """Write a value that was read so that only equal ones are written alike: true is not 1."""
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> float:
    value = float(text) + 0.0  # -0 becomes 0
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number of binary64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is named twice")
    return members
