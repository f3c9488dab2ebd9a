"""Changes a random part of a message or decision, of any type.

Only the shape of a value matters: dataclasses and named tuples have fields, tuples have entries, everything
else is a leaf. So it also works for messages of later versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from tests.fuzz.choices import Choices

T = TypeVar("T")

Like = Callable[[Any], Sequence[Any]]
"""Function that returns other values for a leaf."""


def altered(value: T, choices: Choices, like: Like) -> T:
    """Return `value` with one of its leaves, or one of its tuples, changed."""
    if _is_list(value) and (not value or choices.flip(3)):
        return cast(T, _other_list(cast(tuple[Any, ...], value), choices))
    inner = _inner(value)
    if not inner:
        others = like(value)
        return choices.pick(others) if others else value
    name = choices.pick(list(inner))
    return cast(T, _with(value, name, altered(inner[name], choices, like)))


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and not hasattr(value, "_fields")


def _inner(value: Any) -> dict[Any, Any]:
    """Return the parts of a value, keyed by field name or by place in the tuple; empty for a leaf."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(enumerate(value)) if isinstance(value, tuple) else {}


def _with(value: Any, name: Any, part: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: part})
    entries = [part if place == name else entry for place, entry in enumerate(value)]
    return tuple(entries) if _is_list(value) else type(value)(*entries)


def _other_list(value: tuple[Any, ...], choices: Choices) -> tuple[Any, ...]:
    """Return a tuple with one entry removed or repeated, in reverse order, or empty."""
    if not value:
        return value
    at = choices.below(len(value))
    return choices.pick(
        (value[:at] + value[at + 1 :], value[: at + 1] + value[at:], value[::-1], value[:at], ())
    )
