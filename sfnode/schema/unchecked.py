"""Answers of a node as plain records, for commands that print them and end.

A record has the fields of the model that the node filled in (`Status`, `Swarm`, ...), so it may be used, and
type-checked, as that model's stand-in, but nothing is validated and no methods come with it: validation needs
pydantic, whose import alone takes as long as everything else that `sfnode status` does.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from sfnode.errors import Code, UserError

MAY_BE_NO_NUMBER = ("epsilon", "loss", "value", "low", "high", "norm", "distance", "kl")
"""Fields of type float that JSON has no word for at times; then they travel as strings (`schema.base`)."""


_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Words that stand in JSON for numbers that it cannot express, by what Python writes."""


class UncheckedAnswer(SimpleNamespace):
    """One JSON object; its fields are attributes. A field that it lacks raises NODE_NOT_ANSWERING."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            Code.NODE_NOT_ANSWERING,
            f"the node's answer has no field {name}; is it of another version of sfnode?",
            "Start the node again, with this version.",
        )


def read(text: bytes) -> Any:
    """Return the answer in `text`, or a list of them. Raises ValueError for what is no JSON."""
    return json.loads(text, object_hook=_record)


def plain(answer: object) -> Any:
    """Return an answer as it was before it was read, for `json.dumps`."""
    if isinstance(answer, UncheckedAnswer):
        return {name: plain(value) for name, value in vars(answer).items()}
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    return _WORDS.get(str(answer), answer) if isinstance(answer, float) else answer


def _record(fields: dict[str, Any]) -> UncheckedAnswer:
    for name in MAY_BE_NO_NUMBER:
        if name in fields:
            fields[name] = _number(fields[name])
    return UncheckedAnswer(**fields)


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(item) for item in value]
    return float(value) if isinstance(value, str) else value
