"""Tests of passphrases: from a file, typed at a terminal, and not asked for without a terminal."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest

from sfnode.cli import join
from sfnode.cli.passphrases import chosen, unlocked
from sfnode.cli.progress import Narration
from sfnode.errors import Code, UserError
from sfnode.settings import Settings

SILENT = Narration(terminal=False, plain=False)


def opened(passphrase: bytes | None) -> str:
    """Return "open" for the right passphrase."""
    if passphrase != b"horse":
        raise UserError(Code.WRONG_PASSPHRASE, "it is encrypted", "Give the passphrase.")
    return "open"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("horse\n")
    return file


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that the user types at a terminal, in reverse order."""
    lines: list[str] = []
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: lines.pop())
    _, terminal = os.openpty()
    monkeypatch.setattr(sys, "stdin", os.fdopen(terminal, closefd=False))
    return lines


def test_a_file_comes_before_the_terminal(secret: Path, typed: list[str]) -> None:
    typed += ["never asked for"]
    assert chosen(secret) == b"horse"
    assert unlocked(opened, secret) == "open"
    assert typed == ["never asked for"]


def test_a_key_that_is_open_needs_no_passphrase(typed: list[str]) -> None:
    assert unlocked(lambda passphrase: passphrase, None) is None


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace nodes by ones that only open a key."""

    async def live(_: Settings, narration: Narration, passphrase: bytes | None) -> None:
        opened(passphrase)

    monkeypatch.setattr(join, "_live", live)


def test_a_node_at_a_terminal_asks_and_starts_again(typed: list[str]) -> None:
    told: list[UserError] = []
    typed += ["horse"]
    assert join._run(Settings(), told.append, nullcontext, SILENT) == 0
    typed += ["house"]
    assert join._run(Settings(), told.append, nullcontext, SILENT) == 1  # asked once
    assert [error.code for error in told] == [Code.WRONG_PASSPHRASE]


def test_a_service_is_not_asked_whatever_is_lacking(
    secret: Path, typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed += ["never asked for"]
    told: list[UserError] = []
    assert join._run(Settings(passphrase_file=secret), told.append, nullcontext, SILENT) == 1
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert join._run(Settings(), told.append, nullcontext, SILENT) == 1
    assert [error.code for error in told] == [Code.WRONG_PASSPHRASE] * 2
    assert typed == ["never asked for"]
