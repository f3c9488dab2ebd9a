"""Backups of keys: one encrypted file with the keys of a node and of the runs that its owner organises.

A header has an identifier of the format, a salt, a nonce and the length of the rest of the file. The rest is
encrypted with AES-256-GCM (NIST SP 800-38D), which authenticates the header, too. scrypt (RFC 7914) derives
the encryption key from a passphrase. Decrypted, the rest is a map in MessagePack from places, which are
relative paths, to the content of key files. Places are `node/identity.pem`, `node/libp2p.key` and
`keys/<name>`. A key file with a passphrase of its own stays encrypted with it inside the backup.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sfnode.errors import Code, UserError
from sfnode.store import run_keys
from sfnode.store.data_folder import Layout, open_data_dir
from sfnode.store.disk_errors import disk_faults, private, write_whole
from sfnode.store.identity import Identity, NotAKeyError, WrongPassphraseError, is_exposed

NODE, RUNS, NETWORK = "node", "keys", "node/libp2p.key"

MAX_BACKUP = 1 << 24
"""Maximum size of a backup, in bytes: enough for 40,000 keys."""

MAX_KEY = 4_096
"""Maximum size of a key file, in bytes. An encrypted Ed25519 key has 300 bytes, an RSA key of 4,096 bits has
2,400 bytes."""

_FORM = b"sfnode keys 1\n"
"""First bytes of every backup, which identify the format and its version."""

_HEAD = struct.Struct(f">{len(_FORM)}s16s12sI")
"""Layout of the header: identifier of the format, salt, nonce, and the length of the rest of the file in
bytes."""

_TAG = 16
"""Length, in bytes, of the authentication tag of AES-GCM at the end of a backup."""

_SCRYPT = {"length": 32, "n": 1 << 17, "r": 8, "p": 1}
"""Parameters of scrypt. Each guess of a passphrase takes 128 MiB of memory, as OWASP recommends, and a third
of a second. The format fixes the parameters, so no file can make a reader use more memory."""

_PLACE = re.compile(r"node/(identity\.pem|libp2p\.key)|keys/\w[\w .-]*")
"""Pattern of the places of keys. No path that matches it leads out of its folder."""

_ORGANISER = re.compile(r"keys/([0-9a-f]{64})")


def collected(folder: Path, keys_dir: Path) -> dict[str, bytes]:
    """Return the content of each key file of a data folder's node, and of each key file in `keys_dir`, keyed
    by its place in a backup (such as `keys/<name>`).

    Raises UserError KEY_NOT_FOUND if there is no key, KEY_EXPOSED, DATA_DIR_UNUSABLE.
    """
    with disk_faults(keys_dir):
        names = sorted(os.listdir(keys_dir)) if keys_dir.exists() else []
    places = [f"{NODE}/{Layout(folder).identity.name}", NETWORK, *(f"{RUNS}/{name}" for name in names)]
    paths = {place: _path(place, folder, keys_dir) for place in places if _PLACE.fullmatch(place)}
    files = {place: data for place, path in paths.items() if (data := _key_file(place, path))}
    if not files:
        raise UserError(
            Code.KEY_NOT_FOUND,
            f"there is no key in {folder}, and none in {keys_dir}",
            "Name the node's folder with --data-dir, and that of the runs' keys with --keys-dir.",
        )
    return files


def write(path: Path, files: dict[str, bytes], passphrase: bytes) -> None:
    """Write a backup that only this user can read, completely or not at all. Raises UserError as
    `write_whole`."""
    salt, nonce, content = os.urandom(16), os.urandom(12), msgpack.packb(files)
    head = _HEAD.pack(_FORM, salt, nonce, len(content) + _TAG)
    write_whole(path, head + _cipher(passphrase, salt).encrypt(nonce, content, head), private)


def read(path: Path, passphrase: bytes | None) -> dict[str, bytes]:
    """Return the content of each key file in a backup, keyed by its place (such as `node/identity.pem`).

    Raises UserError BACKUP_UNUSABLE; WRONG_PASSPHRASE if the passphrase is wrong or None.
    """
    head, rest = _halves(path)
    if not passphrase:
        raise run_keys.locked(path, passphrase)
    _, salt, nonce, _ = _HEAD.unpack(head)
    try:
        content = _cipher(passphrase, salt).decrypt(nonce, rest, head)
    except InvalidTag as error:
        raise run_keys.locked(path, passphrase) from error
    return _checked(path, content)


def restore(files: dict[str, bytes], folder: Path, keys_dir: Path) -> list[str]:
    """Write the key files in `files`, which are keyed by place, to their places, and mark organisers' keys as
    restored. Return the places to which a file was written. Places that already have the same key are not
    among them.

    Raises UserError BAD_OPTION, before anything is written, if one of the places has another key,
    DATA_DIR_IN_USE, DATA_DIR_UNUSABLE, DISK_FULL.
    """
    paths = {place: _path(place, folder, keys_dir) for place in files}
    with disk_faults(folder), ExitStack() as held:
        if any(place.startswith(NODE) and not path.exists() for place, path in paths.items()):
            held.enter_context(open_data_dir(folder))
        new = [place for place, path in paths.items() if not _is_there(path, files[place])]
        for place in new:
            _put(place, paths[place], files[place])
    return new


def public(data: bytes) -> str | None:
    """Return the public half, in hex, of the Ed25519 key in `data`, the content of a key file. Return the
    empty string if the key is encrypted, and None if `data` is no Ed25519 key."""
    try:
        return Identity.decoded(data).public.hex()
    except WrongPassphraseError:
        return ""
    except NotAKeyError:
        return None


def _halves(path: Path) -> tuple[bytes, bytes]:
    """Return the header and the rest of a backup file. Raises UserError BACKUP_UNUSABLE."""
    try:
        with path.open("rb") as file:
            head, rest = file.read(_HEAD.size), file.read(MAX_BACKUP)
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    if not head.startswith(_FORM):
        raise _unusable(path, "it does not begin as one of this version")
    if len(head) < _HEAD.size or len(rest) != _HEAD.unpack(head)[-1]:
        raise _unusable(path, "it is not as long as it says, so it was not copied whole")
    return head, rest


def _path(place: str, folder: Path, keys_dir: Path) -> Path:
    kind, _, name = place.partition("/")
    return (folder if kind == NODE else keys_dir) / name


def _key_file(place: str, path: Path) -> bytes:
    """Return the content of a key file; empty if there is no key file. Raises UserError KEY_EXPOSED,
    DATA_DIR_UNUSABLE."""
    with disk_faults(path):
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            data = file.read(MAX_KEY)
        if not _is_key(place, data):
            return b""
        if place.startswith(RUNS) and is_exposed(path):
            raise run_keys.exposed(path)
    return data


def _is_key(place: str, data: bytes) -> bool:
    return place == NETWORK or public(data) is not None


def _is_there(path: Path, data: bytes) -> bool:
    """Return whether the file `path` already has the key in `data`. Raises UserError BAD_OPTION if the file
    has another key."""
    with disk_faults(path):
        if not path.exists():
            return False
        kept = path.read_bytes()
    if kept != data and not (public(kept) and public(kept) == public(data)):
        raise UserError(
            Code.BAD_OPTION,
            f"{path} is there already, and is not the file in the backup",
            "Move it away, or name other folders with --data-dir and --keys-dir. Nothing was restored.",
        )
    return True


def _put(place: str, path: Path, data: bytes) -> None:
    """Write a key file. The mark of a restored key is written before the key, so that a crash leaves no
    unmarked key."""
    with disk_faults(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if run := _ORGANISER.fullmatch(place):
        run_keys.mark_restored(bytes.fromhex(run[1]), path.parent)
    write_whole(path, data, private)


def _cipher(passphrase: bytes, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt, **_SCRYPT).derive(passphrase))


def _checked(path: Path, content: bytes) -> dict[str, bytes]:
    """Return the decoded and checked content of a backup. The check is necessary, because somebody else may
    have made the backup and disclosed its passphrase."""
    with suppress(ValueError):
        files = msgpack.unpackb(content)
        if isinstance(files, dict) and all(_fits(*item) for item in files.items()):
            return files
    raise _unusable(path, "there is something in it that is no key")


def _fits(place: object, data: object) -> bool:
    return (
        isinstance(place, str)
        and bool(_PLACE.fullmatch(place))
        and isinstance(data, bytes)
        and _is_key(place, data)
    )


def _unusable(path: Path, reason: str) -> UserError:
    return UserError(
        Code.BACKUP_UNUSABLE,
        f"{path} is no sound backup of keys: {reason}",
        "Nothing was restored. Copy it again, or take what `sfnode keys backup --out FILE` has written.",
    )
