"""A context manager for errors that a user sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sfnode.errors import Code, UserError


@contextmanager
def refusing(code: Code, *words: str) -> Iterator[None]:
    """Require that the block raises the error with this number, and that its text has these words."""
    with pytest.raises(UserError) as refusal:
        yield
    assert refusal.value.code is code
    assert not [word for word in words if word not in str(refusal.value)], refusal.value
