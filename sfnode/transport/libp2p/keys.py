"""The file of the libp2p key, in libp2p's own format: it fixes a node's peer id and nothing else.

RSA because that is what every release of hivemind can read. Knows nothing of the network.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from sfnode.errors import Code, UserError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BITS = 2048
_HEAD = b"\x08\x00\x12"
"""Protocol buffer of libp2p's PrivateKey and PublicKey: field 1 (type) is 0 (RSA), field 2 (data) follows."""
_SHA256 = b"\x12\x20"
"""Prefix of a multihash that is a SHA-256 of 32 bytes."""


def ensure_key(path: Path) -> None:
    """Make the key if it is missing, otherwise check it. Raises UserError DATA_DIR_UNUSABLE or DISK_FULL."""
    try:
        if path.exists():
            _check(path.read_bytes())
        else:
            _write(path, _encode(generate_private_key(public_exponent=65_537, key_size=_BITS)))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise UserError(
                Code.DISK_FULL,
                f"no space left for {path}",
                "Free some space, or choose a folder on another disk with --data-dir.",
            ) from error
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"the network key {path} cannot be used: {error}",
            "Make its folder writable; a damaged key may be deleted, the node then gets a new peer id.",
        ) from error


def peer_id(path: Path) -> str:
    """Return the peer id of the key in this file: as in libp2p, base58 of a hash of the public key."""
    public = _check(path.read_bytes()).public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.sha256(_HEAD + _varint(len(der)) + der).digest()
    return base58.b58encode(_SHA256 + digest).decode()


def _encode(key: RSAPrivateKey) -> bytes:
    der = key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return _HEAD + _varint(len(der)) + der


def _check(encoded: bytes) -> PrivateKeyTypes:
    # DER needs no length from outside: it starts where its own tag (0x30) does, after a varint of 1-3 bytes.
    start = encoded.find(b"\x30\x82", len(_HEAD))
    if not encoded.startswith(_HEAD) or start < 0:
        raise ValueError("it is not a libp2p RSA key")
    return load_der_private_key(encoded[start:], password=None)


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _write(path: Path, content: bytes) -> None:
    """Write the file completely or not at all, readable by its owner only from the first byte."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
