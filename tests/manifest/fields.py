"""Minimal fields of manifests."""

from __future__ import annotations

from typing import Any

ORGANISER, DEPUTY, OTHER = (bytes([number]) * 31 + b"\x05" for number in (2, 3, 4))
FIELDS: dict[str, Any] = {
    "model": {"source": "builtin:tiny", "digest": "0" * 64, "targets": ["layers.0.fc1:64x32"]},
    "task": {"kind": "text", "template": "{text}"},
    "data": {},
}
EXACT: dict[str, Any] = {"kind": "exact", "column": "answer"}
REWARD: dict[str, Any] = {"kind": "reward", "template": "{q}", "verifier": EXACT, "answer_tokens": 8}
PARENT = {"run_id": "12" * 32, "epoch": 7, "digest": "34" * 32}


def changed(section: str, **fields: Any) -> dict[str, Any]:
    return {**FIELDS, section: {**FIELDS.get(section, {}), **fields}}


def organised(
    *, data: dict[str, Any] | None = None, training: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """Return the fields of an organised run with one deputy."""
    said = {"organiser": ORGANISER.hex(), "deputies": [DEPUTY.hex()], "quota": 100} | fields
    return FIELDS | {
        "admission": "organised",
        "organised": said,
        "data": data or {},
        "training": training or {},
    }
