"""The file with the node's signing key."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sfnode.errors import Code, UserError
from sfnode.store.identity import load_or_create
from tests.refusals import fails_with


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "identity.pem"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_key_file_is_private(path: Path) -> None:
    before = os.umask(0)
    try:
        identity = load_or_create(path)
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert not identity.exposed
    assert os.listdir(path.parent) == [path.name]


def test_an_identity_stays_the_same(path: Path) -> None:
    assert load_or_create(path) == load_or_create(path)


def test_signatures_verify_with_the_public_key(path: Path) -> None:
    identity = load_or_create(path)
    signature = identity.sign(b"data")
    assert (len(identity.public), len(signature)) == (32, 64)
    Ed25519PublicKey.from_public_bytes(identity.public).verify(signature, b"data")


def test_the_private_key_is_not_shown(path: Path) -> None:
    assert "key" not in repr(load_or_create(path)).lower()


@pytest.mark.parametrize("wide", [0o644, 0o640, 0o604, 0o666])
def test_a_key_that_others_could_read_is_made_private_and_reported(path: Path, wide: int) -> None:
    public = load_or_create(path).public
    path.chmod(wide)
    exposed = load_or_create(path)
    assert (exposed.public, exposed.exposed, mode(path)) == (public, True, 0o600)
    assert not load_or_create(path).exposed


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 32, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_that_is_no_key_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with fails_with(Code.DATA_DIR_UNUSABLE):
        load_or_create(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "lock", [serialization.NoEncryption(), serialization.BestAvailableEncryption(b"password")]
)
def test_a_key_of_another_kind_is_refused_with_a_password_or_without(
    path: Path, lock: serialization.KeySerializationEncryption
) -> None:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(generate_private_key(SECP256R1()).private_bytes(*form, lock))
    with pytest.raises(UserError, match="Ed25519"):
        load_or_create(path)
