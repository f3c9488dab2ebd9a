"""The tables of which a verifier consists, frozen and strict, and the bounds of what is in them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

MAX_ANSWER = 4096
"""Characters of an answer, or of a value of a row, that are looked at: about 1,000 tokens."""

MAX_NAME = 200
"""Characters of the name of a column, a function, a parameter, a module or a member of an object."""

MAX_MARKER = 64
"""Characters of a marker: searching takes up to this many comparisons for each character."""

MAX_LISTED = 64
"""Entries of any list in a verifier."""

MAX_DEPTH = 4
"""Verifiers within each other, the outermost counted."""

MAX_COST = 10
"""Costs of a verifier and those within it. A cost is a time in milliseconds that no answer reaches."""

WHITE_SPACE = " \t\n\v\f\r"
"""The white space of ASCII: no answer then depends on a version of Unicode."""


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_LISTED, strict=False)]
"""Read from a list too, which is not strict: TOML and JSON have no tuples."""


# -- bounds, so that an answer takes less than 10 ms (benchmarks/verifiers.py) -------------------------


class Table(BaseModel):
    """A frozen table; unknown keys are errors, and nothing is converted into another type.

    A key that has its default is not written: TOML has no null, and a key added later leaves what was written
    before as it was.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        usual = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        return {
            name: value
            for name, value in write(self).items()
            if name == "kind" or getattr(self, name) != usual[name]
        }
