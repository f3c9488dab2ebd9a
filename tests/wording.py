"""Assertions on texts that a user sees."""

from __future__ import annotations

from collections.abc import Container


def has(text: Container[str], *words: str) -> None:
    """Require that a text, or a list of texts, contains all of these."""
    assert not [word for word in words if word not in text], text
