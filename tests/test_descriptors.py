"""A process that has no descriptor left waits for one, and may have all that the system allows."""

from __future__ import annotations

import errno
import resource

import pytest

from sfnode import descriptors
from sfnode.errors import Code, UserError


def test_a_process_may_have_as_many_as_the_system_allows() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual[1] - 1, usual[1]))
    try:
        descriptors.allow_most()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (usual[1], usual[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_what_fails_for_lack_of_descriptors_is_done_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "PAUSE", 0.0)
    numbers = iter([errno.EMFILE, errno.ENFILE, 0])

    def work() -> str:
        if number := next(numbers):
            try:
                raise OSError(number, "no descriptor")
            except OSError as error:
                raise UserError(Code.DATA_DIR_UNUSABLE, "cannot be read", "") from error
        return "done"

    assert descriptors.patiently(work) == "done"
    assert len(caplog.records) == 1, "it is said once"


def test_what_fails_for_another_reason_fails() -> None:
    def work() -> None:
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        descriptors.patiently(work)
