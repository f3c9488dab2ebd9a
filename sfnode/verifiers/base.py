"""The tables of which a verifier consists: frozen, strict, and written without their defaults."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from sfnode.verifiers.bounds import MAX_LISTED, MAX_NAME

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_LISTED, strict=False)]
"""Read from a list too, which is not strict: TOML and JSON have no tuples."""


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
