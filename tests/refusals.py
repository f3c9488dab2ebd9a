"""Errors that a user is shown: which one a block raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sfnode.errors import Code, UserError


@contextmanager
def fails_with(code: Code) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Assert that the block raises a UserError with this number."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.code is code
