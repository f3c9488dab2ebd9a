"""Tests of file descriptors: waiting for one, and the limit of their number."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from sfnode import descriptors
from sfnode.errors import Code, UserError
from sfnode.store.log import UpdateLog
from tests.refusals import refused


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


def test_a_log_that_finds_no_descriptor_to_read_with_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual[0] if len(pauses) > 1 else left + 1, usual[1]))

    with UpdateLog.open(tmp_path / "log", bytes(32)) as log:
        os.close(left := os.dup(0))  # the lowest that is free
        monkeypatch.setattr(descriptors.time, "sleep", pause)
        resource.setrlimit(resource.RLIMIT_NOFILE, (left, usual[1]))
        try:
            assert list(log.records()) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert len(pauses) == 2, "it waits where none is left, and where too few are"
    assert caplog.messages == ["waiting for descriptors: unable to open database file"]


def test_a_log_that_cannot_be_opened_for_another_reason_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with refused(Code.DATA_DIR_UNUSABLE):
        UpdateLog.open(tmp_path / "log", read_only=True)
