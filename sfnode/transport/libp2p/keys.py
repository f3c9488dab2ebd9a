"""The libp2p key: its file in libp2p's own format, its peer id, and its signatures.

It is not the key of the node's origin. It is an RSA key, which every release of hivemind can read. This
module knows nothing of the network.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import disk_faults, private, write_whole

_BITS, _MAX_BITS, _EXPONENT = 2048, 4096, 65_537
_HEAD = b"\x08\x00\x12"
"""First bytes of libp2p's protocol buffers PrivateKey and PublicKey: field 1 (type) is 0 (RSA), and field 2
(data) begins."""
_SHA256 = b"\x12\x20"
"""Prefix of a multihash that is a SHA-256 of 32 bytes."""


def ensure_key(path: Path) -> None:
    """Make the key if it is missing, otherwise check it. Raises UserError DATA_DIR_UNUSABLE or DISK_FULL."""
    with disk_faults(path):
        if not path.exists():
            key = generate_private_key(public_exponent=_EXPONENT, key_size=_BITS)
            write_whole(path, _encode(key), private)
            return
        encoded = path.read_bytes()
    try:
        _check(encoded)
    except ValueError as error:
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"the network key {path} cannot be used: {error}",
            "A damaged key may be deleted, the node then gets a new peer id.",
        ) from error


def peer_id(path: Path) -> str:
    """Return the peer id of the key in this file: base58 of a hash of the public key, as in libp2p."""
    return peer_of_public(PeerKey(path).public)


def peer_of_public(public: bytes) -> str:
    """Return the peer id of a public key in DER."""
    digest = hashlib.sha256(_HEAD + _varint(len(public)) + public).digest()
    return base58.b58encode(_SHA256 + digest).decode()


class PeerKey:
    """The private key in a file that `ensure_key` has made or checked."""

    def __init__(self, path: Path) -> None:
        self._key = _check(path.read_bytes())
        self.public = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        """The public key in DER, of which the peer id is a hash."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature (RSASSA-PKCS1-v1_5 with SHA-256, as everywhere in libp2p)."""
        return self._key.sign(message, PKCS1v15(), SHA256())


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether the owner of this public key (DER) signed `message`.

    Keys of unusual sizes are refused. So a check with a stranger's key takes at most 0.1 ms.
    """
    try:
        key = load_der_public_key(public)
        if not isinstance(key, RSAPublicKey) or key.public_numbers().e != _EXPONENT:
            return False
        if not _BITS <= key.key_size <= _MAX_BITS:
            return False
        key.verify(signature, message, PKCS1v15(), SHA256())
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def _encode(key: RSAPrivateKey) -> bytes:
    der = key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return _HEAD + _varint(len(der)) + der


def _check(encoded: bytes) -> RSAPrivateKey:
    # DER contains its own length. It starts at its own tag (0x30), after a varint of 1-3 bytes.
    start = encoded.find(b"\x30\x82", len(_HEAD))
    if not encoded.startswith(_HEAD) or start < 0:
        raise ValueError("it is not a libp2p RSA key")
    key = load_der_private_key(encoded[start:], password=None)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("it is not an RSA key")
    return key


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
