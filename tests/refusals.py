"""Errors that a user can cause, as tests expect them: by their numbers and their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sfnode.errors import Code, UserError


@contextmanager
def refused(code: Code, *what: str, fix: str = "") -> Iterator[None]:
    """Expect an error with this number within the block, which says all of this."""
    with pytest.raises(UserError) as caught:
        yield
    assert caught.value.code is code
    assert [one for one in what if one not in caught.value.what] == [], caught.value.what
    assert fix in caught.value.fix


def refusal(action: Callable[..., object], *args: object, **named: object) -> UserError:
    """The error of a call, which says what to do."""
    with pytest.raises(UserError) as caught:
        action(*args, **named)
    assert caught.value.what
    assert caught.value.fix
    return caught.value


@contextmanager
def fails_with(code: Code) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Assert that the block raises a UserError with this number."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.code is code
