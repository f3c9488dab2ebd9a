"""The keys of those who organise a run, in a folder of their owner's: `<run id>` and `<run id>.recovery`.

Files as of `identity`, encrypted if their owner has chosen a passphrase. What the keys sign, and whose
signature counts, others know (SPEC O1). A key file that others can read is refused: unlike a node's key it
speaks for the whole run, and its owner must know before it signs anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import disk_faults
from sfnode.store.identity import Identity, NotAKeyError, WrongPassphraseError, is_exposed

RECOVERY = ".recovery"
"""Ends the name of the file with the key of the deputy that `sfnode init` makes."""


def organiser_key(run_id: bytes, keys_dir: Path) -> Path:
    """Return where the organiser's key of a run is kept."""
    return keys_dir / run_id.hex()


def recovery_key(run_id: bytes, keys_dir: Path) -> Path:
    """Return where the recovery key of a run is kept until its owner takes it away."""
    return keys_dir / f"{run_id.hex()}{RECOVERY}"


def write_key(key: Identity, path: Path, passphrase: bytes | None = None) -> None:
    """Write a key, readable by its owner only, into a folder that only the owner can enter.

    Raises UserError DATA_DIR_UNUSABLE or DISK_FULL.
    """
    with disk_faults(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key.write(path, passphrase)


def load_organiser_key(
    run_id: bytes, organiser: bytes, keys_dir: Path, passphrase: bytes | None = None
) -> Identity:
    """Return the key with which `organiser` (the public half) signs the decisions of a run.

    Raises UserError KEY_NOT_FOUND, KEY_EXPOSED, WRONG_PASSPHRASE (also if there is none and the key needs
    one), WRONG_KEY, and DATA_DIR_UNUSABLE if the file cannot be read.
    """
    return _load(organiser_key(run_id, keys_dir), "the organiser's key of this run", [organiser], passphrase)


def load_deputy_key(path: Path, deputies: Sequence[bytes], passphrase: bytes | None = None) -> Identity:
    """Return the key of one of the deputies (public halves). Raises UserError as `load_organiser_key`."""
    return _load(path, "the key of a deputy of this run", deputies, passphrase)


def _load(path: Path, what: str, holders: Sequence[bytes], passphrase: bytes | None) -> Identity:
    """Return the key in a file, which is to be `what`: one of those with these public halves."""
    with disk_faults(path):
        if not path.exists():
            raise _missing(path, what)
        if is_exposed(path):
            raise _exposed(path)
        try:
            key = Identity.read(path, passphrase)
        except WrongPassphraseError as error:
            raise _locked(path, passphrase) from error
        except NotAKeyError as error:
            raise _wrong(path, what, "it does not hold an Ed25519 private key in PEM form") from error
    if key.public not in holders:
        raise _wrong(path, what, f"it is {key.public.hex()[:16]}, and another one is wanted")
    return key


def _missing(path: Path, what: str) -> UserError:
    return UserError(
        Code.KEY_NOT_FOUND,
        f"{what} is not there: {path} does not exist",
        "Name the folder that `sfnode init` wrote it to with --keys-dir, or restore it from a copy.",
    )


def _exposed(path: Path) -> UserError:
    return UserError(
        Code.KEY_EXPOSED,
        f"other users of this machine can read {path}, and whoever has read it can decide what counts",
        f"Run `chmod 600 {path}`; if somebody may have read it, have the deputies name another organiser.",
    )


def _locked(path: Path, passphrase: bytes | None) -> UserError:
    return UserError(
        Code.WRONG_PASSPHRASE,
        f"{path} is encrypted, and " + ("this is not its passphrase" if passphrase else "needs a passphrase"),
        "Give the one that was chosen when the run was made; nobody can open the key without it.",
    )


def _wrong(path: Path, what: str, reason: str) -> UserError:
    return UserError(
        Code.WRONG_KEY,
        f"{path} is not {what}: {reason}",
        "Restore the right one from a copy, or name its folder with --keys-dir.",
    )
