"""The base of everything that a node answers or a command prints as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A frozen record that survives JSON."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN and no infinity: they travel as strings, which fields of type float accept as well."""
