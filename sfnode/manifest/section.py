"""Tables of the manifest as such: frozen, strict, and in one canonical order."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""32 bytes as lower-case hex digits."""


class Section(BaseModel):
    """A frozen table of the manifest; unknown keys are errors, so that a typo cannot pass silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def sorted_keys(value: Any) -> Any:
    """Return the same value with the keys of every map in the order of their UTF-8 bytes."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}  # code points sort as UTF-8 does
    if isinstance(value, list):
        return [sorted_keys(item) for item in value]
    return value
