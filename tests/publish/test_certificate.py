"""Certificates: what they say, and what becomes of one that somebody has changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from sfnode.cli.leaderboard import in_words
from sfnode.errors import Code, UserError
from sfnode.publish import certificate as certificates
from sfnode.publish.certificate import NO_WORTH, Certificate, check
from sfnode.store.log import UpdateLog
from sfprotocol.control_feed import ControlFeed
from sfprotocol.fields import NAMELESS
from tests.cli.helpers import Run
from tests.protocol.feeds import origin_of
from tests.publish.conftest import EPOCHS
from tests.publish.runs import HOSTILE, manifest_of, write_run
from tests.publish.test_words import check as check_words

RUN = manifest_of()
ANN, STRANGE = (origin_of(f"member {n}").hex() for n in (0, 1))
NAMES = {bytes.fromhex(ANN): "Anneli"}


@pytest.fixture(scope="module")
def feed(folder: Path) -> ControlFeed:
    with UpdateLog.open(folder / "updates.sqlite", RUN.run_id, read_only=True) as log:
        return certificates.control_of(RUN.parameters(), log)


@pytest.fixture
def said(feed: ControlFeed) -> Certificate:
    """What the log says of a member."""
    return certificates.contribution(RUN, feed, feed.stop, bytes.fromhex(ANN), name="Anneli")


@pytest.fixture
def certify(sfnode: Run, folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Have a certificate made; return the file."""

    def run(name: str, key: str = ANN[:8], *options: object) -> Path:
        ended = sfnode("certificate", "make", key, "--out", tmp_path / name, *options, "--data-dir", folder)
        assert ended.status == 0, ended.err
        return tmp_path / name

    return run


# -- commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.svg", "a.json"])
def test_what_is_made_verifies_with_the_log(
    certify: Callable[..., Path], sfnode: Run, folder: Path, name: str
) -> None:
    ended = sfnode("certificate", "check", certify(name), "--data-dir", folder)
    assert (ended.status, ended.err) == (0, "")
    first, second = ended.out.splitlines()
    assert first.startswith(f"Anneli ({ANN}): 15 updates of rounds 0 to {EPOCHS - 1} count in run reviews")
    assert second.endswith("decisions in the log here come to the same")


def test_of_what_nobody_has_measured_the_worth_is_left_out_with_the_reason(said: Certificate) -> None:
    """As in a reward run, always."""
    found = said.model_copy(update={"measured": 0, "worth": 0})
    assert f"Nobody has measured what they were worth ({NO_WORTH})" in found.drawing().decode()
    assert in_words(found).endswith(f", their worth not measured ({NO_WORTH})")


def test_a_drawing_has_plain_words(said: Certificate) -> None:
    for found in (said, said.model_copy(update={"measured": 0, "worth": 0})):
        drawing = found.drawing().decode()
        check_words(" ".join(re.findall(r">([^<{}]+)<", drawing.replace(found.run_name, "the run"))))
    assert ">loss lowered by<" in drawing


def test_a_name_may_be_left_out(certify: Callable[..., Path], sfnode: Run, folder: Path) -> None:
    file = certify("a.json", ANN, "--without-name")
    found = Certificate.parse(file.read_bytes(), "a.json")
    assert (found.name, found.member) == ("", ANN)
    assert sfnode("certificate", "check", file, "--data-dir", folder).status == 0


def test_a_hostile_name_is_drawn_as_text(certify: Callable[..., Path]) -> None:
    drawing = certify("a.svg", STRANGE).read_text()
    assert "<script" not in drawing
    assert HOSTILE.name.replace("<", "&lt;").replace(">", "&gt;") in drawing


@pytest.mark.parametrize(
    ("key", "out", "status", "says"),
    [
        ("0" * 8, "a.json", 1, "no member has a key that begins with 00000000"),
        ("ann", "a.json", 2, "8 to 64 hex digits"),
        (ANN, "a.pdf", 1, "ends in .svg or .json"),
    ],
)
def test_what_cannot_be_certified_is_said(
    sfnode: Run, folder: Path, tmp_path: Path, key: str, out: str, status: int, says: str
) -> None:
    ended = sfnode("certificate", "make", key, "--out", tmp_path / out, "--data-dir", folder)
    assert (ended.status, says in ended.err) == (status, True)
    assert not (tmp_path / out).exists()


def test_a_certificate_needs_the_log_of_its_run(
    certify: Callable[..., Path], sfnode: Run, tmp_path: Path
) -> None:
    file = certify("a.json")
    assert "SF043" in sfnode("certificate", "check", file, "--data-dir", tmp_path / "none").err
    write_run(tmp_path / "other", manifest_of(name="other"), [NAMELESS], updates=1, epochs=1)
    assert "SF013" in sfnode("certificate", "check", file, "--data-dir", tmp_path / "other").err


# -- what it says ----------------------------------------------------------------------------------------


OTHERS: dict[str, Any] = {
    "run_id": "00" * 32, "run_name": "another", "member": STRANGE, "name": "Bob", "updates": 16,
    "measured": 16, "worth": 10**9, "first_epoch": 1, "last_epoch": 1, "seal": 1, "digest": "00" * 32,
    "decisions": 3, "chain": "00" * 32,
}  # fmt: skip


@pytest.mark.parametrize("field", [name for name in Certificate.model_fields if name != "version"])
def test_the_log_contradicts_whatever_is_changed(said: Certificate, feed: ControlFeed, field: str) -> None:
    check(said, RUN, feed, NAMES, "it")
    with pytest.raises(UserError) as error:
        check(said.model_copy(update={field: OTHERS[field]}), RUN, feed, NAMES, "it")
    assert error.value.code in (Code.CERTIFICATE_INVALID, Code.WRONG_RUN)


def test_a_certificate_of_before_holds_as_it_did(said: Certificate, feed: ControlFeed) -> None:
    check(said.model_copy(update={"version": 2}), RUN, feed, NAMES, "it")


def test_a_log_that_lacks_decisions_says_nothing_of_them(said: Certificate, feed: ControlFeed) -> None:
    with pytest.raises(UserError) as error:
        check(said.model_copy(update={"decisions": feed.stop + 1}), RUN, feed, NAMES, "it")
    assert error.value.code is Code.UPDATES_LACKING


def test_a_drawing_shows_what_its_data_say(said: Certificate) -> None:
    drawing = said.drawing()
    assert Certificate.parse(drawing, "it") == said
    with pytest.raises(UserError, match="what is drawn is not what its data say"):
        Certificate.parse(drawing.replace(b">15<", b">1500<"), "it")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[" * 70_000, b'<metadata id="sfnode-certificate">x</metadata>']
)
def test_what_is_no_certificate_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(UserError) as error:
        Certificate.parse(data, "it")
    assert error.value.code is Code.CERTIFICATE_INVALID


# -- pinned: a drawing of this version is compared byte for byte -----------------------------------------

DRAWINGS = {
    2: "e6adf421be257f80af9f3ebfa04704c3499022ad156553f1415a92f489c45b40",
    3: "e1bdd4c33af76b56a66ec69ae0d999dd9baf96bad3ff0c7798b6b04f06c3d0d5",
}


@pytest.mark.parametrize("version", DRAWINGS)
def test_the_bytes_that_are_drawn_never_change(version: Literal[2, 3]) -> None:
    said = Certificate(
        version=version, run_id="11" * 32, run_name="reviews", member="22" * 32,
        name="Anneli", updates=15, measured=12,
        worth=-2_000_001, first_epoch=0, last_epoch=2, seal=2, digest="33" * 32, decisions=17,
        chain="44" * 32,
    )  # fmt: skip
    assert hashlib.sha256(said.drawing()).hexdigest() == DRAWINGS[version]
    assert Certificate.parse(said.to_json(), "it") == said
    assert list(json.loads(said.to_json())) == list(Certificate.model_fields)
