"""The keys of a run's organiser and deputy, in the files `<run id>` and `<run id>.recovery` of a folder of
the run's owner. A file `<run id>.restored` marks an organiser's key that came from a backup (`key_backup`).

The key files have the format of `identity`. They are encrypted if the owner has chosen a passphrase. This
module does not decide which signatures count (SPEC O1). A key file that other users can read is refused,
because an organiser's key decides about the whole run: its owner must know of the exposure before the key
signs anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.store.disk_errors import disk_faults, private, sync_folder, write_whole
from sfnode.store.identity import Identity, NotAKeyError, WrongPassphraseError, is_exposed

RECOVERY = ".recovery"
"""Ending of the file name of the deputy's key that `sfnode init` makes."""

RESTORED = ".restored"
"""Ending of the file name that marks an organiser's key from a backup."""


class RunKeys(NamedTuple):
    """The keys of a new organised run. They are not written to files yet."""

    organiser: Identity
    recovery: Identity
    """The recovery key, which is the key of the only deputy. It should be kept offline."""

    @classmethod
    def generate(cls) -> RunKeys:
        """Return newly drawn keys."""
        return cls(Identity.generate(), Identity.generate())

    def options(self) -> dict[str, Any]:
        """Return the manifest's options for these keys, as `manifest.build` and `Organised` take them."""
        return {"organiser": self.organiser.public.hex(), "deputies": (self.recovery.public.hex(),)}

    def write(self, run_id: bytes, keys_dir: Path, passphrase: bytes | None = None) -> tuple[Path, Path]:
        """Write both keys of a run. Return the paths of the files, that of the organiser's key first. Raises
        UserError as `write_key`."""
        files = organiser_key(run_id, keys_dir), recovery_key(run_id, keys_dir)
        for key, path in zip(self, files, strict=True):
            write_key(key, path, passphrase)
        return files


def organiser_key(run_id: bytes, keys_dir: Path) -> Path:
    """Return the path of a run's organiser's key."""
    return keys_dir / run_id.hex()


def recovery_key(run_id: bytes, keys_dir: Path) -> Path:
    """Return the path to which a run's recovery key is first written. Its owner should move the file to
    another place."""
    return keys_dir / f"{run_id.hex()}{RECOVERY}"


def write_key(key: Identity, path: Path, passphrase: bytes | None = None) -> None:
    """Write a key to a file that only this user can read, in a folder that only this user can enter.

    Raises UserError DATA_DIR_UNUSABLE or DISK_FULL.
    """
    with disk_faults(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.with_name(f"{path.name}{RESTORED}").unlink(missing_ok=True)  # the mark of an earlier key
        key.write(path, passphrase)


def is_restored(run_id: bytes, keys_dir: Path) -> bool:
    """Return whether the organiser's key of a run came from a backup. If so, this machine may not know
    everything that the key has signed. So, in a run with stand-ins, it signs nothing in terms that began
    before the key was restored. Raises UserError DATA_DIR_UNUSABLE."""
    path = _mark(run_id, keys_dir)
    with disk_faults(path):
        return path.exists()


def mark_restored(run_id: bytes, keys_dir: Path) -> None:
    """Record that the organiser's key of a run came from a backup. Raises UserError as `write_whole`."""
    write_whole(_mark(run_id, keys_dir), b"", private)


def forget_restored(run_id: bytes, keys_dir: Path) -> None:
    """Remove the mark of a restored key. Call this function once it is known which terms began before the key
    was restored. Raises UserError DATA_DIR_UNUSABLE."""
    path = _mark(run_id, keys_dir)
    with disk_faults(path):
        path.unlink(missing_ok=True)
        sync_folder(keys_dir)


def _mark(run_id: bytes, keys_dir: Path) -> Path:
    return keys_dir / f"{run_id.hex()}{RESTORED}"


def load_organiser_key(
    run_id: bytes, organisers: Collection[bytes], keys_dir: Path, passphrase: bytes | None = None
) -> Identity:
    """Return the key in `keys_dir` that signs the decisions of a run. Its public half must be one of
    `organisers`.

    Raises UserError KEY_NOT_FOUND, KEY_EXPOSED, WRONG_PASSPHRASE (also if the key is encrypted and no
    passphrase is given), WRONG_KEY, and DATA_DIR_UNUSABLE if the file cannot be read.
    """
    path = organiser_key(run_id, keys_dir)
    return _load(path, "the organiser's key of this run", organisers, passphrase)


@contextmanager
def held_organiser_key(
    run_id: bytes, organisers: Collection[bytes], keys_dir: Path, passphrase: bytes | None = None
) -> Iterator[Identity]:
    """Yield the organiser's key, and lock its file during the block, so that no other process signs with the
    same file.

    If two processes sign different decisions, the key's term ends (SPEC O4). The kernel holds the lock, on
    the file itself. So the lock ends with the process in any case, applies to every container that mounts the
    file, and needs no write permission. Copies of the file are not locked. Raises UserError KEY_IN_USE, and
    as `load_organiser_key`.
    """
    key, path = load_organiser_key(run_id, organisers, keys_dir, passphrase), organiser_key(run_id, keys_dir)
    with disk_faults(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(path) from error
        yield key
    finally:
        os.close(descriptor)


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file, without the line ending. Raises UserError BAD_OPTION if the line is
    empty or the file cannot be read."""
    try:
        line = path.read_bytes().splitlines()[:1]
    except OSError as error:
        raise _no_passphrase(path, str(error.strerror)) from error
    if not any(line):
        raise _no_passphrase(path, "its first line is empty")
    return line[0]


def load_deputy_key(path: Path, deputies: Sequence[bytes], passphrase: bytes | None = None) -> Identity:
    """Return the deputy's key in a file. Its public half must be one of `deputies`. Raises UserError as
    `load_organiser_key`."""
    return _load(path, "the key of a deputy of this run", deputies, passphrase)


def _load(path: Path, what: str, holders: Collection[bytes], passphrase: bytes | None) -> Identity:
    """Return the key in a file. Its public half must be one of `holders`. `what` describes the key in error
    messages."""
    with disk_faults(path):
        if not path.exists():
            raise _missing(path, what)
        if is_exposed(path):
            raise exposed(path)
        try:
            key = Identity.read(path, passphrase)
        except WrongPassphraseError as error:
            raise locked(path, passphrase) from error
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


def exposed(path: Path) -> UserError:
    """Return the error for a key file that other users can read."""
    return UserError(
        Code.KEY_EXPOSED,
        f"other users of this machine can read {path}, and whoever has read it can decide what counts",
        f"Run `{command('chmod', '600', path)}`; if somebody may have read it, have the deputies name "
        "another organiser.",
    )


def _in_use(path: Path) -> UserError:
    return UserError(
        Code.KEY_IN_USE,
        f"another node organises with {path}, and two that sign with one key freeze the run",
        "Start this node without --organise, or end the other one first.",
    )


def _no_passphrase(path: Path, reason: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        f"--passphrase-file: cannot read {path}: {reason}",
        "Name a file that this user can read and whose first line is the passphrase.",
    )


def locked(path: Path, passphrase: bytes | None) -> UserError:
    """Return the error for a key file that `passphrase` does not decrypt. If `passphrase` is None, the error
    says that the file needs one."""
    return UserError(
        Code.WRONG_PASSPHRASE,
        f"{path} is encrypted, and " + ("this is not its passphrase" if passphrase else "needs a passphrase"),
        "Give the one that was chosen when it was made: at a terminal, or in a file with --passphrase-file. "
        "Nobody can open it without, or if it is damaged.",
    )


def _wrong(path: Path, what: str, reason: str) -> UserError:
    return UserError(
        Code.WRONG_KEY,
        f"{path} is not {what}: {reason}",
        "Restore the right one from a copy, or name its folder with --keys-dir.",
    )
