"""Passphrases of keys: from a file or typed at a terminal; never on the command line, which others see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from sfnode.cli.options import F, option
from sfnode.cli.output import ask
from sfnode.errors import Code, UserError

T = TypeVar("T")


def passphrase_file_option(function: F, key: str = "") -> F:
    """Add --passphrase-file."""
    return option(
        "--passphrase-file",
        key=key,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Take the passphrase of keys from the first line of FILE.  [default: ask for it]",
    )(function)


def chosen(file: Path | None, of: str = "the keys") -> bytes:
    """Return the passphrase of what is new. Raises UserError BAD_OPTION for a file without one."""
    return _typed(f"Passphrase of {of}", confirm=True) if file is None else _read(file)


def unlocked(load: Callable[[bytes | None], T], file: Path | None) -> T:
    """Return what `load` returns, with the passphrase if it cannot do without (WRONG_PASSPHRASE)."""
    try:
        return load(None)
    except UserError as error:
        if error.code is not Code.WRONG_PASSPHRASE:
            raise
    return load(asked() if file is None else _read(file))


def asked() -> bytes:
    """Return the passphrase that the user types for a key that exists."""
    return _typed("Passphrase of the key", confirm=False)


def _typed(prompt: str, *, confirm: bool) -> bytes:
    return ask(prompt, hide_input=True, confirmation_prompt=confirm, err=True).encode()


def _read(file: Path) -> bytes:
    from sfnode.store.run_keys import read_passphrase

    return read_passphrase(file)
