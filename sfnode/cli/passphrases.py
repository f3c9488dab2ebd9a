"""Passphrases of keys, from a file or typed at a terminal; never on the command line, which others see.

`sfnode keys backup` and `restore` keep the keys of a node and of its owner's runs in one encrypted file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from sfnode.cli.options import F, data_dir_option, option, out_option, require_new_file
from sfnode.cli.output import ask, echo
from sfnode.defaults import KEYS_DIR, located
from sfnode.errors import Code, UserError

T = TypeVar("T")

keys_dir_option = option(
    "--keys-dir",
    type=click.Path(path_type=Path),
    default=KEYS_DIR,
    callback=lambda _context, _parameter, value: located(value),
    help="Where the keys of organised runs are kept.",
)


def passphrase_file_option(function: F, key: str = "") -> F:
    """Add --passphrase-file."""
    return option(
        "--passphrase-file",
        key=key,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Take the passphrase of keys from the first line of FILE.  [default: ask for it]",
    )(function)


def chosen(file: Path | None, of: str = "the keys") -> bytes:
    """Return a new passphrase from `file` or, without a file, one that the user types twice. Raises UserError
    BAD_OPTION if the file has no passphrase."""
    return _typed(f"Passphrase of {of}", confirm=True) if file is None else _read(file)


def unlocked(load: Callable[[bytes | None], T], file: Path | None) -> T:
    """Return the result of `load`. If a passphrase is needed (WRONG_PASSPHRASE), take it from `file` or ask
    for it."""
    try:
        return load(None)
    except UserError as error:
        if error.code is not Code.WRONG_PASSPHRASE:
            raise
    return load(asked() if file is None else _read(file))


def asked() -> bytes:
    """Return the passphrase that the user types for an existing key."""
    return _typed("Passphrase of the key", confirm=False)


def _typed(prompt: str, *, confirm: bool) -> bytes:
    return ask(prompt, hide_input=True, confirmation_prompt=confirm, err=True).encode()


def _read(file: Path) -> bytes:
    from sfnode.store.run_keys import read_passphrase

    return read_passphrase(file)


OF_NODE = {"identity.pem": "the node's key", "libp2p.key": "the node's name in the network"}


@click.command
@out_option("FILE", "Where to write the backup.")
@keys_dir_option
@passphrase_file_option
@data_dir_option
def backup(out: Path, keys_dir: Path, passphrase_file: Path | None, data_dir: Path) -> None:
    """Write the keys of a folder's node, and of the runs that you organise, to one encrypted file.

    Nobody can open it without its passphrase. Keys with their own passphrase keep it, too.
    """
    from sfnode.store import key_backup

    require_new_file(out)
    files = key_backup.collected(data_dir, keys_dir)
    key_backup.write(out, files, chosen(passphrase_file, "the backup"))
    for place, data in files.items():
        echo(f"in it: {_said(place, data)}")
    echo(f"wrote {out}: keep it elsewhere, and its passphrase somewhere else")


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@keys_dir_option
@passphrase_file_option
@data_dir_option
def restore(file: Path, keys_dir: Path, passphrase_file: Path | None, data_dir: Path) -> None:
    """Restore the keys of a backup to their places. Existing keys are not replaced.

    Updates that were signed after the backup may be unknown here. So the node begins a new feed, as the same
    member. The organiser's later decisions may be unknown, too. With stand-ins, the organiser's key then
    signs nothing in a term that had begun. Without stand-ins, it signs once other nodes reported that they
    have no more decisions.
    """
    from sfnode.store import key_backup

    files = unlocked(lambda passphrase: key_backup.read(file, passphrase), passphrase_file)
    new = key_backup.restore(files, data_dir, keys_dir)
    for place, data in files.items():
        echo(f"{'restored' if place in new else 'was there already'}: {_said(place, data)}")


def _said(place: str, data: bytes) -> str:
    """Describe a key of a backup, with the first digits of its public key."""
    from sfnode.store.key_backup import public

    name = place.partition("/")[2]
    run, _, rest = name.partition(".")
    whose = {"": f"the organiser's key of run {run[:16]}", "recovery": f"the recovery key of run {run[:16]}"}
    said = OF_NODE.get(name) or (whose.get(rest) if len(run) == 64 else None) or f"the key {name}"
    key = public(data)
    return said if key is None else f"{said}, {key[:16] or 'encrypted'}"
