"""Fixtures of the command line, without a configuration of the developer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from sfnode.cli.main import cli, main
from sfnode.defaults import CONFIG
from tests.cli.helpers import Ended


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a new home folder and a new current folder, and unset sfnode's variables."""
    for name in [
        name for name in os.environ if name.startswith(("SFNODE_", "XDG_")) and name != "SFNODE_DEVICE"
    ]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def config(home: Path) -> Callable[[str], Path]:
    """Return a function that writes the default configuration file."""

    def write(text: str) -> Path:
        file = home / CONFIG.relative_to("~")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes standard input a terminal with these lines."""

    def type_in(*lines: str) -> None:
        keyboard, terminal = os.openpty()
        os.write(keyboard, "".join(f"{line}\n" for line in lines).encode())
        monkeypatch.setattr(sys, "stdin", os.fdopen(terminal, closefd=False))

    return type_in


@pytest.fixture
def sfnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Return a function that runs a command line in this process. It cannot run `join`, which ends the
    process."""

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that parses a command line without running it, and returns the parameters."""

    def parse(command: str, *arguments: object) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        name, *inner = command.split()
        one = cli.load(name)
        for word in inner:
            assert isinstance(one, click.Group)
            one = one.get_command(click.Context(one), word)
        monkeypatch.setattr(one, "callback", lambda **given: seen.update(given))
        with pytest.raises(SystemExit) as end:
            main([name, *inner, *(str(argument) for argument in arguments)])
        assert end.value.code == 0
        return seen

    return parse
