"""Assertions on texts that a user sees."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

import pytest

from sfnode.errors import Code, UserError


def has(text: Container[str], *words: str) -> None:
    """Require that a text, or a list of texts, contains all of these."""
    assert not [word for word in words if word not in text], text


@contextmanager
def refusing(code: Code, *words: str) -> Iterator[None]:
    """Require that the block raises the error with this number, and that its text has these words."""
    with pytest.raises(UserError) as refusal:
        yield
    assert refusal.value.code is code
    has(str(refusal.value), *words)
