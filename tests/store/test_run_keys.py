"""The keys of a run's organiser: private, bound to the run, and refused with the reason."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import OrganisedSection
from sfnode.store import run_keys
from sfnode.store.identity import Identity
from tests.refusals import fails_with

RUN = bytes(range(32))


@pytest.fixture
def keys_dir(tmp_path: Path) -> Path:
    return tmp_path / "owner" / "keys"


def written(keys_dir: Path, passphrase: bytes | None = None) -> Identity:
    key = Identity.generate()
    run_keys.write_key(key, run_keys.organiser_key(RUN, keys_dir), passphrase)
    return key


def refused(keys_dir: Path, organiser: bytes, passphrase: bytes | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        run_keys.load_organiser_key(RUN, [organiser], keys_dir, passphrase)
    return caught.value


def test_a_key_is_kept_where_nobody_else_looks(keys_dir: Path) -> None:
    written(keys_dir)
    assert stat.S_IMODE(keys_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(run_keys.organiser_key(RUN, keys_dir).stat().st_mode) == 0o600
    assert [file.name for file in keys_dir.iterdir()] == [RUN.hex()]
    assert run_keys.recovery_key(RUN, keys_dir).name == f"{RUN.hex()}.recovery"


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_what_is_loaded_signs_as_the_organiser(keys_dir: Path, passphrase: bytes | None) -> None:
    key = written(keys_dir, passphrase)
    loaded = run_keys.load_organiser_key(RUN, [key.public], keys_dir, passphrase)
    Ed25519PublicKey.from_public_bytes(key.public).verify(loaded.sign(b"decision"), b"decision")


def test_a_passphrase_that_is_not_needed_does_no_harm(keys_dir: Path) -> None:
    key = written(keys_dir)
    assert run_keys.load_organiser_key(RUN, [key.public], keys_dir, b"any") == key


def test_an_encrypted_key_is_a_file_that_ordinary_tools_read(keys_dir: Path) -> None:
    written(keys_dir, b"correct horse")
    encoded = run_keys.organiser_key(RUN, keys_dir).read_bytes()
    assert encoded.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert load_pem_private_key(encoded, b"correct horse")


@pytest.mark.parametrize(
    ("passphrase", "says"), [(None, "needs a passphrase"), (b"wrong", "not its passphrase")]
)
def test_without_its_passphrase_a_key_is_refused(keys_dir: Path, passphrase: bytes | None, says: str) -> None:
    refusal = refused(keys_dir, written(keys_dir, b"correct horse").public, passphrase)
    assert refusal.code is Code.WRONG_PASSPHRASE
    assert says in refusal.what


def test_a_key_that_is_not_there_is_missed(keys_dir: Path) -> None:
    assert refused(keys_dir, bytes(32)).code is Code.KEY_NOT_FOUND


def test_the_key_of_another_run_is_refused(keys_dir: Path) -> None:
    other = written(keys_dir)
    refusal = refused(keys_dir, Identity.generate().public)
    assert refusal.code is Code.WRONG_KEY
    assert other.public.hex()[:16] in refusal.what


def test_a_file_that_is_no_key_is_refused(keys_dir: Path) -> None:
    key = written(keys_dir)
    run_keys.organiser_key(RUN, keys_dir).write_bytes(b"lost")
    assert refused(keys_dir, key.public).code is Code.WRONG_KEY


@pytest.mark.parametrize("wide", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_reach_is_refused_and_left_as_it_is(keys_dir: Path, wide: int) -> None:
    key, path = written(keys_dir), run_keys.organiser_key(RUN, keys_dir)
    path.chmod(wide)
    refusal = refused(keys_dir, key.public)
    assert refusal.code is Code.KEY_EXPOSED
    assert shlex.split(refusal.fix.split("`")[1]) == ["chmod", "600", str(path)]
    assert stat.S_IMODE(path.stat().st_mode) == wide


def test_who_holds_the_key_keeps_others_from_signing_until_it_ends(keys_dir: Path) -> None:
    key = written(keys_dir)
    run_keys.organiser_key(RUN, keys_dir).chmod(0o400)  # as a secret is mounted
    with run_keys.held_organiser_key(RUN, [key.public], keys_dir) as held:
        assert held == key
        with pytest.raises(UserError) as caught, run_keys.held_organiser_key(RUN, [key.public], keys_dir):
            pass
    assert caught.value.code is Code.KEY_IN_USE
    with run_keys.held_organiser_key(RUN, [key.public], keys_dir) as again:
        assert again == key


def test_the_keys_of_a_new_run_are_what_its_manifest_says(keys_dir: Path) -> None:
    keys = run_keys.RunKeys.generate()
    files = keys.write(RUN, keys_dir, b"correct horse")
    assert files == (run_keys.organiser_key(RUN, keys_dir), run_keys.recovery_key(RUN, keys_dir))
    said = OrganisedSection(**keys.options(), quota=1)
    assert (
        run_keys.load_organiser_key(RUN, [bytes.fromhex(said.organiser)], keys_dir, b"correct horse")
        == keys.organiser
    )
    deputies = [bytes.fromhex(deputy) for deputy in said.deputies]
    assert run_keys.load_deputy_key(files[1], deputies, b"correct horse") == keys.recovery


def test_a_passphrase_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    for text in ("correct horse", "correct horse\n", "correct horse\r\nbattery"):
        file.write_bytes(text.encode())
        assert run_keys.read_passphrase(file) == b"correct horse"


def test_a_folder_that_cannot_be_made_is_the_users_to_correct(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with fails_with(Code.DATA_DIR_UNUSABLE):
        written(tmp_path / "file")
