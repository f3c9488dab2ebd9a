"""Names and teams of origins: short, and nothing but what they look like (SPEC K2)."""

from __future__ import annotations

from typing import NamedTuple

MAX_NAME = 32
"""Bytes of UTF-8 in a name and in a team: a line of a table."""

_UNREADABLE = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xE000, 0xF8FF),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFF), (0x13430, 0x1345F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0x10FFFF),
)  # fmt: skip
"""Code points that show nothing, turn the direction of writing, or mean something to a terminal (SPEC K2).
Ranges and not Unicode's categories, which change from one version of Unicode to the next."""


class Names(NamedTuple):
    """The name and the team that an origin gives itself; empty if it gives none."""

    name: str = ""
    team: str = ""


NAMELESS = Names()


def fault(text: str, most: int = MAX_NAME) -> str | None:
    """Return the fault of a name or a team, or of another text of `most` bytes; None if it has none (SPEC
    K2)."""
    if len(text.encode("utf-8", "surrogatepass")) > most:
        return f"it takes more than {most} bytes"
    if text != text.strip(" "):
        return "it begins or ends with a space"
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        return "it is no Unicode"
    return None if readable(text) else "it has characters that cannot be seen"


def readable(text: str) -> bool:
    """Return whether a text is made of nothing but what it looks like (SPEC K2)."""
    return not any(low <= ord(letter) <= high for letter in text for low, high in _UNREADABLE)
