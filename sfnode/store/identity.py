"""The node's identity: an Ed25519 key pair in a file that only its owner can read.

This module signs bytes and does not know feeds, runs or libp2p (which has its own key). `run_keys` keeps
organisers' keys in files of the same form.

The file is PKCS #8 in PEM, so that ordinary tools can read and write it. If other users could read a node's
key file, the file is made private again and `Identity.exposed` is set. The node continues, but its owner
should know that somebody else may be able to sign as this node.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import disk_faults, private, write_whole

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PRIVATE = stat.S_IRUSR | stat.S_IWUSR


@dataclass(frozen=True, slots=True)
class Identity:
    """The key pair of a node or of an organiser. `repr` shows only the public key."""

    public: bytes
    """Ed25519 public key, 32 bytes: the origin of the node's feeds."""
    exposed: bool
    """Whether other users could read the key file before it was made private again."""
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls, random: Random | None = None) -> Identity:
        """Return a new key pair, drawn by `random` or by the operating system. It is not written to a
        file."""
        return cls._of(Ed25519PrivateKey.from_private_bytes((random or SystemRandom()).randbytes(32)))

    @classmethod
    def _of(cls, key: Ed25519PrivateKey, exposed: bool = False) -> Identity:
        return cls(key.public_key().public_bytes_raw(), exposed, key)

    def derived(self, purpose: bytes) -> Identity:
        """Return this identity's key pair for one purpose. Others cannot link the derived key pair to this
        identity. It is not written to a file."""
        secret = hashlib.blake2b(
            self._key.private_bytes_raw() + purpose, digest_size=32, person=b"sfnode-derived"
        )
        return self._of(Ed25519PrivateKey.from_private_bytes(secret.digest()))

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of `data`."""
        return self._key.sign(data)

    def write(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write the key file completely or not at all, even if the power fails. Half a key would be worse
        than no key. Raises UserError DISK_FULL, DATA_DIR_UNUSABLE."""
        encoded = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption(),
        )
        write_whole(path, encoded, private)

    @classmethod
    def read(cls, path: Path, passphrase: bytes | None = None, *, exposed: bool = False) -> Identity:
        """Return the key pair in a file. Raises OSError, and the errors of `decoded`."""
        return cls.decoded(path.read_bytes(), passphrase, exposed=exposed)

    @classmethod
    def decoded(cls, encoded: bytes, passphrase: bytes | None = None, *, exposed: bool = False) -> Identity:
        """Return the key pair in the bytes of a key file. Raises NotAKeyError and WrongPassphraseError."""
        try:
            key = serialization.load_pem_private_key(encoded, passphrase if _is_encrypted(encoded) else None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise (WrongPassphraseError if _is_encrypted(encoded) else NotAKeyError) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise NotAKeyError
        return cls._of(key, exposed)


class NotAKeyError(Exception):
    """Error for a file that does not contain an Ed25519 private key in PEM form."""


class WrongPassphraseError(Exception):
    """Error for a key that is encrypted with another passphrase."""


def load_or_create(path: Path, random: Random | None = None) -> Identity:
    """Return the identity in `path`. If there is no such file, draw an identity as `generate` does and write
    it to `path` with mode 0600.

    The caller holds the data folder's lock, so no other process creates the file at the same time. Raises
    UserError DATA_DIR_UNUSABLE if the file is no Ed25519 key or cannot be read, DISK_FULL.
    """
    with disk_faults(path):
        if not path.exists():
            Identity.generate(random).write(path)
        exposed = _make_private(path)
        try:
            return Identity.read(path, exposed=exposed)
        except (NotAKeyError, WrongPassphraseError) as error:
            raise _malformed(path) from error


def is_exposed(path: Path) -> bool:
    """Return whether other users of the machine can read the file. Raises OSError."""
    return bool(path.stat().st_mode & _OTHERS)


def _make_private(path: Path) -> bool:
    """Make the file readable by its owner only; return whether others could read it before."""
    exposed = is_exposed(path)
    if exposed:
        path.chmod(_PRIVATE)
    return exposed


def _is_encrypted(encoded: bytes) -> bool:
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in encoded


def _malformed(path: Path) -> UserError:
    return UserError(
        Code.DATA_DIR_UNUSABLE,
        f"{path} does not hold an Ed25519 private key in PEM form",
        "Restore it from a copy, or move it away: the node then goes on as a new origin.",
    )
